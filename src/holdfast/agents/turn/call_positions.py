"""Where in a turn a call is: which of equal calls it is, in which branch.

The same place again after a crash, whatever order branches and their calls end in.
"""

import hashlib
from collections import Counter
from contextvars import ContextVar
from typing import Final, NamedTuple

import msgspec

_branch: Final[ContextVar[tuple[int, ...]]] = ContextVar("holdfast_branch", default=())


class AwaitedPosition(NamedTuple):
    """Something that is waited for: where in its turn, and what, wherever it is asked for."""

    kind: str
    place: bytes
    asked: bytes


class CallPositions:
    """Counts the equal calls of one turn as they are made."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[object, ...]] = Counter()

    def begin_turn(self) -> None:
        self._counts.clear()

    def number(self, kind: str, name: str, digest: bytes) -> str:
        """Which of the equal calls this is: its branch, and how many came before it there."""
        branch = _branch.get()
        count = self._counts[branch, kind, name, digest]
        self._counts[branch, kind, name, digest] += 1
        return ".".join(map(str, (*branch, count)))

    def of(self, kind: str, name: str, digest: bytes) -> bytes:
        """The digest of a call and its place; of the first one in no branch its own."""
        number = self.number(kind, name, digest)
        if number == "0":
            return digest
        return hashlib.sha256(digest + number.encode()).digest()

    def of_wait(self, kind: str, name: str, digest: bytes = b"") -> "AwaitedPosition":
        """The place of something that is waited for."""
        number = self.number(kind, name, digest)
        return AwaitedPosition(kind, _short(kind, name, digest, number), _short(kind, name, digest))

    def next_gather(self) -> int:
        """The number of a gather in the present branch."""
        branch = _branch.get()
        self._counts[branch, "gather"] += 1
        return self._counts[branch, "gather"]


def _short(*material: object) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(material)).digest()[:16]


def enter_branch(gather: int, index: int) -> None:
    """The present task is a branch from here on."""
    _branch.set((*_branch.get(), gather, index))
