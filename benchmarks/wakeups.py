"""Wake-up: from answering a wait in one process until another one holds the run again.

As a module it is the other process: `python -m benchmarks.wakeups URL ROUNDS`.
"""

import asyncio
import json
import random
import sys
import time

import holdfast
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged
from benchmarks.samples import percentile
from benchmarks.sizes import Sizes
from holdfast import WaitSpec

_AT_MOST = {"sqlite": 25, "postgres": 10}


async def wakeup(place: Place, sizes: Sizes) -> list[Row]:
    """Milliseconds from calling `waits.resolve` until `leases.next` has returned elsewhere."""
    chance = random.Random(7)
    taken: list[float] = []
    url = place.new_store()
    async with (
        holdfast.open(url) as hf,
        child("benchmarks.wakeups", url, sizes.wakeups) as worker,
    ):
        for _ in range(sizes.wakeups):
            wait_id = await worker.answer()
            # Long enough for the worker to be waiting, and at any phase of its looking.
            await asyncio.sleep(chance.uniform(0.03, 0.08))
            since = time.monotonic()
            await hf.waits.resolve(wait_id, {"approved": True}, by="peer")
            taken.append((await worker.answer() - since) * 1000)
    note = f"p95 {percentile(taken, 95):.1f} ms"
    at_most = _AT_MOST[place.name]
    return [judged("wakeup", percentile(taken, 50), "ms", at_most=at_most, note=note)]


async def _wait_again_and_again(url: str, rounds: int) -> None:
    async with holdfast.open(url) as hf:
        for number in range(rounds):
            run = await hf.runs.open(f"run-{number}", agent="support")
            await run.open_waits([WaitSpec(wait_id=f"wait-{number}")], suspend=True)
            print(json.dumps(f"wait-{number}"), flush=True)
            woken = await hf.leases.next(timeout_seconds=30)
            print(json.dumps(time.monotonic()), flush=True)
            assert woken is not None, "the wait was answered"
            await woken.complete()


if __name__ == "__main__":
    asyncio.run(_wait_again_and_again(sys.argv[1], int(sys.argv[2])))
