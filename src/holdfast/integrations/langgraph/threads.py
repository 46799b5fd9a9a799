"""What a saver does with threads: putting checkpoints and writes, and reading them again."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.engine.folding import View
from holdfast.engine.head import ConditionFailed
from holdfast.engine.marked_run import Change, MarkedRun
from holdfast.errors import CheckpointConflict, MisuseError
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.asking import Asking
from holdfast.integrations.langgraph.host import Host
from holdfast.integrations.langgraph.metadata import Metadata, read_metadata
from holdfast.integrations.langgraph.values import Pool, Values
from holdfast.kernel import marks
from holdfast.kernel.indexes import AddMark
from holdfast.kernel.journal import Draft
from holdfast.kernel.marks import Mark, Marked, Written
from holdfast.stores.contract import MarkFilter

TOKEN: Final = "__holdfast_lease"
"""The key of a config's `configurable` under which a lease on the thread goes along."""
_KEPT: Final = 64
_REMEMBERED: Final = 1024
_STEPS: Final = 50

OnConflict = Literal["error", "fork"]


class Place(NamedTuple):
    """What a config says: which thread, which namespace, which checkpoint, under which lease."""

    thread_id: str
    space: str
    checkpoint_id: str
    token: int

    @property
    def run_id(self) -> str:
        return layout.run_id_of(self.thread_id)


def place_of(config: RunnableConfig) -> Place:
    """Raises MisuseError for a config that names no thread."""
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    if "thread_id" not in configurable:
        raise MisuseError(
            'a checkpointer needs to know the thread: give config={"configurable": '
            '{"thread_id": "..."}}'
        )
    return Place(
        str(configurable["thread_id"]),
        configurable.get("checkpoint_ns") or "",
        str(configurable.get("checkpoint_id") or ""),
        configurable.get(TOKEN) or 0,
    )


def config_of(thread_id: str, space: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": space,
            "checkpoint_id": checkpoint_id,
        }
    }


