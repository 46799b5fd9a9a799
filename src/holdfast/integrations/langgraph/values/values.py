"""Values of channels as flat lists of tokens, so that nothing is stored twice.

Each token is stored once per thread. Long texts, messages and entries of large dicts are separate
tokens: a list that grew by a message has the tokens it had, and those of the message.

With a serializer that is not ours, an encrypting one say, nothing is left readable: each item of a
list is one token, any other value is one token.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import CheckpointCorrupted
from holdfast.integrations.langgraph.values.assembly import Assembler, SeenValue
from holdfast.integrations.langgraph.values.flattener import Flattener
from holdfast.integrations.langgraph.values.memory import ChannelMemory, Memory, state_of
from holdfast.integrations.langgraph.values.messages import MESSAGES

LIST: Final = "list"
VALUE: Final = "value"

Tokens = Sequence[msgspec.Raw | bytes]


class Flat(NamedTuple):
    """A value as tokens. `kind`: "list" has the tokens of its items and no more, or "value"."""

    kind: str
    tokens: list[msgspec.Raw]


class _BuiltValue(NamedTuple):
    """A list that was made of tokens, and where each item's tokens end."""

    tokens: list[msgspec.Raw | bytes]
    ends: list[int]
    items: list[Any]


class Pool:
    """What the results of one listing share: each run of tokens is made into objects once."""

    def __init__(self) -> None:
        self.made: dict[bytes, Any] = {}
        self.lists: dict[str, _BuiltValue] = {}


class Values:
    """Flattens and assembles the values of one thread, and remembers what it has seen."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._memory = Memory()
        self._lock = threading.Lock()

    def flatten(self, value: object, *, channel: str = "") -> Flat:
        """Return the tokens of `value`: those it had before, for every object that is unchanged.

        What was in a `channel` last is remembered: give each channel a name, and writes another.
        Raises TypeNotAllowed or UnsupportedValue for what could not be read back.
        """
        with self._lock:
            flattening = Flattener(self._serde, self._memory)
            if type(value) is list:
                last = self._memory.row(channel)
                flat = Flat(LIST, flattening.items(cast("list[Any]", value), last))
            else:
                flat = Flat(VALUE, flattening.tokens(value))
            self._memory.keep(channel, flattening.row)
        return flat

    def assemble(
        self, kind: str, tokens: Tokens, *, channel: str = "", pool: Pool | None = None
    ) -> Any:
        """The value of these tokens: fresh objects, which the next `flatten` knows.

        The results of all calls with the same `pool` share their objects, and are not remembered.
        Raises CheckpointCorrupted for tokens that are no value.
        """
        if kind not in (LIST, VALUE):
            raise CheckpointCorrupted(f"a stored value is of the unknown kind {kind!r:.40}")
        given = list(tokens)
        if pool is not None:
            return self._shared(kind, given, channel, pool)
        assembling = Assembler(self._serde, given)
        value = assembling.only() if kind == VALUE else assembling.items()[0]
        with self._lock:
            self._remember(channel, given, assembling.met)
        return value

    def _shared(self, kind: str, given: list[msgspec.Raw | bytes], channel: str, pool: Pool) -> Any:
        if kind == VALUE:
            return Assembler(self._serde, given, pool.made).only()
        last = pool.lists.get(channel) or _BuiltValue([], [], [])
        same = _common(given, last.tokens)
        size = bisect_right(last.ends, same)
        start = last.ends[size - 1] if size else 0
        items = last.items[:size]
        if start == len(given):
            return items
        more, ends = Assembler(self._serde, given[start:], pool.made).items()
        items += more
        pool.lists[channel] = _BuiltValue(
            given, last.ends[:size] + [start + end for end in ends], list(items)
        )
        return items

    def _remember(
        self, channel: str, given: list[msgspec.Raw | bytes], met: list[SeenValue]
    ) -> None:
        raws = [token if type(token) is msgspec.Raw else msgspec.Raw(token) for token in given]
        row = ChannelMemory()
        for made, start, end in met:
            known = self._memory.learn(made, state_of(made), raws[start:end])
            if known is None:
                continue
            is_next = start == len(row.tokens) and type(made) in MESSAGES
            row.add(known) if is_next else row.others.append(known)
        self._memory.keep(channel, row)


def _common(left: list[msgspec.Raw | bytes], right: list[msgspec.Raw | bytes]) -> int:
    """How many leading tokens are the same."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
