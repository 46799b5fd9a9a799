"""Saving turns in one session: what a save costs, whether it stays so, and how much is stored."""

from collections.abc import Iterable
from typing import Any

import holdfast
from benchmarks import places
from benchmarks.contract import Place
from benchmarks.report import TIMES, Row, judged, tenfold
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json
from holdfast import LeasedRun

Turn = list[dict[str, Any]]
LOG = "transcript"
_SAVE_AT_MOST = {"sqlite": 1.8, "postgres": 1.3}


async def save(run: LeasedRun, turn: Turn) -> None:
    """A turn as an agent saves it: append, checkpoint."""
    run.append(LOG, *turn)
    await run.checkpoint()


async def save_all(run: LeasedRun, turns: Iterable[Turn]) -> None:
    for turn in turns:
        await save(run, turn)


async def turn_saves(place: Place, sizes: Sizes) -> list[Row]:
    """Saves of one session, a raw commit of the same new bytes after each."""
    turns = TurnMaker().turns(sizes.save_turns)
    new = sum(len(as_json(turn)) for turn in turns)
    ours, raw = Stopwatch(), Stopwatch()
    url = ""
    for _ in range(sizes.repeats):
        floor = await places.connect(place.new_floor())
        url = place.new_store()
        async with holdfast.open(url) as hf:
            run = await hf.runs.open("session-0001", agent="support")
            for turn in turns:
                with ours:
                    await save(run, turn)
                body = as_json(turn)
                with raw:
                    await floor.commit(body)
        await floor.close()
    at_most = _SAVE_AT_MOST[place.name]
    return [
        judged("turn_save", ours.median, "ms", floor=raw.median, at_most=at_most),
        await _stored_bytes(place, url, new),
        tenfold("write_p99", ours, limit=100),
    ]


async def _stored_bytes(place: Place, url: str, new: int) -> Row:
    """What the turns have added to a store."""
    unused = place.new_store()
    async with holdfast.open(unused):
        pass
    stored, empty = place.stored_bytes(url), place.stored_bytes(unused)
    note = f"{stored / new:.2f} {TIMES} with the {empty / 1e6:.2f} MB of an empty store"
    added = (stored - empty) / 1e6
    return judged("stored_bytes", added, "MB", floor=new / 1e6, at_most=0.6, note=note)


async def turn_flatness(place: Place, sizes: Sizes) -> list[Row]:
    """A window of turns late in a session against one early in another, turn by turn."""
    late, early = Stopwatch(), Stopwatch()
    half = sizes.window // 2
    turns = TurnMaker().turns(sizes.late_turn + half)
    for _ in range(sizes.repeats):
        async with (
            holdfast.open(place.new_store()) as first,
            holdfast.open(place.new_store()) as second,
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
