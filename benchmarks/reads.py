"""Reading back: resuming in a new process, listing history, loading a short run.

As a module it is the new process: `python -m benchmarks.reads load|take|raw URL` prints
milliseconds, from opening the database to having the decoded state, after all imports.
"""

import asyncio
import json
import statistics
import sys
import time
from typing import Any

import holdfast
from benchmarks import places
from benchmarks.contract import Place
from benchmarks.processes import ask
from benchmarks.report import Row, judged, tenfold
from benchmarks.samples import Stopwatch
from benchmarks.saves import LOG, save_all
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json

RUN = "session-0001"


async def resume(place: Place, sizes: Sizes) -> list[Row]:
    """A long run taken up in a new process, against reading and decoding its rows in one."""
    store, raw = place.new_store(), place.new_floor()
    turns = TurnMaker().turns(sizes.late_turn)
    async with holdfast.open(store) as hf:
        await save_all(await hf.runs.open(RUN, agent="support"), turns)
    floor = await places.connect(raw)
    for turn in turns:
        await floor.commit(as_json(turn))
    await floor.close()
    taken: dict[str, list[float]] = {"load": [], "take": [], "raw": []}
    kinds = list(taken)
    for _ in range(sizes.resume_pairs):
        kinds.reverse()  # whoever comes after a process that read the same pages is favoured
        for kind in kinds:
            url = raw if kind == "raw" else store
            taken[kind].append(await ask("benchmarks.reads", kind, url))
    load, take, read = map(statistics.median, taken.values())
    note = f"{take:.0f} ms with taking the lease"
    return [judged("resume", load, "ms", floor=read, at_most=1.2, note=note)]


async def histories(place: Place, sizes: Sizes) -> list[Row]:
    """The last 100 checkpoints of a long and a short run, and loading the short one."""
    long, short, load = Stopwatch(), Stopwatch(), Stopwatch()
    turns = TurnMaker().turns(sizes.late_turn)
    async with holdfast.open(place.new_store()) as hf:
        await save_all(await hf.runs.open("long", agent="support"), turns)
        await save_all(await hf.runs.open("short", agent="support"), turns[: sizes.early_turn])
        del turns  # which the collector would walk through during the reads
        for _ in range(sizes.reads):
            with long:
                await hf.checkpoints.history("long", limit=100)
            with short:
                await hf.checkpoints.history("short", limit=100)
            with load:
                await hf.checkpoints.load("short")
    short_note = f"{short.median:.2f} ms for a run of {sizes.early_turn} turns"
    return [
        judged("history_100", long.median, "ms", at_most=10, note=short_note),
        tenfold("read_p99", load, limit=10),
        tenfold("history_p99", long, limit=100),
    ]


async def _load(url: str) -> float:
    since = time.perf_counter()
    async with holdfast.open(url) as hf:
        state = await hf.checkpoints.load(RUN)
        taken = (time.perf_counter() - since) * 1000
        assert state[LOG], "the run was saved"
    return taken


async def _take(url: str) -> float:
    since = time.perf_counter()
    async with holdfast.open(url) as hf:
        run = await hf.runs.open(RUN)
        state = run.state()
        taken = (time.perf_counter() - since) * 1000
        assert state[LOG], "the run was saved"
        await run.release()
    return taken


async def _read_raw(url: str) -> float:
    since = time.perf_counter()
    floor = await places.connect(url)
    transcript: list[Any] = []
    for body in await floor.bodies():
        transcript += json.loads(body)
    taken = (time.perf_counter() - since) * 1000
    await floor.close()
    return taken


_KINDS = {"load": _load, "take": _take, "raw": _read_raw}

if __name__ == "__main__":
    kind, url = sys.argv[1:]
    print(asyncio.run(_KINDS[kind](url)))
