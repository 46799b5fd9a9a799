"""What an author defines: agents, tools, messages, policies."""
