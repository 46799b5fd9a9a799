"""The clock of a worker's machine is set by a day while it works, and nothing comes of it.

libfaketime sets the clock of one real worker; another one, and whoever judges, keep the right time.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import MICROSECONDS, wall
from holdfast.engine.waits import WaitSpec
from holdfast.testing.store_suite import async_test
from tests.agents.jumping import LEASE_SECONDS, faked, settings
from tests.agents.ledger import Ledger
from tests.processes import Child

WORKERS = ("set", "right")
HELD = [f"held-{who}-{n}" for who in WORKERS for n in range(2)]
DUE_SECONDS = 1.0
LATE_SECONDS = 10.0
DAY_SECONDS = 86_400


class Machine:
    """A worker whose clock can be set, and one whose clock is right, on one store."""

    def __init__(self, store: str, folder: Path, *, look: str = "steady") -> None:
        self.store = store
        self.folder = folder
        self.look = look
        self.stamps = folder / "stamps"
        self.stamps.write_text("+0\n")
        self.due: list[str] = []
        self.began_at = wall()
        environment = faked(self.stamps)
        if environment is None:
            pytest.fail("libfaketime is missing, so no clock was set: pip install -e '.[dev]'")
        self.environment = environment

    def worker(self, who: str, *, env: Mapping[str, str] | None = None, point: str = "") -> Child:
        arguments = (self.store, self.folder, who, self.look, point)
        # A library is put before the others when a program starts, so this one really does.
        kind = "" if env else "holdfast"
        return Child("tests.agents.jumping", *arguments, env=env, kind=kind)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Runs that are paid for, held, and asleep, when the clock is about to be set."""
        async with holdfast.Holdfast(self.store, settings=settings()) as self.hf:
            await self.hf.runs.create("payer", agent="payer")
            with self.worker("doomed", point="tool.after_call") as doomed:
                doomed.answer()
                assert await asyncio.to_thread(doomed.wait) == -signal.SIGKILL
            await self.sleep_until("far", DAY_SECONDS / 2)
            with ExitStack() as workers:
                for who, env in zip(WORKERS, (self.environment, None), strict=True):
                    workers.enter_context(self.worker(who, env=env)).answer()
                await self.see("payer", "RUN_RELEASED")
                for run_id in HELD:
                    await self.hf.runs.create(run_id, agent=run_id.split("-")[1])
                for run_id in HELD:
                    await self.see(run_id, "RUN_LEASED")
                yield

    async def set_clock(self, seconds: int) -> None:
        """Set the clock; from then on each lease is renewed twice, and a timer is due."""
        await self.sleep_until(f"due{seconds:+d}", DUE_SECONDS)
        self.due.append(f"due{seconds:+d}")
        self.stamps.write_text(f"{seconds:+d}\n")
        since = time.monotonic()
        await self.see(self.due[-1], "WAIT_EXPIRED", after_seconds=DUE_SECONDS)
        while time.monotonic() - since < 0.75 * LEASE_SECONDS:
            await asyncio.sleep(0.05)

    async def sleep_until(self, run_id: str, seconds: float) -> None:
        """A run that is due so many seconds from now."""
        held = await self.hf.runs.open(run_id)
        await held.open_waits([WaitSpec(kind="timer", timeout_seconds=seconds)], suspend=True)

    async def see(self, run_id: str, kind: str, *, after_seconds: float = 0.0) -> None:
        end = time.monotonic() + after_seconds + LATE_SECONDS
        while kind not in [entry.kind for entry in await self.hf.journal.read(run_id)]:
            if time.monotonic() > end:
                return  # the judge says so
            await asyncio.sleep(0.02)

    async def finish(self) -> None:
        """Let the held runs end."""
        (self.folder / "gate").touch()
        for run_id in HELD:
            await self.see(run_id, "RUN_COMPLETED")

    async def judge(self) -> list[str]:
        """What came of setting the clock, in words."""
        paid = Ledger(self.folder / "ledger").count("pay").total()
        found = [] if paid == 1 else [f"it was paid {paid} times"]
        for run_id in self.due:
            found += await self._judge_timer(run_id)
        for run_id in HELD:
            kinds = [entry.kind for entry in await self.hf.journal.read(run_id)]
            if kinds.count("RUN_LEASED") != 1 or kinds[-1] != "RUN_COMPLETED":
                found.append(f"{run_id} was not held all the time: {kinds}")
        for run_id in ("payer", "far", *self.due, *HELD):
            found += await self._judge_times(run_id)
        effects = [str(effect.status) for effect in await self.hf.effects.of_run("payer")]
        if effects != ["issued"]:
            found.append(f"the payment was judged: {effects}")
        (wait,) = await self.hf.waits.of_run("far")
        if wait.status != "open":
            found.append(f"the far wait is {wait.status}")
        return found

    async def _judge_timer(self, run_id: str) -> list[str]:
        (wait,) = await self.hf.waits.of_run(run_id)
        if wait.status != "expired":
            return [f"{run_id} has not fired"]
        late = (wait.settled_at - wait.deadline) / MICROSECONDS
        entries = [entry.kind for entry in await self.hf.journal.read(run_id)]
        found = [] if entries.count("WAIT_EXPIRED") == 1 else [f"{run_id} fired often: {entries}"]
        return found + ([] if 0 <= late < LATE_SECONDS else [f"{run_id} fired {late} s late"])

    async def _judge_times(self, run_id: str) -> list[str]:
        moments = [entry.at for entry in await self.hf.journal.read(run_id)]
        window = [self.began_at - MICROSECONDS, *moments, wall() + MICROSECONDS]
        return [] if window == sorted(window) else [f"{run_id} has entries out of order: {moments}"]


@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_setting_the_clock_by_a_day_changes_nothing(store: str, tmp_path: Path) -> None:
    machine = Machine(store, tmp_path)
    async with machine.working():
        await machine.set_clock(DAY_SECONDS)
        await machine.set_clock(-DAY_SECONDS)
        await machine.finish()
        assert await machine.judge() == []


@async_test
async def test_worker_that_goes_by_the_plain_clock_is_noticed(tmp_path: Path) -> None:
    machine = Machine(str(tmp_path / "store.db"), tmp_path, look="plain")
    async with machine.working():
        await machine.set_clock(DAY_SECONDS)
        assert "far wait is expired" in " ".join(await machine.judge())
