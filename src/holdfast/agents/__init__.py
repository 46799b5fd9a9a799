"""Durable agents: their runs, tools, loop and workers."""
