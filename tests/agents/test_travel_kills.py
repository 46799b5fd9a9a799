"""Workers of forks are killed at every fault point: what was done stays done, once.

The judge is the file that the tools write: every call of the original once, and of each fork only
the one effect that was to be sent again.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConflictError
from holdfast.testing.store_suite import async_test
from tests.agents.couriers import TURNS, make
from tests.agents.ledger import Ledger
from tests.agents.victims import settings
from tests.processes import Child

POINTS = (
    "batch.before_begin",
    "batch.after_begin",
    "commit.after_entries",
    "batch.after_commit",
    "batch.before_acknowledge",
    "tool.before_call",
    "tool.after_call",
    "tool.before_verify",
)
GENTLY = (0, -signal.SIGTERM)


class Victims:
    """One worker after another, each armed to die at a point."""

    def __init__(self, hf: holdfast.Holdfast, child: Child) -> None:
        self.hf = hf
        self.kills = 0
        self._child = child

    async def let_work(self, point: str = "", skip: int = 0) -> None:
        """A worker dies, or is stopped when all runs have ended."""
        pid = await asyncio.to_thread(self._child.ask, [point, skip])
        ended = asyncio.create_task(asyncio.to_thread(self._child.ask, "wait"))
        async with asyncio.timeout(60):
            while not ended.done() and await self._open_runs():
                await asyncio.wait([ended], timeout=0.05)
        if not ended.done():
            os.kill(pid, signal.SIGTERM)
            assert await ended in GENTLY
            return
        assert ended.result() == -signal.SIGKILL
        self.kills += 1

    async def _open_runs(self) -> bool:
        for run in await self.hf.runs.list(status="blocked"):
            assert run.blocked_reason == "breaker", run
            try:
                await self.hf.runs.unblock(run.run_id)
            except ConflictError:
                continue
        counts = (await self.hf.info()).runs
        return sum(counts.values()) > counts.get("completed", 0)


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.parametrize("skip", [0, 1])
@async_test
async def test_killed_workers_of_forks_repeat_nothing(
    skip: int, store: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    (courier,) = make(ledger)
    child = Child(
        "tests.agents.victims", store, str(tmp_path / "ledger"), "tests.agents.couriers:make"
    )
    try:
        async with holdfast.Holdfast(store, agents=[courier], settings=settings()) as hf:
            victims = Victims(hf, child)
            expected = {}
            for point in POINTS:
                expected[point] = await hf.run(courier, point, run_id=point)
                again = (await hf.runs.plan(point, 1)).effects[1].effect
                assert again.tool == "ping"
                fork, name = f"f-{point}", [again.effect_id]
                await hf.runs.fork(point, 1, new_run_id=fork, resend=name)
                await victims.let_work(point, skip)
            await victims.let_work()
            assert victims.kills >= len(POINTS) // 2
            for point in POINTS:
                assert await hf.runs.result(f"f-{point}") == expected[point]
                for run_id in (point, f"f-{point}"):
                    assert await hf.journal.verify(run_id) == []
    finally:
        child.close()
    once = {(point, turn): 1 for point in POINTS for turn in range(TURNS)}
    assert ledger.count("charge") == once
    assert ledger.count("ping") == once | {(point, 1): 2 for point in POINTS}
    pings = [line.key for line in ledger.lines() if line.what == "ping"]
    assert len(set(pings)) == len(pings)
