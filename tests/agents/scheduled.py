"""A schedule that ticks every second while its workers are killed, and the judge of what it did.

The ledger counts what was done outside; ticks are told from the ids of runs by the calendar alone.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone
from holdfast.clock import to_datetime
from holdfast.errors import ConflictError
from tests.agents.ledger import Ledger
from tests.agents.sweeping import GENTLY
from tests.agents.victims import LIMIT_SECONDS, settings
from tests.processes import Child

NAME = "often"
END_SECONDS = 240.0


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    async def was_told(run: str, key: str) -> Happened[str] | NotDone:
        return Happened("told") if ledger.has("tell", key) else NotDone()

    @holdfast.tool(verify=was_told, limit_seconds=LIMIT_SECONDS)
    async def tell(run: str, *, key: Key) -> str:
        ledger.write("tell", run, 0, key)
        return "told"

    @holdfast.agent(name="teller", tools=[tell])
    async def teller(run: holdfast.Run) -> str:
        return await run.call(tell, run.run_id)

    return [teller]


class Ticking:
    """One store, one schedule, and workers that die."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self.path = folder / "ledger"
        self.ledger = Ledger(self.path)
        self._stack = ExitStack()

    async def __aenter__(self) -> "Ticking":
        (self.agent,) = make(self.ledger)
        self.hf = holdfast.Holdfast(self.store, settings=settings())
        await self.hf.__aenter__()
        self.began_at = to_datetime(self.hf._context.now())
        await self.hf.schedule(
            self.agent, name=NAME, every_seconds=1, overlap="allow", catch_up="all"
        )
        self._children = [self._stack.enter_context(self._child()) for _ in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hf.__aexit__(None, None, None)
        self._stack.close()

    def _child(self) -> Child:
        return Child("tests.agents.victims", self.store, self.path, "tests.agents.scheduled:make")

    async def kill_at(self, point: str, skip: int, *, beside: int = 0) -> None:
        """One worker dies at a fault point while others go on, or nobody does."""
        others = [await self._fork(child, "", 0) for child in self._children[1 : beside + 1]]
        await self._fork(self._children[0], point, skip)
        ended = asyncio.create_task(self._wait(self._children[0]))
        async with asyncio.timeout(END_SECONDS):
            while not ended.done():
                await self._unblock()
                await asyncio.wait([ended], timeout=0.05)
        assert ended.result() == -signal.SIGKILL
        for pid, child in zip(others, self._children[1:], strict=False):
            os.kill(pid, signal.SIGTERM)
            assert await self._wait(child) in GENTLY

    async def finish(self) -> None:
        """Four workers do the rest, two ticks more, and what was begun when it is removed."""
        pids = [await self._fork(child, "", 0) for child in self._children]
        wanted = len(await self._runs()) + 2
        async with asyncio.timeout(END_SECONDS):
            while len(await self._runs()) < wanted or await self._is_behind():
                await self._unblock()
                await asyncio.sleep(0.05)
            await self.hf.schedules.remove(NAME)
            while await self._is_at_work():
                await self._unblock()
                await asyncio.sleep(0.05)
        for pid, child in zip(pids, self._children, strict=True):
            os.kill(pid, signal.SIGTERM)
            assert await self._wait(child) in GENTLY

    async def judge(self) -> list[str]:
        """Everything wrong with the ticks, with what was done outside, and with the record."""
        runs = sorted(run.run_id for run in await self._runs())
        moments = [datetime.fromisoformat(run_id.partition("@")[2]) for run_id in runs]
        found: list[str] = []
        if not timedelta(0) < moments[0] - self.began_at <= timedelta(seconds=1):
            found.append(f"the first tick was {moments[0]}, and it began at {self.began_at}")
        for earlier, later in pairwise(moments):
            if later - earlier != timedelta(seconds=1):
                found.append(f"after {earlier} came {later}")
        told = self.ledger.count("tell")
        found += [f"{run} was told {n} times" for (run, _), n in told.items() if n != 1]
        found += [f"{run} was never told" for run in set(runs) - {run for run, _ in told}]
        for run in await self._runs():
            if run.status != "completed":
                found.append(f"{run.run_id} is {run.status}")
        for run_id in (f"schedule:{NAME}", *runs):
            found += map(str, await self.hf.journal.verify(run_id))
        state = await self.hf.checkpoints.load(f"schedule:{NAME}")
        if state["progress"]["started"] != len(runs):
            found.append(f"{state['progress']['started']} starts are on record, not {len(runs)}")
        return found

    async def _runs(self) -> list[holdfast.RunRow]:
        return await self.hf.runs.list(agent="teller", limit=1000)

    async def _is_behind(self) -> bool:
        """Whether a tick of more than two seconds ago was not started yet."""
        now = self.hf._context.now()
        return (await self.hf.schedules.get(NAME)).next_at < now - 2_000_000

    async def _is_at_work(self) -> bool:
        untaken = await self.hf.signals.untaken(f"schedule:{NAME}", "schedule")
        schedule = await self.hf.runs.get(f"schedule:{NAME}")
        is_over = all(run.status == "completed" for run in await self._runs())
        return bool(untaken) or schedule.status != "waiting" or not is_over

    async def _unblock(self) -> None:
        """Do what an operator does about runs that have lost three workers."""
        for run in await self.hf.runs.list(status="blocked"):
            assert run.blocked_reason == "breaker", run
            with suppress(ConflictError):
                await self.hf.runs.unblock(run.run_id)

    async def _fork(self, child: Child, point: str, skip: int) -> int:
        return await asyncio.to_thread(child.ask, [point, skip])

    async def _wait(self, child: Child) -> int:
        return await asyncio.to_thread(child.ask, "wait")
