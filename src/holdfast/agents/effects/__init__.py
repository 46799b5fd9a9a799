"""Calls with consequences: what follows from what is known of one. Pure, with no I/O."""
