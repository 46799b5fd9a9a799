"""Ends leases of runs that cannot be worked on here because of an unexpected error.

Such an error is counted as a failure of the run: it is tried again after a pause, and is blocked
after some tries without progress. So no error is repeated for ever.
"""

from holdfast import names
from holdfast.engine.context import Context
from holdfast.kernel import leases
from holdfast.kernel.recoveries import Point
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.stores.contract import LateDecision, Snapshot


async def end_failed_lease(context: Context, leased: RunRow, note: str) -> None:
    """Count a failure of a run, and end its lease, unless the lease has ended already."""

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or run.status is not RunStatus.RUNNING:
            return LateDecision(None)
        if (run.worker, run.lease_seq) != (leased.worker, leased.lease_seq):
            return LateDecision(None)
        newest = Point(*snapshot.newest)
        text = note[: names.MAX_TEXT]
        return LateDecision(None, leases.end_failed(run, newest, note=text, now=snapshot.now))

    await context.decide_late(leased.run_id, decide)
