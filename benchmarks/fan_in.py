"""Fan-in: four processes race to deliver the results that groups of waits are open for.

Every result is delivered twice, by two different processes. As a module it is one of them:
`python -m benchmarks.fan_in KIND URL WORKER K GROUPS FIRST SECONDS`; it says "ready", and goes on a
line. Kinds are `ours`, `raw` (rows in group commits), `single` (rows with a commit each, the floor)
and `seed` (seed 000's SQL, beside which ours is to be linear). FIRST is the first result of each
group that is delivered; after SECONDS nothing more is.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import holdfast
from benchmarks import places, seed_000
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged
from benchmarks.sizes import Sizes
from holdfast import WaitSpec

_WORKERS = 4
_TASKS = 100
_SEED_SECONDS = 8
_SEED_WHOLE = 100  # what the seed's SQL is measured on from the first result to the last
_RESULT = {"status": "done", "answer": "The parcel left the warehouse on Tuesday.", "score": 0.93}

Deliver = Callable[[str], Awaitable[bool]]


class Race(NamedTuple):
    """What is delivered: the results of each group from the first on, for so many seconds."""

    kind: str
    size: int
    groups: int
    first: int = 0
    seconds: float = 1e6


class Outcome(NamedTuple):
    accepted: int
    delivered: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.delivered / self.seconds


def names(sizes: Sizes) -> tuple[str, ...]:
    return (*(f"fan_in_{size}" for size in sizes.fan_in), "fan_in_linear")


async def fan_in(place: Place, sizes: Sizes) -> list[Row]:
    """Deliveries a second for groups of K waits, against rows with a unique key."""
    rows = [await _fan_in_of(size, place, sizes) for size in sizes.fan_in]
    small, large = rows[1], rows[-1]
    note = f"time per delivery, {large.name} ÷ {small.name}"
    cost = small.value / large.value
    return [*rows, judged("fan_in_linear", cost, "times", at_most=1.5, note=note)]


async def _fan_in_of(size: int, place: Place, sizes: Sizes) -> Row:
    groups = max(1, sizes.deliveries // (2 * size))
    rates: dict[str, list[float]] = {"ours": [], "raw": [], "single": []}
    for _ in range(sizes.fan_in_repeats):
        for kind, samples in rates.items():
            url = place.new_store() if kind == "ours" else place.new_floor()
            if kind == "ours":
                await _open_groups(url, size, groups)
            outcome = await _run(Race(kind, size, groups), url)
            if kind == "ours":
                assert outcome.accepted == size * groups, f"{outcome.accepted} waits were settled"
            samples.append(outcome.rate)
    ours, grouped, single = map(statistics.median, rates.values())
    told = await _as_seed_000(size, groups, place)
    note = f"rows in group commits: {grouped:,.0f}/s; {told}"
    return judged(f"fan_in_{size}", ours, "deliveries/s", floor=single, at_least=0.5, note=note)


async def _as_seed_000(size: int, groups: int, place: Place) -> str:
    """What the seed's SQL reaches, for a few seconds; large groups are sampled in their middle."""
    first = 0 if size <= _SEED_WHOLE else size // 2
    url = place.new_floor()
    seed_000.prepare(url, size, groups, done=first, result=_RESULT)
    outcome = await _run(Race("seed", size, groups, first, _SEED_SECONDS), url)
    counted = seed_000.count(url)
    claimed = (size - first) * groups - counted.unclaimed
    lost = claimed - (counted.recorded - first * groups)
    told = f"seed 000's SQL: {outcome.rate:,.0f}/s"
    told += " in the middle of the group" if first else ""
    return told + (f", and of {claimed:,} answers {lost:,} were lost" if lost else "")


async def _open_groups(url: str, size: int, groups: int) -> None:
    async with holdfast.open(url) as hf:
        for group in range(groups):
            run = await hf.runs.open(f"run-{group}", agent="support")
            specs = [WaitSpec(wait_id=f"wait-{group}-{number}") for number in range(size)]
            await run.open_waits(specs, suspend=True)


async def _run(race: Race, url: str) -> Outcome:
    """A race of all processes, from the first one's start to the last one's end."""
    kind, *numbers = race
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(child("benchmarks.fan_in", kind, url, worker, *numbers))
            for worker in range(_WORKERS)
        ]
        for worker in workers:
            await worker.line()
        for worker in workers:
            worker.tell("go")
        done = [await worker.answer() for worker in workers]
    seconds = max(each["end"] for each in done) - min(each["start"] for each in done)
    accepted, delivered = (sum(each[key] for each in done) for key in ("accepted", "delivered"))
    return Outcome(accepted, delivered, seconds)


def _deliveries(worker: int, race: Race) -> Iterator[str]:
    """What one process delivers: in order, each result in two of the four processes."""
    size = race.size
    stop = time.monotonic() + race.seconds
    for number in range(size * race.groups):
        if number % size < race.first:
            continue
        if time.monotonic() > stop:
            return
        second = (number + 1 + number // _WORKERS % (_WORKERS - 1)) % _WORKERS
        if worker in (number % _WORKERS, second):
            yield f"wait-{number // size}-{number % size}"


async def _deliver_all(deliver: Deliver, wanted: Iterator[str]) -> None:
    """Deliver with a fixed number of concurrent tasks, when told to go, and say how it went."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    accepted = delivered = 0

    async def work() -> None:
        nonlocal accepted, delivered
        for wait_id in wanted:
            is_first = await deliver(wait_id)
            accepted += is_first
            delivered += 1

    start = time.monotonic()
    await asyncio.gather(*(work() for _ in range(_TASKS)))
    end = time.monotonic()
    told = {"start": start, "end": end, "accepted": accepted, "delivered": delivered}
    print(json.dumps(told), flush=True)


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


async def _deliver_seed(url: str, wanted: Iterator[str]) -> None:
    answers = await seed_000.connect(url)

    async def deliver(wait_id: str) -> bool:
        return await answers.deliver(wait_id, _RESULT)

    await _deliver_all(deliver, wanted)
    await answers.close()


_KINDS = {
    "ours": _deliver_ours,
    "raw": _deliver_raw,
    "single": _deliver_single,
    "seed": _deliver_seed,
}


def main() -> None:
    kind, url, worker, size, groups, first, seconds = sys.argv[1:]
    race = Race(kind, int(size), int(groups), int(first), float(seconds))
    asyncio.run(_KINDS[kind](url, _deliveries(int(worker), race)))


if __name__ == "__main__":
    main()
