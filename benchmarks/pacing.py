"""Agents of each cadence, and what they did outside: lines in a file that a kill cannot tear.

As a module it is a victim: `python -m benchmarks.pacing URL FILE CADENCE TURNS RUN`.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Agent, Happened, Key, NotDone, Run, Settings, every
from holdfast.agents.definitions.cadence import Cadence

EVERY_TURNS = 10
CADENCES: dict[str, Cadence] = {
    "turn": "turn",
    "tool": "tool",
    f"every_{EVERY_TURNS}": every(turns=EVERY_TURNS),
    "boundary": "boundary",
}
RUNS = ("talks", "spends")
SETTINGS = Settings(lease_seconds=0.3, wakeup_poll_seconds=0.05)
_ANSWER_SECONDS = 0.004
_LIMIT_SECONDS = 0.4


class Tally:
    """What was done, by whom: a line each, appended with one write."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def note(self, what: str, run: str, turn: int, key: str = "-") -> None:
        line = f"{os.getpid()} {what} {run} {turn} {key}\n".encode()
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def lines(self) -> list[tuple[int, str, str, int, str]]:
        text = self._file.read_text() if self._file.exists() else ""
        split = (line.split() for line in text.splitlines())
        return [(int(pid), what, run, int(turn), key) for pid, what, run, turn, key in split]


def agents(tally: Tally, cadence: Cadence) -> Sequence[Agent[[int], int]]:
    """One that asks the model and looks something up in each turn, and one that charges as well."""

    async def find(turn: int, key: str) -> Happened[str] | NotDone:
        known = {key for _, what, _, _, key in tally.lines() if what == "charge"}
        return Happened("charged") if key in known else NotDone()

    @holdfast.tool(verify=find, limit_seconds=_LIMIT_SECONDS)
    async def charge(turn: int, *, key: Key) -> str:
        tally.note("charge", "spends", turn, key)
        return "charged"

    @holdfast.tool(effect="read")
    async def look(turn: int) -> str:
        await asyncio.sleep(_ANSWER_SECONDS)
        return "seen"

    async def model(talk: Any, run: str, turn: int) -> str:
        await asyncio.sleep(_ANSWER_SECONDS)
        tally.note("model", run, turn)
        return "reply"

    async def play(run: Run, turns: int, name: str) -> int:
        talk = run.log("transcript", str)
        done = run.value("done", int, 0)
        while done.get() < turns:
            talk.append(await run.model(model, talk, name, done.get()))
            talk.append(await run.call(look, done.get()))
            if name == "spends":
                talk.append(await run.call(charge, done.get()))
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    @holdfast.agent(cadence=cadence, tools=[look])
    async def talks(run: Run, turns: int) -> int:
        return await play(run, turns, "talks")

    @holdfast.agent(cadence=cadence, tools=[look, charge])
    async def spends(run: Run, turns: int) -> int:
        return await play(run, turns, "spends")

    return [talks, spends]


async def work(url: str, tally: Tally, cadence: str, turns: int, run: str) -> None:
    """Bring a run of each agent to its end, whoever began it."""
    both = agents(tally, CADENCES[cadence])
    async with holdfast.Holdfast(url, agents=both, settings=SETTINGS) as hf:
        started = [hf.run(one, turns, run_id=f"{one.name}-{run}") for one in both]
        ended = await asyncio.gather(*started)
    assert ended == [turns, turns], "each run did its turns"


if __name__ == "__main__":
    url, file, named, count, run = sys.argv[1:]
    asyncio.run(work(url, Tally(Path(file)), named, int(count), run))
