"""Timers of thousands of runs that are due in the same moment fire once each, over four workers."""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import holdfast
from holdfast.clock import to_datetime
from holdfast.engine.waits import WaitSpec
from tests.agents.ledger import Ledger
from tests.chaos import sleepers
from tests.processes import Child

WORKERS = 4
LIMIT_SECONDS = 900.0
DUE = timedelta(seconds=1)
AT_ONCE = 500


async def put_to_sleep(hf: holdfast.Holdfast, run_ids: list[str], deadline: datetime) -> None:
    """Runs that wait for the same moment, and are held by nobody."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(run_id: str) -> None:
        async with gate:
            held = await hf.runs.open(run_id, agent="sleeper")
            timer = WaitSpec(wait_id=f"timer {run_id}", kind="timer", deadline=deadline)
            await held.open_waits([timer], suspend=True)

    await asyncio.gather(*map(one, run_ids))


def test_timers_due_in_the_same_moment_fire_once_each(
    store: str, tmp_path: Path, is_chaos: bool
) -> None:
    run_ids = [f"r{n:05}" for n in range(10_000 if is_chaos else 300)]
    found = asyncio.run(asyncio.wait_for(fire_and_judge(store, tmp_path, run_ids), LIMIT_SECONDS))
    assert found == []


async def fire_and_judge(store: str, tmp_path: Path, run_ids: list[str]) -> list[str]:
    """Everything wrong with how the timers of these runs fired, in words."""
    ledger = Ledger(tmp_path / "ledger")
    async with holdfast.open(store) as hf:
        began = time.monotonic()
        deadline = to_datetime(hf._context.now()) + DUE
        await put_to_sleep(hf, run_ids, deadline)
        print(f"{len(run_ids)} runs sleep after {time.monotonic() - began:.1f} s")
        with ExitStack() as stack:
            module, path = sleepers.__name__, tmp_path / "ledger"
            workers = [stack.enter_context(Child(module, store, path)) for _ in range(WORKERS)]
            known = {worker.answer() for worker in workers}
            began = time.monotonic()
            for worker in workers:
                worker.tell("go")
            while (await hf.info()).runs.get("completed", 0) < len(run_ids):
                await asyncio.sleep(0.1)
            print(f"all are awake after {time.monotonic() - began:.1f} s")
            for worker in workers:
                assert worker.process.stdin is not None
                worker.process.stdin.close()
                assert await asyncio.to_thread(worker.wait) == 0
        found: list[str] = []
        rung = Counter(line.run for line in ledger.lines())
        found += [
            f"{run_id} was woken {rung[run_id]} times" for run_id in run_ids if rung[run_id] != 1
        ]
        found += [f"{run_id} was woken, and is none of them" for run_id in rung.keys() - {*run_ids}]
        helpers: Counter[str] = Counter()
        for run_id in run_ids:
            entries = await hf.journal.read(run_id)
            fired = [entry for entry in entries if entry.kind == "WAIT_EXPIRED"]
            if len(fired) != 1:
                found.append(f"the timer of {run_id} fired {len(fired)} times")
            elif to_datetime(fired[0].at) < deadline:
                found.append(f"the timer of {run_id} fired early")
            leases = [entry.kind for entry in entries].count("RUN_LEASED")
            if leases != 2:
                found.append(f"{run_id} was leased {leases} times")
            helpers.update({entries[-1].actor})
        if len(helpers) < 2 or not set(helpers) <= known:
            found.append(f"these did it all: {dict(helpers)}")
        return found
