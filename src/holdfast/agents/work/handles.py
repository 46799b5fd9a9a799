"""A handle on a run that was started: its result, its status, its events, and a way to stop it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from holdfast import clock, codec
from holdfast.agents.definitions.agent import Agent
from holdfast.agents.work.executor import Ending
from holdfast.agents.work.run_advancer import advance
from holdfast.agents.work.work import Work
from holdfast.engine import unserved
from holdfast.engine.reading import turns
from holdfast.engine.reading.journal import Journal
from holdfast.engine.runs import Runs
from holdfast.errors import (
    HoldfastError,
    RunBlocked,
    RunCancelled,
    RunFailed,
    RunWaiting,
    TurnDiverged,
)
from holdfast.kernel import runs as kernel_runs
from holdfast.kernel.journal import Entry
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import Wait, WaitStatus

R = TypeVar("R")
_STORED_FAILURE: Final = (
    "; this is its stored end. `holdfast runs fork {0}`, or another run id, runs the code again"
)


class PeerUpdate(msgspec.Struct, frozen=True):
    """What a peer said of how far it is."""

    wait_id: str
    peer: str
    at: datetime
    said: Any


class Handle(Generic[R]):
    """A run, whoever works on it."""

    def __init__(
        self,
        work: Work,
        runs: Runs,
        journal: Journal,
        agent: Agent[..., R],
        run: RunRow,
        *,
        is_fresh: bool = False,
        task: "asyncio.Task[Ending] | None" = None,
    ) -> None:
        """With `is_fresh` the result is asked for at once: the run need not be read first.

        `task` is a pass over the run that has started here.
        """
        self._work = work
        self._runs = runs
        self._journal = journal
        self._agent = agent
        self._known = run if is_fresh else None
        self._task = task
        self.run_id = run.run_id

    def __repr__(self) -> str:
        return f"<handle of run {self.run_id}>"

    async def result(self, *, timeout: float | None = None) -> R:
        """Return the result of the run; advance it here if no other worker does so.

        Raises RunFailed, RunCancelled, RunBlocked if an operator must act, and RunWaiting after
        `timeout` seconds: the run continues without the caller. A caller that is cancelled is
        gone at once: this process ends the turn that is under way, and gives the run back.
        Logs a warning if no live worker serves its agent, or one that it has called.
        """
        known, self._known = self._known, None
        task, self._task = self._task, None
        run, ending = await advance(
            self._work,
            self._runs,
            self.run_id,
            timeout=timeout,
            known=known,
            task=task,
            left_to_others=self._left_to_others,
        )
        if run.status in kernel_runs.ENDED or run.status is RunStatus.BLOCKED:
            return await self._end(run, ending)
        raise await self._still_going(run)

    async def status(self) -> RunStatus:
        """Where the run is now."""
        return (await self._runs.get(self.run_id)).status

    async def cancel(self, *, by: str = "", note: str = "") -> None:
        """End the run now; its worker learns it at its next commit."""
        await self._runs.cancel(self.run_id, by=by, note=note)

    def events(self, *, after: int = 0) -> AsyncIterator[Entry]:
        """The entries of the run's journal as they come, until it has ended."""
        return self._journal.tail(self.run_id, after=after)

    async def updates(self) -> AsyncIterator[PeerUpdate]:
        """What peers say of how far they are, until the run has ended: the newest of each."""
        context, seen = self._work.context, dict[str, int]()
        async for _ in context.changes(f"run:{self.run_id}"):
            run = await self._runs.get(self.run_id)
            for wait in await context.store.waits.of_run(self.run_id):
                if wait.progress and wait.progress_at > seen.get(wait.wait_id, 0):
                    seen[wait.wait_id] = wait.progress_at
                    said = msgspec.json.decode(wait.progress)
                    at = clock.to_datetime(wait.progress_at)
                    yield PeerUpdate(wait.wait_id, wait.name, at, said)
            if run.status in kernel_runs.ENDED:
                return

    async def _end(self, run: RunRow, ending: Ending | None) -> R:
        error = None if ending is None else ending.error
        if run.status is RunStatus.COMPLETED:
            if ending is not None and ending.run is run:
                return self._agent.result_of(codec.decode(ending.result))
            return self._agent.result_of(await self._runs.result(self.run_id))
        if run.status is RunStatus.BLOCKED:
            if isinstance(error, TurnDiverged):
                raise error
            raise RunBlocked(
                f"run {self.run_id} is blocked ({run.blocked_reason}): {await self._note(run)}"
            ) from error
        if run.status is RunStatus.CANCELLED:
            raise RunCancelled(f"run {self.run_id} was cancelled")
        stored = "" if ending is not None else _STORED_FAILURE.format(self.run_id)
        note = await self._note(run)
        raise RunFailed(f"run {self.run_id} has failed: {note}{stored}") from error

    async def _still_going(self, run: RunRow) -> RunWaiting:
        found = await self._open_waits() if run.status is RunStatus.WAITING else []
        names = ", ".join(f"{wait.kind} {wait.name or wait.wait_id}" for wait in found)
        what = f"waits for {names}" if found else f"is {run.status}"
        if run.status is RunStatus.READY and run.ready_at > self._work.context.now():
            what = f"is put off until {clock.to_datetime(run.ready_at):%Y-%m-%d %H:%M:%S} UTC"
        nobody = await unserved.sentences(self._work.context, await self._left_to_others())
        what = "; ".join([what, *nobody.values()])
        return RunWaiting(
            f"run {self.run_id} {what}; call again with the same run_id to wait longer",
            run_id=self.run_id,
            waits=found,
        )

    async def _left_to_others(self) -> list[RunRow]:
        """Of this run and those it has called, the ones that this process does not work on."""
        found = await unserved.with_peers(self._work.context, self.run_id)
        return [run for run in found if run.agent not in self._work.agents]

    async def _open_waits(self) -> list[Wait]:
        waits = await self._work.context.store.waits.of_run(self.run_id)
        return [wait for wait in waits if wait.status is WaitStatus.OPEN]

    async def _note(self, run: RunRow) -> str:
        """Return what the entry that ended or blocked the run says."""
        with contextlib.suppress(HoldfastError):
            return await turns.last_note(self._work.context, run.run_id)
        return "its record cannot be read"
