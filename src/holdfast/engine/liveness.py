"""Which workers are lost, as one process sees it: by watching their rows, never by one look.

A row that says "alive until" proves nothing after an outage, a failover or a step of the server's
clock. So a worker is lost when its row was seen not to move for a whole lease, by this process's
steady clock and without a break; or at once, when its process is known to have ended. The statement
that gives its runs back checks that it has not beaten since.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast import process_identity
from holdfast.kernel.leases import WorkerRow
from holdfast.process_identity import ProcessIdentity
from holdfast.stores.contract import LostWorker

LOOKS: Final = 4
"""A worker is watched for a lease by at least so many looks; each counts for a part of it at most.

This process may be suspended too: the time between two looks counts only up to that part.
"""


_LEASE_OF_OTHERS: Final = 15_000_000
"""The lease of a row without one, which an older version wrote."""


class _Watched(NamedTuple):
    sign: tuple[int, int]
    unmoved: int  # microseconds
    held: int


def lease_of(row: WorkerRow) -> int:
    """Return for how long a beat of a worker counts, in microseconds."""
    return row.lease or _LEASE_OF_OTHERS


class WorkerWatch:
    """Watches the rows of workers that hold runs."""

    def __init__(self) -> None:
        self._seen: dict[str, _Watched] = {}
        self._looked_at = 0
        self._lost: dict[str, int] = {}
        self._gone: dict[str, ProcessIdentity] = {}
        self._this: ProcessIdentity | None = None

    def look(self, rows: Iterable[WorkerRow], *, asked_at: int, now: int, lease: int) -> None:
        """Compare the rows with those seen before; both are moments of a steady clock.

        Rows that took long to read, or are the first after a whole `lease` of this process, mean
        that the store was away: what was seen before does not count.
        """
        self._this = self._this or process_identity.of_this_process()
        if now - asked_at > lease // 2 or now - self._looked_at > lease:
            self.begin_anew()
        passed, self._looked_at = now - self._looked_at, now
        before, self._seen = self._seen, {}
        self._lost = {}
        self._gone = {}
        for row in rows:
            seen, sign = before.get(row.worker), (row.beats, row.expires_at)
            lease_of_row, unmoved, held = lease_of(row), 0, row.held
            if seen is not None and seen.sign == sign:
                unmoved = seen.unmoved + min(passed, lease_of_row // LOOKS)
                held = max(held, seen.held)
            self._seen[row.worker] = _Watched(sign, unmoved, held)
            identity = _identity_of(row)
            if process_identity.has_ended(identity, self._this):
                self._gone[row.worker] = identity
            if row.worker in self._gone or unmoved >= lease_of_row:
                self._lost[row.worker] = row.beats

    @property
    def is_watching(self) -> bool:
        """Whether other workers hold runs, so that the next look must not be late."""
        return bool(self._seen)

    def begin_anew(self) -> None:
        """Forget what was seen: the store was away, so that nobody could beat."""
        self._seen.clear()
        self._lost.clear()
        self._gone.clear()

    def is_lost(self, worker: str, beats: int) -> bool:
        """Return whether a worker with this number of beats is lost."""
        return self._lost.get(worker) == beats

    @property
    def lost(self) -> tuple[LostWorker, ...]:
        return tuple(LostWorker(worker, beats) for worker, beats in self._lost.items())

    def may_expire(self, row: WorkerRow, *, now: int) -> bool:
        """Return whether a worker is lost, by its current row and a recent look.

        A request that waited for the store is older, and so are the beats that wait behind it.
        """
        is_recent = now - self._looked_at <= lease_of(row) // 2
        return self.is_lost(row.worker, row.beats) and (is_recent or row.worker in self._gone)

    def most_held(self, row: WorkerRow) -> int:
        """Return how many runs a worker held since its last beat, with those released since."""
        seen = self._seen.get(row.worker)
        return row.held if seen is None else max(row.held, seen.held)

    def why(self, worker: str) -> str:
        """Return the reason why a worker is lost, as text."""
        if (gone := self._gone.get(worker)) is not None:
            return f"worker {worker} has ended: process {gone.pid} on {gone.host} is gone"
        return f"worker {worker} was not heard of in time"


def _identity_of(row: WorkerRow) -> ProcessIdentity:
    return ProcessIdentity(row.host, row.boot_id, row.pid_namespace, row.pid, row.process_start)
