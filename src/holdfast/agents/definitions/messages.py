"""A conversation as data: messages, and the blocks they are made of.

These are for agents that do not bring their own types; a log holds any type that `msgspec` can
convert. A kind of block that is not known is an error, never passed over. The lists and dicts of a
message refuse to be changed, so that a long transcript need not be compared at each checkpoint.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, Self, cast

import msgspec

from holdfast import ids
from holdfast.agents.conversion.mutability import read_only
from holdfast.clock import SystemClock, to_datetime
from holdfast.telemetry import log

_ALIASES: Final = {
    "input_tokens": ("input_tokens", "prompt_tokens", "request_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "response_tokens"),
    "usd": ("usd", "cost_usd", "total_cost_usd"),
}
Role = Literal["system", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag_field="kind", tag="text"):
    """What somebody says."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag_field="kind", tag="reasoning"):
    """What a model thought; `metadata` is what its provider wants back, as it was."""

    text: str
    metadata: dict[str, Any] = {}
    holdfast_is_immutable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", read_only(self.metadata))


class ToolCall(msgspec.Struct, frozen=True, tag_field="kind", tag="tool_call"):
    """A call that a model asks for."""

    id: str
    name: str
    args: dict[str, Any] | str = {}
    holdfast_is_immutable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "args", read_only(self.args))


class ToolResult(msgspec.Struct, frozen=True, tag_field="kind", tag="tool_result"):
    """What became of a call."""

    call_id: str
    content: str
    is_error: bool = False


Block = Text | Reasoning | ToolCall | ToolResult


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            usd=self.usd + other.usd,
        )


WITHOUT_USAGE: Final = frozenset({str, bytes, int, float, bool, type(None)})
"""Types of replies that cannot report what they cost."""


def usage_of(reply: object) -> Usage | None:
    """Return the usage that a reply reports, if any, as an object or dict with the usual names."""
    used = _field(reply, ("usage",))
    if used is None or isinstance(used, Usage):
        return used
    fields = {name: _field(used, aliases) for name, aliases in _ALIASES.items()}
    if all(value is None for value in fields.values()):
        log.warning("a reply's usage has none of the usual names, and was not counted: %r", used)
        return None
    try:
        return Usage(
            input_tokens=int(fields["input_tokens"] or 0),
            output_tokens=int(fields["output_tokens"] or 0),
            usd=float(fields["usd"] or 0.0),
        )
    except (TypeError, ValueError, OverflowError) as error:
        log.warning("a reply's usage was not counted: %s", error)
        return None


def _field(value: object, aliases: Sequence[str]) -> Any:
    for name in aliases:
        if isinstance(value, Mapping):
            found: Any = cast("Mapping[str, Any]", value).get(name)
        else:
            found = getattr(value, name, None)
        if found is not None:
            return found
    return None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message: who says it, when, and the blocks it is made of. All of it is read-only."""

    role: Role
    blocks: list[Block]
    id: str = msgspec.field(default_factory=lambda: str(ids.uuid7()))
    created_at: datetime = msgspec.field(default_factory=lambda: to_datetime(SystemClock().now()))
    usage: Usage | None = None
    holdfast_is_immutable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "blocks", read_only(self.blocks))

    @classmethod
    def system(cls, text: str) -> Self:
        return cls(role="system", blocks=[Text(text)])

    @classmethod
    def user(cls, text: str) -> Self:
        return cls(role="user", blocks=[Text(text)])

    @classmethod
    def assistant(
        cls, text: str = "", tool_calls: Sequence[ToolCall] = (), *, usage: Usage | None = None
    ) -> Self:
        said = [Text(text)] if text else []
        return cls(role="assistant", blocks=[*said, *tool_calls], usage=usage)

    @classmethod
    def tool(cls, *results: ToolResult) -> Self:
        return cls(role="tool", blocks=list(results))

    @property
    def text(self) -> str:
        """All that is said, without reasoning, calls and results."""
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def results(self) -> list[ToolResult]:
        return [block for block in self.blocks if isinstance(block, ToolResult)]

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]
