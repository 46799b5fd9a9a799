"""Threads of LangGraph's own savers, brought into a store of Holdfast.

A thread is brought checkpoint by checkpoint, parents first, through the verbs that every saver has.
What is there already is found by (thread, namespace, checkpoint id), so an import that is killed
in the middle can be started again, and resumes where it stopped.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.serde.types import ERROR, TASKS

from holdfast.errors import HoldfastError, IntegrityError, UnavailableError
from holdfast.integrations.langgraph.sources import (
    Saved,
    SourcePosition,
    SourceReader,
    ThreadSource,
    Write,
)

_SENDS_IN_CHANNELS: Final = 4  # since this version of checkpoints
_KEYS: Final = {
    "v": int,
    "ts": str,
    "channel_values": dict,
    "channel_versions": dict,
    "versions_seen": dict,
}
Key = tuple[str, str]
Call = list[tuple[str, Any]]


class ImportOutcome(StrEnum):
    """The outcome of a thread's import."""

    IMPORTED = "imported"  # all that was missing is there now
    THERE = "there"  # nothing was missing
    DIVERGED = "diverged"  # the store has other checkpoints of it: left as it was
    REFUSED = "refused"  # something in it cannot be read or may not be stored


@dataclass(frozen=True)
class ThreadReport:
    """How many checkpoints and writes of a thread were stored now, and the outcome."""

    thread_id: str
    outcome: ImportOutcome
    checkpoints: int = 0
    writes: int = 0
    error: HoldfastError | None = None


def import_thread(
    source: ThreadSource,
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    *,
    advance: Callable[[], None] = lambda: None,
) -> ThreadReport:
    """Import one thread; `advance` is called for each checkpoint that is there.

    What cannot be read ends this thread and is in its report; what is wrong with the store or the
    source itself is raised.
    """
    bringing = _ThreadImport(saver, thread_id)
    try:
        with source.reading(thread_id) as reading:
            outcome = bringing.bring(reading, advance)
    except UnavailableError:
        raise
    except HoldfastError as error:
        return bringing.report(ImportOutcome.REFUSED, error)
    return bringing.report(outcome)


