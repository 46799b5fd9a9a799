"""Victims of each cadence: those that spend, and those that only talk and look."""

import asyncio
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import every
from holdfast.agents.definitions.cadence import Cadence
from tests.agents.ledger import Ledger
from tests.agents.victims import spender

EVERY = 4
CADENCES: dict[str, Cadence] = {
    "turn": "turn",
    "tool": "tool",
    "every": every(turns=EVERY),
    "boundary": "boundary",
}

Agents = Sequence[holdfast.Agent[..., Any]]


def talker(ledger: Ledger, cadence: Cadence) -> holdfast.Agent[[int], int]:
    """An agent that asks the model and looks something up in each turn."""

    @holdfast.tool(effect="read")
    async def look(run: str, turn: int) -> str:
        await asyncio.sleep(0.001)
        ledger.write("look", run, turn)
        return f"seen {turn}"

    async def model(talk: Any, run: str, turn: int) -> str:
        await asyncio.sleep(0.001)
        ledger.write("model", run, turn)
        return f"reply {turn}"

    @holdfast.agent(tools=[look], name="talker", cadence=cadence)
    async def agent(run: holdfast.Run, turns: int) -> int:
        talk = run.log("talk", str)
        done = run.value("done", int, 0)
        while done.get() < turns:
            turn = done.get()
            talk.append(await run.model(model, talk, run.run_id, turn))
            talk.append(await run.call(look, run.run_id, turn))
            done.set(turn + 1)
            await run.checkpoint()
        expected = [text for turn in range(turns) for text in (f"reply {turn}", f"seen {turn}")]
        assert list(talk) == expected, list(talk)
        return done.get()

    return agent


def spends_turn(ledger: Ledger) -> Agents:
    return [spender(ledger, CADENCES["turn"])]


def spends_tool(ledger: Ledger) -> Agents:
    return [spender(ledger, CADENCES["tool"])]


def spends_every(ledger: Ledger) -> Agents:
    return [spender(ledger, CADENCES["every"])]


def spends_boundary(ledger: Ledger) -> Agents:
    return [spender(ledger, CADENCES["boundary"])]


def talks_turn(ledger: Ledger) -> Agents:
    return [talker(ledger, CADENCES["turn"])]


def talks_tool(ledger: Ledger) -> Agents:
    return [talker(ledger, CADENCES["tool"])]


def talks_every(ledger: Ledger) -> Agents:
    return [talker(ledger, CADENCES["every"])]


def talks_boundary(ledger: Ledger) -> Agents:
    return [talker(ledger, CADENCES["boundary"])]
