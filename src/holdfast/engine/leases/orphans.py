"""Releases runs that are leased to this worker, and that nobody here works on.

The store may fail between a lease and its answer, or when a run is to be released. The sweep looks
for such runs once the store is available again.
"""

from weakref import WeakSet

from holdfast.engine import sweeper
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import IntegrityError
from holdfast.kernel import runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import RunRow
from holdfast.stores.contract import LateDecision, Snapshot


class OrphanedLeases:
    """The runs that are held here, and whether more may be leased."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: WeakSet[LeasedRun] = WeakSet()
        self._may_be = False

    def add(self, held: LeasedRun) -> None:
        """Add a run that a task here works on."""
        self._held.add(held)

    def abandon(self, held: LeasedRun) -> None:
        """Abandon a run that nobody here works on, and that could not be released."""
        self._held.discard(held)
        self._may_be = True

    def suspect(self) -> None:
        """Note that a run may have been leased without any task here knowing."""
        self._may_be = True

    async def give_back(self) -> None:
        """Release what is leased to this worker and held by nobody."""
        if not self._may_be:
            return
        found = await self._context.store.runs.held_by(self._context.worker)
        known = {(held.run_id, held.run.lease_seq) for held in self._held}
        for run in found:
            if (run.run_id, run.lease_seq) not in known:
                await self._release_or_block(run)
        self._may_be = False

    async def _release_or_block(self, stray: RunRow) -> None:
        try:
            await self._release(stray)
        except IntegrityError as damage:
            await sweeper.block_damaged(self._context, stray.run_id, damage)

    async def _release(self, stray: RunRow) -> None:
        def decide(snapshot: Snapshot) -> LateDecision:
            run = snapshot.run
            if run is None or (run.worker, run.lease_seq) != (stray.worker, stray.lease_seq):
                return LateDecision(None)
            note = "it was leased while the store went away"
            return LateDecision(None, (Draft(Kind.RUN_RELEASED, runs.Released(note=note)),))

        await self._context.decide_late(stray.run_id, decide)
