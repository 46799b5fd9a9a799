"""For people who bring their own loop: durable sessions, and tools that never repeat blindly."""

from holdfast.compat.loops.checkpointer import Checkpointer, check_pending_tool_calls
from holdfast.compat.loops.registry import ToolRegistry
from holdfast.compat.loops.serde import (
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
