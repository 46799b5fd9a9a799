"""Transcripts and plans as plain data and back: what `Checkpointer` saves and loads.

What comes back has the types that went in, nested ones too. A kind of block that nobody knows is an
error, never passed over: a message that lost a part would be another message.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.messages import Message
from holdfast.errors import MisuseError

T = TypeVar("T")

BLOCK_KINDS: Final = ("text", "reasoning", "tool_call", "tool_result")


class UnknownBlock(MisuseError, ValueError):
    """A message has a block of a kind that is not known here."""


def serialize_transcript(transcript: Iterable[Message]) -> list[dict[str, Any]]:
    """Messages as dicts: id, role, created_at in ISO format, blocks with their `kind`."""
    return [_serialize_message(message) for message in transcript]


def deserialize_transcript(data: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages again; raises UnknownBlock, which is a ValueError, for another kind of block."""
    return [_deserialize_message(message, at) for at, message in enumerate(data)]


def serialize_plan(plan: object | None) -> dict[str, Any] | None:
    """A plan, a dataclass, struct or model of any depth, as a dict; None stays None."""
    return (
        None if plan is None else cast("dict[str, Any]", type_conversion.plain(plan, what="plan"))
    )


def deserialize_plan(data: Mapping[str, Any] | None, plan_type: type[T]) -> T | None:
    """The plan again as a `plan_type`, whatever is nested in it as its own type too."""
    return None if data is None else type_conversion.convert(data, plan_type, what="the plan")


def _serialize_message(message: Message) -> dict[str, Any]:
    plain = type_conversion.plain(message, what="message")
    plain["created_at"] = message.created_at.isoformat()
    if message.usage is None:
        del plain["usage"]
    return plain


def _deserialize_message(data: Mapping[str, Any], at: int) -> Message:
    for block in data.get("blocks", ()):
        kind = block.get("kind")
        if kind not in BLOCK_KINDS:
            raise UnknownBlock(
                f"unknown block kind: {kind!r} in message {at}; known are {', '.join(BLOCK_KINDS)}"
            )
    return type_conversion.convert(data, Message, what=f"message {at}")
