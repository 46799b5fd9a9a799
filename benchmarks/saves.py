"""Saving turns in one session: what a save costs, whether it stays so, and how much is stored."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import holdfast
from benchmarks import floors
from benchmarks.report import Row, judged, tenfold
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json
from holdfast import LeasedRun

Turn = list[dict[str, Any]]
LOG = "transcript"


async def save(run: LeasedRun, turn: Turn) -> None:
    """A turn as an agent saves it: append, checkpoint."""
    run.append(LOG, *turn)
    await run.checkpoint()


async def save_all(run: LeasedRun, turns: Iterable[Turn]) -> None:
    for turn in turns:
        await save(run, turn)


async def turn_saves(folder: Path, sizes: Sizes) -> list[Row]:
    """Saves of one session, a raw commit of the same new bytes after each."""
    turns = TurnMaker().turns(sizes.save_turns)
    ours, floor = Stopwatch(), Stopwatch()
    stored = new = 0
    for repeat in range(sizes.repeats):
        raw = floors.connect(folder / f"floor-{repeat}.db")
        path = folder / f"store-{repeat}.db"
        async with holdfast.open(str(path)) as hf:
            run = await hf.runs.open("session-0001", agent="support")
            for turn in turns:
                with ours:
                    await save(run, turn)
                body = as_json(turn)
                with floor:
                    floors.insert_and_commit(raw, body)
        raw.close()
        stored, new = _checkpointed_size(path), sum(len(as_json(turn)) for turn in turns)
    return [
        judged("turn_save", ours.median, "ms", floor=floor.median, at_most=1.8),
        judged("stored_bytes", stored / 1e6, "MB", floor=new / 1e6, at_most=0.6),
        tenfold("write_p99", ours, limit=100),
    ]


def _checkpointed_size(path: Path) -> int:
    connection = floors.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


async def turn_flatness(folder: Path, sizes: Sizes) -> list[Row]:
    """A window of turns late in a session against one early in another, turn by turn."""
    late, early = Stopwatch(), Stopwatch()
    half = sizes.window // 2
    turns = TurnMaker().turns(sizes.late_turn + half)
    for repeat in range(sizes.repeats):
        async with (
            holdfast.open(str(folder / f"late-{repeat}.db")) as first,
            holdfast.open(str(folder / f"early-{repeat}.db")) as second,
        ):
            old = await first.runs.open("session-0001", agent="support")
            await save_all(old, turns[: sizes.late_turn - half])
            young = await second.runs.open("session-0001", agent="support")
            await save_all(young, turns[: sizes.early_turn - half])
            pair = [(late, old), (early, young)]
            for turn in turns[-sizes.window :]:
                # In turn, because the first of two saves leaves work behind for the loop.
                pair.reverse()
                for stopwatch, run in pair:
                    with stopwatch:
                        await save(run, turn)
    return [judged("turn_flatness", late.median, "ms", floor=early.median, at_most=1.1)]
