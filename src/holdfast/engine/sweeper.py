"""Sweeps: expire due waits, and the leases of lost workers.

One query per kind finds them, in order and in batches. Any worker may sweep, and exactly one worker
expires each wait or lease. A sweep leaves no open transaction and no timer behind.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import faults, names
from holdfast.clock import MICROSECONDS, seconds
from holdfast.engine import liveness
from holdfast.engine.context import Context
from holdfast.engine.reading.proved_waits import with_right_deadlines, wrong
from holdfast.errors import HoldfastError, IndexCorrupted, IntegrityError
from holdfast.kernel import handoffs, leases, runs, waits
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.recoveries import Point
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import GroupStatus, Wait, WaitStatus
from holdfast.stores.contract import (
    DEADLINES,
    Beat,
    Decide,
    LateDecision,
    LostWorker,
    Snapshot,
    Sweep,
)
from holdfast.telemetry import log

BATCH = 1000
KEPT_SECONDS = 86_400


class Sweeper:
    """Sweeps when something may be due. All tasks of a worker share one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_at = 0.0
        self._ticket = 0

    async def sweep_if_due(self) -> float:
        """Sweep if something may be due. Returns the seconds until the next call."""
        now = asyncio.get_running_loop().time
        ticket = self._context.wakeups.ticket(DEADLINES)
        if now() >= self._next_at:
            self._next_at = now() + _longest_pause(self._context)
            self._next_at = now() + await sweep(self._context)
        elif ticket != self._ticket:
            self._next_at = min(self._next_at, now() + await _pause(self._context))
        self._ticket = ticket
        return max(0.0, self._next_at - now())


async def sweep(context: Context) -> float:
    """Expire all due waits and all lost leases. Returns the seconds until the next sweep."""
    try:
        while await expire_due_waits(context, limit=BATCH) == BATCH:
            pass
        while await expire_lost_leases(context, limit=BATCH) == BATCH:
            pass
        return await _pause(context)
    except HoldfastError:
        context.watch.begin_anew()
        raise


async def _pause(context: Context) -> float:
    """Return the seconds until something is due, at most the longest pause."""
    now = context.now()
    deadlines = [
        await context.store.waits.next_deadline(now),
        await context.store.runs.next_ready_at(),
    ]
    pauses = [(moment - now) / MICROSECONDS for moment in deadlines if moment and moment > now]
    return min([_longest_pause(context), *pauses])


def _longest_pause(context: Context) -> float:
    """Return the longest pause. A deadline of another process may be seen only after it."""
    settings = context.settings
    longest = min(settings.wakeup_poll_seconds, settings.sweep_seconds)
    if context.watch.is_watching:
        return min(longest, settings.lease_seconds / liveness.LOOKS)
    return longest


async def expire_due_waits(context: Context, *, limit: int) -> int:
    """Expire open waits whose deadline has passed, earliest first. Returns how many."""
    return len(await _expire_due(context, names.check_count(limit, what="limit"), ()))


async def expire_peers_of(context: Context, agent: str, *, limit: int) -> list[Wait]:
    """Expire the due waits of an agent's runs for peers. Returns them, earliest first."""
    expired = await _expire_due(context, names.check_count(limit, what="limit"), (agent,))
    return sorted(expired, key=lambda wait: (wait.deadline, wait.wait_id))


async def _expire_due(context: Context, limit: int, agents: tuple[str, ...]) -> list[Wait]:
    """Expire due waits. Block a run if the rows of its waits differ from its journal.

    The first sweep only reads. The second expires the waits whose rows have not changed since.
    """

    def sweep(decide: Decide) -> Sweep:
        return Sweep(context.tenant, "due_waits", context.worker, limit, decide, agents)

    looked = await swept(context, sweep(lambda snapshot: LateDecision(_due(snapshot))))
    due = [wait for some in looked for wait in some]
    if not due:
        return []
    right = await with_right_deadlines(context, due)
    for wait in due:
        if wait.wait_id not in right:
            await block_damaged(context, wait.run_id, wrong(wait, "does not say how it was opened"))
    found = await swept(context, sweep(lambda snapshot: _expire_waits(snapshot, right)))
    expired = [wait for some in found for wait in some]
    for wait_id in right.keys() - {wait.wait_id for wait in expired}:
        log.info("wait %s was due, and is left alone: somebody settles or moves it", wait_id)
    return expired


async def expire_lost_leases(context: Context, *, limit: int) -> int:
    """Check the other workers, and release the runs of lost ones. Returns how many runs."""
    limit = names.check_count(limit, what="limit")
    await look_after_workers(context)
    if context.watch.lost:
        faults.point("leases.after_look")
    sweep = Sweep(
        context.tenant,
        "lost_runs",
        context.worker,
        limit,
        lambda snapshot: _expire_lease(context, snapshot),
        lost=context.watch.lost,
    )
    return sum(await swept(context, sweep))


async def look_after_workers(context: Context) -> None:
    """Look once at the rows of the other workers that hold runs, and update the watch."""
    steady, lease = context.store.clock.steady, seconds(context.settings.lease_seconds)
    asked_at = steady()
    try:
        rows = await context.store.workers.holding()
    except HoldfastError:
        context.watch.begin_anew()
        raise
    others = [row for row in rows if row.worker != context.worker]
    context.watch.look(others, asked_at=asked_at, now=steady(), lease=lease)


