"""Leases: who may advance a run. A lease is named by the seq of the entry that gave it.

No clock decides safety here: taking a lease appends an entry, so a takeover and a late write of the
former holder compete for the same position, and exactly one of them gets it.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from holdfast.errors import Fenced, LeaseHeld
from holdfast.kernel import recoveries, runs
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.recoveries import Cause, Failure, Point, RecoveryVerdict
from holdfast.kernel.runs import BlockedReason, Loss, RunRow, RunStatus

BREAKER_LOSSES: Final = 3
"""So many losses in a row without progress block a run, if they are blamed on it."""
BREAKER_BLAMED: Final = 2
SUSPECT_LOSSES: Final = 2
"""A run that lost so many workers in a row is tried alone: the next loss shows the cause.

Only workers that stayed silent count. `find_ready_runs` has the same number.
"""
LOSSES_KEPT: Final = 10
LONGEST_BACKOFF_SECONDS: Final = 600.0
LONGEST_TRIAL_SECONDS: Final = 600.0
_GIVEN_AWAY: Final = frozenset({Kind.AGENT_HANDOFF, Kind.HANDOFF_REVERTED, Kind.RECOVERY_INITIATED})


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process incarnation, and until when it counts as alive (by the store's clock)."""

    tenant: str
    worker: str
    started_at: int
    expires_at: int
    lease: int = 0  # microseconds that a beat counts for
    beats: int = 0  # grows with each sign of life
    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    pid: int = 0
    process_start: int = 0
    agents: str = "[]"  # a JSON array of those it serves
    blocking_run: str = ""  # whose code holds its event loop
    trying_run: str = ""  # a suspect that is tried with no other unproven run beside it
    held: int = 0


class Blame(StrEnum):
    """What the loss of a worker says about a run it held."""

    ALONE = "alone"  # it held no other run, or only such as had proven themselves
    BESIDE = "beside"  # it held others too: any of them may be the cause, or none
    BLOCKED_LOOP = "blocked_loop"  # this run's code held its event loop


_CERTAIN: Final = frozenset({Blame.ALONE.value, Blame.BLOCKED_LOOP.value})


def take(run: RunRow, worker: str, *, holder_alive: bool, takeover: bool) -> Draft:
    """Lease a run to `worker`; a living holder is only fenced when `takeover` says so."""
    runs.check_move(run, Kind.RUN_LEASED)
    if run.status is RunStatus.RUNNING and holder_alive and not takeover and run.worker != worker:
        raise LeaseHeld(
            f"run {run.run_id} is held by worker {run.worker}; "
            "wait until it is done, or open it with takeover=True to fence it"
        )
    return Draft(Kind.RUN_LEASED, runs.RunLeased(worker))


def is_suspect(run: RunRow) -> bool:
    """Whether the run may be what its workers died of, and is to be tried alone."""
    return _counted_losses(run) >= SUSPECT_LOSSES


def trial_seconds(run: RunRow, lease_seconds: float) -> float:
    """How long a run must live to be cleared: a lease, doubled by each loss of a suspect."""
    doublings = max(0, _counted_losses(run) - SUSPECT_LOSSES)
    longest = max(lease_seconds, LONGEST_TRIAL_SECONDS)
    return min(longest, lease_seconds * 2 ** min(doublings, 40))


def expire(
    run: RunRow,
    newest: Point,
    workers: Mapping[str, WorkerRow],
    *,
    note: str,
    now: int,
    has_results: bool = False,
) -> tuple[Draft, ...]:
    """Give a lost worker's run back; a run that keeps losing workers is blocked instead.

    A checkpoint is progress, and so is the result of a step or a call that the lost worker has
    recorded (`has_results`): the next one does not repeat it. `workers` are the rows at this
    moment: a loss whose worker has beaten since is forgotten, except in the pause before the next
    try. A worker without a row has ended well, so nothing speaks against the run.
    """
    has_progress = has_results or newest.seq > run.lease_seq
    before = () if has_progress else runs.losses_of(run)
    losses = standing(before, workers)
    attempts, lost = (0, 0) if has_progress else (run.attempts, run.lost)
    holder = workers.get(run.worker)
    if holder is not None:
        losses = (*losses, _loss_of(run, holder))[-LOSSES_KEPT:]
        attempts, lost = attempts + 1, lost + 1
    facts = runs.LeaseExpired(run.worker, attempts, now, lost, losses)
    failure = Failure(Cause.LOST, note, attempts)
    verdict = judge(run.run_id, losses, lost)
    recovery = recoveries.recover(newest, failure, verdict, now=now)
    return (Draft(Kind.LEASE_EXPIRED, facts), *recovery)


