"""Killing workers again and again until their runs have ended all the same, and judging that."""

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import holdfast
from holdfast.errors import ConflictError
from tests.agents.ledger import Ledger, faults
from tests.agents.victims import named, settings
from tests.processes import Child

TURNS = 3
RUNS = 6
END_SECONDS = 240.0
SPENDER = "tests.agents.victims:make_spender"
GENTLY = (0, -signal.SIGTERM)  # the latter if it had no time to learn what to do about it


class Sweep:
    """One store, one ledger, one victim after another. `make` names the agents of the victims."""

    def __init__(
        self, store: str, folder: Path, seed: int, *, make: str = SPENDER, turns: int = TURNS
    ) -> None:
        self.store = store
        self.turns = turns
        self.ledger = Ledger(folder / "ledger")
        self.agent, *_ = named(make)(self.ledger)
        self.chance = random.Random(seed)
        self.kills = 0
        self.killed_at: dict[str, float] = {}
        self.unblocked = 0
        self.runs: dict[str, int] = {}
        self._child = Child("tests.agents.victims", store, str(folder / "ledger"), make)

    async def __aenter__(self) -> "Sweep":
        self.hf = holdfast.Holdfast(self.store, settings=settings())
        await self.hf.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hf.__aexit__(None, None, None)
        self._child.close()

    async def start(self, many: int) -> None:
        for _ in range(many):
            run_id = f"r{len(self.runs)}"
            await self.hf.start(self.agent, self.turns, run_id=run_id)
            self.runs[run_id] = self.turns

    async def kill_at_random(self) -> None:
        """A worker has begun to work, and is killed a moment later."""
        if not await self._open_runs():
            await self.start(RUNS)
        before = {worker.worker for worker in await self.hf.leases.workers()}
        pid = await self._ask(["", 0])
        await self._see_working(before)
        await asyncio.sleep(self.chance.uniform(0.0, 0.1))
        killed = {worker.worker for worker in await self.hf.leases.workers()} - before
        self.killed_at |= dict.fromkeys(killed, time.time())
        os.kill(pid, signal.SIGKILL)
        assert await self._ask("wait") == -signal.SIGKILL
        self.kills += 1
        await self._unblock()

    async def kill_at(self, point: str, skip: int) -> bool:
        """A worker dies at a fault point; False if everything ended before it came there."""
        pid = await self._ask([point, skip])
        ended = asyncio.create_task(self._ask("wait"))
        while not ended.done() and await self._open_runs():
            await self._unblock()
            await asyncio.wait([ended], timeout=0.05)
        if not ended.done():
            os.kill(pid, signal.SIGTERM)
            assert await ended in (*GENTLY, -signal.SIGKILL)  # the latter at the point, after all
            return False
        assert ended.result() == -signal.SIGKILL
        self.kills += 1
        return True

    async def finish(self) -> None:
        """A worker that nobody kills does the rest, and stops when it is told."""
        pid = await self._ask(["", 0])
        async with asyncio.timeout(END_SECONDS):
            while await self._open_runs():
                await self._unblock()
                await asyncio.sleep(0.02)
        os.kill(pid, signal.SIGTERM)
        assert await self._ask("wait") in GENTLY

    async def judge(self) -> list[str]:
        """Everything wrong with what was done outside, and with what is stored."""
        return faults(self.ledger, self.runs, kills=4 * self.kills) + await self.judge_runs()

    async def judge_runs(self) -> list[str]:
        """Everything wrong with what is stored."""
        found: list[str] = []
        for run_id, turns in self.runs.items():
            run = await self.hf.runs.get(run_id)
            if run.status != "completed":
                found.append(f"run {run_id} is {run.status}")
            elif await self.hf.runs.result(run_id) != turns:
                found.append(f"run {run_id} did not do its turns")
            found += map(str, await self.hf.journal.verify(run_id))
            found += [
                f"{effect.tool} of {run_id} is {effect.status}"
                for effect in await self.hf.effects.of_run(run_id)
                if effect.status not in ("completed", "not_done")
            ]
        return found

    async def _see_working(self, before: set[str]) -> None:
        """Wait until a worker that was not there before holds a run."""
        async with asyncio.timeout(END_SECONDS):
            while not any(
                worker.held and worker.worker not in before
                for worker in await self.hf.leases.workers()
            ):
                await self._unblock()
                if not await self._open_runs():
                    return
                await asyncio.sleep(0.01)

    async def _ask(self, command: object) -> int:
        return await asyncio.to_thread(self._child.ask, command)

    async def _open_runs(self) -> int:
        counts = (await self.hf.info()).runs
        return sum(counts.values()) - counts.get("completed", 0) - counts.get("failed", 0)

    async def _unblock(self) -> None:
        """Do what an operator does about runs that have lost three workers."""
        for run in await self.hf.runs.list(status="blocked"):
            assert run.blocked_reason == "breaker", run
            with suppress(ConflictError):
                await self.hf.runs.unblock(run.run_id)
                self.unblocked += 1
