"""What an importer asks of a database that another saver of LangGraph has written."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, Self, cast

from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import HoldfastError, IntegrityError


class ThreadSize(NamedTuple):
    """A thread, and how much is stored of it."""

    thread_id: str
    checkpoints: int
    writes: int
    stored_bytes: int


class SourcePosition(NamedTuple):
    """Where a checkpoint is in its thread."""

    ns: str
    checkpoint_id: str
    parent_id: str | None


class Write(NamedTuple):
    """What a task wrote after a checkpoint; `idx` is its number among the task's writes."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


class Saved(NamedTuple):
    """A checkpoint and its metadata, as they were given to the saver."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]


class SourceReader(Protocol):
    """One thread of a source. Values go through the serde, so only types it allows are made."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def places(self) -> list[SourcePosition]: ...

    def saved(self, place: SourcePosition) -> Saved: ...

    def writes(self, ns: str, checkpoint_id: str) -> list[Write]:
        """The writes of a checkpoint in the order in which they are applied."""
        ...


class ThreadSource(Protocol):
    """A database to import from. It is only read, each thread as of one moment."""

    def threads(self) -> list[ThreadSize]:
        """Every thread, by id."""
        ...

    def reading(self, thread_id: str) -> SourceReader:
        """A thread to be read inside `with`."""
        ...

    def close(self) -> None: ...


def sizes(
    checkpoints: Iterable[Sequence[Any]], writes: Iterable[Sequence[Any]]
) -> list[ThreadSize]:
    """Rows of (thread, number, bytes) of checkpoints and of writes, brought together."""
    written = {thread_id: (int(number), int(size)) for thread_id, number, size in writes}
    found: list[ThreadSize] = []
    for thread_id, number, size in checkpoints:
        if not isinstance(thread_id, str):
            raise IntegrityError(
                f"a thread's id is {type(thread_id).__name__}, not text: no saver of LangGraph "
                "writes that; remove its rows, then import"
            )
        writes_number, writes_size = written.get(thread_id, (0, 0))
        found.append(ThreadSize(thread_id, int(number), writes_number, int(size) + writes_size))
    return found


class Decoding:
    """Turns stored values of one thread into objects; what cannot be read names its place."""

    def __init__(self, serde: SerializerProtocol, thread_id: str) -> None:
        self._serde = serde
        self._thread_id = thread_id

    def value(self, kind: str | None, data: bytes | str | None, *, where: str) -> Any:
        stored = data.encode() if isinstance(data, str) else data or b""
        try:
            # Databases of the first versions have no type: all was JSON.
            return self._serde.loads_typed((kind or "json", stored))
        except HoldfastError as error:
            error.args = (f"{self._at(where)}: {error}",)
            raise
        except Exception as error:  # a custom serde may raise anything
            raise self.damaged(where, f"{type(error).__name__}: {error}") from error

    def mapping(self, value: object, *, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.damaged(where, "it is no mapping")
        return cast("dict[str, Any]", value)

    def place(self, row: Sequence[Any]) -> SourcePosition:
        ns, checkpoint_id, parent_id = row
        if not (isinstance(ns, str) and isinstance(checkpoint_id, str) and checkpoint_id):
            raise self.damaged("a checkpoint", "its keys are no text")
        if not isinstance(parent_id, str | None):
            raise self.damaged(f"checkpoint {checkpoint_id}", "its parent is no text")
        return SourcePosition(ns, checkpoint_id, parent_id or None)

    def writes(self, rows: Iterable[Sequence[Any]], *, of: str) -> list[Write]:
        """Writes in the order in which LangGraph applies those of one step."""
        found = [self._write(row, where=f"a write to checkpoint {of}") for row in rows]
        return sorted(found, key=lambda write: (write.task_path, write.task_id, write.idx))

    def _write(self, row: Sequence[Any], *, where: str) -> Write:
        task_id, task_path, idx, channel, kind, data = row
        texts = (task_id, task_path, channel)
        if not (all(isinstance(text, str) for text in texts) and isinstance(idx, int)):
            raise self.damaged(where, "its columns have the wrong types")
        return Write(task_id, task_path, idx, channel, self.value(kind, data, where=where))

    def damaged(self, where: str, why: str) -> IntegrityError:
        return IntegrityError(f"{self._at(where)} cannot be read: {why}")

    def _at(self, where: str) -> str:
        return f"{where} of thread {self._thread_id!r}"
