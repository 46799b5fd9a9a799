"""`holdfast workflows`."""

from holdfast.cli.workflows.commands import command

__all__ = ["command"]
