"""How an agent's code is left: suspended, cancelled, broken; and code that blocks, in threads."""
