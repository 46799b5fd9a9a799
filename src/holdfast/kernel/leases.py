"""Leases: who may advance a run. A lease is named by the seq of the entry that gave it.

No clock decides safety here: taking a lease appends an entry, so a takeover and a late write of the
former holder compete for the same position, and exactly one of them gets it.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.errors import Fenced, LeaseHeld
from holdfast.kernel import recoveries, runs
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.kernel.recoveries import Cause, Failure, Point
from holdfast.kernel.runs import Run, Status

BREAKER_ATTEMPTS: Final = 3
_GIVEN_AWAY: Final = frozenset({Kind.AGENT_HANDOFF, Kind.HANDOFF_REVERTED, Kind.RECOVERY_INITIATED})


class Worker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A process incarnation, and until when it counts as alive (by the store's clock)."""

    tenant: str
    worker: str
    started_at: int
    expires_at: int
    held: int = 0


def take(run: Run, worker: str, *, holder_alive: bool, takeover: bool) -> Draft:
    """Lease a run to `worker`; a living holder is only fenced when `takeover` says so."""
    runs.check_move(run, Kind.RUN_LEASED)
    if run.status is Status.RUNNING and holder_alive and not takeover and run.worker != worker:
        raise LeaseHeld(
            f"run {run.run_id} is held by worker {run.worker}; "
            "wait until it is done, or open it with takeover=True to fence it"
        )
    return Draft(Kind.RUN_LEASED, runs.Leased(worker))


def expire(run: Run, newest: Point, *, now: int) -> tuple[Draft, ...]:
    """Give a lost worker's run back; a run that keeps losing workers is blocked instead."""
    attempts = 1 if newest.seq > run.lease_seq else run.attempts + 1
    lost = Draft(Kind.LEASE_EXPIRED, runs.LeaseExpired(run.worker, attempts, now))
    failure = Failure(Cause.LOST, f"worker {run.worker} was not heard of in time", attempts)
    verdict = recoveries.judge(failure, run.run_id, tries=BREAKER_ATTEMPTS)
    return (lost, *recoveries.recover(newest, failure, verdict, now=now))


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
