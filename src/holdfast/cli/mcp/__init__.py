"""`holdfast mcp`."""

from holdfast.cli.mcp.commands import command

__all__ = ["command"]
