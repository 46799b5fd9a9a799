"""The fixture server for the official MCP conformance kit, and the report of what it says."""
