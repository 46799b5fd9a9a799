"""Advancing a run from here for as long as somebody waits for its outcome."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.agents.definitions.questions import FOR_PEOPLE
from holdfast.agents.work.executor import Ending
from holdfast.agents.work.work import Work
from holdfast.clock import MICROSECONDS
from holdfast.engine import unserved
from holdfast.engine.reading import turns
from holdfast.engine.runs import Runs
from holdfast.errors import OutcomeUnknown, UnavailableError
from holdfast.kernel import runs as kernel_runs
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import WaitStatus
from holdfast.telemetry import log

_GONE = "whoever waited for it went away"
_MOMENT_SECONDS = 1.0
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
    left_to_others: unserved.Find | None = None,
) -> tuple[RunRow, Ending | None]:
    """Return the run when it has ended or is blocked, `until` says so, or the time is over.

    Meanwhile it and its peers are advanced here if no other worker does so. Also how the last pass
    of this process over it ended. A caller that is cancelled is gone at once: `work` finishes what
    is under way, and then gives the runs back to the workers. `known` is the run as it was a moment
    ago: it is not read again before it is advanced. `task` is a pass over it that has started.
    While the run is idle, a warning is logged if nobody serves one of those `left_to_others`.
    """
    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    try:
        if task is None and known is not None and (timeout is None or timeout > 0):
            task = await work.try_to_advance(known)
        ending = None if task is None else await _follow(work, task, deadline)
        if ending is not None and ending.run is not None and until is None:
            return ending.run, ending
        return await _attend(
            work, runs, run_id, deadline, ending, until=until, left_to_others=left_to_others
        )
    except asyncio.CancelledError:
        work.hand_back_helped(run_id, _GONE)
        raise


async def _attend(
    work: Work,
    runs: Runs,
    run_id: str,
    deadline: float | None,
    ending: Ending | None,
    *,
    until: Callable[[RunRow], Awaitable[bool]] | None,
    left_to_others: unserved.Find | None,
) -> tuple[RunRow, Ending | None]:
    """Wait for a run that others work on, or that waits, and advance it whenever it is due."""
    loop, idle = asyncio.get_running_loop(), _Idle(work, left_to_others)
    try:
        while True:
            ticket = work.context.wakeups.ticket(f"run:{run_id}")
            run = await runs.get(run_id)
            is_over = run.status in kernel_runs.ENDED or run.status is RunStatus.BLOCKED
            left = 3600.0 if deadline is None else deadline - loop.time()
            if is_over or left <= 0 or (until is not None and await until(run)):
                return run, ending
            task = await work.try_to_advance(run)
            if task is None:
                await idle.pause(run, ticket, left, of_people=until is None)
                continue
            ending = await _follow(work, task, deadline)
            if ending is not None and ending.run is not None and until is None:
                return ending.run, ending
    finally:
        idle.end()


async def _follow(
    work: Work, task: "asyncio.Task[Ending]", deadline: float | None
) -> Ending | None:
    """Wait for a pass; None if it continues after the deadline, to the end of its turn."""
    timeout = None if deadline is None else deadline - asyncio.get_running_loop().time()
    try:
        done, _ = await asyncio.wait([task], timeout=timeout)
    except asyncio.CancelledError:
        work.hand_back_one(task, _GONE)
        raise
    if done:
        error = (ending := task.result()).error
        # A commit of unknown outcome was settled when its run was left.
        if isinstance(error, UnavailableError) and not isinstance(error, OutcomeUnknown):
            raise error
        return ending
    work.hand_back_one(task, "whoever started it did not wait longer")
    return None


class _Idle:
    """The time in which nobody here works on a run: logs once why that is more than a moment."""

    def __init__(self, work: Work, left_to_others: unserved.Find | None) -> None:
        self._work = work
        self._left_to_others = left_to_others
        self._warning: asyncio.Task[None] | None = None
        self.has_said = False
        self._waits_since = 0.0

    async def pause(self, run: RunRow, ticket: int, left: float, *, of_people: bool) -> None:
        """Advance the peers of a run, and wait for a change of it."""
        work, find = self._work, self._left_to_others
        if self._warning is None and find is not None:
            self._warning = asyncio.create_task(unserved.keep_warning(work.context, find))
        await work.help_peers(run)
        await self._why_it_waits(run, of_people=of_people)
        is_reported = self.has_said and of_people
        await work.pause(run, ticket, at_most=left if is_reported else min(left, _MOMENT_SECONDS))

    def end(self) -> None:
        """Warn no more."""
        if self._warning is not None:
            self._warning.cancel()

    async def _why_it_waits(self, run: RunRow, *, of_people: bool) -> None:
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