class _ThreadImport:
    """One pass over one thread."""

    def __init__(self, saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._checkpoints = 0
        self._writes = 0
        # Of each checkpoint that was read: a child stores what differs from its parent.
        self._versions: dict[Key, ChannelVersions] = {}

    def report(self, outcome: ImportOutcome, error: HoldfastError | None = None) -> ThreadReport:
        return ThreadReport(self._thread_id, outcome, self._checkpoints, self._writes, error)

    def bring(self, reading: SourceReader, advance: Callable[[], None]) -> ImportOutcome:
        places = parents_first(reading.places())
        stored = self._stored()
        wanted = {_key(place) for place in places}
        if stored.keys() - wanted and wanted - stored.keys():
            return ImportOutcome.DIVERGED
        for place in places:
            known = stored.get(_key(place))
            if known is None:
                self._put(reading, place)
            self._put_writes(reading, place, known or Counter())
            advance()
        return ImportOutcome.IMPORTED if self._checkpoints or self._writes else ImportOutcome.THERE

    def _stored(self) -> dict[Key, Counter[Key]]:
        """The checkpoints that the store has of this thread, with the writes of each."""
        found: dict[Key, Counter[Key]] = {}
        for saved in self._saver.list({"configurable": {"thread_id": self._thread_id}}):
            names = saved.config.get("configurable", {})
            writes = Counter((task, channel) for task, channel, _ in saved.pending_writes or ())
            found[names["checkpoint_ns"], names["checkpoint_id"]] = writes
        return found

    def _put(self, reading: SourceReader, place: SourcePosition) -> None:
        checkpoint, metadata = self._read(reading, place)
        versions = cast(ChannelVersions, checkpoint["channel_versions"])
        parent = self._versions.get((place.ns, place.parent_id or ""), {})
        changed = {name: v for name, v in versions.items() if parent.get(name) != v}
        self._versions[_key(place)] = versions
        self._saver.put(
            self._config(place.ns, place.parent_id),
            cast(Checkpoint, checkpoint),
            cast(CheckpointMetadata, metadata),
            changed,
        )
        self._checkpoints += 1

    def _read(self, reading: SourceReader, place: SourcePosition) -> Saved:
        saved = reading.saved(place)
        checkpoint = saved.checkpoint
        wrong = [name for name, kind in _KEYS.items() if not isinstance(checkpoint.get(name), kind)]
        if checkpoint.get("id") != place.checkpoint_id:
            wrong.append("id")
        if wrong:
            raise IntegrityError(
                f"checkpoint {place.checkpoint_id} of thread {self._thread_id!r} is none that "
                f"LangGraph writes: {', '.join(wrong)} is missing or of another type"
            )
        if checkpoint["v"] < _SENDS_IN_CHANNELS:
            _move_sends(checkpoint, self._sends(reading, place))
        return saved

    def _sends(self, reading: SourceReader, place: SourcePosition) -> list[Any]:
        """What the step before sent to nodes: older versions kept it with that step's writes."""
        if place.parent_id is None:
            return []
        writes = reading.writes(place.ns, place.parent_id)
        return [write.value for write in writes if write.channel == TASKS]

    def _put_writes(
        self, reading: SourceReader, place: SourcePosition, known: Counter[Key]
    ) -> None:
        missing = list(_missing(reading.writes(place.ns, place.checkpoint_id), known))
        for task_id, task_path, writes in calls_of(missing):
            config = self._config(place.ns, place.checkpoint_id)
            self._saver.put_writes(config, writes, task_id, task_path)
            self._writes += len(writes)

    def _config(self, ns: str, checkpoint_id: str | None) -> RunnableConfig:
        names = {"thread_id": self._thread_id, "checkpoint_ns": ns}
        if checkpoint_id is not None:
            names["checkpoint_id"] = checkpoint_id
        return {"configurable": names}


def parents_first(places: Sequence[SourcePosition]) -> list[SourcePosition]:
    """Checkpoints in the order of their ids, but none before its parent.

    Ids follow the clocks of the machines that made them, so a child's may be the smaller one.
    """
    ordered = sorted(places, key=lambda place: (place.checkpoint_id, place.ns))
    left = {_key(place): place for place in ordered}
    found: list[SourcePosition] = []
    for place in ordered:
        chain: dict[Key, SourcePosition] = {}
        key = _key(place)
        while key in left:
            chain[key] = above = left.pop(key)
            key = (above.ns, above.parent_id or "")
        found += reversed(chain.values())
    return found


def calls_of(writes: Sequence[Write]) -> Iterator[tuple[str, str, Call]]:
    """The calls of put_writes() that store these writes under the numbers they have.

    A saver numbers a task's writes by their place in the call, but gives those to channels of
    LangGraph's own (errors, interrupts, answers) fixed numbers. These fill what would be gaps, as
    they did when a task that was answered ended; the others came before it, errors by themselves.
    """
    tasks: dict[tuple[str, str], list[Write]] = {}
    for write in writes:
        tasks.setdefault((write.task_id, write.task_path), []).append(write)
    for (task_id, task_path), of_task in tasks.items():
        for call in _of_task(of_task):
            yield task_id, task_path, call


def _of_task(writes: Sequence[Write]) -> Iterator[Call]:
    special = [w for w in writes if w.channel in WRITES_IDX_MAP]  # answers first, errors last
    own = {w.channel: (w.channel, w.value) for w in special}
    numbered: Call = []
    for write in writes:
        if write.channel not in WRITES_IDX_MAP:
            while len(numbered) < write.idx and special:
                numbered.append(own.pop(special.pop(0).channel))
            numbered.append((write.channel, write.value))
    if ERROR in own:
        yield [own.pop(ERROR)]
    if own:
        yield list(own.values())
    if numbered:
        yield numbered


def _missing(writes: Sequence[Write], known: Counter[Key]) -> Iterator[Write]:
    """The writes of every task of which the store has not all."""
    wanted = Counter((write.task_id, write.channel) for write in writes)
    tasks = {task for task, _ in wanted - known}
    return (write for write in writes if write.task_id in tasks)


def _move_sends(checkpoint: dict[str, Any], sends: list[Any]) -> None:
    """Put what was sent into the channel where it is since version 4."""
    kept = checkpoint.pop("pending_sends", None)
    versions, values = checkpoint["channel_versions"], checkpoint["channel_values"]
    if (found := sends or kept) and TASKS not in values:
        values[TASKS] = found
        versions[TASKS] = max(versions.values(), default=1)


def _key(place: SourcePosition) -> Key:
    return place.ns, place.checkpoint_id
