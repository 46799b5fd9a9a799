"""What a saver reads of threads: checkpoints with their values, metadata and pending writes."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    PendingWrite,
    writes_sort_key,
)

from holdfast.engine.marked.marked_run import Stale
from holdfast.errors import CheckpointNotFound, IntegrityError, UnavailableError
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.checkpoint_config import CheckpointConfig, config_of, place_of
from holdfast.integrations.langgraph.host import Host
from holdfast.integrations.langgraph.issued_checkpoints import IssuedCheckpoints
from holdfast.integrations.langgraph.metadata import read_metadata
from holdfast.integrations.langgraph.value_cache import ValueCache
from holdfast.integrations.langgraph.values.values import Pool
from holdfast.kernel.marks import Marked, Written
from holdfast.stores.reads import MarkFilter

_STEPS: Final = 50
_TRIES: Final = 8
_SURE: Final = 2
"""From this try on, a thread that cannot be read and has not changed is damaged."""


class Threads:
    """The threads of a store, as one serializer reads and writes them."""

    def __init__(self, host: Host, values: ValueCache, given: IssuedCheckpoints) -> None:
        self._host = host
        self._values = values
        self._given = given
        self._seen: dict[str, Any] = {}

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the latest of its namespace."""
        place = place_of(config)
        for tried in range(_TRIES):
            try:
                return await self._get(place)
            except (IntegrityError, CheckpointNotFound, Stale):
                # It may have been deleted, or pruned around, since it was found.
                if not await self._has_changed(place.run_id) and tried >= _SURE:
                    raise
        return await self._get(place)

    async def _get(self, place: CheckpointConfig) -> CheckpointTuple | None:
        found = self._host.marks
        marked = latest = await found.latest(place.run_id, place.space)
        if place.checkpoint_id and (latest is None or latest.name != place.checkpoint_id):
            marked = await found.get(place.run_id, place.space, place.checkpoint_id)
            if place.is_run:
                self._given.as_earlier(place)
        else:
            self._given.as_latest(place, "" if latest is None else latest.name)
        if marked is None:
            return None
        if marked is latest:
            await self._catch_up(place.run_id, marked.version)
        (made,) = await self._tuples(place.run_id, place.thread_id, [marked], shared=False)
        return made

    async def _has_changed(self, run_id: str) -> bool:
        """Return whether a thread has changed since it was cached here, and drop the cached one."""
        run = self._host.known(run_id)
        self._host.forget(run_id)
        head = await self._host.context.store.journal.head(run_id)
        before, self._seen[run_id] = self._seen.get(run_id), head
        return run is not None or before != head

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
            tuples = await self._there(run_id, each)
            made |= {(run_id, version): found for version, found in tuples.items()}
        keys = [(marked.run_id, marked.version) for marked in found]
        return [made[key] for key in keys if key in made]

    async def _there(self, run_id: str, found: Sequence[Marked]) -> dict[int, CheckpointTuple]:
        """Those of some checkpoints that were not deleted since they were found."""
        thread_id = await self._host.thread_of(run_id)
        for tried in range(_TRIES):
            try:
                tuples = await self._tuples(run_id, thread_id, found, shared=True)
            except (CheckpointNotFound, IntegrityError):
                if not await self._has_changed(run_id) and tried >= _SURE:
                    raise
                still = {marked.version for marked in await self._host.marks.of_run(run_id)}
                found = [marked for marked in found if marked.version in still]
            else:
                return {m.version: made for m, made in zip(found, tuples, strict=True)}
        raise UnavailableError(f"thread {thread_id!r} changes whenever it is read; try again")

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
        assemble = self._values.reader(run_id, Pool() if shared else None)
        writes = await self._pending(run_id, [(m.space, m.name) for m in found], assemble)
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
        self, run_id: str, keys: Sequence[tuple[str, str]], assemble: layout.Assemble
    ) -> dict[tuple[str, str], list[PendingWrite]]:
        """The writes after checkpoints, in the order in which a graph applies them."""
        made: dict[tuple[str, str], list[PendingWrite]] = {key: [] for key in keys}
        rows = await self._host.marks.writes(run_id, keys)
        if not rows:
            return made
        read = await self._host.marks.read_writes(run_id, rows)
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
        """Load a thread that is about to be used."""
        async with self._host.lock(run_id):
            run = await self._host.run(run_id)
            if run.version < version:
                await run.look()
                if run.is_stale:
                    self._host.forget(run_id)


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
