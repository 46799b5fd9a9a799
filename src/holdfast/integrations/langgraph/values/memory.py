"""The tokens of objects that were seen before, so that only what is new is serialized.

Messages and plain dicts are mutable: each is kept with a copy of what it held, and counts as known
only while it still holds that. Equal values count as unchanged, so `1` for `True` is not noticed.
Strong references are held to what was in each channel last, and to at most as much again.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, cast

import msgspec

from holdfast.integrations.langgraph.values.messages import MESSAGES

_SLACK: Final = 64
_MAX_CHANNELS: Final = 256
_MAX_DEPTH: Final = 32
_SCALARS: Final = frozenset((str, int, float, bool, type(None), bytes))

_fields: Final[Callable[[Any], dict[str, Any]]] = operator.attrgetter("__dict__")
# Fields that no class declares; they are rare, so a message that has some is not remembered.
_extra: Final[Callable[[Any], object]] = operator.attrgetter("__pydantic_extra__")


class KnownObject(NamedTuple):
    """An object, what it held, and the tokens it became."""

    held: Any
    state: dict[str, Any]
    tokens: list[msgspec.Raw]


class _Opaque(Exception):
    """Holds something that cannot be copied and compared cheaply."""


class ChannelMemory:
    """What a channel held last: the messages its list began with, and what else was known."""

    __slots__ = ("ends", "extras", "held", "others", "states", "tokens")

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.extras: list[object] = []
        self.states: list[dict[str, Any]] = []
        self.tokens: list[msgspec.Raw] = []
        self.ends: list[int] = []
        self.others: list[KnownObject] = []

    def add(self, known: KnownObject) -> None:
        """The next message of the run that the list begins with."""
        self.held.append(known.held)
        self.extras.append(_extra(known.held))
        self.states.append(known.state)
        self.tokens.extend(known.tokens)
        self.ends.append(len(self.tokens))

    def unchanged(self, items: list[Any]) -> int:
        """How many leading items are the same messages, and hold the same."""
        size = min(len(items), len(self.held))
        if size == 0:
            return 0
        head = items if size == len(items) else items[:size]
        if not all(map(operator.is_, head, self.held)):
            size = next(i for i in range(size) if head[i] is not self.held[i])
            head = head[:size]
        if self._holds_same(head):
            return size
        changed = (i for i in range(size) if not is_same(head[i], self.states[i]))
        return next(changed, size)

    def cut(self, size: int) -> None:
        """Forget all but the first `size` messages."""
        self.others = []
        if size < len(self.held):
            del self.tokens[self.ends[size - 1] if size else 0 :]
            del self.held[size:], self.extras[size:], self.states[size:], self.ends[size:]

    def knowns(self) -> Iterable[KnownObject]:
        start = 0
        for held, state, end in zip(self.held, self.states, self.ends, strict=True):
            yield KnownObject(held, state, self.tokens[start:end])
            start = end
        yield from self.others

    def __len__(self) -> int:
        return len(self.held) + len(self.others)

    def _holds_same(self, head: list[Any]) -> bool:
        size = len(head)
        is_all = size == len(self.states)
        states = self.states if is_all else self.states[:size]
        extras = self.extras if is_all else self.extras[:size]
        try:
            return list(map(_fields, head)) == states and not any(extras)
        except Exception:  # what an agent put into a message may not compare
            return False


class Memory:
    """The objects of one thread that were seen lately."""

    def __init__(self) -> None:
        self._known: dict[int, KnownObject] = {}
        self._rows: dict[str, ChannelMemory] = {}

    def __len__(self) -> int:
        return len(self._known)

    def row(self, channel: str) -> ChannelMemory:
        return self._rows.get(channel) or ChannelMemory()

    def find(self, held: object) -> KnownObject | None:
        """The object as it was seen before, if it still holds what it held."""
        known = self._known.get(id(held))
        if known is None or known.held is not held or not is_same(held, known.state):
            return None
        return known

    def learn(
        self, held: Any, state: dict[str, Any] | None, tokens: list[msgspec.Raw]
    ) -> KnownObject | None:
        """Keep what an object became that held `state` before; None if that is not known."""
        if state is None:
            return None
        known = self._known[id(held)] = KnownObject(held, state, tokens)
        return known

    def keep(self, channel: str, row: ChannelMemory) -> None:
        """Let `row` be what the channel held last, and forget what no channel holds."""
        self._rows.pop(channel, None)
        self._rows[channel] = row
        if len(self._rows) > _MAX_CHANNELS:
            del self._rows[next(iter(self._rows))]
        if len(self._known) > 2 * sum(map(len, self._rows.values())) + _SLACK:
            self._known = {
                id(known.held): known for kept in self._rows.values() for known in kept.knowns()
            }


def is_same(held: Any, state: dict[str, Any]) -> bool:
    try:
        if type(held) is dict:
            return bool(held == state)
        return bool(_fields(held) == state and not _extra(held))
    except Exception:  # as above
        return False


def state_of(held: Any) -> dict[str, Any] | None:
    """A copy of what an object holds; None for one that could not be checked later.

    Take it before the object is serialized: LangGraph gives messages their ids in another thread,
    and what it changes meanwhile must count as changed.
    """
    try:
        if type(held) in MESSAGES:
            return None if _extra(held) else _copied(_fields(held), 0)
        return _copied(held, 0)
    except _Opaque:
        return None


def _copied(value: object, depth: int) -> Any:
    """A copy of plain data; what cannot change is shared."""
    if depth > _MAX_DEPTH:
        raise _Opaque
    if type(value) is dict:
        entries = dict(cast("dict[object, object]", value))
        for key, item in entries.items():
            if type(key) not in _SCALARS:
                raise _Opaque
            if type(item) not in _SCALARS:
                entries[key] = _copied(item, depth + 1)
        return entries
    if type(value) is list:
        items = cast("list[object]", value)
        return [item if type(item) in _SCALARS else _copied(item, depth + 1) for item in items]
    raise _Opaque
