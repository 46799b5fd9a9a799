"""`holdfast checkpoints`."""

from holdfast.cli.checkpoints.commands import command

__all__ = ["command"]
