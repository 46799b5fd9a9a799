"""`holdfast runs`."""

from holdfast.cli.runs.commands import command

__all__ = ["command"]
