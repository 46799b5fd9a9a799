"""Typed views of a run's state: a log is used as a list, a value is read and set.

What is appended or set is encoded at once, and stored at the next checkpoint. Items are converted
when they are looked at. An object that was handed out and can be changed is compared with its
stored bytes at each checkpoint, as long as the agent's code may refer to it: what differs is stored
in its place. Immutable objects are never compared.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from msgspec import Raw

from holdfast import codec
from holdfast.agents.conversion import type_conversion
from holdfast.agents.conversion.mutability import are_shared, is_immutable
from holdfast.codec import Ref
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import MisuseError, UnsupportedValue

T = TypeVar("T")
UNSET: Any = object()
_NO_BYTES: Final = Raw(b"")
_ATOMS: Final = frozenset({str, int, float, bool, type(None), bytes})


StoredAs = Callable[[object, bool], tuple[Ref, bytes] | None]
"""Finds the entry that an object may be named by in the state, and its bytes; the flag says whether
the object is immutable."""


class Log(Sequence[T], Generic[T]):
    """A list that mostly grows, such as a transcript."""

    def __init__(
        self, held: LeasedRun, name: str, kind: type[T], stored_as: StoredAs | None = None
    ) -> None:
        self._held = held
        self.name = name
        self.kind = kind
        self._stored_as = stored_as
        self._parts = held.saver.parts
        if name in self._parts.values:
            raise MisuseError(f"{name!r} is a value; read it with run.value({name!r}, ...)")
        log = self._parts.logs.get(name)
        self._stored: list[Raw] = [] if log is None else list(log.items)
        self._items: list[T] = [UNSET] * len(self._stored)
        self._unread = len(self._items)
        self._mutable: set[int] = set()
        self._handed_out: set[int] = set()
        """Those of the mutable items that the agent's code was given since the last checkpoint."""
        self._kept: set[int] = set()
        """Those that it was given before and may refer to yet."""
        if self._items:
            self._read(len(self._items) - 1)  # a log of another type is refused at once

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._hand_out(range(len(self))[index])
        at = range(len(self))[index]
        return self._hand_out(range(at, at + 1))[0]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    def __repr__(self) -> str:
        return f"<log {self.name}: {len(self)} items>"

    def append(self, item: T) -> None:
        """Add an item to the end."""
        is_fixed = type(item) in _ATOMS or is_immutable(item)
        ref, data = self._encoded(item, is_fixed=is_fixed)
        if ref is None:
            self._held.saver.append_encoded(self.name, data)
        else:
            self._held.saver.append(self.name, (ref,))
        self._items.append(item)
        self._stored.append(_NO_BYTES if is_fixed else Raw(data))
        if not is_fixed:
            self._track(len(self._items) - 1)

    def extend(self, items: Iterable[T]) -> None:
        """Add items to the end."""
        for item in items:
            self.append(item)

    def __setitem__(self, index: int, item: T) -> None:
        at = range(len(self))[index]
        is_fixed = type(item) in _ATOMS or is_immutable(item)
        ref, data = self._encoded(item, is_fixed=is_fixed)
        self._held.splice(self.name, at, 1, [item if ref is None else ref])
        self._unread -= self._items[at] is UNSET
        self._items[at] = item
        self._stored[at] = _NO_BYTES if is_fixed else Raw(data)
        if not is_fixed:
            self._track(at)
            return
        for places in (self._mutable, self._handed_out, self._kept):
            places.discard(at)

    def __delitem__(self, index: int | slice) -> None:
        places = range(len(self))[index] if isinstance(index, slice) else [range(len(self))[index]]
        for at in sorted(places, reverse=True):
            self._delete(at, at + 1)

    def cut(self, length: int) -> None:
        """Keep the first `length` items only."""
        if length < len(self):
            self._delete(length, len(self))

    def store_changes(self) -> None:
        """Make edits of the items that were changed in place since they were encoded."""
        handed_out, kept = self._handed_out, self._kept - self._handed_out
        for at in sorted(handed_out | kept):
            self._store_change(at)
        self._handed_out = set()
        self._kept = handed_out | {at for at in kept if self._is_referred_to(at)}

    def _store_change(self, at: int) -> None:
        item = self._items[at]
        data = codec.encode(item, name=f'state["{self.name}"][{at}]')
        if Raw(data) == self._parts.data_of(self._stored[at]):
            return
        if not self._is_as_read(at, data):
            self[at] = item
        self._stored[at] = Raw(data)

    def _hand_out(self, places: range) -> list[T]:
        if self._unread:
            for at in places:
                self._read(at)
        if places == range(len(self)):
            self._handed_out |= self._mutable
            return list(self._items)
        if self._mutable:
            self._handed_out |= self._mutable.intersection(places)
        return [self._items[at] for at in places]

    def _read(self, at: int) -> None:
        if self._items[at] is not UNSET:
            return
        self._items[at] = self._converted(at)
        self._unread -= 1
        if not is_immutable(self._items[at]):
            self._mutable.add(at)

    def _converted(self, at: int) -> T:
        plain = codec.decode(self._parts.data_of(self._stored[at]))
        return type_conversion.convert(plain, self.kind, what=f"{self.name}[{at}]")

    def _track(self, at: int) -> None:
        """The agent's code has the item at a place, and may change it."""
        self._mutable.add(at)
        self._handed_out.add(at)

    def _delete(self, start: int, stop: int) -> None:
        self._held.splice(self.name, start, stop - start)
        self._unread -= sum(item is UNSET for item in self._items[start:stop])
        del self._items[start:stop]
        del self._stored[start:stop]
        self._mutable = _without(self._mutable, start, stop)
        self._handed_out = _without(self._handed_out, start, stop)
        self._kept = _without(self._kept, start, stop)

    def _encoded(self, item: T, *, is_fixed: bool) -> tuple[Ref | None, bytes]:
        """The entry that an item is already, if there is one, and its bytes."""
        if self._stored_as is not None:
            stored = self._stored_as(item, is_fixed)
            if stored is not None:
                return stored
        data = type_conversion.check(item, self.kind, what=f"an item of log {self.name!r}")
        return None, data

    def _is_as_read(self, at: int, data: bytes) -> bool:
        """Whether an item is as it was stored, though another version of its type wrote it."""
        return codec.encode(self._converted(at)) == data

    def _is_referred_to(self, at: int) -> bool:
        return are_shared(self._items[at : at + 1], by=1)


