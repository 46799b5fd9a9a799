"""A value to tokens. What `memory` knows is not serialized again."""

from itertools import islice
from math import isfinite
from typing import Any, Final, NamedTuple, cast

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Send

from holdfast import codec
from holdfast.integrations.langgraph.values import tokens
from holdfast.integrations.langgraph.values.forms import DeltaSnapshot
from holdfast.integrations.langgraph.values.memory import (
    ChannelMemory,
    KnownObject,
    Memory,
    state_of,
)
from holdfast.integrations.langgraph.values.messages import MESSAGES
from holdfast.integrations.langgraph.values.serde import MSGPACK, StrictSerializer

_INT_RANGE: Final = range(-(2**63), 2**64)
_NUMBERS: Final = frozenset((int, float, bool, type(None)))
_KEYS: Final = frozenset((str,))


class _OpeningTokens(NamedTuple):
    token: list[Any]
    children: list[Any]
    # Split even if no child is worth a separate token.
    large: bool = False


class Flattener:
    """One value on its way to tokens; `row` gathers what is to be remembered of it."""

    def __init__(self, serde: SerializerProtocol, memory: Memory) -> None:
        self._serde = serde
        # Texts and keys are left readable only where the serializer would leave them so.
        self._plain = serde if type(serde) is StrictSerializer else None
        self._memory = memory
        self.row = ChannelMemory()

    def items(self, items: list[Any], last: ChannelMemory) -> list[msgspec.Raw]:
        """The tokens of a channel's list; `last` is what the channel held before."""
        size = last.unchanged(items)
        last.cut(size)
        row = self.row = last
        flat = list(row.tokens)
        is_run = True
        for item in islice(items, size, None):
            known, own = self._item(item)
            is_run = is_run and known is not None and type(item) in MESSAGES
            if known is not None:
                row.add(known) if is_run else row.others.append(known)
            flat += own
        return flat

    def tokens(self, value: Any) -> list[msgspec.Raw]:
        """The tokens of any value."""
        return self._split(value, 0) or [self._leaf(value)]

    def _item(self, item: object) -> tuple[KnownObject | None, list[msgspec.Raw]]:
        kind = type(item)
        is_message = kind in MESSAGES
        if not is_message and kind is not dict:
            return None, self.tokens(item)
        known = self._memory.find(item)
        if known is not None:
            return known, known.tokens
        state = state_of(item)
        own = self._message(cast(BaseMessage, item)) if is_message else self.tokens(item)
        return self._memory.learn(item, state, own), own

    def _split(self, value: Any, depth: int) -> list[msgspec.Raw] | None:
        """Return the tokens of a value with parts worth separate tokens; None for anything else."""
        if self._plain is None:
            return None
        if type(value) is str:
            return [_encoded(value)] if len(value) >= tokens.LONG_TEXT else None
        if isinstance(value, BaseMessage):
            return self._nested_message(value)
        opening = _opening(value) if depth < tokens.MAX_DEPTH else None
        if opening is None:
            return None
        parts = [self._split(child, depth + 1) for child in opening.children]
        if not opening.large and not any(parts):
            return None
        flat = [_encoded(opening.token)]
        for child, part in zip(opening.children, parts, strict=True):
            flat += part or [self._leaf(child)]
        return flat

    def _nested_message(self, message: BaseMessage) -> list[msgspec.Raw]:
        if type(message) not in MESSAGES:
            return [self._atom(message)]
        known, own = self._item(message)
        if known is not None:
            self.row.others.append(known)
        return own

    def _message(self, message: BaseMessage) -> list[msgspec.Raw]:
        text: object = message.content
        if self._plain is None or type(text) is not str or len(text) < tokens.LONG_TEXT:
            return [self._atom(message)]
        shell = self._plain.pack_shell(message)
        return [_encoded([tokens.SHELL, shell]), _encoded(text)]

    def _leaf(self, value: Any) -> msgspec.Raw:
        if self._plain is not None and _is_native(value):
            return _encoded(value)
        return self._atom(value)

    def _atom(self, value: Any) -> msgspec.Raw:
        kind, data = self._serde.dumps_typed(value)
        if self._plain is not None and kind == MSGPACK:
            return _encoded(data)
        return _encoded([tokens.ATOM, kind, bytes(data)])


def _encoded(token: object) -> msgspec.Raw:
    return msgspec.Raw(codec.encode(token))


def _is_native(value: object) -> bool:
    kind = type(value)
    if kind is int:
        return value in _INT_RANGE
    if kind is float:
        return isfinite(cast(float, value))
    return kind is str or kind is bool or value is None


def _opening(value: object) -> _OpeningTokens | None:
    """How a container begins; None for what is not opened."""
    kind = type(value)
    if kind is list or kind is tuple:
        items = list(cast("list[Any]", value))
        if _NUMBERS.issuperset(map(type, items)):
            return None
        return _OpeningTokens([tokens.ITEMS, len(items)], items)
    if kind is dict:
        entries = cast("dict[Any, Any]", value)
        if not entries or not _KEYS.issuperset(map(type, entries)):
            return None
        large = len(entries) >= tokens.LARGE_DICT
        return _OpeningTokens([tokens.ENTRIES, list(entries)], list(entries.values()), large)
    if (
        isinstance(value, Send)
        and kind is Send
        and value.timeout is None
        and type(value.node) is str
    ):
        return _OpeningTokens([tokens.SEND, value.node], [value.arg])
    if isinstance(value, DeltaSnapshot):
        return _OpeningTokens([tokens.SNAPSHOT], [value.value])
    return None
