"""Durable agents: their runs, tools, loop and workers, and the face of a session checkpointer."""
