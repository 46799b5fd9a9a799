"""Runs that are leased to this worker, and that nobody here works on: they are given back.

The store may go away between a lease and its answer, or when a run is to be given back. Whoever
sweeps looks for such runs once the store is there again.
"""

from weakref import WeakSet

from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.kernel import runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import Run
from holdfast.stores.contract import Decision, Snapshot


class Strays:
    """Knows what is held here, and whether there may be more."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: WeakSet[LeasedRun] = WeakSet()
        self._may_be = False

    def add(self, held: LeasedRun) -> None:
        """A run that somebody here works on."""
        self._held.add(held)

    def let_go(self, held: LeasedRun) -> None:
        """Nobody here works on it any more, and it could not be given back."""
        self._held.discard(held)
        self._may_be = True

    def suspect(self) -> None:
        """A run may have been leased, and nobody here knows of it."""
        self._may_be = True

    async def give_back(self) -> None:
        """Release what is leased to this worker and held by nobody."""
        if not self._may_be:
            return
        found = await self._context.store.runs.held_by(self._context.worker)
        known = {(held.run_id, held.run.lease_seq) for held in self._held}
        for run in found:
            if (run.run_id, run.lease_seq) not in known:
                await self._release(run)
        self._may_be = False

    async def _release(self, stray: Run) -> None:
        def decide(snapshot: Snapshot) -> Decision:
            run = snapshot.run
            if run is None or (run.worker, run.lease_seq) != (stray.worker, stray.lease_seq):
                return Decision(None)
            note = "it was leased while the store went away"
            return Decision(None, (Draft(Kind.RUN_RELEASED, runs.Released(note=note)),))

        await self._context.decide_late(stray.run_id, decide)
