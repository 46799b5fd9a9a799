"""Marks: the names that a framework gives to checkpoints of a run, and what it writes between them.

A framework with its own checkpoints (a LangGraph thread) keeps them as versions of a run. A mark
says what the framework calls a version: its `space`, its `name` there, the name of the one it
continues, and tags to find it by. Unlike versions, marks form a tree. Writes belong to a mark,
which may come after them.
"""

from typing import Any
from uuid import UUID

import msgspec

Name = Any
"""A name in facts: text, or the 16 bytes of a UUID."""


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a checkpoint is called."""

    space: str
    packed_name: Name
    packed_parent: Name = ""
    tags: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return unpack(self.packed_name)

    @property
    def parent(self) -> str:
        """The name of the mark it continues; "" means none."""
        return unpack(self.packed_parent)


class Marked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mark as stored in its row."""

    tenant: str
    run_id: str
    space: str
    name: str
    version: int
    parent: str
    created_at: int
    tags: dict[str, Any] = {}


class Written(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of WRITES_RECORDED: what a task has written after a mark, before the next one.

    The body holds tokens by their number. `channels` says for each write its index, its channel,
    the form of its value, and how many tokens it is made of.
    """

    space: str
    packed_name: Name
    task_id: str
    task_path: str
    channels: list[tuple[int, str, str, int]]

    @property
    def name(self) -> str:
        return unpack(self.packed_name)


class WrittenAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where writes of a mark lie, as stored in their row."""

    tenant: str
    run_id: str
    space: str
    name: str
    seq: int


class Pruned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINTS_PRUNED: versions, from and to, that are not to be loaded any more.

    `rebased`: versions that stay, each with the seq of a STATE_BASE that holds its whole state.
    """

    versions: list[tuple[int, int]]
    note: str = ""
    rebased: list[tuple[int, int]] = []


class Erased(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of BODIES_ERASED: the seqs, from and to, whose bodies are gone."""

    seqs: list[tuple[int, int]]
    note: str = ""


def pack(name: str) -> Name:
    """Return a name in the form that facts hold."""
    try:
        packed = UUID(name)
    except ValueError:
        return name
    return packed.bytes if str(packed) == name else name


def unpack(packed: Name) -> str:
    return packed if isinstance(packed, str) else str(UUID(bytes=bytes(packed)))


def ranges_of(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers in rising order as ranges, each from and to."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
