"""A worker: takes runs that are ready, passes over them, and stops without losing any."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from holdfast import names
from holdfast.agents.turn.calls import describe
from holdfast.agents.work.breaker import AgentBreaker
from holdfast.agents.work.executor import Ending
from holdfast.agents.work.scrubber import Scrubber
from holdfast.agents.work.work import Work
from holdfast.engine import sweeper, unserved
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.leases.heartbeat import Heartbeat
from holdfast.engine.leases.leases import Leases
from holdfast.engine.leases.trials import LOOK_SECONDS
from holdfast.errors import AgentNotFound, HoldfastError, MisuseError, UnavailableError
from holdfast.telemetry import log

_AWAY_SECONDS: Final = 1.0
_SUSPECT_LOOK_SECONDS: Final = 2.0


class Worker:
    """Works on up to `concurrency` runs at a time until it is asked to stop.

    With an empty list of `agents` it takes no runs of users: it delivers messages and webhooks, and
    ends what is due.
    """

    def __init__(
        self,
        work: Work,
        leases: Leases,
        *,
        concurrency: int,
        agents: Sequence[str] | None,
        heart: Heartbeat | None,
    ) -> None:
        self._work = work
        self._leases = leases
        self._free = asyncio.Semaphore(names.check_count(concurrency, what="concurrency") or 1)
        self._names = list(agents) if agents is not None else work.agents.names
        self._heart = heart
        self._taking: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._breaker = AgentBreaker(work.context)
        self._is_trying = False
        self._suspects_at = 0.0
        self._others_wait_since = 0.0
        self.advanced = 0
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = [
            leases.outbox.keep_delivering,
            Scrubber(work.context).keep_scrubbing,
            partial(unserved.keep_warning, work.context, partial(unserved.ready, work.context)),
        ]
        """What it does beside taking runs, until it ends."""
        for name in self._names:
            work.agents.get(name)
        if agents is None and not self._names:
            raise AgentNotFound(
                "no agent is known here; name them in Holdfast(agents=[...]), or give agents=[] "
                "for a worker that only delivers messages and webhooks"
            )

    @property
    def agents(self) -> Sequence[str]:
        return self._names

    @property
    def shutdown_seconds(self) -> float:
        """How long to wait for turns under way when it is stopped, by the settings."""
        return self._work.context.settings.shutdown_seconds

    async def run(self) -> None:
        """Work until `stop` is called; then until the turns that are under way have ended."""
        if self._taking is not None:
            raise MisuseError("this worker runs already")
        self._leases.heart = self._leases.heart or self._heart
        await sweeper.forget_lost_workers(self._work.context)
        await self._leases.serve(self._names)
        self._taking = asyncio.create_task(self._take_runs())
        beside = [asyncio.create_task(_keep_up(begin)) for begin in self.beside]
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
                task = await self._begin_one()
            except Exception as error:  # one run that fails must not stop the others
                is_known = isinstance(error, HoldfastError)
                log.warning(
                    "no run could be taken, trying again: %s",
                    error,
                    exc_info=None if is_known else error,
                )
                self._free.release()
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            except BaseException:
                self._free.release()
                raise
            if task is None:
                self._free.release()
                continue
            agent = self._work.agent_of(task)
            self._breaker.took(agent)
            task.add_done_callback(partial(self._passed, agent))

    async def _begin_one(self) -> "asyncio.Task[Ending] | None":
        """A pass over the next run, if there is one soon; over a suspect if it is their turn."""
        if self._work.suspects.is_closed:
            await self._stand_by()
            return None
        names = await self._breaker.allowed(self._names)
        wanted = [*names, *self._work.agents.built_in]
        suspect = await self._find_suspect(wanted)
        if suspect is not None:
            return await self._try_suspect(suspect)
        soon = self._breaker.pause(_SUSPECT_LOOK_SECONDS)
        held = await self._leases.next(agents=wanted, timeout_seconds=soon, with_suspects=False)
        return None if held is None else await self._start_pass(held)

    async def _start_pass(self, held: LeasedRun) -> "asyncio.Task[Ending] | None":
        """Start a pass, unless a trial has begun here while the run was taken."""
        if self._work.suspects.may_begin(held.run):
            return self._work.start_pass(held)
        note = "a suspect is tried alone where it was taken"
        await self._leases.orphans.release(held, note=note)
        return None

    async def _find_suspect(self, agents: Sequence[str]) -> str | None:
        """A run that is to be tried alone; looked for now and then, as there is seldom one."""
        now = asyncio.get_running_loop().time()
        if self._is_trying:
            self._is_trying = False
            self._pause_trials(now - self._others_wait_since)
        if now < self._suspects_at:
            return None
        context = self._work.context
        found = await context.store.runs.find_suspect(agents, context.now())
        if found is None:
            self._pause_trials(_SUSPECT_LOOK_SECONDS)
        else:
            self._others_wait_since = self._others_wait_since or now
        return found

    async def _try_suspect(self, run_id: str) -> "asyncio.Task[Ending] | None":
        if not self._work.may_try_suspects:
            await self._stand_by()
            return None
        try:
            task = await self._work.try_suspect(run_id)
        except UnavailableError:
            raise
        except HoldfastError as error:
            log.warning("run %s could not be tried: %s", run_id, error)
            self._pause_trials(self._work.context.settings.lease_seconds)
            return None
        self._is_trying = task is not None
        return task

    def _pause_trials(self, seconds: float) -> None:
        """Let other runs begin; after a trial for as long as they had to wait for it."""
        self._suspects_at = asyncio.get_running_loop().time() + seconds
        self._others_wait_since = 0.0

    async def _stand_by(self) -> None:
        """No run may begin now; what is due for any run is done all the same."""
        await self._leases.tend()
        await asyncio.sleep(LOOK_SECONDS)

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


async def _keep_up(begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a task again whenever it fails: without it messages wait, or nobody verifies."""
    while True:
        try:
            return await begin()
        except Exception:
            log.exception("a task of a worker failed, and is started again")
            await asyncio.sleep(_AWAY_SECONDS)


async def _end(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            log.error("a worker's own task broke", exc_info=ended)