def end_failed(run: RunRow, newest: Point, *, note: str, now: int) -> tuple[Draft, ...]:
    """Give back a run that its worker cannot work on; block it if that happens again and again."""
    has_progress = newest.seq > run.lease_seq
    attempts = 1 if has_progress else run.attempts - run.lost + 1
    failure = Failure(Cause.ERROR, note, attempts)
    return recoveries.recover(newest, failure, recoveries.judge(failure, run.run_id), now=now)


def standing(losses: Iterable[Loss], workers: Mapping[str, WorkerRow]) -> tuple[Loss, ...]:
    """Return the losses that count: of workers that have not beaten since."""
    return tuple(loss for loss in losses if _stands(loss, workers))


def judge(run_id: str, losses: Sequence[Loss], lost: int) -> RecoveryVerdict:
    """Decide whether a run may be tried again, by the losses that count, and after which pause."""
    blamed = [loss for loss in losses if loss.how in _CERTAIN]
    blocking = [loss for loss in blamed if loss.how == Blame.BLOCKED_LOOP]
    is_blamed_twice = len({loss.worker for loss in blamed}) >= BREAKER_BLAMED
    is_blamed = is_blamed_twice or len(blocking) >= BREAKER_BLAMED
    if len(losses) >= BREAKER_LOSSES and is_blamed:
        why = f"{len(losses)} workers in a row were lost without progress"
        if blocking:
            why += "; its code blocks the event loop"
        return RecoveryVerdict(False, why_not=why, blocked=BlockedReason.BREAKER)
    return RecoveryVerdict(
        True, delay=recoveries.backoff(run_id, lost - 1, LONGEST_BACKOFF_SECONDS)
    )


def _counted_losses(run: RunRow) -> int:
    return len(runs.losses_of(run)) if run.lost else 0


def _loss_of(run: RunRow, holder: WorkerRow) -> Loss:
    if holder.blocking_run:
        is_own = holder.blocking_run == run.run_id
        blame = Blame.BLOCKED_LOOP if is_own else Blame.BESIDE
    elif holder.trying_run:
        blame = Blame.ALONE if holder.trying_run == run.run_id else Blame.BESIDE
    else:
        blame = Blame.ALONE if holder.held <= 1 else Blame.BESIDE
    return Loss(holder.worker, holder.beats, blame.value)


def _stands(loss: Loss, workers: Mapping[str, WorkerRow]) -> bool:
    """Whether a worker that was lost is still gone; that a run blocked it counts in any case.

    One without a row has ended well since, or was lost a day ago.
    """
    if loss.how == Blame.BLOCKED_LOOP:
        return True
    row = workers.get(loss.worker)
    return row is not None and row.beats <= loss.beats


def check_not_fenced(lease_seq: int, later: Iterable[Entry]) -> None:
    """Raise Fenced if any lease was taken after the one named `lease_seq`."""
    for entry in later:
        if entry.kind == Kind.RUN_LEASED and entry.seq > lease_seq:
            raise Fenced(
                f"run {entry.run_id} was leased again at entry {entry.seq}, after your lease "
                f"{lease_seq}: stop working on it, its new holder goes on"
            )
        if entry.kind == Kind.LEASE_EXPIRED and entry.seq > lease_seq:
            raise Fenced(
                f"your lease {lease_seq} on run {entry.run_id} expired at entry {entry.seq}: "
                "stop working on it, any worker may go on"
            )
        if entry.kind in _GIVEN_AWAY and entry.seq > lease_seq:
            raise Fenced(
                f"run {entry.run_id} was handed over, taken back or recovered at entry "
                f"{entry.seq}, after your lease {lease_seq}: stop working on it, another goes on"
            )
        if entry.kind == Kind.RUN_REWOUND and entry.seq > lease_seq:
            raise Fenced(
                f"run {entry.run_id} was rewound at entry {entry.seq}, after your lease "
                f"{lease_seq}: stop working on it, it goes on from an earlier version"
            )