async def is_lost(context: Context, worker: str) -> bool:
    """Return whether a worker that holds runs is lost. May take up to about two of its leases.

    It is lost if it has no row, or if the watch says so. Else it is alive until its row expires by
    the store's clock. An expired row is watched here: maybe no other process watches it.
    """
    own = seconds(context.settings.lease_seconds)
    began_at = context.store.clock.steady()
    while True:
        await look_after_workers(context)
        rows = await context.store.workers.holding()
        row = next((each for each in rows if each.worker == worker), None)
        if row is None or context.watch.is_lost(worker, row.beats):
            return True
        if row.expires_at > context.now():
            return False
        lease = liveness.lease_of(row)
        if context.store.clock.steady() - began_at > 2 * lease:
            return False  # its row was renewed, or the store was unavailable
        await asyncio.sleep(min(lease, own) / liveness.LOOKS / MICROSECONDS)


async def is_held(context: Context, run: RunRow) -> bool:
    """Return whether a run's worker is alive by the store's clock, and not known to be lost.

    For requests of people: an expired row counts as lost at once, without watching it.
    """
    if not run.worker:
        return False
    await look_after_workers(context)
    return any(
        each.worker == run.worker
        and each.expires_at > context.now()
        and not context.watch.is_lost(each.worker, each.beats)
        for each in await context.store.workers.holding()
    )


async def forget_lost_workers(context: Context) -> None:
    """Remove the rows of workers that expired over `KEPT_SECONDS` ago and hold no runs."""
    long_ago = context.now() - KEPT_SECONDS * MICROSECONDS
    for worker in await context.store.workers.page():
        if worker.expires_at < long_ago and not worker.held:
            await context.store.submit(Beat(worker, is_last=True, if_unmoved=True))


async def swept(context: Context, sweep: Sweep) -> list[Any]:
    """Submit a sweep, and return its answers. Repairs or blocks each run that is damaged."""
    answers: list[Any] = []
    for run_id, answer in await context.store.submit(sweep):
        if isinstance(answer, IndexCorrupted):
            await rebuild_rows(context, run_id, answer)
        elif isinstance(answer, IntegrityError):
            await block_damaged(context, run_id, answer)
        elif isinstance(answer, HoldfastError):
            raise answer
        else:
            answers.append(answer)
    return answers


async def rebuild_rows(context: Context, run_id: str, wrong: IndexCorrupted) -> None:
    """Rebuild the rows of a run from its journal, because one of them differs from it.

    Otherwise every sweep would find the same row first, and reach no other run.
    """
    log.error("the rows of run %s are rebuilt from its journal: %s", run_id, wrong)
    try:
        await context.store.reindex(run_id)
    except HoldfastError as error:
        log.error("the rows of run %s could not be rebuilt: %s", run_id, error)


async def block_damaged(context: Context, run_id: str, damage: IntegrityError) -> None:
    """Block a run because its stored bytes are damaged."""
    log.error("run %s is damaged and blocked: %s", run_id, damage)

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or run.status in runs.ENDED or run.status is RunStatus.BLOCKED:
            return LateDecision(None)
        facts = runs.Blocked(runs.BlockedReason.CORRUPTION, str(damage)[:1000])
        return LateDecision(None, (Draft(Kind.RUN_BLOCKED, facts),))

    try:
        await context.decide_late(run_id, decide)
    except IntegrityError as worse:
        log.error("run %s cannot even be blocked: %s", run_id, worse)


def _due(snapshot: Snapshot) -> list[Wait]:
    found = snapshot.indexes.waits.values()
    return [wait for wait in found if waits.is_due(wait, snapshot.now)]


def _expire_waits(snapshot: Snapshot, right: Mapping[str, Wait]) -> LateDecision:
    """Expire the due waits whose rows still equal those in `right`, and answer with them."""
    due = [wait for wait in _due(snapshot) if right.get(wait.wait_id) == wait]
    groups = dict(snapshot.indexes.groups)
    drafts: list[Draft] = []
    assert snapshot.run is not None, "a wait has a run"
    for wait in due:
        group = groups.get(wait.group_id)
        if group is None:
            raise IntegrityError(f"the row of wait {wait.wait_id} names a group that is not there")
        if group.status is not GroupStatus.OPEN:
            continue  # closing the group has cancelled this wait
        drafts += waits.settle(snapshot.run, wait, group, WaitStatus.EXPIRED)
        if wait.kind == handoffs.WAIT_KIND:
            drafts += handoffs.revert(snapshot.run, wait.wait_id, "nobody acknowledged it in time")
        counted = waits.counted(group, failed=1)
        groups[wait.group_id] = msgspec.structs.replace(counted, status=waits.judge(counted))
    return LateDecision(due, tuple(drafts))


def _expire_lease(context: Context, snapshot: Snapshot) -> LateDecision:
    """Expire a lease, unless its worker's row was renewed since the worker was found lost."""
    run, watch = snapshot.run, context.watch
    if run is None or run.status is not RunStatus.RUNNING:
        return LateDecision(0)
    workers = snapshot.workers
    holder = workers.get(run.worker)
    lost, note = None, f"worker {run.worker} has ended without giving it back"
    if holder is not None:
        if not watch.may_expire(holder, now=context.store.clock.steady()):
            return LateDecision(0)
        lost, note = LostWorker(holder.worker, holder.beats), watch.why(run.worker)
        as_it_died = msgspec.structs.replace(holder, held=watch.most_held(holder))
        workers = {**workers, holder.worker: as_it_died}
    newest = Point(*snapshot.newest)
    drafts = leases.expire(
        run, newest, workers, note=note, now=snapshot.now, has_results=snapshot.has_results
    )
    return LateDecision(1, drafts, if_unmoved=lost)
