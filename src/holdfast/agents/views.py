"""Typed views of a run's state: a log is used as a list, a value is read and set.

What is appended or set is encoded at once; it is stored at the next checkpoint. Items are data: to
change one, replace it (`log[3] = item`), a change in place is not seen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from holdfast.agents import shapes
from holdfast.codec import Ref
from holdfast.engine.leased_run import LeasedRun
from holdfast.errors import MisuseError

T = TypeVar("T")
UNSET: Any = object()

RefOf = Callable[[object], Ref | None]


class Log(Sequence[T], Generic[T]):
    """A list that mostly grows, such as a transcript."""

    def __init__(self, held: LeasedRun, name: str, kind: type[T], ref_of: RefOf) -> None:
        self._held = held
        self.name = name
        self.kind = kind
        self._ref_of = ref_of
        stored = held.part(name)
        if stored is not None and not isinstance(stored, list):
            raise MisuseError(f"{name!r} is a value; read it with run.value({name!r}, ...)")
        items: list[Any] = stored or []  # pyright: ignore[reportUnknownVariableType] - plain data
        self._items: list[T] = [self._typed(item, at) for at, item in enumerate(items)]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items))

    def __repr__(self) -> str:
        return f"<log {self.name}: {len(self)} items>"

    def append(self, item: T) -> None:
        """Add an item to the end."""
        self._held.append(self.name, self._named(item))
        self._items.append(item)

    def extend(self, items: Iterable[T]) -> None:
        """Add items to the end."""
        for item in items:
            self.append(item)

    def __setitem__(self, index: int, item: T) -> None:
        at = range(len(self))[index]
        self._held.splice(self.name, at, 1, [self._named(item)])
        self._items[at] = item

    def __delitem__(self, index: int | slice) -> None:
        places = range(len(self))[index] if isinstance(index, slice) else [range(len(self))[index]]
        for at in sorted(places, reverse=True):
            self._held.splice(self.name, at, 1)
            del self._items[at]

    def cut(self, length: int) -> None:
        """Keep the first `length` items only."""
        if length < len(self):
            self._held.splice(self.name, length, len(self) - length)
            del self._items[length:]

    def _named(self, item: T) -> object:
        """What is stored for an item: the entry that it is already, or itself if it fits."""
        ref = self._ref_of(item)
        if ref is not None:
            return ref
        shapes.check(item, self.kind, what=f"an item of log {self.name!r}")
        return item

    def _typed(self, item: object, at: int) -> T:
        return shapes.convert(item, self.kind, what=f"{self.name}[{at}]")


class Value(Generic[T]):
    """One thing that changes as a whole, such as a plan."""

    def __init__(self, held: LeasedRun, name: str, kind: type[T], default: T = UNSET) -> None:
        self._held = held
        self.name = name
        self.kind = kind
        self._value: T = default
        stored = held.part(name, UNSET)
        if stored is not UNSET:
            self._value = shapes.convert(stored, kind, what=f"value {name!r}")

    def get(self) -> T:
        """What it is now; raises MisuseError if it was never set and has no default."""
        if self._value is UNSET:
            raise MisuseError(f"{self.name!r} was never set; give run.value() a default")
        return self._value

    def set(self, value: T) -> None:
        """Give it another value."""
        shapes.check(value, self.kind, what=f"value {self.name!r}")
        self._held.set(self.name, value)
        self._value = value

    @property
    def is_set(self) -> bool:
        return self._value is not UNSET

    def __repr__(self) -> str:
        return f"<value {self.name}: {self._value if self.is_set else 'not set'}>"
