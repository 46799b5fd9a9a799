"""Advancing a run from here for as long as somebody waits for its outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeGuard

from holdfast.agents.definitions.questions import FOR_PEOPLE
from holdfast.agents.work.executor import Ending
from holdfast.agents.work.work import GONE, AwaitedRun, Work
from holdfast.clock import MICROSECONDS
from holdfast.engine.reading import turns
from holdfast.engine.runs import Runs
from holdfast.errors import OutcomeUnknown, UnavailableError
from holdfast.kernel import runs as kernel_runs
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import WaitStatus
from holdfast.telemetry import log

_MOMENT_SECONDS = 1.0
_PEER_SECONDS = 0.05
_CHILD_SCAN_LIMIT = 100


async def advance(
    work: Work,
    runs: Runs,
    run_id: str,
    *,
    timeout: float | None = None,
    until: Callable[[RunRow], Awaitable[bool]] | None = None,
    known: RunRow | None = None,
    task: "asyncio.Task[Ending] | None" = None,
) -> tuple[RunRow, Ending | None]:
    """Return the run when it has ended or is blocked, `until` says so, or the time is over.

    Meanwhile it and its peers are advanced here if no other worker does so. Also how the last pass
    of this process over it ended. A caller that is cancelled is gone at once: `work` finishes what
    is under way, and then gives the runs back to the workers. `known` is the run as it was a moment
    ago: it is not read again before it is advanced. `task` is a pass over it that has started.
    """
    with work.awaiting(run_id) as awaited:
        return await _advance(
            work, runs, run_id, awaited, timeout=timeout, until=until, known=known, task=task
        )


async def _advance(
    work: Work,
    runs: Runs,
    run_id: str,
    awaited: AwaitedRun,
    *,
    timeout: float | None,
    until: Callable[[RunRow], Awaitable[bool]] | None,
    known: RunRow | None,
    task: "asyncio.Task[Ending] | None",
) -> tuple[RunRow, Ending | None]:
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    notice = _IdleNotice(work)
    ending: Ending | None = None
    has_time = timeout is None or timeout > 0
    if task is None and known is not None and has_time:
        task = await work.try_to_advance(known, awaited=run_id)
    while True:
        if task is not None:
            ending = await _follow(work, task, None if deadline is None else deadline - loop.time())
            if ending is not None and _is_away(ending.error):
                raise ending.error
            if ending is not None and ending.run is not None and until is None:
                return ending.run, ending
            task = None if until is not None else await _resumed(awaited, deadline)
            if task is not None:
                continue
        ticket = work.context.wakeups.ticket(f"run:{run_id}")
        run = await runs.get(run_id)
        is_over = run.status in kernel_runs.ENDED or run.status is RunStatus.BLOCKED
        left = 3600.0 if deadline is None else deadline - loop.time()
        if is_over or left <= 0 or (until is not None and await until(run)):
            return run, ending
        task = await work.try_to_advance(run, awaited=run_id)
        if task is None:
            await work.help_peers(run)
            await notice.why_it_waits(run, of_people=until is None)
            is_reported = notice.has_said and until is None
            longest = left if is_reported else min(left, _MOMENT_SECONDS)
            await work.pause(run, ticket, at_most=longest)


def _is_away(error: BaseException | None) -> TypeGuard[UnavailableError]:
    """Whether the store is away. A commit of unknown outcome was settled when its run was left."""
    return isinstance(error, UnavailableError) and not isinstance(error, OutcomeUnknown)


async def _follow(work: Work, task: "asyncio.Task[Ending]", timeout: float | None) -> Ending | None:
    """Wait for a pass; None if it continues after the timeout, to the end of its turn."""
    try:
        done, _ = await asyncio.wait([task], timeout=timeout)
    except asyncio.CancelledError:
        work.hand_back_one(task, GONE)
        raise
    if done:
        return task.result()
    work.hand_back_one(task, "whoever started it did not wait longer")
    return None


async def _resumed(awaited: AwaitedRun, deadline: float | None) -> "asyncio.Task[Ending] | None":
    """Wait a moment for the peers of a run that are worked on here.

    Returns the pass over the run if one of them has resumed it with its reply.
    """
    now = asyncio.get_running_loop().time
    until = now() + _PEER_SECONDS if deadline is None else min(deadline, now() + _PEER_SECONDS)
    while awaited.task is None and awaited.helping and (left := until - now()) > 0:
        await asyncio.wait(awaited.helping, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    return awaited.task


class _IdleNotice:
    """Logs once why a run is idle for more than a moment."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.has_said = False
        self._waits_since = 0.0

    async def why_it_waits(self, run: RunRow, *, of_people: bool) -> None:
        """Log once why the run is idle; mention a question only if nothing else shows it."""
        if self.has_said:
            return
        if run.status is RunStatus.READY:
            await self._tell_delay(run)
        elif run.status is RunStatus.RUNNING:
            self._tell_holder(run)
        elif run.status is RunStatus.WAITING and self._has_waited_a_moment():
            if of_people:
                await self._tell_questions(run)
            elif (delayed := await self._delayed_below(run)) is not None:
                await self._tell_delay(delayed)

    def _has_waited_a_moment(self) -> bool:
        now = asyncio.get_running_loop().time()
        self._waits_since = self._waits_since or now
        return now - self._waits_since >= _MOMENT_SECONDS

    async def _delayed_below(self, run: RunRow) -> RunRow | None:
        """Return a run that this one waits for, and that is delayed until a moment."""
        for peer in await self._work.context.store.runs.of_peers(run.run_id, _CHILD_SCAN_LIMIT):
            if peer.status is RunStatus.WAITING:
                found = await self._delayed_below(peer)
                if found is not None:
                    return found
            elif self._seconds_until(peer) >= _MOMENT_SECONDS:
                return peer
        return None

    def _seconds_until(self, run: RunRow) -> float:
        return (run.ready_at - self._work.context.now()) / MICROSECONDS

    async def _tell_delay(self, run: RunRow) -> None:
        seconds = self._seconds_until(run)
        if seconds >= _MOMENT_SECONDS:
            self.has_said = True
            note = await turns.last_note(self._work.context, run.run_id)
            log.warning("run %s goes on in %.0f s: %s", run.run_id, seconds, note)

    async def _tell_questions(self, run: RunRow) -> None:
        self.has_said = True
        found = await self._work.context.store.waits.of_run(run.run_id)
        if any(w.kind in FOR_PEOPLE and w.status is WaitStatus.OPEN for w in found):
            log.warning(
                "run %s waits for a person: `holdfast approvals list --run %s`",
                run.run_id,
                run.run_id,
            )

    def _tell_holder(self, run: RunRow) -> None:
        self.has_said = True
        if run.worker != self._work.context.worker:
            lease = self._work.context.settings.lease_seconds
            log.warning(
                "run %s is held by worker %s; if that was killed, it is given back within %.0f s",
                run.run_id,
                run.worker,
                lease,
            )
