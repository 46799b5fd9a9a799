"""MCP servers of others: connections to them, and their tools as tools of Holdfast."""
