"""One transaction of outside writers: lock, find, look, decide, write; merged for each run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import faults
from holdfast.clock import Clock
from holdfast.errors import IntegrityError
from holdfast.kernel import journal
from holdfast.kernel.indexes import Change
from holdfast.kernel.journal import Entry
from holdfast.stores.contract import (
    FIND_OF_AGENTS,
    Beat,
    ClaimWait,
    Commit,
    ExtendWait,
    ForgetMessages,
    Late,
    LostWorker,
    NoteBlockedLoop,
    NoteDuplicate,
    Sweep,
    Touch,
)
from holdfast.stores.late import Deciding
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.changes import ALL, Changes, Parameters, changes_of
from holdfast.stores.postgres.commits import change_later, close_waits, first_failed_condition
from holdfast.stores.postgres.connections import PostgresConnection, fetch, fetch_parts
from holdfast.stores.postgres.queries import CLOSING, SQL, commit_statement
from holdfast.stores.postgres.snapshots import Rows, look, snapshot_of
from holdfast.stores.rows import Row, beat_row

OutsideWrite = Late | Sweep | Beat | NoteBlockedLoop
W = TypeVar("W", Late, Sweep, Beat, NoteBlockedLoop)


class DamagedRuns(Exception):
    """The index rows of these runs contradict their journals: decide again without them."""

    def __init__(self, damage: dict[str, IntegrityError]) -> None:
        super().__init__()
        self.damage = damage


class _Task(NamedTuple):
    """A decision for one run, and whose answer it gives."""

    asker: int
    late: Late
    is_swept: bool


class _RunAnswer(NamedTuple):
    task: _Task
    run_id: str
    answer: Any


class OutsideRound:
    """What is decided and written in one transaction; thrown away if that fails."""

    def __init__(
        self,
        tenant: str,
        clock: Clock,
        writes: Mapping[int, OutsideWrite],
        damaged: Mapping[str, IntegrityError],
    ) -> None:
        self.is_committed = False
        self.probe: Entry | None = None
        self._tenant = tenant
        self._clock = clock
        self._writes = writes
        self._damaged = damaged
        self._tasks: dict[str, list[_Task]] = {}
        self._answers: list[_RunAnswer] = []
        self._commits: dict[str, Commit] = {}
        self._touches: dict[str, Sequence[Touch]] = {}
        self._conflicts: set[str] = set()
        self._lost: dict[str, LostWorker] = {}
        """Of runs that are given back: the worker that must not have moved."""

    @property
    def has_writes(self) -> bool:
        of_workers = self._of(Beat) or self._of(NoteBlockedLoop)
        return bool(self._commits or self._touches or of_workers)

    def give(self, answers: list[Any]) -> None:
        """Hand out the answers of all decisions that did not conflict."""
        for task, run_id, answer in self._answers:
            if run_id in self._conflicts:
                continue
            if task.is_swept:
                answers[task.asker].append((run_id, answer))
            else:
                answers[task.asker] = task.late.answered(run_id, answer)

    def conflicting(self) -> dict[int, OutsideWrite]:
        """The writes that must be decided anew. A sweep comes again by itself."""
        return {
            task.asker: task.late
            for run_id in self._conflicts
            for task in self._tasks[run_id]
            if not task.is_swept
        }

    async def finds_nothing(self, connection: PostgresConnection) -> bool:
        """Whether there are only sweeps for what is late, and none finds anything.

        That is nearly always so, and one round trip shows it. Sweeps for ready runs do not
        count: they follow a hint, or will find a run soon.
        """
        if not all(_is_for_what_is_late(write) for write in self._writes.values()):
            return False
        for sweeps in _alike(self._of(Sweep)):
            if await self._find(connection, sweeps):
                return False
        return True

    async def decide(self, connection: PostgresConnection) -> None:
        """Lock, find, look, and let everybody decide."""
        late = self._of(Late)
        locked = await self._lock(connection, [write for _, write in late])
        for sweeps in _alike(self._of(Sweep)):
            self._hand_out(sweeps, await self._find(connection, sweeps))
        rows = await self._look(connection, [*locked, *self._tasks], [write for _, write in late])
        for index, write in late:
            run_id = write.run_id or _run_of(write, rows)
            self._tasks.setdefault(run_id, []).append(_Task(index, write, is_swept=False))
        for run_id, tasks in self._tasks.items():
            try:
                self._decide_for_run(run_id, tasks, rows)
            except IntegrityError as damage:
                self._answers += [_RunAnswer(task, run_id, damage) for task in tasks]

    async def write(self, connection: PostgresConnection) -> None:
        """Store what was decided; a run whose holder was first is left out, and noted."""
        await self._leave_out_moved(connection)
        if self._commits:
            await self._write_commits(connection)
        touches = [
            touch
            for run_id, asked in self._touches.items()
            if run_id not in self._conflicts
            for touch in asked
        ]
        await self._touch(connection, touches)
        for _, beat in self._of(Beat):
            await self._beat(connection, beat)
        for _, noted in self._of(NoteBlockedLoop):
            row = (noted.tenant, noted.worker, noted.run_id)
            await connection.execute(SQL["note_blocked_loop"], row)
        faults.point("commit.after_changes")

    async def _leave_out_moved(self, connection: PostgresConnection) -> None:
        """Give back no run of a worker that has beaten since it was judged to be lost.

        This process may have been paused since then. A worker that is not left out cannot beat
        before the transaction ends.
        """
        wanted = {run_id: lost for run_id, lost in self._lost.items() if run_id in self._commits}
        if not wanted:
            return
        lost = sorted(set(wanted.values()))
        workers = binary_arrays.texts([each.worker for each in lost])
        row = (self._tenant, workers, binary_arrays.int8s([each.beats for each in lost]))
        found = await fetch(connection, SQL["lock_unmoved_workers"], row)
        unmoved = {worker for (worker,) in found}
        moved = {run_id for run_id, each in wanted.items() if each.worker not in unmoved}
        self._conflicts |= moved
        for run_id in moved:
            del self._commits[run_id]

    def _of(self, kind: type[W]) -> list[tuple[int, W]]:
        return [(i, write) for i, write in self._writes.items() if isinstance(write, kind)]

    async def _lock(self, connection: PostgresConnection, late: Sequence[Late]) -> list[str]:
        """The runs these writes are for, locked in order; those that exist."""
        if not late:
            return []
        run_ids = {write.run_id for write in late if write.run_id}
        wait_ids = {write.wait_ids[0] for write in late if not write.run_id}
        asked = (self._tenant, binary_arrays.texts(run_ids), binary_arrays.texts(wait_ids))
        return [run_id for (run_id,) in await fetch(connection, SQL["lock_runs"], asked)]

    async def _find(
        self, connection: PostgresConnection, sweeps: Sequence[tuple[int, Sweep]]
    ) -> list[tuple[str, ...]]:
        """(run id, wait id if any) of what sweeps of one kind look for, locked for this one."""
        _, sweep = sweeps[0]
        taken = binary_arrays.texts(self._tasks)
        limit = sum(each.limit for _, each in sweeps)
        if sweep.find == "lost_runs":
            lost = [each for _, every in sweeps for each in every.lost]
            workers = binary_arrays.texts([each.worker for each in lost])
            beats = binary_arrays.int8s([each.beats for each in lost])
            asked: Row = (self._tenant, limit, journal.SCHEMA, taken, workers, beats)
            return await fetch(connection, SQL["find_lost_runs"], asked)
        row: Row = (self._tenant, self._clock.now(), limit, journal.SCHEMA, taken)
        if sweep.find == "ready_runs":
            row = (*row, sweep.with_suspects)
        if sweep.agents:
            name, row = FIND_OF_AGENTS[sweep.find], (*row, binary_arrays.texts(sweep.agents))
        else:
            name = f"find_{sweep.find}"
        return await fetch(connection, SQL[name], row)

    def _hand_out(
        self, sweeps: Sequence[tuple[int, Sweep]], found: Sequence[tuple[str, ...]]
    ) -> None:
        """Give each run found to one of the sweeps, in order, up to its limit."""
        of_run: dict[str, list[str]] = {}
        for run_id, *wait_id in found:
            of_run.setdefault(run_id, []).extend(wait_id)
        runs = iter(of_run.items())
        for index, sweep in sweeps:
            room = sweep.limit
            while room > 0 and (next_run := next(runs, None)) is not None:
                run_id, wait_ids = next_run
                late = Late(
                    sweep.tenant,
                    run_id,
                    sweep.actor,
                    sweep.decide,
                    tuple(wait_ids),
                    taker=sweep.taker,
                )
                self._tasks.setdefault(run_id, []).append(_Task(index, late, is_swept=True))
                room -= max(1, len(wait_ids))

    async def _look(
        self, connection: PostgresConnection, run_ids: Iterable[str], late: Sequence[Late]
    ) -> Rows:
        swept = [task.late for tasks in self._tasks.values() for task in tasks]
        has_lost = bool(swept) and any(each.find == "lost_runs" for _, each in self._of(Sweep))
        return await look(
            connection,
            self._tenant,
            run_ids,
            [*late, *swept],
            now=self._clock.now(),
            with_workers=has_lost,
        )

    def _decide_for_run(self, run_id: str, tasks: Sequence[_Task], rows: Rows) -> None:
        if run_id in self._damaged:
            raise self._damaged[run_id]
        writes = [task.late for task in tasks]
        snapshot = snapshot_of(run_id, writes, rows, now=self._clock.now())
        before = snapshot.position
        deciding = Deciding(snapshot, run_id)
        self._answers += [_RunAnswer(task, run_id, deciding.decide(task.late)) for task in tasks]
        if deciding.lost is not None:
            self._lost[run_id] = deciding.lost
        if deciding.touches:
            self._touches[run_id] = deciding.touches
        if deciding.entries:
            self._commits[run_id] = Commit(
                self._tenant,
                run_id,
                before,
                tuple(deciding.entries),
                deciding.changed_run,
                tuple(deciding.changes()),
            )

    async def _write_commits(self, connection: PostgresConnection) -> None:
        ordered = [self._commits[run_id] for run_id in sorted(self._commits)]
        changes = {commit.run_id: changes_of(commit) for commit in ordered}
        parameters = Parameters(self._tenant)
        parameters.values |= {
            "is_strict": False,
            "lock_timeout": "0",
            "locked_run_id": binary_arrays.texts([]),
            "first_conditions": binary_arrays.int8s([0] * len(ordered)),
        }
        parameters.add_entries(ordered)
        parameters.add_changes(list(changes.values()), ALL - frozenset(CLOSING))
        statement = commit_statement(frozenset(parameters.parts))
        rows = await fetch_parts(connection, statement, parameters.values)
        faults.point("commit.after_entries")
        stored = {run_id for what, run_id, _, _ in rows if what == "stored"}
        self._conflicts |= self._commits.keys() - stored
        self.probe = next((c.entries[0] for c in ordered if c.run_id in stored), None)
        kept = [changes[run_id] for run_id in stored]
        _check_held(kept, rows)
        await close_waits(connection, self._tenant, kept)
        _check_not_refused(
            {each.run_id: await change_later(connection, self._tenant, each) for each in kept}
        )

    async def _touch(self, connection: PostgresConnection, touches: Sequence[Touch]) -> None:
        repeated = [touch.wait_id for touch in touches if isinstance(touch, NoteDuplicate)]
        if repeated:
            row = (self._tenant, binary_arrays.texts(repeated))
            await connection.execute(SQL["note_duplicate"], row)
        forgotten = [
            message_id
            for touch in touches
            if isinstance(touch, ForgetMessages)
            for message_id in touch.message_ids
        ]
        if forgotten:
            row = (self._tenant, binary_arrays.texts(forgotten))
            await connection.execute(SQL["forget_owed"], row)
        for touch in touches:
            if isinstance(touch, ExtendWait):
                row = (self._tenant, *msgspec.structs.astuple(touch))
                await connection.execute(SQL["extend_open_wait"], row)
            elif isinstance(touch, ClaimWait):
                claim = (self._tenant, touch.wait_id, touch.by, touch.until)
                await connection.execute(SQL["claim_open_wait"], claim)

    async def _beat(self, connection: PostgresConnection, beat: Beat) -> None:
        worker = beat.worker
        if beat.if_unmoved:
            row = (worker.tenant, worker.worker, worker.beats)
            await connection.execute(SQL["forget_unmoved_worker"], row)
        elif beat.is_last:
            await connection.execute(SQL["forget_worker"], (worker.tenant, worker.worker))
        else:
            row = beat_row(worker, self._clock.now())
            await connection.execute(SQL["beat_worker"], row)


def _is_for_what_is_late(write: OutsideWrite) -> bool:
    return isinstance(write, Sweep) and write.find != "ready_runs"


def _alike(sweeps: Iterable[tuple[int, Sweep]]) -> list[list[tuple[int, Sweep]]]:
    """Sweeps that look for the same, together: one statement finds the runs of all of them."""
    kinds: dict[tuple[str, tuple[str, ...], bool], list[tuple[int, Sweep]]] = {}
    for index, sweep in sweeps:
        kind = (sweep.find, sweep.agents, sweep.with_suspects)
        kinds.setdefault(kind, []).append((index, sweep))
    return list(kinds.values())


def _run_of(write: Late, rows: Rows) -> str:
    """The run of the first wait a write names; "" if there is no such wait."""
    found = rows.waits.get(write.wait_ids[0])
    return found[2] if found is not None else ""


def _check_held(changes: Iterable[Changes], rows: Sequence[Row]) -> None:
    of_run: dict[str, list[Row]] = {}
    for row in rows:
        of_run.setdefault(row[1], []).append(row)
    _check_not_refused(
        {each.run_id: first_failed_condition(each, of_run.get(each.run_id, ())) for each in changes}
    )


def _check_not_refused(refused: Mapping[str, Change | None]) -> None:
    damage = {
        run_id: IntegrityError(
            f"the index rows of run {run_id} contradict its journal ({change}); rebuild them "
            "with `holdfast store reindex`"
        )
        for run_id, change in refused.items()
        if change is not None
    }
    if damage:
        raise DamagedRuns(damage)
