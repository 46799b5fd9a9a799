"""Many sessions at once in one process: turns and effects per second with group commit."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import holdfast
from benchmarks import effects, places
from benchmarks.contract import Place
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch
from benchmarks.saves import Turn, save
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json
from holdfast import Holdfast, LeasedRun

T = TypeVar("T")
_POOL = 500
_FLOOR_PAIRS = 200


async def sessions(place: Place, sizes: Sizes) -> list[Row]:
    """Turns a second of concurrent sessions, against a raw group-commit loop."""
    turns = TurnMaker().turns(_POOL)
    bodies = list(map(as_json, turns))
    ours: list[float] = []
    raw: list[float] = []
    ready: list[float] = []
    for _ in range(sizes.repeats):
        ours.append(await _save_turns(place.new_store(), turns, sizes))
        raw.append(await _save_raw(place.new_floor(), turns, as_json, sizes))
        ready.append(await _save_raw(place.new_floor(), bodies, bytes, sizes))
    value, floor = statistics.median(ours), statistics.median(raw)
    note = f"the raw loop stores {statistics.median(ready):,.0f}/s if the JSON is made before"
    return [judged("sessions_1000", value, "turns/s", floor=floor, at_least=0.9, note=note)]


async def _save_turns(url: str, turns: list[Turn], sizes: Sizes) -> float:
    async with holdfast.open(url) as hf:
        runs = await _open_runs(hf, sizes.sessions)

        async def session(number: int) -> None:
            for turn in _turns_of(number, turns, sizes):
                await save(runs[number], turn)

        seconds = await _race(session, sizes.sessions)
    return sizes.sessions * sizes.turns_per_session / seconds


async def _save_raw(url: str, turns: list[T], encode: Callable[[T], bytes], sizes: Sizes) -> float:
    """The same turns, from the same values: each session makes its JSON and queues it."""
    floor = await places.connect(url)
    group = floor.group("rows")

    async def session(number: int) -> None:
        for turn in _turns_of(number, turns, sizes):
            await group.store(encode(turn))

    seconds = await _race(session, sizes.sessions)
    await group.close()
    await floor.close()
    return sizes.sessions * sizes.turns_per_session / seconds


async def effect_sessions(place: Place, sizes: Sizes) -> list[Row]:
    """Time per effect with concurrent sessions, against two raw commits one after the other."""
    raw = Stopwatch()
    floor = await places.connect(place.new_floor())
    ours: list[float] = []
    for _ in range(sizes.repeats):
        ours.append(await _perform_effects(place.new_store(), sizes))
        for number in range(_FLOOR_PAIRS):
            with raw:
                await effects.commit_twice(floor, number)
    await floor.close()
    value = statistics.median(ours)
    return [judged("effect_1000_sessions", value, "ms", floor=raw.median, at_most=0.3)]


async def _perform_effects(url: str, sizes: Sizes) -> float:
    """Milliseconds per effect."""
    async with holdfast.open(url) as hf:
        runs = await _open_runs(hf, sizes.sessions)

        async def session(number: int) -> None:
            for count in range(sizes.effects_per_session):
                await effects.perform(runs[number], number * sizes.effects_per_session + count)

        seconds = await _race(session, sizes.sessions)
    return seconds * 1000 / (sizes.sessions * sizes.effects_per_session)


async def _open_runs(hf: Holdfast, count: int) -> list[LeasedRun]:
    opened = (hf.runs.open(f"session-{number:04}", agent="support") for number in range(count))
    return list(await asyncio.gather(*opened))


def _turns_of(number: int, turns: list[T], sizes: Sizes) -> list[T]:
    return [turns[(number * 7 + count) % _POOL] for count in range(sizes.turns_per_session)]


async def _race(session: Callable[[int], Awaitable[None]], count: int) -> float:
    """Seconds until every session has ended."""
    since = time.perf_counter()
    await asyncio.gather(*(session(number) for number in range(count)))
    return time.perf_counter() - since
