"""Reading back: resuming in a new process, listing history, loading a short run.

As a module it is the new process: `python -m benchmarks.reads ours|raw PATH` prints milliseconds.
"""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast

import apsw

import holdfast
from benchmarks import floors
from benchmarks.processes import ask
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch, percentile
from benchmarks.saves import LOG, save_all
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json

RUN = "session-0001"


async def resume(folder: Path, sizes: Sizes) -> list[Row]:
    """A long run taken up in a new process, against reading and decoding its rows in one."""
    store, raw = folder / "store.db", folder / "raw.db"
    turns = TurnMaker().turns(sizes.late_turn)
    async with holdfast.open(str(store)) as hf:
        await save_all(await hf.runs.open(RUN, agent="support"), turns)
    connection = floors.connect(raw)
    for turn in turns:
        floors.insert_and_commit(connection, as_json(turn))
    connection.close()
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(sizes.resume_pairs):
        ours.append(await ask("benchmarks.reads", "ours", store))
        floor.append(await ask("benchmarks.reads", "raw", raw))
    value, raw_value = statistics.median(ours), statistics.median(floor)
    return [judged("resume", value, "ms", floor=raw_value, at_most=1.2)]


async def histories(folder: Path, sizes: Sizes) -> list[Row]:
    """The last 100 checkpoints of a long and a short run, and loading the short one."""
    long, short, load = Stopwatch(), Stopwatch(), Stopwatch()
    turns = TurnMaker().turns(sizes.late_turn)
    async with holdfast.open(str(folder / "store.db")) as hf:
        await save_all(await hf.runs.open("long", agent="support"), turns)
        await save_all(await hf.runs.open("short", agent="support"), turns[: sizes.early_turn])
        for _ in range(sizes.reads):
            with long:
                await hf.checkpoints.history("long", limit=100)
            with short:
                await hf.checkpoints.history("short", limit=100)
            with load:
                await hf.checkpoints.load("short")
    read_p99, history_p99 = percentile(load.samples, 99), percentile(long.samples, 99)
    short_note = f"{short.median:.2f} ms for a run of {sizes.early_turn} turns"
    return [
        judged("history_100", long.median, "ms", at_most=10, note=short_note),
        judged(
            "read_p99", read_p99, "ms", at_most=1, note=f"{10 / read_p99:.1f} times below 10 ms"
        ),
        judged(
            "history_p99",
            history_p99,
            "ms",
            at_most=10,
            note=f"{100 / history_p99:.0f} times below 100 ms",
        ),
    ]


async def _resume_ours(path: str) -> float:
    since = time.perf_counter()
    async with holdfast.open(path) as hf:
        run = await hf.runs.open(RUN)
        state = run.state()
        taken = (time.perf_counter() - since) * 1000
        assert state[LOG], "the run was saved"
        await run.release()
    return taken


def _read_raw(path: str) -> float:
    since = time.perf_counter()
    # apsw's annotations name a type that Python 3.11 lacks.
    connection = cast(Any, apsw.Connection(path))
    transcript: list[Any] = []
    for (body,) in connection.execute("SELECT body FROM rows ORDER BY id"):
        transcript += json.loads(body)
    taken = (time.perf_counter() - since) * 1000
    connection.close()
    return taken


if __name__ == "__main__":
    kind, path = sys.argv[1:]
    print(asyncio.run(_resume_ours(path)) if kind == "ours" else _read_raw(path))
