"""Reading back: resuming in a new process, listing history, loading a short run.

As a module it is the new process: `python -m benchmarks.reads load|take|raw PATH` prints
milliseconds, from opening the file to having the decoded state, after all imports.
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
import holdfast.stores.sqlite.store  # which opening a store would import
from benchmarks import floors
from benchmarks.processes import ask
from benchmarks.report import Row, judged, tenfold
from benchmarks.samples import Stopwatch
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
    taken: dict[str, list[float]] = {"load": [], "take": [], "raw": []}
    kinds = list(taken)
    for _ in range(sizes.resume_pairs):
        kinds.reverse()  # whoever comes after a process that read the same file is favoured
        for kind in kinds:
            path = raw if kind == "raw" else store
            taken[kind].append(await ask("benchmarks.reads", kind, path))
    load, take, floor = map(statistics.median, taken.values())
    note = f"{take:.0f} ms with taking the lease"
    return [judged("resume", load, "ms", floor=floor, at_most=1.2, note=note)]


async def histories(folder: Path, sizes: Sizes) -> list[Row]:
    """The last 100 checkpoints of a long and a short run, and loading the short one."""
    long, short, load = Stopwatch(), Stopwatch(), Stopwatch()
    turns = TurnMaker().turns(sizes.late_turn)
    async with holdfast.open(str(folder / "store.db")) as hf:
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


async def _load(path: str) -> float:
    since = time.perf_counter()
    async with holdfast.open(path) as hf:
        state = await hf.checkpoints.load(RUN)
        taken = (time.perf_counter() - since) * 1000
        assert state[LOG], "the run was saved"
    return taken


async def _take(path: str) -> float:
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


def _main(kind: str, path: str) -> None:
    match kind:
        case "load":
            print(asyncio.run(_load(path)))
        case "take":
            print(asyncio.run(_take(path)))
        case _:
            print(_read_raw(path))


if __name__ == "__main__":
    _main(*sys.argv[1:])