class Threads:
    """The threads of a store, as one serializer reads and writes them."""

    def __init__(self, host: Host, serde: SerializerProtocol, on_conflict: OnConflict) -> None:
        self._host = host
        self._values = _ValuesOfThreads(serde)
        self._on_conflict = on_conflict
        self._asking = Asking(host)
        self._latest_given: dict[tuple[str, str], str] = {}

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, Any],
    ) -> RunnableConfig:
        """Store a checkpoint after the one that the config names."""
        place = place_of(config)
        wanted = layout.Wanted(place.space, place.checkpoint_id, checkpoint, new_versions)
        told = Metadata.of(get_checkpoint_metadata(config, metadata))
        flat: dict[str, tuple[str, list[msgspec.Raw]]] = {}
        values = self._values.of(place.run_id)

        def flatten(part: str, value: object) -> tuple[str, list[msgspec.Raw]]:
            if part not in flat:
                flat[part] = values.flatten(value, channel=part)
            return flat[part]

        mark = Mark(
            place.space,
            marks.pack(checkpoint["id"]),
            marks.pack(place.checkpoint_id),
            told.tags,
            is_only=self._is_only(place, metadata),
        )
        must_be_latest = self._must_be_latest(place, metadata)

        async def save(run: MarkedRun) -> None:
            def change(view: View) -> Change:
                if must_be_latest:
                    _check_is_latest(view, place)
                made = layout.change_to(view, wanted, flatten)
                return told.added_to(made, layout.prefix_of(place.space), flatten)

            await run.save(mark, change, token=place.token)

        try:
            await self._host.advance(place.run_id, save)
        except ConditionFailed as failed:
            if not isinstance(failed.change, AddMark):
                raise
            await self._put_again(place, mark, save)
        await self._asking.go_on(place, str(metadata.get("source", "")))
        return config_of(place.thread_id, place.space, checkpoint["id"])

    async def write(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        """Store what a task has written after the checkpoint that the config names."""
        place = place_of(config)
        values = self._values.of(place.run_id)
        channels: list[tuple[int, str, str, int]] = []
        tokens: list[msgspec.Raw] = []
        for index, (channel, value) in enumerate(writes):
            form, made = values.flatten(value, channel=f"@write:{channel}")
            channels.append((WRITES_IDX_MAP.get(channel, index), channel, form, len(made)))
            tokens += made
        name = marks.pack(place.checkpoint_id)
        written = Written(place.space, name, task_id, task_path, channels)

        async def store(asked: Sequence[Draft]) -> None:
            await self._host.advance(
                place.run_id,
                lambda run: run.write(written, tokens, token=place.token, then=asked),
            )

        await self._asking.write(place, task_id, writes, store)

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the latest of its namespace."""
        place = place_of(config)
        found = self._host.marks
        if place.checkpoint_id:
            marked = await found.get(place.run_id, place.space, place.checkpoint_id)
            self._latest_given.pop((place.run_id, place.space), None)
        else:
            marked = await found.latest(place.run_id, place.space)
            self._give_as_latest(place, "" if marked is None else marked.name)
        if marked is None:
            return None
        if not place.checkpoint_id:
            await self._catch_up(place.run_id, marked.version)
        (made,) = await self._tuples(place.run_id, place.thread_id, [marked], shared=False)
        return made

    async def find(self, wanted: MarkFilter) -> list[Marked]:
        """Which checkpoints a listing shows."""
        return await self._host.marks.page(wanted)

    async def tuples(self, found: Sequence[Marked]) -> list[CheckpointTuple]:
        """Checkpoints of any threads. Equal values of one thread are the same objects."""
        of_run: dict[str, list[Marked]] = {}
        for marked in found:
            of_run.setdefault(marked.run_id, []).append(marked)
        made: dict[tuple[str, int], CheckpointTuple] = {}
        for run_id, each in of_run.items():
            tuples = await self._tuples(run_id, run_id, each, shared=True)
            made |= {(run_id, m.version): t for m, t in zip(each, tuples, strict=True)}
        return [made[marked.run_id, marked.version] for marked in found]

    async def ancestors(self, config: RunnableConfig) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints before the one that a config names, the nearest first."""
        place = place_of(config)
        named = self._host.marks
        if place.checkpoint_id:
            marked = await named.get(place.run_id, place.space, place.checkpoint_id)
        else:
            marked = await named.latest(place.run_id, place.space)
        every = {m.name: m for m in await named.of_run(place.run_id) if m.space == place.space}
        while marked is not None:
            page: list[Marked] = []
            while len(page) < _STEPS and (marked := every.get(marked.parent)) is not None:
                page.append(marked)
            for found in await self._tuples(place.run_id, place.thread_id, page, shared=True):
                yield found

    async def filter_of(
        self,
        config: RunnableConfig | None,
        tags: dict[str, Any] | None,
        before: RunnableConfig | None,
    ) -> MarkFilter:
        """What a listing asks for."""
        place = None if config is None else place_of(config)
        configurable: Mapping[str, Any] = (config or {}).get("configurable") or {}
        space = configurable.get("checkpoint_ns")
        before_version, before_name = None, None
        before_id = str(((before or {}).get("configurable") or {}).get("checkpoint_id") or "")
        if before_id:
            before_name = before_id
            if place is not None:
                known = await self._host.marks.get(place.run_id, place.space, before_id)
                if known is not None:
                    before_version, before_name = known.version, None
        return MarkFilter(
            run_id=None if place is None else place.run_id,
            space=space,
            name=place.checkpoint_id or None if place is not None else None,
            before_version=before_version,
            before_name=before_name,
            tags=dict(tags or {}),
        )

    async def _tuples(
        self, run_id: str, thread_id: str, found: Sequence[Marked], *, shared: bool
    ) -> list[CheckpointTuple]:
        if not found:
            return []
        host = self._host
        views = await host.marks.views(run_id, {m.version for m in found}, host.known(run_id))
        writes = await self._pending(run_id, [(m.space, m.name) for m in found])
        assemble = self._values.reader(run_id, Pool() if shared else None)
        return [
            CheckpointTuple(
                config=config_of(thread_id, m.space, m.name),
                checkpoint=layout.checkpoint_in(views[m.version], m.space, assemble),
                metadata=read_metadata(m, views[m.version], assemble),
                parent_config=config_of(thread_id, m.space, m.parent) if m.parent else None,
                pending_writes=writes[m.space, m.name],
            )
            for m in found
        ]

    async def _pending(
        self, run_id: str, keys: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], list[PendingWrite]]:
        """The writes after checkpoints, in the order in which a graph applies them."""
        made: dict[tuple[str, str], list[PendingWrite]] = {key: [] for key in keys}
        rows = await self._host.marks.writes(run_id, keys)
        if not rows:
            return made
        read = await self._host.marks.read_writes(run_id, [row.seq for row in rows])
        assemble = self._values.reader(run_id)
        slots: dict[tuple[str, str], dict[tuple[str, int], _Slot]] = {key: {} for key in keys}
        for row in rows:
            written, tokens = read[row.seq]
            _lay(slots[row.space, row.name], written, tokens)
        for key, each in slots.items():
            ordered = sorted(each.values(), key=lambda s: writes_sort_key(s.path, s.task, s.idx))
            made[key] = [
                (s.task, s.channel, assemble(f"@write:{s.channel}", s.form, s.tokens))
                for s in ordered
            ]
        return made

    async def _catch_up(self, run_id: str, version: int) -> None:
        """Have a thread at hand that is about to be worked on."""
        async with self._host.lock(run_id):
            run = await self._host.run(run_id)
            if run.version < version:
                await run.look()
                if run.is_stale:
                    self._host.forget(run_id)

    def _give_as_latest(self, place: Place, name: str) -> None:
        given = self._latest_given
        given.pop((place.run_id, place.space), None)
        given[place.run_id, place.space] = name
        while len(given) > _REMEMBERED:
            del given[next(iter(given))]

    def _is_only(self, place: Place, metadata: CheckpointMetadata) -> bool:
        """Whether nobody else may go on from the same checkpoint by running the graph."""
        goes_on = bool(place.checkpoint_id) and metadata.get("source") == "loop"
        return goes_on and self._on_conflict == "error"

    def _must_be_latest(self, place: Place, metadata: CheckpointMetadata) -> bool:
        """Whether an input is for the thread as it is, not for an earlier moment of it.

        Whoever asks for the latest checkpoint and puts an input after it means the latest one; an
        input after a checkpoint that was asked for by its id begins a branch.
        """
        if self._on_conflict == "fork" or metadata.get("source") != "input":
            return False
        return self._latest_given.get((place.run_id, place.space)) == place.checkpoint_id

    async def _put_again(
        self, place: Place, mark: Mark, save: Callable[[MarkedRun], Awaitable[None]]
    ) -> None:
        """A mark was refused: its name is used, or somebody else went on from its parent."""
        known = await self._host.marks.get(place.run_id, place.space, mark.name)
        if known is None:
            raise _conflict(place)

        async def replace(run: MarkedRun) -> None:
            note = f"checkpoint {mark.name} was put again"
            await self._host.marks.prune(run, {known.version}, note=note, token=place.token)

        await self._host.advance(place.run_id, replace)
        await self._host.advance(place.run_id, save)


