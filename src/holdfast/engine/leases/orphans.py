"""Releases runs that are leased to this worker, and that nobody here works on.

The store may fail between a lease and its answer, or when a run is to be released. The sweep looks
for such runs once the store is available again.
"""

from weakref import WeakKeyDictionary

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
        self.held: WeakKeyDictionary[LeasedRun, int] = WeakKeyDictionary()
        """The runs that a task here works on, and the version of each when it was leased."""
        self.beginning = 0
        """How many runs are just being leased and loaded: they count as held too."""
        self._may_be = False

    @property
    def has_unproven(self) -> bool:
        """Whether a run is held here that has made no progress, or is just being leased."""
        held = [*self.held.items()]
        return self.beginning > 0 or any(
            run.run.lease_seq and run.version <= version for run, version in held
        )

    def abandon(self, held: LeasedRun) -> None:
        """Abandon a run that nobody here works on, and that could not be released."""
        self.held.pop(held, None)
        self._may_be = True

    async def release(self, held: LeasedRun, *, note: str) -> None:
        """Release a run that was just leased, and that nobody has worked on.

        Call nothing on `held` afterwards. If this raises, the run is released later.
        """
        self.abandon(held)
        await release_unused(self._context, held.run, note=note)

    def suspect(self) -> None:
        """Note that a run may have been leased without any task here knowing."""
        self._may_be = True

    async def give_back(self) -> None:
        """Release what is leased to this worker and held by nobody."""
        if not self._may_be:
            return
        found = await self._context.store.runs.held_by(self._context.worker)
        known = {(held.run_id, held.run.lease_seq) for held in self.held}
        for run in found:
            if (run.run_id, run.lease_seq) not in known:
                await self._release_or_block(run)
        self._may_be = False

    async def _release_or_block(self, stray: RunRow) -> None:
        try:
            note = "it was leased while the store went away"
            await release_unused(self._context, stray, note=note)
        except IntegrityError as damage:
            await sweeper.block_damaged(self._context, stray.run_id, damage)


async def release_unused(context: Context, leased: RunRow, *, note: str) -> None:
    """Release a run that nobody has worked on under this lease, unless the lease has ended.

    What is known of its losses stays: that it was released says nothing about the run.
    """

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or (run.worker, run.lease_seq) != (leased.worker, leased.lease_seq):
            return LateDecision(None)
        facts = runs.Released(note=note, keeps_losses=True)
        return LateDecision(None, (Draft(Kind.RUN_RELEASED, facts),))

    await context.decide_late(leased.run_id, decide)
