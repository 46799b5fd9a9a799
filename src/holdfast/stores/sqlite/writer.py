"""The writing side of SQLite: a batch of writes in one transaction, each whole or not at all.

It runs in the writer's thread, under BEGIN IMMEDIATE. No other connection writes between the first
read and COMMIT, so late-bound decisions read rows that do not change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast import faults
from holdfast.clock import Clock
from holdfast.errors import IntegrityError
from holdfast.kernel import proofs
from holdfast.kernel.index_rows import Indexes
from holdfast.kernel.indexes import Change, PutRun
from holdfast.kernel.journal import Entry
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.signals import Signal
from holdfast.stores.contract import (
    NO_CHECKPOINT,
    Applied,
    AtCheckpoint,
    Beat,
    BegunRun,
    ClaimWait,
    Commit,
    Conflict,
    ExtendWait,
    ForgetMessages,
    Holder,
    Late,
    MoveMessage,
    NoteBlockedLoop,
    NoteDuplicate,
    Outcome,
    Publish,
    Refused,
    Snapshot,
    Sweep,
    TakeMessages,
    Touch,
    Write,
)
from holdfast.stores.late import Deciding
from holdfast.stores.readers import check_run_proof, checked_group
from holdfast.stores.rows import beat_row, taking
from holdfast.stores.sqlite import changes
from holdfast.stores.sqlite.connection import SqliteConnection
from holdfast.stores.sqlite.messages import SqliteMessageWriter
from holdfast.stores.sqlite.queries import BODY_COLUMN, INLINE_BYTES, SHAPES, SQL, Row

_columns: Final = SHAPES.entry.columns
_SIGNAL_COLUMNS: Final = len(Signal.__struct_fields__)


class _SavepointsNeeded(Exception):
    """Part of the batch must be rolled back, and the rest kept: apply it with savepoints."""


class SqliteWriter:
    """Applies batches on one connection."""

    def __init__(self, connection: SqliteConnection, clock: Clock) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._clock = clock
        self._messages = SqliteMessageWriter(connection, clock)
        self._probe: Entry | None = None
        self._has_savepoints = False

    def apply(self, batch: Sequence[Write]) -> list[Any]:
        """Apply a batch, and return one answer per write after COMMIT.

        An error before COMMIT means that nothing is stored. If COMMIT fails, this returns the
        answers only if it finds an entry of the batch in the store; otherwise it raises. If a
        decision raises a domain error, that error is the answer to its write only.
        """
        answers = self._begin(batch)
        try:
            self._execute("COMMIT")
            faults.point("batch.after_commit")
        except Exception:
            if not self._was_stored():
                raise
        return answers

    def _begin(self, batch: Sequence[Write]) -> list[Any]:
        """Begin a transaction, apply the batch, and return its answers; the caller commits.

        The first try uses no savepoints: they cost a sixth of a small commit and are seldom needed.
        If part of the batch must be rolled back, the whole batch is rolled back and applied again
        with savepoints. Decisions are pure, so repeating them is safe.
        """
        faults.point("batch.before_begin")
        for self._has_savepoints in (False, True):
            self._probe = None
            self._execute("BEGIN IMMEDIATE")
            try:
                faults.point("batch.after_begin")
                answers = self._apply_all(batch)
                faults.point("batch.before_commit")
            except _SavepointsNeeded:
                self._execute("ROLLBACK")
            except BaseException:
                self._execute("ROLLBACK")
                raise
            else:
                return answers
        raise AssertionError("with savepoints nothing asks for them")

    def _was_stored(self) -> bool:
        """Look for an entry of the batch; return whether COMMIT stored it although it failed."""
        if self._connection.in_transaction:
            self._execute("ROLLBACK")
        if self._probe is None:
            return False
        link = self._one("get_link", (self._probe.tenant, self._probe.run_id, self._probe.seq))
        return link is not None and link[0] == self._probe.link

    def _apply_all(self, batch: Sequence[Write]) -> list[Any]:
        """Apply commits first, then late-bound writes, then the rest; return all answers.

        In this order, no late-bound write causes a Conflict for a commit of the same batch.
        """
        answers: list[Any] = [None] * len(batch)
        late: dict[str, list[tuple[int, Late]]] = {}
        for index, write in enumerate(batch):
            match write:
                case Commit():
                    answers[index] = self._commit(write)
                case Late():
                    run_id = write.run_id or self._run_of(write)
                    late.setdefault(run_id, []).append((index, write))
                case _:
                    pass
        for run_id, writes in late.items():
            results = self._decide_for_run(run_id, [write for _, write in writes])
            for (index, write), result in zip(writes, results, strict=True):
                answers[index] = result if write.run_id else write.answered(run_id, result)
        for index, write in enumerate(batch):
            match write:
                case Sweep():
                    answers[index] = self._sweep(write)
                case Beat() | NoteBlockedLoop():
                    self._note_of_worker(write)
                case Publish() | TakeMessages() | MoveMessage():
                    answers[index] = self._messages.apply(write)
                case _:
                    pass
        return answers

    def _commit(self, commit: Commit) -> Outcome:
        if not self._has_savepoints:
            outcome = self._store(commit)
            if isinstance(outcome, Refused):
                raise _SavepointsNeeded
            return outcome
        probe = self._probe
        self._execute("SAVEPOINT one_commit")
        outcome = self._store(commit)
        if isinstance(outcome, Refused):
            self._execute("ROLLBACK TO one_commit")
            self._probe = probe
        self._execute("RELEASE one_commit")
        return outcome

    def _store(self, commit: Commit) -> Outcome:
        stored_at = self._clock.now()
        first = commit.entries[0]
        row, body = _entry_row(first, stored_at)
        self._execute(SQL["append_first_entry"], (*row, commit.after.link))
        if not self._connection.changes():
            return self._explain(first)
        if body is not None:
            self._execute(SQL["add_body"], (body,))
        self._probe = first
        faults.point("commit.after_first_entry")
        for entry in commit.entries[1:]:
            self._append(entry, stored_at)
        faults.point("commit.after_entries")
        if commit.run is not None:
            self._execute(SQL["put_run"], SHAPES.run.row(commit.run))
        refused = self._change(commit.tenant, commit.run_id, commit.changes)
        for begun in commit.begun:
            refused = refused or self._begin_run(begun, stored_at)
        faults.point("commit.after_changes")
        return Applied() if refused is None else Refused(refused)

    def _begin_run(self, begun: BegunRun, stored_at: int) -> Change | None:
        """Store a run that another run's commit creates. Returns a PutRun if its id is taken."""
        row, body = _entry_row(begun.entries[0], stored_at)
        self._execute(SQL["append_first_entry"], (*row, b""))
        if not self._connection.changes():
            return PutRun(begun.run)
        if body is not None:
            self._execute(SQL["add_body"], (body,))
        for entry in begun.entries[1:]:
            self._append(entry, stored_at)
        self._execute(SQL["put_run"], SHAPES.run.row(begun.run))
        return None

    def _append(self, entry: Entry, stored_at: int) -> None:
        row, body = _entry_row(entry, stored_at)
        self._execute(SQL["append_entry"], row)
        if body is not None:
            self._execute(SQL["add_body"], (body,))

    def _explain(self, first: Entry) -> Outcome:
        """Return Applied if this first entry is stored already, else Conflict."""
        link = self._one("get_link", (first.tenant, first.run_id, first.seq))
        return Applied() if link is not None and link[0] == first.link else Conflict()

    def _change(self, tenant: str, run_id: str, wanted: Sequence[Change]) -> Change | None:
        """Apply changes to the indexes. Returns the first whose condition did not hold, if any."""
        for change in wanted:
            for name, row in changes.statements(tenant, run_id, change):
                self._execute(SQL[name], row)
                if type(change) in changes.CONDITIONAL and not self._connection.changes():
                    return change
        return None

    def _run_of(self, late: Late) -> str:
        """Return the run of the first wait that a write names; "" if there is no such wait."""
        found = self._one("get_wait", (late.tenant, late.wait_ids[0]))
        return SHAPES.wait.value(found).run_id if found is not None else ""

    def _renew_takers(self, writes: Sequence[Late]) -> None:
        """Renew the rows of workers that take a run, if needed: taking a run is a sign of life."""
        for taker in {write.taker.worker: write.taker for write in writes if write.taker}.values():
            name, row = taking(taker, self._clock.now())
            self._execute(SQL[name], row).fetchall()

    def _decide_for_run(
        self, run_id: str, writes: Sequence[Late], workers: Mapping[str, WorkerRow] | None = None
    ) -> list[Any]:
        """Decide the late-bound writes of one run in order, then store all results."""
        tenant = writes[0].tenant
        self._renew_takers(writes)
        snapshot = self._snapshot(tenant, run_id, writes)
        if workers is not None:
            snapshot.workers = workers
            snapshot.has_results = self._one("list_runs_with_results", (tenant, run_id)) is not None
        deciding = Deciding(snapshot, run_id)
        answers = [deciding.decide(write) for write in writes]
        stored_at = self._clock.now()
        faults.point("batch.after_decide")
        for entry in deciding.entries:
            self._append(entry, stored_at)
            self._probe = entry
        faults.point("commit.after_entries")
        if deciding.changed_run is not None:
            self._execute(SQL["put_run"], SHAPES.run.row(deciding.changed_run))
        refused = self._change(tenant, run_id, deciding.changes())
        if refused is not None:
            raise IntegrityError(
                f"the index rows of run {run_id} contradict its journal ({refused}); rebuild them "
                "with `holdfast store reindex`"
            )
        for touch in deciding.touches:
            self._touch(tenant, touch)
        faults.point("commit.after_changes")
        return answers

    def _snapshot(self, tenant: str, run_id: str, writes: Sequence[Late]) -> Snapshot:
        rows = self._rows_for(tenant, run_id, writes)
        run = self._one("get_run", (tenant, run_id))
        head = self._one("get_head", (tenant, run_id))
        if run is not None:
            rows.run = SHAPES.run.value(run[:-1])
            if head is None:
                raise IntegrityError(f"run {run_id} has a row but no journal: it was deleted")
            if not proofs.is_proven(rows.run, run[-1]):
                found = self._execute(SQL["get_run_proof"], (tenant, run_id)).fetchall()
                check_run_proof(rows.run, found)
        row = (tenant, run_id, 2**62, 1)
        newest = None if head is None else self._one("list_checkpoints", row)
        holder = self._one("get_holder", (tenant, rows.run.worker)) if rows.run else None
        return Snapshot(
            position=changes.position_of(head),
            indexes=rows,
            now=self._clock.now(),
            newest=_at_checkpoint(newest),
            holder=None if holder is None else Holder(*holder),
        )

    def _rows_for(self, tenant: str, run_id: str, writes: Sequence[Late]) -> Indexes:
        """Read the rows that writes ask for, except the run's own row."""
        rows = Indexes(is_partial=True)
        waits = {row[1]: row for row in self._waits_for(tenant, run_id, writes)}
        for wait in map(SHAPES.wait.value, waits.values()):
            rows.add_wait(wait)
        for group_id in {wait.group_id for wait in rows.waits.values()}:
            group = self._one("get_group", (tenant, run_id, group_id))
            if group is not None:
                rows.groups[group_id] = checked_group(SHAPES.group, group)
        for effect_id in {effect_id for write in writes for effect_id in write.effect_ids}:
            effect = self._one("get_effect", (tenant, effect_id.bytes))
            if effect is not None:
                rows.effects[effect_id] = SHAPES.effect.value(effect)
        for signal_id in {signal_id for write in writes for signal_id in write.signal_ids}:
            signal = self._one("get_signal", (tenant, run_id, signal_id))
            if signal is not None:
                rows.signals[signal_id] = SHAPES.signal.value(signal[:_SIGNAL_COLUMNS])
        self._read_books(rows, tenant, run_id, writes)
        return rows

    def _read_books(self, rows: Indexes, tenant: str, run_id: str, writes: Sequence[Late]) -> None:
        """Read the run's budget, if writes ask for it, and the reservations that they name."""
        if any(write.has_budget for write in writes):
            account = self._one("get_budget", (tenant, run_id))
            rows.books.account = None if account is None else SHAPES.account.value(account)
        for reservation_id in {id_ for write in writes for id_ in write.reservation_ids}:
            found = self._one("get_reservation", (tenant, run_id, reservation_id))
            if found is not None:
                rows.books.reservations[reservation_id] = SHAPES.reservation.value(found)

    def _waits_for(self, tenant: str, run_id: str, writes: Sequence[Late]) -> Iterator[Row]:
        """Yield the waits that writes name, and the waits that their signals may resolve."""
        for wait_id in dict.fromkeys(id_ for write in writes for id_ in write.wait_ids):
            found = self._one("get_wait", (tenant, wait_id))
            if found is not None:
                yield found
        for name in {name for write in writes for name in write.signal_names}:
            row = (tenant, run_id, name)
            yield from self._execute(SQL["list_waits_for_signal"], row).fetchall()

    def _sweep(self, sweep: Sweep) -> list[tuple[str, Any]]:
        now = self._clock.now()
        name, row = changes.find_statement(sweep, now)
        found: dict[str, list[str]] = {}
        for run_id, *wait_id in self._execute(SQL[name], row).fetchall():
            found.setdefault(run_id, []).extend(wait_id)
        workers = self._workers(sweep.tenant) if found and sweep.find == "lost_runs" else None
        answers: list[tuple[str, Any]] = []
        for run_id, wait_ids in found.items():
            late = Late(
                sweep.tenant,
                run_id,
                sweep.actor,
                sweep.decide,
                tuple(wait_ids),
                taker=sweep.taker,
            )
            answers.append((run_id, self._decide_alone(late, workers)))
        return answers

    def _workers(self, tenant: str) -> dict[str, WorkerRow]:
        rows = self._execute(SQL["list_workers"], (tenant,)).fetchall()
        return {worker.worker: worker for worker in map(SHAPES.worker.value, rows)}

    def _decide_alone(self, late: Late, workers: Mapping[str, WorkerRow] | None) -> Any:
        """Decide for one run of a sweep. If the run is damaged, return the error as its answer.

        The sweep then continues with the other runs.
        """
        if not self._has_savepoints:
            try:
                return self._decide_for_run(late.run_id, [late], workers)[0]
            except IntegrityError as damage:
                raise _SavepointsNeeded from damage
        probe = self._probe
        self._execute("SAVEPOINT one_run")
        try:
            (answer,) = self._decide_for_run(late.run_id, [late], workers)
        except IntegrityError as damage:
            self._execute("ROLLBACK TO one_run")
            self._probe, answer = probe, damage
        self._execute("RELEASE one_run")
        return answer

    def _note_of_worker(self, write: Beat | NoteBlockedLoop) -> None:
        match write:
            case NoteBlockedLoop(tenant, worker, run_id):
                self._execute(SQL["note_blocked_loop"], (tenant, worker, run_id))
            case Beat(worker, if_unmoved=True):
                row = (worker.tenant, worker.worker, worker.beats)
                self._execute(SQL["forget_unmoved_worker"], row)
            case Beat(worker, is_last=True):
                self._execute(SQL["forget_worker"], (worker.tenant, worker.worker))
            case Beat(worker):
                row = beat_row(worker, self._clock.now())
                self._execute(SQL["beat_worker"], row).fetchall()

    def _touch(self, tenant: str, touch: Touch) -> None:
        match touch:
            case ExtendWait(wait_id, deadline, at, progress):
                row = (tenant, wait_id, deadline, at, progress)
                self._execute(SQL["extend_open_wait"], row)
            case ClaimWait(wait_id, by, until):
                self._execute(SQL["claim_open_wait"], (tenant, wait_id, by, until))
            case NoteDuplicate(wait_id):
                self._execute(SQL["note_duplicate"], (tenant, wait_id))
            case ForgetMessages(message_ids):
                for message_id in message_ids:
                    self._execute(SQL["forget_owed"], (tenant, message_id))

    def _one(self, name: str, row: Row) -> Row | None:
        return self._execute(SQL[name], row).fetchone()


def _at_checkpoint(row: Row | None) -> AtCheckpoint:
    if row is None:
        return NO_CHECKPOINT
    checkpoint = SHAPES.checkpoint.value(row)
    return AtCheckpoint(checkpoint.seq, checkpoint.version, checkpoint.checkpoint_id)


def _entry_row(entry: Entry, stored_at: int) -> tuple[Row, bytes | None]:
    """Return an entry's row, and its body if that is too large for the row."""
    row = (*_columns(entry), stored_at)
    if entry.body is None or len(entry.body) <= INLINE_BYTES:
        return row, None
    return (*row[:BODY_COLUMN], None, *row[BODY_COLUMN + 1 :]), entry.body