def _without(places: set[int], start: int, stop: int) -> set[int]:
    """Places in a list after those from `start` to `stop` were deleted from it."""
    kept = (at for at in places if not start <= at < stop)
    return {at if at < start else at - (stop - start) for at in kept}


class Value(Generic[T]):
    """One thing that changes as a whole, such as a plan."""

    def __init__(self, held: LeasedRun, name: str, kind: type[T], default: T = UNSET) -> None:
        self._held = held
        self.name = name
        self.kind = kind
        self._value: T = default
        self._is_default = True
        self._is_handed_out = False
        self._data = b""
        stored = held.part(name, UNSET)
        if stored is not UNSET:
            self._value = type_conversion.convert(stored, kind, what=f"value {name!r}")
            self._is_default = False

    def get(self) -> T:
        """Return the value; raises MisuseError if it was never set and has no default."""
        if self._value is UNSET:
            raise MisuseError(f"{self.name!r} was never set; give run.value() a default")
        if not self._is_handed_out and not is_immutable(self._value):
            self._hand_out()
        return self._value

    def set(self, value: T) -> None:
        """Give it another value."""
        data = type_conversion.check(value, self.kind, what=f"value {self.name!r}")
        self._held.set(self.name, value)
        self._value = value
        self._is_default = False
        self._is_handed_out = not is_immutable(value)
        self._data = data

    @property
    def is_set(self) -> bool:
        return self._value is not UNSET

    def store_changes(self) -> None:
        """Make an edit of the value if it was changed in place since it was encoded."""
        if not self._is_handed_out:
            return
        if codec.encode(self._value, name=f'state["{self.name}"]') != self._data:
            self.set(self._value)
        self._is_handed_out = are_shared([self._value], by=1)

    def _hand_out(self) -> None:
        if not self._data:
            try:
                self._data = codec.encode(self._value, name=f"the default of value {self.name!r}")
            except UnsupportedValue as error:
                if self._is_marker():
                    return
                raise MisuseError(f"{error}. A value that can change must be storable") from error
            if self._is_default:
                # What this run makes of it is not the default of others.
                self._value = copy.deepcopy(self._value)
        self._is_handed_out = True

    def _is_marker(self) -> bool:
        """Whether the default is an object that says "nothing yet", and no value itself."""
        default: Any = self._value
        return type(default).__eq__ is object.__eq__ and type(default) is not self.kind

    def __repr__(self) -> str:
        return f"<value {self.name}: {self._value if self.is_set else 'not set'}>"
