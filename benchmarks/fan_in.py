"""Fan-in: four processes race to deliver the results that groups of waits are open for.

Every result is delivered twice, by two different processes. As a module it is one of them:
`python -m benchmarks.fan_in KIND URL WORKER K GROUPS`; it says "ready", and goes on a line. Kinds
are `ours`, `raw` (rows in group commits) and `single` (rows with a commit each, the floor).
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import holdfast
from benchmarks import places
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged
from benchmarks.sizes import Sizes
from holdfast import WaitSpec

_WORKERS = 4
_TASKS = 100
_RESULT = {"status": "done", "answer": "The parcel left the warehouse on Tuesday.", "score": 0.93}

Deliver = Callable[[str], Awaitable[bool]]


async def fan_in(place: Place, sizes: Sizes) -> list[Row]:
    """Deliveries a second for groups of K waits, against rows with a unique key."""
    return [await _fan_in_of(size, place, sizes) for size in sizes.fan_in]


async def _fan_in_of(size: int, place: Place, sizes: Sizes) -> Row:
    groups = max(1, sizes.deliveries // (2 * size))
    rates: dict[str, list[float]] = {"ours": [], "raw": [], "single": []}
    for _ in range(sizes.fan_in_repeats):
        for kind, samples in rates.items():
            url = place.new_store() if kind == "ours" else place.new_floor()
            if kind == "ours":
                await _open_groups(url, size, groups)
            samples.append(await _race(kind, url, size, groups))
    ours, grouped, single = map(statistics.median, rates.values())
    note = f"rows in group commits: {grouped:,.0f}/s"
    return judged(f"fan_in_{size}", ours, "deliveries/s", floor=single, at_least=0.5, note=note)


async def _open_groups(url: str, size: int, groups: int) -> None:
    async with holdfast.open(url) as hf:
        for group in range(groups):
            run = await hf.runs.open(f"run-{group}", agent="support")
            specs = [WaitSpec(wait_id=f"wait-{group}-{number}") for number in range(size)]
            await run.open_waits(specs, suspend=True)


async def _race(kind: str, url: str, size: int, groups: int) -> float:
    """Deliveries a second, from the first process's start to the last one's end."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                child("benchmarks.fan_in", kind, url, worker, size, groups)
            )
            for worker in range(_WORKERS)
        ]
        for worker in workers:
            await worker.line()
        for worker in workers:
            worker.tell("go")
        done = [await worker.answer() for worker in workers]
    if kind == "ours":
        accepted = sum(each["accepted"] for each in done)
        assert accepted == size * groups, f"{accepted} of {size * groups} waits were settled"
    seconds = max(each["end"] for each in done) - min(each["start"] for each in done)
    return 2 * size * groups / seconds


def _deliveries(worker: int, size: int, groups: int) -> Iterator[str]:
    """What one process delivers: in order, each result in two of the four processes."""
    for number in range(size * groups):
        second = (number + 1 + number // _WORKERS % (_WORKERS - 1)) % _WORKERS
        if worker in (number % _WORKERS, second):
            yield f"wait-{number // size}-{number % size}"


async def _deliver_all(deliver: Deliver, wanted: Iterator[str]) -> None:
    """Deliver with a fixed number of concurrent tasks, when told to go, and say how it went."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    accepted = 0

    async def work() -> None:
        nonlocal accepted
        for wait_id in wanted:
            if await deliver(wait_id):
                accepted += 1

    start = time.monotonic()
    await asyncio.gather(*(work() for _ in range(_TASKS)))
    end = time.monotonic()
    print(json.dumps({"start": start, "end": end, "accepted": accepted}), flush=True)


async def _deliver_ours(url: str, wanted: Iterator[str]) -> None:
    async with holdfast.open(url) as hf:

        async def deliver(wait_id: str) -> bool:
            return (await hf.waits.resolve(wait_id, _RESULT, by="peer")).accepted

        await _deliver_all(deliver, wanted)


async def _deliver_raw(url: str, wanted: Iterator[str]) -> None:
    floor = await places.connect(url)
    group = floor.group("results")

    async def deliver(wait_id: str) -> bool:
        await group.store(wait_id, json.dumps(_RESULT).encode())
        return True

    await _deliver_all(deliver, wanted)
    await group.close()
    await floor.close()


async def _deliver_single(url: str, wanted: Iterator[str]) -> None:
    floor = await places.connect(url)

    async def deliver(wait_id: str) -> bool:
        await floor.commit_once(wait_id, json.dumps(_RESULT).encode())
        return True

    await _deliver_all(deliver, wanted)
    await floor.close()


_KINDS = {"ours": _deliver_ours, "raw": _deliver_raw, "single": _deliver_single}

if __name__ == "__main__":
    kind, url, *numbers = sys.argv[1:]
    asyncio.run(_KINDS[kind](url, _deliveries(*map(int, numbers))))
