"""The reading side of every backend: one small class per primitive, each method one named query.

The queries have the same names and parameters in all backends; a backend runs them (`Rows`) and
knows the shapes of what they return.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.kernel import journal, proofs, tags
from holdfast.kernel.budgets import Account, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.events import Fed, FeedPosition
from holdfast.kernel.journal import Entry, Header, Kind, Position
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.marks import Marked, WrittenAt
from holdfast.kernel.messages import MessageStatus, QueuedMessage
from holdfast.kernel.records import RecordRow, Revision
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, Wait
from holdfast.stores.reads import (
    CheckpointFilter,
    CheckpointPosition,
    Extent,
    FoundRecord,
    Linked,
    MarkFilter,
    RecordFilter,
    RunAtHead,
    RunFilter,
    TreeStanding,
)
from holdfast.stores.rows import Row, Shape, Shapes, packed

Rows = Callable[[str, Row], Awaitable[list[Row]]]
_NEWEST_ID = UUID(int=2**128 - 1)
_NEWEST_TIME = (2**62, "")
_NEWEST_VERSION = 2**62
_ENTRY = len(Entry.__struct_fields__)
_SIGNAL = len(Signal.__struct_fields__)
_GROUP = len(Group.__struct_fields__)
_MARK = len(Marked.__struct_fields__)


class _StoreReads:
    """Runs named queries of one tenant through `rows`."""

    def __init__(self, rows: Rows, shapes: Shapes, tenant: str) -> None:
        self._run_query = rows
        self._shapes = shapes
        self._tenant = tenant

    def _rows(self, name: str, *row: Any) -> Awaitable[list[Row]]:
        return self._run_query(name, (self._tenant, *row))

    async def _one(self, shape: Shape[Any], name: str, *row: Any) -> Any:
        rows = await self._rows(name, *row)
        return shape.value(rows[0]) if rows else None

    async def _all(self, shape: Shape[Any], name: str, *row: Any) -> list[Any]:
        return [shape.value(found) for found in await self._rows(name, *row)]


def check_run_proof(run: RunRow, found: Sequence[Row]) -> None:
    """Raise IndexCorrupted for a row that differs from its proof, as `get_run_proof` finds that.

    Where the journal is damaged the row is what is left, and is used.
    """
    for row in found:
        *columns, previous, last_seq, count = row
        is_whole = last_seq == count
        if is_whole and journal.is_intact(Entry(*columns), previous or journal.GENESIS):
            raise proofs.wrong_row(run.run_id)


def checked_group(shape: Shape[Group], row: Row) -> Group:
    """Return a group of a row of `counted_groups`; raises IndexCorrupted if the row is wrong."""
    group = shape.value(row[:_GROUP])
    proofs.check_group(group, proofs.GroupEvidence(*row[_GROUP:]))
    return group


class RunReader(_StoreReads):
    async def get(self, run_id: str) -> RunRow | None:
        found = await self._runs("get_run", run_id)
        return found[0] if found else None

    async def row(self, run_id: str) -> RunRow | None:
        return await self._one(self._shapes.run, "get_run_row", run_id)

    async def at_head(self, run_id: str) -> RunAtHead | None:
        rows = await self._rows("get_run_at_head", run_id)
        if not rows:
            return None
        *row, seq, link = rows[0]
        return RunAtHead(await self._proven(row), Position(seq, link))

    async def _runs(self, name: str, *row: Any) -> list[RunRow]:
        return [await self._proven(found) for found in await self._rows(name, *row)]

    async def _proven(self, row: Sequence[Any]) -> RunRow:
        *columns, proof = row
        run = self._shapes.run.value(tuple(columns))
        if not proofs.is_proven(run, proof):
            check_run_proof(run, await self._rows("get_run_proof", run.run_id))
        return run

    async def page(self, wanted: RunFilter) -> list[RunRow]:
        page = (*(wanted.before or _NEWEST_TIME), wanted.limit)
        if wanted.owner is not None:
            kept = wanted.owner, wanted.status, wanted.agent, wanted.subject, wanted.parent
            return await self._runs("list_runs_by_owner", *page, *kept)
        if wanted.parent is not None:
            named = wanted.parent, wanted.agent, wanted.status
            return await self._runs("list_runs_by_parent", *page, *named)
        if wanted.subject is not None:
            about = wanted.subject, wanted.status, wanted.agent
            return await self._runs("list_runs_by_subject", *page, *about)
        if wanted.agent is not None:
            return await self._runs("list_runs_by_agent", *page, wanted.agent, wanted.status)
        if wanted.status is not None:
            return await self._runs("list_runs_by_status", *page, wanted.status)
        return await self._runs("list_runs", *page)

    async def count(self) -> dict[str, int]:
        return dict(await self._rows("count_runs"))

    async def ids(self, after: str, limit: int) -> list[str]:
        return [run_id for (run_id,) in await self._rows("list_run_ids", after, limit)]

    async def held_by(self, worker: str) -> list[RunRow]:
        return await self._runs("list_runs_of_worker", worker)

    async def standing(self, run_id: str) -> TreeStanding:
        return TreeStanding(*map(bool, (await self._rows("tree_standing", run_id))[0]))

    async def of_peers(self, run_id: str, limit: int) -> list[RunRow]:
        return await self._runs("list_runs_of_peers", run_id, limit)

    async def expired(
        self, agent: str, before: int, *, after: tuple[int, str], limit: int
    ) -> list[RunRow]:
        return await self._runs("list_expired_runs", agent, before, *after, limit)

    async def live(
        self, agent: str, subject: str | None, *, after: tuple[int, str], limit: int
    ) -> list[RunRow]:
        page = agent, *after, limit
        if subject is None:
            return await self._runs("list_live_runs", *page)
        return await self._runs("list_live_runs_by_subject", *page, subject)

    async def next_ready_at(self) -> int | None:
        return (await self._rows("next_ready_at"))[0][0]

    async def failing(self) -> dict[str, int]:
        return dict(await self._rows("count_failing_runs"))

    async def find_suspect(self, agents: Sequence[str], now: int) -> str | None:
        rows = await self._rows("find_suspect", now, json.dumps([*agents]), journal.SCHEMA)
        return rows[0][0] if rows else None


class JournalReader(_StoreReads):
    async def head(self, run_id: str) -> Position | None:
        rows = await self._rows("get_head", run_id)
        return Position(rows[0][0], rows[0][1]) if rows else None

    async def read(self, run_id: str, *, after: int, limit: int) -> list[Entry]:
        return [Entry(*row) for row in await self._rows("read_entries", run_id, after, limit)]

    async def checkpoints(self, run_id: str, *, after: int, upto: int) -> list[Linked]:
        rows = await self._rows("read_checkpoint_entries", run_id, after, upto)
        return [Linked(Entry(*row[:_ENTRY]), row[_ENTRY]) for row in rows]

    async def named(self, run_id: str, seqs: Sequence[int]) -> list[Linked]:
        rows = await self._rows("read_named_entries", run_id, list(seqs))
        return [Linked(Entry(*row[:_ENTRY]), row[_ENTRY]) for row in rows]

    async def extent(self, run_id: str) -> Extent:
        return Extent(*(await self._rows("get_extent", run_id))[0])

    async def seqs(self, run_id: str) -> list[int]:
        return [seq for (seq,) in await self._rows("read_seqs", run_id)]

    async def headers(self, places: Sequence[tuple[str, int]]) -> list[Header]:
        wanted = [{"run_id": run_id, "seq": seq} for run_id, seq in places]
        return [Header(*row) for row in await self._rows("read_headers", json.dumps(wanted))]

    async def headers_after(self, run_id: str, *, after: int, limit: int) -> list[Header]:
        rows = await self._rows("read_headers_after", run_id, after, limit)
        return [Header(*row) for row in rows]

    async def telling(
        self, places: Sequence[CheckpointPosition], *, with_bodies: bool = True
    ) -> list[Linked]:
        wanted = [
            {"run_id": run_id, "seq": seq, "id": checkpoint_id.hex}
            for run_id, seq, checkpoint_id in places
        ]
        rows = await self._rows("read_telling_entries", json.dumps(wanted), with_bodies)
        return [Linked(Entry(*row[:_ENTRY]), row[_ENTRY]) for row in rows]

    async def told_checkpoint(self, checkpoint_id: UUID) -> Linked | None:
        rows = await self._rows("read_told_checkpoint", checkpoint_id)
        return Linked(Entry(*rows[0][:_ENTRY]), rows[0][_ENTRY]) if rows else None

    async def tombstones(self, run_id: str) -> list[Header]:
        return [Header(*row) for row in await self._rows("read_tombstones", run_id)]

    async def erasures(self, run_id: str) -> list[Entry]:
        return [Entry(*row) for row in await self._rows("read_erasures", run_id)]

    async def feed(self, after: FeedPosition, limit: int) -> list[Fed]:
        rows = await self._rows("read_feed", *after, limit)
        return [Fed(FeedPosition(*row[:3]), *row[3:]) for row in rows]

    async def feed_end(self) -> FeedPosition:
        rows = await self._rows("get_feed_end")
        return FeedPosition(rows[0][0] if rows else 0)


class CheckpointReader(_StoreReads):
    async def get(self, run_id: str, version: int) -> Checkpoint | None:
        return await self._one(self._shapes.checkpoint, "get_checkpoint", run_id, version)

    async def by_id(self, checkpoint_id: UUID) -> Checkpoint | None:
        return await self._one(self._shapes.checkpoint, "get_checkpoint_by_id", checkpoint_id)

    async def page(self, run_id: str, *, before: int, limit: int) -> list[Checkpoint]:
        return await self._all(self._shapes.checkpoint, "list_checkpoints", run_id, before, limit)

    async def search(self, wanted: CheckpointFilter) -> list[Checkpoint]:
        return await self._all(
            self._shapes.checkpoint,
            _narrowest(_CHECKPOINTS, wanted),
            wanted.before or _NEWEST_ID,
            wanted.limit,
            wanted.run_id,
            wanted.agent,
            wanted.phase,
            wanted.status,
            wanted.label,
            wanted.since,
            wanted.until,
        )


class _Searches(NamedTuple):
    """The queries of a search, each by its own index."""

    any: str
    of_run: str
    by_agent: str
    by_label: str


_CHECKPOINTS = _Searches(
    "search_checkpoints",
    "search_checkpoints_of_run",
    "search_checkpoints_by_agent",
    "search_checkpoints_by_label",
)
_RECORDS = _Searches(
    "search_records",
    "search_records_of_run",
    "search_records_by_agent",
    "search_records_by_label",
)


def _narrowest(searches: _Searches, wanted: CheckpointFilter) -> str:
    """The query that goes through the fewest rows."""
    if wanted.run_id is not None:
        return searches.of_run
    if wanted.label:
        return searches.by_label
    return searches.by_agent if wanted.agent else searches.any


class RecordReader(_StoreReads):
    async def by_id(self, checkpoint_id: UUID) -> FoundRecord | None:
        rows = await self._rows("get_checkpoint_record", checkpoint_id)
        return self._found(rows[0]) if rows else None

    async def page(self, run_id: str, *, before: int, limit: int) -> list[FoundRecord]:
        rows = await self._rows("list_checkpoint_records", run_id, before, limit)
        return [self._found(row) for row in rows]

    async def search(self, wanted: RecordFilter) -> list[FoundRecord]:
        asked: Row = (
            wanted.before or _NEWEST_ID,
            wanted.limit,
            wanted.run_id,
            wanted.agent,
            wanted.agent_type,
            wanted.phase,
            wanted.status,
            wanted.label,
            wanted.since,
            wanted.until,
        )
        if wanted.words:
            rows = await self._rows("search_records_by_words", *asked, wanted.words)
        else:
            rows = await self._rows(_narrowest(_RECORDS, wanted), *asked)
        return [self._found(row) for row in rows]

    async def of_run(self, run_id: str) -> list[RecordRow]:
        return await self._all(self._shapes.record, "list_records", run_id)

    async def revisions(self, run_id: str) -> list[Revision]:
        return await self._all(self._shapes.revision, "list_revisions", run_id)

    async def revision(self, run_id: str, version: int, revision: int) -> Revision | None:
        return await self._one(self._shapes.revision, "get_revision", run_id, version, revision)

    def _found(self, row: Row) -> FoundRecord:
        checkpoint = self._shapes.checkpoint.value(row[:12])
        tenant, run_id, version = checkpoint.tenant, checkpoint.run_id, checkpoint.version
        parent, parent_seq = _id(row[21]), row[22] or 0
        if row[12] is None:
            empty = RecordRow(tenant=tenant, run_id=run_id, version=version)
            return FoundRecord(checkpoint, empty, parent, parent_seq)
        record = self._shapes.record.value((tenant, run_id, version, *row[12:21]))
        return FoundRecord(checkpoint, record, record.linked or parent, parent_seq)


def _id(stored: bytes | UUID | None) -> str:
    """An id in its usual form, however the backend stores it."""
    return str(UUID(bytes=stored) if isinstance(stored, bytes) else stored or "")


class MarkReader(_StoreReads):
    async def get(self, run_id: str, space: str, name: str) -> Marked | None:
        found = await self._proven("get_mark", run_id, space, packed(name))
        return found[0] if found else None

    async def latest(self, run_id: str, space: str) -> Marked | None:
        found = await self._proven("get_latest_mark", run_id, space)
        return found[0] if found else None

    async def page(self, wanted: MarkFilter) -> list[Marked]:
        before = _NEWEST_VERSION if wanted.before_version is None else wanted.before_version
        tagged = tags.encode(wanted.tags) if wanted.tags else None
        page = (
            before,
            None if wanted.before_name is None else packed(wanted.before_name),
            wanted.limit,
            None if wanted.name is None else packed(wanted.name),
            tagged,
        )
        run_id, space = wanted.run_id, wanted.space
        if run_id is None:
            return await self._proven("page_marks", *page, space)
        if space is None:
            return await self._proven("page_marks_of_run", *page, run_id)
        return await self._proven("page_marks_of_space", *page, run_id, space)

    async def of_run(self, run_id: str) -> list[Marked]:
        return await self._proven("list_marks_of_run", run_id)

    async def rows(self, run_id: str) -> list[Marked]:
        found = await self._rows("list_marks_of_run", run_id)
        return [self._shapes.mark.value(row[:_MARK]) for row in found]

    async def _proven(self, name: str, *row: Any) -> list[Marked]:
        found: list[Marked] = []
        for *columns, seq, at, facts in await self._rows(name, *row):
            mark = self._shapes.mark.value(tuple(columns))
            if not proofs.is_mark_proven(mark, at, facts):
                await self._check_damaged(mark, seq or 0)
            found.append(mark)
        return found

    async def _check_damaged(self, mark: Marked, seq: int) -> None:
        """Raise IndexCorrupted unless the entry behind a row that differs is damaged."""
        found = await self._rows("read_named_entries", mark.run_id, [seq])
        if all(journal.is_intact(Entry(*row[:_ENTRY]), row[_ENTRY] or b"") for row in found):
            raise proofs.wrong_mark(mark)

    async def tagged(self, tag: str, values: Sequence[str]) -> list[Marked]:
        wanted = ",".join(tags.encode({tag: value}) for value in values)
        return await self._proven("list_tagged_marks", f"[{wanted}]")

    async def idle_runs(self, agent: str, before: int, limit: int) -> list[str]:
        return [run_id for (run_id,) in await self._rows("list_idle_runs", agent, before, limit)]


class WriteReader(_StoreReads):
    async def of_marks(self, run_id: str, keys: Sequence[tuple[str, str]]) -> list[WrittenAt]:
        wanted = dict.fromkeys(keys)
        spaces, names = [space for space, _ in wanted], [packed(name).hex() for _, name in wanted]
        return await self._all(self._shapes.writes, "list_writes_of_marks", run_id, spaces, names)

    async def of_run(self, run_id: str) -> list[WrittenAt]:
        return await self._all(self._shapes.writes, "list_writes", run_id)


class EffectReader(_StoreReads):
    async def intents(self, key: str) -> list[Header]:
        rows = await self._rows("list_intents", proofs.key_digest(key))
        return [Header(*row) for row in rows]

    async def get(self, effect_id: UUID) -> Effect | None:
        return await self._one(self._shapes.effect, "get_effect", effect_id)

    async def by_key(self, key: str) -> Effect | None:
        return await self._one(self._shapes.effect, "get_effect_by_key", key)

    async def of_run(self, run_id: str) -> list[Effect]:
        return await self._all(self._shapes.effect, "list_effects_of_run", run_id)

    async def open(self, status: str, *, owner: str | None = None, limit: int) -> list[Effect]:
        page, shape = (status, limit), self._shapes.effect
        if owner is None:
            return await self._all(shape, "list_open_effects", *page)
        return await self._all(shape, "list_open_effects_of_owner", *page, owner)


class WaitReader(_StoreReads):
    async def get(self, wait_id: str) -> Wait | None:
        return await self._one(self._shapes.wait, "get_wait", wait_id)

    async def of_run(self, run_id: str) -> list[Wait]:
        return await self._all(self._shapes.wait, "list_waits", run_id)

    async def of_group(self, run_id: str, group_id: str) -> list[Wait]:
        return await self._all(self._shapes.wait, "list_waits_of_group", run_id, group_id)

    async def for_call(self, address: str) -> list[Wait]:
        return await self._all(self._shapes.wait, "list_waits_for_call", address)

    async def group(self, run_id: str, group_id: str) -> Group | None:
        rows = await self._rows("get_group", run_id, group_id)
        return checked_group(self._shapes.group, rows[0]) if rows else None

    async def groups(self, run_id: str) -> list[Group]:
        return await self._all(self._shapes.group, "list_groups", run_id)

    async def next_deadline(self, after: int) -> int | None:
        return (await self._rows("next_deadline", after))[0][0]

    async def open_questions(
        self, owner: str | None = None, *, after: tuple[int, str], limit: int
    ) -> list[Wait]:
        page, shape = (*after, limit), self._shapes.wait
        if owner is None:
            return await self._all(shape, "list_open_questions", *page)
        return await self._all(shape, "list_open_questions_of_owner", *page, owner)


class SignalReader(_StoreReads):
    async def get(self, run_id: str, signal_id: str) -> Signal | None:
        found = await self._proven("get_signal", run_id, signal_id)
        if not found:
            digest = proofs.signal_digest(run_id, signal_id)
            for _ in await self._rows("find_signal_entry", digest):
                raise proofs.wrong_signal(run_id, signal_id, "is missing")
        return found[0] if found else None

    async def of_run(self, run_id: str) -> list[Signal]:
        return await self._proven("list_signals", run_id)

    async def untaken(self, run_id: str, name: str, limit: int) -> list[Signal]:
        return await self._proven("list_untaken_signals", run_id, name, limit)

    async def rows(self, run_id: str) -> list[Signal]:
        found = await self._rows("list_signals", run_id)
        return [self._shapes.signal.value(row[:_SIGNAL]) for row in found]

    async def _proven(self, name: str, *row: Any) -> list[Signal]:
        found: list[Signal] = []
        for stored in await self._rows(name, *row):
            signal = self._shapes.signal.value(stored[:_SIGNAL])
            if not proofs.is_signal_proven(signal, *stored[_SIGNAL:]):
                await self._check_damaged(signal)
            found.append(signal)
        return found

    async def _check_damaged(self, signal: Signal) -> None:
        """Raise IndexCorrupted unless an entry behind a row that differs is damaged.

        Entries of earlier versions have no proof: their rows are not compared.
        """
        seqs = [seq for seq in (signal.seq, signal.taken_seq) if seq > 0]
        for row in await self._rows("read_named_entries", signal.run_id, seqs):
            entry = Entry(*row[:_ENTRY])
            is_about_signals = entry.kind in (Kind.SIGNAL_RECEIVED, Kind.SIGNAL_TAKEN)
            is_old = is_about_signals and entry.proof is None
            if is_old or not journal.is_intact(entry, row[_ENTRY] or b""):
                return
        what = "differs from the journal"
        raise proofs.wrong_signal(signal.run_id, signal.signal_id, what)


class BudgetReader(_StoreReads):
    async def get(self, run_id: str) -> Account | None:
        return await self._one(self._shapes.account, "get_budget", run_id)

    async def of_runs(self, run_ids: Sequence[str]) -> dict[str, Account | None]:
        rows = await self._rows("list_budgets_of_runs", json.dumps(run_ids))
        account = self._shapes.account
        return {row[0]: None if row[1] is None else account.value(row[1:]) for row in rows}

    async def entries(self, run_id: str, *, after: int, limit: int) -> list[Header]:
        rows = await self._rows("read_budget_entries", run_id, after, limit)
        return [Header(*row) for row in rows]

    async def reservations(self, run_id: str) -> list[Reservation]:
        return await self._all(self._shapes.reservation, "list_reservations", run_id)

    async def reserved_by(self, spender: str) -> list[Reservation]:
        return await self._all(self._shapes.reservation, "list_reservations_of_spender", spender)


class MessageReader(_StoreReads):
    async def get(self, queue: str, message_id: str) -> QueuedMessage | None:
        return await self._one(self._shapes.message, "get_message", queue, message_id)

    async def count(self, queue: str) -> dict[str, int]:
        return dict(await self._rows("count_messages", queue))

    async def next_due_at(self, queue: str, after: int) -> int | None:
        return (await self._rows("next_due_at", queue, after))[0][0]

    async def page(self, queue: str, status: MessageStatus, limit: int) -> list[QueuedMessage]:
        return await self._all(self._shapes.message, "list_messages", queue, status.value, limit)


class WorkerReader(_StoreReads):
    async def page(self) -> list[WorkerRow]:
        return await self._all(self._shapes.worker, "list_workers")

    async def holding(self) -> list[WorkerRow]:
        return await self._all(self._shapes.worker, "list_holding_workers")


class Readers:
    """All of them, for one tenant: the reading side of a store."""

    def __init__(self, rows: Rows, shapes: Shapes, tenant: str) -> None:
        self.tenant = tenant
        self.runs = RunReader(rows, shapes, tenant)
        self.journal = JournalReader(rows, shapes, tenant)
        self.checkpoints = CheckpointReader(rows, shapes, tenant)
        self.records = RecordReader(rows, shapes, tenant)
        self.marks = MarkReader(rows, shapes, tenant)
        self.writes = WriteReader(rows, shapes, tenant)
        self.effects = EffectReader(rows, shapes, tenant)
        self.waits = WaitReader(rows, shapes, tenant)
        self.signals = SignalReader(rows, shapes, tenant)
        self.budgets = BudgetReader(rows, shapes, tenant)
        self.messages = MessageReader(rows, shapes, tenant)
        self.workers = WorkerReader(rows, shapes, tenant)
