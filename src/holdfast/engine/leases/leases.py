"""Leases: lease runs to this worker, and keep this worker alive.

A worker has one row that says until when it counts as alive. A task of the event loop renews the
row, or a `Heartbeat` thread does so, but only while the loop ticks. Leasing a run also renews the
row if less than half a lease is left, so a worker that leases runs counts as alive.
Safety does not depend on the row: the journal refuses a worker that lost its lease.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from holdfast import clock, names, process_identity
from holdfast.engine import sweeper
from holdfast.engine.budgets.budgets import first_budget
from holdfast.engine.budgets.costs import Budget
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.failed_leases import end_failed_lease
from holdfast.engine.leases.heartbeat import Heartbeat
from holdfast.engine.leases.orphans import OrphanedLeases, release_unused
from holdfast.engine.leases.trials import LOOK_SECONDS, Trials
from holdfast.engine.leases.warm_states import WarmStates
from holdfast.engine.maintenance import recoveries
from holdfast.engine.messages.outbox import Outbox
from holdfast.engine.reading import turns
from holdfast.engine.reading.versions import Newest, load_newest
from holdfast.engine.writing import unheld_runs
from holdfast.engine.writing.run_writer import RunWriter
from holdfast.errors import (
    CheckpointCorrupted,
    ConflictError,
    HoldfastError,
    IntegrityError,
    LeaseHeld,
    MisuseError,
    NotFoundError,
    RunExists,
    RunNotFound,
    StoreNotPermitted,
    UnavailableError,
)
from holdfast.kernel import leases
from holdfast.kernel.journal import Draft, Entry, Kind, Position
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.runs import RunLeased, RunRow, RunStatus
from holdfast.kernel.state import Parts
from holdfast.stores.contract import Beat, Decide, LateDecision, RunHead, Snapshot, Sweep
from holdfast.telemetry import WARM_STATE, log

Held = TypeVar("Held", LeasedRun, LeasedRun | None)

_SHORT_JOURNAL: Final = 100
"""How many entries of a run without checkpoints are read when it is leased."""


class Leases:
    """The runs this worker holds."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._worker: WorkerRow | None = None
        self.trials = Trials(context, self.renew)
        self._beating: asyncio.Task[None] | None = None
        self.heart: Heartbeat | None = None
        self.sweeper = sweeper.Sweeper(context)
        self.outbox = Outbox(context)
        self._taking: set[asyncio.Task[Any]] = set()
        self.warm = WarmStates()
        self.orphans = OrphanedLeases(context)

    async def take(
        self, run_id: str, *, takeover: bool = False, only_ready: bool = False
    ) -> LeasedRun:
        """Lease one run. Raises LeaseHeld while a living worker holds it, unless `takeover`.

        A worker that is lost is counted against the run first: that may block it, so that
        IllegalMove is raised. This worker's own runs can be taken again, which fences their
        holders here; with `only_ready` they are refused too.
        """
        names.check(run_id, what="run id")
        return await self._begin(self._take(run_id, takeover=takeover, only_ready=only_ready))

    async def create(
        self,
        run_id: str | None = None,
        *,
        agent: str = "",
        input: object = None,
        owner: str = "",
        budget: Budget | None = None,
    ) -> LeasedRun:
        """Create a run and lease it, in one commit. Raises RunExists if the id is taken."""
        chosen = unheld_runs.choose_id(run_id)
        created = [unheld_runs.first_entry(agent=agent, input=input, owner=owner)]
        if budget is not None:
            created.append(first_budget(budget))
        return await self._begin(self._create(chosen, created))

    async def next(
        self,
        *,
        agents: Sequence[str] = (),
        timeout_seconds: float = 0.0,
        with_suspects: bool = True,
    ) -> LeasedRun | None:
        """Lease the run that has been ready longest. Returns None if no run is ready in time.

        `with_suspects` includes runs that may have killed their workers. Such a run is taken only
        if every other run held here has made progress. Until it makes progress or is released, a
        loss of this worker is blamed on it alone, and nothing more is taken.

        While waiting, it expires due waits and the leases of lost workers. It recovers or blocks a
        run whose checkpoint is damaged, and tries the next run.
        """
        if isinstance(agents, str):
            raise MisuseError(f"agents is a list of names; give [{agents!r}]")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        while True:
            ticket = self._context.wakeups.ticket("ready")
            # Tend even if a run is always ready: the waits of other runs must expire.
            pause = await self.tend()
            held = None
            if self.trials.suspect:
                pause = min(pause, LOOK_SECONDS)
            else:
                held = await self._safely(self._take_ready(agents, with_suspects=with_suspects))
            remaining = deadline - loop.time()
            if held is not None or remaining <= 0:
                return held
            await self._context.wakeups.wait("ready", ticket, timeout=min(remaining, pause))

    async def tend(self) -> float:
        """Do the due work of all runs: drain the spool, sweep, deliver messages.

        Also releases runs that are leased to this worker but used by no task here. Returns the
        seconds until the next call.
        """
        await self._drain_spool()
        pause = await self.sweeper.sweep_if_due()
        due_in = await self.outbox.deliver_if_due()
        if not self._taking:  # a run that is being leased looks orphaned
            await self.orphans.give_back()
        return pause if due_in is None else min(pause, due_in)

    async def renew(self) -> None:
        """Renew this worker's row for another lease.

        From the first take on, a background task or thread does so regularly.
        """
        await self._context.store.submit(Beat(self._row()))

    async def serve(self, agents: Sequence[str]) -> None:
        """Record on this worker's row which agents it serves, and keep it alive."""
        served = msgspec.json.encode(agents).decode()
        self._worker = msgspec.structs.replace(self._row(), agents=served)
        await self.renew()
        self._start_beating()

    async def take_suspect(self, run_id: str) -> LeasedRun:
        """Lease a run that is ready, and record on this worker's row that it is tried.

        If the worker is lost before `end_trial`, this run is blamed. Raises as `take` does.
        """
        self.trials.begin(run_id)
        try:
            held = await self.take(run_id, only_ready=True)
        except BaseException:
            await self.trials.drop(run_id)
            raise
        if not leases.is_suspect(held.run):  # another worker has made progress meanwhile
            await self.trials.drop(run_id)
        return held

    async def end_trial(self, run_id: str) -> None:
        """End the trial of a suspect that has made progress, or has ended."""
        await self.trials.end(run_id)

    async def expire_lost(self, *, limit: int = sweeper.BATCH) -> int:
        """Check the other workers, and release the runs of those that are lost. Returns how many.

        One look is not enough, unless their process is known to have ended: a worker is lost when
        its row was seen not to move for a whole lease. A run that loses workers again and again
        without progress is blocked instead.
        """
        return await sweeper.expire_lost_leases(self._context, limit=limit)

    async def workers(self) -> list[WorkerRow]:
        """Return all workers, and how many runs each holds."""
        return await self._context.store.workers.page()

    async def close(self) -> None:
        """Remove this worker's row: other workers can take the runs it still holds at once."""
        while self._taking:
            await asyncio.wait(set(self._taking))
        await self.trials.close()
        await self._stop_beating()
        if self._worker is not None:
            with contextlib.suppress(StoreNotPermitted):  # then the store refused its row too
                await self._context.store.submit(Beat(self._worker, is_last=True))
            self._worker = None

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
        if self.heart is not None:
            await self.heart.stop()
            self.heart = None

    async def _begin(self, taking: Coroutine[Any, Any, LeasedRun]) -> LeasedRun:
        """Lease one run, which counts as held here meanwhile."""
        self.orphans.beginning += 1
        try:
            return await self._safely(taking)
        finally:
            self.orphans.beginning -= 1

    async def _safely(self, taking: Coroutine[Any, Any, Held]) -> Held:
        """Lease a run. If the caller is cancelled meanwhile, release the run."""
        task = asyncio.create_task(taking)
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._give_back)
            raise

    def _give_back(self, task: "asyncio.Task[LeasedRun | None]") -> None:
        if task.cancelled() or task.exception() is not None:
            return
        held = task.result()
        if held is not None:
            releasing = asyncio.create_task(self._release(held))
            self._taking.add(releasing)
            releasing.add_done_callback(self._taking.discard)

    async def _release(self, held: LeasedRun) -> None:
        try:
            await self.orphans.release(held, note="nobody was left to take it")
        except Exception as error:
            log.warning("run %s could not be given back yet: %s", held.run_id, error)

    async def _drain_spool(self) -> None:
        """Drain the spool. Call this before this worker leases runs or ends leases.

        The spool holds commits made under this worker's leases. A later lease would fence them.
        """
        if self._context.spool is not None:
            await self._context.spool.drain()

    async def _take(self, run_id: str, *, takeover: bool, only_ready: bool) -> LeasedRun:
        try:
            return await self._take_once(run_id, takeover=takeover, only_ready=only_ready)
        except LeaseHeld:
            run = None if only_ready else await self._context.store.runs.get(run_id)
            if run is None or not await sweeper.is_lost(self._context, run.worker):
                raise
            # The loss counts against the run as in a sweep, and may block it.
            while await self.expire_lost() == sweeper.BATCH:
                pass
            return await self._take_once(run_id, takeover=takeover, only_ready=only_ready)

    async def _take_once(self, run_id: str, *, takeover: bool, only_ready: bool) -> LeasedRun:
        await self._drain_spool()
        self._start_beating()

        def decide(snapshot: Snapshot) -> LateDecision:
            if snapshot.run is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            if only_ready and snapshot.run.status is RunStatus.RUNNING:
                raise LeaseHeld(f"run {run_id} is held already")
            has_holder = snapshot.holder is not None
            draft = leases.take(
                snapshot.run, self._context.worker, holder_alive=has_holder, takeover=takeover
            )
            return LateDecision(None, (draft,), answers_head=True)

        with self._suspecting_orphans():
            try:
                return await self._hold(await self._lease(run_id, decide))
            except CheckpointCorrupted:
                run = await self._context.store.runs.get(run_id)
                if run is None or not run.is_recovering or run.status is not RunStatus.READY:
                    raise
                # The run was damaged. It was recovered, and resumes from an older version.
                return await self._hold(await self._lease(run_id, decide))

    async def _create(self, run_id: str, created: Sequence[Draft]) -> LeasedRun:
        await self._drain_spool()
        self._start_beating()

        def decide(snapshot: Snapshot) -> LateDecision:
            if snapshot.indexes.run is not None:
                raise RunExists(unheld_runs.EXISTS.format(run_id))
            leased = Draft(Kind.RUN_LEASED, RunLeased(self._context.worker))
            return LateDecision(None, (*created, leased), answers_head=True)

        try:
            run, position, _, entries = await self._lease(run_id, decide)
            return self._held(run, position, Newest(Parts(), None), entries)
        except BaseException:  # RunExists too: it may have been created here, and the answer lost
            self.orphans.suspect()
            raise

    async def _lease(self, run_id: str, decide: Decide) -> RunHead:
        return await self._context.decide_late(run_id, decide, taker=self._row())

    async def _take_ready(self, agents: Sequence[str], *, with_suspects: bool) -> LeasedRun | None:
        await self._drain_spool()
        self._start_beating()

        def decide(snapshot: Snapshot) -> LateDecision:
            run = snapshot.run
            if run is None or run.status is not RunStatus.READY:
                return LateDecision(None)
            draft = leases.take(run, self._context.worker, holder_alive=False, takeover=False)
            return LateDecision(None, (draft,), answers_head=True)

        context = self._context
        wanted = Sweep(
            context.tenant,
            "ready_runs",
            context.worker,
            1,
            decide,
            tuple(agents),
            with_suspects=with_suspects and not self.orphans.has_unproven,
            taker=self._row(),
        )
        with self._suspecting_orphans():
            while leased := await sweeper.swept(context, wanted):
                if leased[0] is None:
                    continue
                run: RunRow = leased[0].run
                is_suspect = leases.is_suspect(run)
                if self.trials.suspect or (is_suspect and self.orphans.has_unproven):
                    note = "another run that was taken at the same moment is tried alone"
                    await release_unused(context, run, note=note)
                    return None
                self.orphans.beginning += 1
                try:
                    return await self._hold_on_trial(leased[0])
                except CheckpointCorrupted:
                    continue
                finally:
                    self.orphans.beginning -= 1
        return None

    async def _hold_on_trial(self, leased: RunHead) -> LeasedRun:
        """Return the leased run. A suspect is named on this worker's row before it is loaded."""
        if not leases.is_suspect(leased.run):
            return await self._hold(leased)
        self.trials.begin(leased.run.run_id, is_of_next=True)
        try:
            await self.renew()
            held = await self._hold(leased)
        except BaseException:
            await self.trials.drop(leased.run.run_id)
            raise
        self.trials.watch(held)
        return held

    @contextlib.contextmanager
    def _suspecting_orphans(self) -> Generator[None]:
        """Look for an orphaned lease later if this fails when a run may have been leased."""
        try:
            yield
        except (ConflictError, NotFoundError):
            raise
        except BaseException:
            self.orphans.suspect()
            raise

    async def _hold(self, leased: RunHead) -> LeasedRun:
        """Return the leased run. If it cannot be loaded, count that, and end its lease."""
        try:
            return await self._load(leased)
        except (IntegrityError, UnavailableError, StoreNotPermitted):
            raise  # not of this run, or it was recovered or blocked
        except Exception as error:
            note = f"it could not be loaded: {type(error).__name__}: {error}"
            await end_failed_lease(self._context, leased.run, note)
            raise

    async def _load(self, leased: RunHead) -> LeasedRun:
        """Return the leased run. If its state is damaged, recover or block the run, and raise."""
        run = leased.run
        try:
            state, entries = await self._state_of(leased)
        except IntegrityError as damage:
            await recoveries.mend_or_block(self._context, run.run_id, damage)
            raise
        return self._held(run, leased.position, state, entries)

    def _held(
        self, run: RunRow, position: Position, state: Newest, entries: Sequence[Entry] | None
    ) -> LeasedRun:
        """Return a run that was leased, with its state and what was recorded since."""
        writer = RunWriter(self._context, run, position, recorded=state.parts.recorded)
        # A lease is the last entry: of two, the other one has created the run.
        is_new = entries is not None and len(entries) == 2 and entries[0].seq == 1
        held = LeasedRun(self._context, writer, state.parts, entries=entries, is_new=is_new)
        if run.is_recovering:
            held.stage.begin([recoveries.completed(run, state.checkpoint)])
        self.orphans.held[held] = state.parts.version
        return held

    async def _state_of(self, leased: RunHead) -> tuple[Newest, list[Entry] | None]:
        """Return the newest state of a run, and the entries since then if they are known.

        The index says which version is the newest. If the journal has a newer one, load that.
        """
        run, end, (_, version, _), _ = leased
        if version:
            known = self.warm.take(run.run_id, version)
        else:
            # Of a long journal only who works on its turn needs all entries.
            known = Parts() if end.seq <= _SHORT_JOURNAL else None
        if known is not None and not (version and run.is_recovering):
            with contextlib.suppress(IntegrityError):  # raised when the entries are read again
                entries = await turns.entries_since(self._context, run.run_id, known)
                if entries is not None:
                    if version:
                        self._context.telemetry.count(WARM_STATE)
                    return Newest(known, None), entries
        return await load_newest(self._context, run.run_id), None

    async def stay_alive(self, run_id: str = "") -> None:
        """Create this worker's row, and keep it alive for as long as this process lives.

        For a run that is leased next, the row is renewed if less than half a lease is left.
        """
        if self._worker is None:
            await self.renew()
        elif run_id:
            await self._context.decide_late(run_id, lambda _: LateDecision(None), taker=self._row())
        self._start_beating()

    def _start_beating(self) -> None:
        if self.heart is not None:
            self.heart.start_once(self._row)
        elif self._beating is None:
            self._beating = asyncio.create_task(self._keep_beating())

    def _row(self) -> WorkerRow:
        """Return this worker's row."""
        if self._worker is None:
            context = self._context
            self._worker = WorkerRow(
                tenant=context.tenant,
                worker=context.worker,
                started_at=context.now(),
                expires_at=0,
                lease=clock.seconds(context.settings.lease_seconds),
                **process_identity.of_this_process()._asdict(),
            )
        if self.trials.suspect or self._worker.trying_run:
            trying = self.trials.run_id
            self._worker = msgspec.structs.replace(self._worker, trying_run=trying)
        return self._worker

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._context.settings.lease_seconds / 3)
            try:
                await self.renew()
            except Exception as error:  # any error: without beats a living worker is lost
                log.warning(
                    "worker %s could not renew its leases: %s",
                    self._context.worker,
                    error,
                    exc_info=None if isinstance(error, HoldfastError) else error,
                )
