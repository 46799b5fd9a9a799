"""What each cadence costs in a turn, and what it loses when its process is killed."""

import asyncio
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from benchmarks import pacing, places
from benchmarks.contract import Floor, Place
from benchmarks.pacing import CADENCES, Tally
from benchmarks.processes import ROOT, TIMEOUT_SECONDS
from benchmarks.report import TIMES, Row, judged
from benchmarks.samples import Stopwatch
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker, as_json
from holdfast.agents.definitions.cadence import Cadence
from holdfast.telemetry import BATCH_COMMITTED, log

NAMES = tuple(f"cadence_{name}" for name in CADENCES)
_TURNS = 40
_LOOK_SECONDS = 0.005


class Cost(msgspec.Struct, frozen=True):
    """What a turn costs: milliseconds, those of one raw commit of its bytes, and commits."""

    ours: float
    raw: float
    commits: float


class Loss(msgspec.Struct, frozen=True):
    """What one kill cost: replies paid for again in a run that talks and in one that charges."""

    talks: int
    spends: int
    repeated: int
    lost: int


async def cadences(place: Place, sizes: Sizes) -> list[Row]:
    """For each cadence a turn of a reply and a look-up, one with a charge as well, and kills."""
    log.setLevel(logging.ERROR)  # that a run is held by somebody who was killed is no news here
    rows: list[Row] = []
    for name, cadence in CADENCES.items():
        talking = await _cost(place, cadence, sizes.paced_turns, charges=False)
        charging = await _cost(place, cadence, sizes.paced_turns, charges=True)
        url = place.new_store()
        began = time.monotonic()
        losses = [await _kill(url, name, seed) for seed in range(sizes.kills)]
        print(f"{name}: killing took {time.monotonic() - began:.0f} s,", end=" ", file=sys.stderr)
        note = f"{_commits(talking)}; with an effect {_commits(charging)}, "
        note += f"{charging.ours / charging.raw:.2f} {TIMES}; {_told(losses)}"
        rows.append(
            judged(f"cadence_{name}", talking.ours, "ms", floor=talking.raw, note=note),
        )
    return rows


def _commits(cost: Cost) -> str:
    return f"{cost.commits:.2f} commits a turn"


def _told(losses: list[Loss]) -> str:
    parts: list[str] = []
    for run, again in (
        ("that talk", [loss.talks for loss in losses]),
        ("with effects", [loss.spends for loss in losses]),
    ):
        parts.append(f"turns {run}: {statistics.fmean(again):.1f}, at most {max(again)}")
    harm = sum(loss.repeated for loss in losses), sum(loss.lost for loss in losses)
    return (
        f"{len(losses)} kills; replies paid again per kill: {', '.join(parts)}; "
        f"effects repeated {harm[0]}, lost {harm[1]}"
    )


async def _cost(place: Place, cadence: Cadence, turns: int, *, charges: bool) -> Cost:
    """Turns of one run, a raw commit of the same new bytes after each."""
    made = TurnMaker().turns(turns)
    counts: Counter[str] = Counter()
    ours, raw = Stopwatch(), Stopwatch()
    floor = await places.connect(place.new_floor())
    agent = _timed(cadence, made, floor, ours, raw, charges=charges)

    def count(name: str, amount: int) -> None:
        counts[name] += bool(ours.samples)  # taking the run is no part of a turn

    url = place.new_store()
    async with holdfast.Holdfast(url, agents=[agent], telemetry=count) as hf:
        await hf.run(agent, run_id="r")
    commits = counts[BATCH_COMMITTED]
    await floor.close()
    return Cost(sum(ours.samples) / turns, statistics.fmean(raw.samples), commits / turns)


def _timed(
    cadence: Cadence,
    turns: list[list[dict[str, Any]]],
    floor: Floor,
    ours: Stopwatch,
    raw: Stopwatch,
    *,
    charges: bool,
) -> holdfast.Agent[[], None]:
    """An agent whose model and tools answer as soon as the event loop has come round."""

    @holdfast.tool(effect="read")
    async def look(turn: int) -> dict[str, Any]:
        await _come_round()
        return turns[turn][1]

    @holdfast.tool
    async def charge(turn: int) -> str:
        await _come_round()
        return "charged"

    async def model(turn: int) -> dict[str, Any]:
        await _come_round()
        return turns[turn][0]

    @holdfast.agent(cadence=cadence, tools=[look, charge])
    async def timed(run: holdfast.Run) -> None:
        talk = run.log("transcript", dict)
        for number, turn in enumerate(turns):
            with ours:
                talk.append(await run.model(model, number))
                talk.append(await run.call(look, number))
                if charges:
                    await run.call(charge, number)
                await run.checkpoint()
            with raw:
                await floor.commit(as_json(turn))

    return timed


async def _come_round() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def _kill(url: str, cadence: str, seed: int) -> Loss:
    """Kill a process at any moment of its work, let another one end the runs, and count."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        tally = Tally(Path(folder) / "tally")
        arguments = (cadence, _TURNS, f"{seed}")
        async with _victim(url, Path(folder) / "tally", *arguments) as pid:
            await _begun(tally)
            await asyncio.sleep(chance.uniform(0.02, 0.35))
            os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await pacing.work(url, tally, *arguments)
        return _judge(tally, pid)


@asynccontextmanager
async def _victim(*arguments: object) -> AsyncIterator[int]:
    """A process that works, and is gone when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.pacing", *map(str, arguments)), cwd=ROOT
    )
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _begun(tally: Tally) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not tally.lines():
            await asyncio.sleep(_LOOK_SECONDS)


def _judge(tally: Tally, victim: int) -> Loss:
    lines = tally.lines()
    paid = {run: _again(lines, victim, run) for run in pacing.RUNS}
    charges = Counter(turn for _, what, _, turn, _ in lines if what == "charge")
    return Loss(
        talks=paid["talks"],
        spends=paid["spends"],
        repeated=sum(times - 1 for times in charges.values()),
        lost=_TURNS - len(charges),
    )


def _again(lines: list[tuple[int, str, str, int, str]], victim: int, run: str) -> int:
    """How many replies of a run were paid for by the victim, and then by its heir."""
    asked = [(pid, turn) for pid, what, of, turn, _ in lines if (what, of) == ("model", run)]
    by_victim = {turn for pid, turn in asked if pid == victim}
    return sum(1 for pid, turn in asked if pid != victim and turn in by_victim)
