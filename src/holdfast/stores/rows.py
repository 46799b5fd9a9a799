"""Rows to values and back, for every backend: a table's columns are its type's fields, in order."""

from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import IntegrityError
from holdfast.kernel import marks, tags
from holdfast.kernel.budgets import Account, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import QueuedMessage
from holdfast.kernel.records import RecordRow, Revision
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait

T = TypeVar("T", bound=msgspec.Struct)
Row = tuple[Any, ...]


class Shape(Generic[T]):
    """How values of one type are stored; `names` are the fields that hold names of a framework."""

    def __init__(self, of: type[T], *, uuid_as_bytes: bool, names: tuple[str, ...] = ()) -> None:
        fields = msgspec.structs.fields(of)
        self._make = of
        self._names = tuple(field.name for field in fields)
        self.columns: Callable[[T], Row] = attrgetter(*self._names)
        """The fields as they are: the row of a type that needs no conversion."""
        self._store: list[tuple[int, Callable[[Any], Any]]] = []
        self._load: list[tuple[int, Callable[[Any], Any]]] = []
        for index, field in enumerate(fields):
            if field.type is UUID and uuid_as_bytes:
                self._store.append((index, attrgetter("bytes")))
                self._load.append((index, lambda value: UUID(bytes=value)))
            elif isinstance(field.type, type) and issubclass(field.type, StrEnum):
                self._store.append((index, attrgetter("value")))
                self._load.append((index, field.type))
            elif field.name.startswith("is_"):
                self._load.append((index, bool))
            elif field.name in names:
                self._store.append((index, packed))
                self._load.append((index, unpacked))
            elif field.name == "tags":
                self._store.append((index, tags.encode))
                self._load.append((index, tags.decode))

    def row(self, value: T) -> Row:
        if not self._store:
            return self.columns(value)
        columns = list(self.columns(value))
        for index, convert in self._store:
            columns[index] = convert(columns[index])
        return tuple(columns)

    def value(self, row: Row) -> T:
        columns = list(row)
        for index, convert in self._load:
            try:
                columns[index] = convert(columns[index])
            except (TypeError, ValueError) as error:
                raise IntegrityError(
                    f"a stored {self._make.__name__.lower()} has the {self._names[index]} "
                    f"{columns[index]!r}, which cannot be"
                ) from error
        return self._make(**dict(zip(self._names, columns, strict=True)))


_BEATEN: Final = attrgetter(
    "lease",
    "host",
    "boot_id",
    "pid_namespace",
    "pid",
    "process_start",
    "agents",
    "trying_run",
)


def beat_row(worker: WorkerRow, now: int) -> Row:
    """The parameters of a worker's beat at a moment of the store's clock."""
    key = (worker.tenant, worker.worker, worker.started_at, now + worker.lease)
    return (*key, *_BEATEN(worker))


def taking(worker: WorkerRow, now: int) -> tuple[str, Row]:
    """The query for the row of a worker that takes a run, and its parameters.

    It is renewed if it has to be; that a run is tried is written in any case.
    """
    row = beat_row(worker, now)
    if worker.trying_run:
        return "beat_worker", row
    return "renew_taker", (*row, now + worker.lease // 2)


def packed(name: str) -> bytes:
    """Return a framework's name in its stored form: short if it is a UUID, and those in order."""
    short = marks.pack(name)
    return b"\x00" + short.encode() if isinstance(short, str) else b"\x01" + short


def unpacked(stored: bytes) -> str:
    return stored[1:].decode() if stored[:1] == b"\x00" else marks.unpack(stored[1:])


class Shapes:
    """How one backend stores each type."""

    def __init__(self, *, uuid_as_bytes: bool) -> None:
        self.run = Shape(RunRow, uuid_as_bytes=uuid_as_bytes)
        self.entry = Shape(Entry, uuid_as_bytes=uuid_as_bytes)
        self.checkpoint = Shape(Checkpoint, uuid_as_bytes=uuid_as_bytes)
        self.mark = Shape(Marked, uuid_as_bytes=uuid_as_bytes, names=("name", "parent"))
        self.writes = Shape(WrittenAt, uuid_as_bytes=uuid_as_bytes, names=("name",))
        self.record = Shape(RecordRow, uuid_as_bytes=uuid_as_bytes)
        self.revision = Shape(Revision, uuid_as_bytes=uuid_as_bytes)
        self.effect = Shape(Effect, uuid_as_bytes=uuid_as_bytes)
        self.group = Shape(Group, uuid_as_bytes=uuid_as_bytes)
        self.wait = Shape(Wait, uuid_as_bytes=uuid_as_bytes)
        self.signal = Shape(Signal, uuid_as_bytes=uuid_as_bytes)
        self.account = Shape(Account, uuid_as_bytes=uuid_as_bytes)
        self.reservation = Shape(Reservation, uuid_as_bytes=uuid_as_bytes)
        self.message = Shape(QueuedMessage, uuid_as_bytes=uuid_as_bytes)
        self.worker = Shape(WorkerRow, uuid_as_bytes=uuid_as_bytes)