class _Slot(NamedTuple):
    path: str
    task: str
    idx: int
    channel: str
    form: str
    tokens: list[msgspec.Raw]


def _lay(slots: dict[tuple[str, int], _Slot], written: Written, tokens: list[msgspec.Raw]) -> None:
    """Put writes where they belong: special ones replace what was there, others come first."""
    is_special = all(channel in WRITES_IDX_MAP for _, channel, _, _ in written.channels)
    at = 0
    for idx, channel, form, count in written.channels:
        slot = _Slot(
            written.task_path, written.task_id, idx, channel, form, tokens[at : at + count]
        )
        at += count
        if is_special:
            slots[written.task_id, idx] = slot
        else:
            slots.setdefault((written.task_id, idx), slot)


def _check_is_latest(view: View, place: Place) -> None:
    head = layout.head_of(view, place.space)
    latest = "" if head is None else head.checkpoint_id
    if latest != place.checkpoint_id:
        raise _conflict(place)


def _conflict(place: Place) -> CheckpointConflict:
    return CheckpointConflict(
        f"somebody else went on with thread {place.thread_id!r} from checkpoint "
        f"{place.checkpoint_id or '(none)'}; nothing of this one was stored. Load the thread "
        'again, or let such runs branch with HoldfastSaver(..., on_conflict="fork")'
    )


class _ValuesOfThreads:
    """What a serializer remembers of the values of each thread."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._of: dict[str, Values] = {}

    def of(self, run_id: str) -> Values:
        values = self._of.pop(run_id, None) or Values(self._serde)
        self._of[run_id] = values
        while len(self._of) > _KEPT:
            del self._of[next(iter(self._of))]
        return values

    def reader(self, run_id: str, pool: Pool | None = None) -> layout.Assemble:
        """What makes values of tokens; with a pool, the same objects of the same tokens."""
        values = self.of(run_id)
        return lambda part, form, tokens: values.assemble(form, tokens, channel=part, pool=pool)
