"""Durable agents: their runs, tools, loop and workers; and a checkpointer for other loops."""

from holdfast.agents.checkpointer import Checkpointer, check_pending_tool_calls
from holdfast.agents.registry import ToolRegistry
from holdfast.agents.serde import (
    deserialize_plan,
    deserialize_transcript,
    serialize_plan,
    serialize_transcript,
)

__all__ = [
    "Checkpointer",
    "ToolRegistry",
    "check_pending_tool_calls",
    "deserialize_plan",
    "deserialize_transcript",
    "serialize_plan",
    "serialize_transcript",
]
