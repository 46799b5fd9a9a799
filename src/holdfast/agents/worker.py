"""A worker: takes runs that are ready, passes over them, and stops without losing any."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from holdfast import names
from holdfast.agents.breaker import AgentBreaker
from holdfast.agents.calls import describe
from holdfast.agents.executor import Ending
from holdfast.agents.work import Work
from holdfast.engine import sweeper, unserved
from holdfast.engine.heart import Heart
from holdfast.engine.leased_run import LeasedRun
from holdfast.engine.leases import Leases
from holdfast.engine.scrubber import Scrubber
from holdfast.errors import AgentNotFound, ConflictError, HoldfastError, MisuseError
from holdfast.telemetry import log

_LOOK_SECONDS: Final = 60.0
_AWAY_SECONDS: Final = 1.0
_TRIAL_LOOK_SECONDS: Final = 0.1
_SUSPECT_LOOK_SECONDS: Final = 1.0


class Worker:
    """Works on up to `concurrency` runs at a time until it is told to stop."""

    def __init__(
        self,
        work: Work,
        leases: Leases,
        *,
        concurrency: int,
        agents: Sequence[str] | None,
        heart: Heart | None,
    ) -> None:
        self._work = work
        self._leases = leases
        self._free = asyncio.Semaphore(names.check_count(concurrency, what="concurrency") or 1)
        self._names = list(agents) if agents is not None else work.agents.names
        self._heart = heart
        self._taking: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._breaker = AgentBreaker(work.context)
        self._looked_at = -_SUSPECT_LOOK_SECONDS
        self.advanced = 0
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = [
            leases.outbox.keep_delivering,
            Scrubber(work.context).keep_scrubbing,
            partial(unserved.keep_warning, work.context, partial(unserved.ready, work.context)),
        ]
        """What it does beside taking runs, until it ends."""
        for name in self._names:
            work.agents.get(name)
        if not self._names:
            raise AgentNotFound("no agent is known here; name them in Holdfast(agents=[...])")

    @property
    def agents(self) -> Sequence[str]:
        return self._names

    @property
    def shutdown_seconds(self) -> float:
        """How long whoever stops it waits for turns under way, by the settings."""
        return self._work.context.settings.shutdown_seconds

    async def run(self) -> None:
        """Work until `stop` is called; then until the turns that are under way have ended."""
        if self._taking is not None:
            raise MisuseError("this worker runs already")
        self._leases.heart = self._leases.heart or self._heart
        await sweeper.forget_lost_workers(self._work.context)
        await self._leases.serve(self._names)
        self._taking = asyncio.create_task(self._take_runs())
        beside = [asyncio.create_task(begin()) for begin in self.beside]
        try:
            await asyncio.wait([self._taking])
            if not self._taking.cancelled():
                self._taking.result()
            await self._work.finish_passes()
        except asyncio.CancelledError:
            self._taking.cancel()
            await asyncio.wait([self._taking])
            await self._work.cancel_passes()
            raise
        finally:
            await _end(beside)

    def stop(self, *, note: str = "its worker is stopping") -> None:
        """Take no more runs, and hand back those under way at the end of their turns."""
        self._is_stopping = True
        if self._taking is not None:
            self._taking.cancel()
        self._work.hand_back(note)

    async def _take_runs(self) -> None:
        while not self._is_stopping:
            await self._free.acquire()
            try:
                held = await self._take_one()
                task = None if held is None else self._work.start_pass(held)
            except HoldfastError as error:
                log.warning("no run could be taken, trying again: %s", error)
                self._free.release()
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            except BaseException:
                self._free.release()
                raise
            if held is None or task is None:
                self._free.release()
            else:
                task.add_done_callback(partial(self._passed, held.run.agent))

    async def _take_one(self) -> LeasedRun | None:
        """The next run, if there is one soon. Suspects go first, as soon as one may begin."""
        lane = self._work.suspects
        if lane.is_closed:
            await asyncio.sleep(_TRIAL_LOOK_SECONDS)
            return None
        names = await self._breaker.allowed(self._names)
        wanted = [*names, *self._work.agents.built_in]
        suspect = await self._find_suspect(wanted)
        if suspect is not None:
            return await self._take_suspect(suspect)
        soon = min(_LOOK_SECONDS, self._work.context.settings.lease_seconds)
        held = await self._leases.next(
            agents=wanted, timeout_seconds=self._breaker.pause(soon), with_suspects=False
        )
        if held is not None:
            self._breaker.took(held.run.agent)
        return held

    async def _find_suspect(self, agents: Sequence[str]) -> str | None:
        """A run that is to be tried alone; looked for now and then, as there is seldom one."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < _SUSPECT_LOOK_SECONDS:
            return None
        context = self._work.context
        found = await context.store.runs.find_suspect(agents, context.now())
        if found is None:
            self._looked_at = now
        return found

    async def _take_suspect(self, run_id: str) -> LeasedRun | None:
        if not self._work.suspects.is_clear:
            await self._leases.tend()
            await asyncio.sleep(_TRIAL_LOOK_SECONDS)
            return None
        try:
            held = await self._leases.take_suspect(run_id)
        except ConflictError:
            return None  # another worker was first
        self._breaker.took(held.run.agent)
        return held

    def _passed(self, agent: str, task: "asyncio.Task[Ending]") -> None:
        self._free.release()
        self.advanced += 1
        if task.cancelled():
            return
        error = task.exception()
        has_failed = error is not None or task.result().error is not None
        self._breaker.passed(agent, has_failed=has_failed)
        if error is not None:
            log.error("%s broke", task.get_name(), exc_info=error)
        elif (error := task.result().error) is not None:
            log.warning(
                "%s: %s (`holdfast runs show` tells more)", task.get_name(), describe(error)
            )


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            log.error("a worker's own task broke", exc_info=ended)
