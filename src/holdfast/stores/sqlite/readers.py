"""The reading side of SQLite: one small class per primitive, each method one named query."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.journal import Entry, Position
from holdfast.kernel.leases import Worker
from holdfast.kernel.runs import Run
from holdfast.kernel.waits import Group, Wait
from holdfast.stores.contract import CheckpointFilter, Linked, RunAtHead, RunFilter
from holdfast.stores.rows import Shape
from holdfast.stores.sqlite.connection import Connection
from holdfast.stores.sqlite.queries import (
    CHECKPOINT,
    EFFECT,
    GROUP,
    RUN,
    SQL,
    WAIT,
    WORKER,
    Row,
)

Query = Callable[[Callable[[Connection], Any]], Awaitable[Any]]
_NEWEST_ID = b"\xff" * 17
_NEWEST_TIME = (2**62, "")


class _Reads:
    """Runs named queries of one tenant through `query`, which gives them a connection."""

    def __init__(self, query: Query, tenant: str) -> None:
        self._query = query
        self._tenant = tenant

    async def _rows(self, name: str, *row: Any) -> list[Row]:
        full = (self._tenant, *row)
        return await self._query(lambda connection: connection.execute(SQL[name], full).fetchall())

    async def _one(self, shape: Shape[Any], name: str, *row: Any) -> Any:
        rows = await self._rows(name, *row)
        return shape.value(rows[0]) if rows else None

    async def _all(self, shape: Shape[Any], name: str, *row: Any) -> list[Any]:
        return [shape.value(found) for found in await self._rows(name, *row)]


class RunReader(_Reads):
    async def get(self, run_id: str) -> Run | None:
        return await self._one(RUN, "get_run", run_id)

    async def at_head(self, run_id: str) -> RunAtHead | None:
        rows = await self._rows("get_run_at_head", run_id)
        return RunAtHead(RUN.value(rows[0][:-2]), Position(*rows[0][-2:])) if rows else None

    async def page(self, wanted: RunFilter) -> list[Run]:
        page = (*(wanted.before or _NEWEST_TIME), wanted.limit)
        if wanted.agent is not None:
            return await self._all(RUN, "list_runs_by_agent", *page, wanted.agent, wanted.status)
        if wanted.status is not None:
            return await self._all(RUN, "list_runs_by_status", *page, wanted.status)
        return await self._all(RUN, "list_runs", *page)

    async def count(self) -> dict[str, int]:
        return dict(await self._rows("count_runs"))

    async def ids(self, after: str, limit: int) -> list[str]:
        return [run_id for (run_id,) in await self._rows("list_run_ids", after, limit)]

    async def next_ready_at(self) -> int | None:
        return (await self._rows("next_ready_at"))[0][0]


class JournalReader(_Reads):
    async def head(self, run_id: str) -> Position | None:
        rows = await self._rows("get_head", run_id)
        return Position(rows[0][0], rows[0][1]) if rows else None

    async def read(self, run_id: str, *, after: int, limit: int) -> list[Entry]:
        return [Entry(*row) for row in await self._rows("read_entries", run_id, after, limit)]

    async def checkpoints(self, run_id: str, *, after: int, upto: int) -> list[Linked]:
        rows = await self._rows("read_checkpoint_entries", run_id, after, upto)
        return [Linked(Entry(*row[:14]), row[14]) for row in rows]

    async def named(self, run_id: str, seqs: Sequence[int]) -> list[Linked]:
        rows = await self._rows("read_named_entries", run_id, json.dumps(list(seqs)))
        return [Linked(Entry(*row[:14]), row[14]) for row in rows]


class CheckpointReader(_Reads):
    async def get(self, run_id: str, version: int) -> Checkpoint | None:
        return await self._one(CHECKPOINT, "get_checkpoint", run_id, version)

    async def by_id(self, checkpoint_id: UUID) -> Checkpoint | None:
        return await self._one(CHECKPOINT, "get_checkpoint_by_id", checkpoint_id.bytes)

    async def page(self, run_id: str, *, before: int, limit: int) -> list[Checkpoint]:
        return await self._all(CHECKPOINT, "list_checkpoints", run_id, before, limit)

    async def search(self, wanted: CheckpointFilter) -> list[Checkpoint]:
        return await self._all(
            CHECKPOINT,
            "search_checkpoints",
            wanted.before.bytes if wanted.before else _NEWEST_ID,
            wanted.limit,
            wanted.run_id,
            wanted.agent,
            wanted.phase,
            wanted.status,
            wanted.label,
            wanted.since,
            wanted.until,
        )


class EffectReader(_Reads):
    async def get(self, effect_id: UUID) -> Effect | None:
        return await self._one(EFFECT, "get_effect", effect_id.bytes)

    async def by_key(self, key: str) -> Effect | None:
        return await self._one(EFFECT, "get_effect_by_key", key)

    async def of_run(self, run_id: str) -> list[Effect]:
        return await self._all(EFFECT, "list_effects_of_run", run_id)

    async def open(self, status: str, *, limit: int) -> list[Effect]:
        return await self._all(EFFECT, "list_open_effects", status, limit)


class WaitReader(_Reads):
    async def get(self, wait_id: str) -> Wait | None:
        return await self._one(WAIT, "get_wait", wait_id)

    async def of_run(self, run_id: str) -> list[Wait]:
        return await self._all(WAIT, "list_waits", run_id)

    async def of_group(self, run_id: str, group_id: str) -> list[Wait]:
        return await self._all(WAIT, "list_waits_of_group", run_id, group_id)

    async def group(self, run_id: str, group_id: str) -> Group | None:
        return await self._one(GROUP, "get_group", run_id, group_id)

    async def groups(self, run_id: str) -> list[Group]:
        return await self._all(GROUP, "list_groups", run_id)

    async def next_deadline(self) -> int | None:
        return (await self._rows("next_deadline"))[0][0]


class WorkerReader(_Reads):
    async def page(self) -> list[Worker]:
        return await self._all(WORKER, "list_workers")
