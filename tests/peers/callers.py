"""Agents for `victims` that call peers: three at once, one of which calls a peer itself.

Every peer charges once, as one that can be asked whether it happened; the ledger counts.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone
from holdfast.errors import PeerFailed
from tests.agents.ledger import Ledger
from tests.agents.victims import LIMIT_SECONDS

ROLES = ("buyer", "middle", "lower", "broken")
"""Whose charges are in the ledger, each at its place in a turn."""


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [caller(), *peers(ledger)]


def make_caller(_: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [caller()]


def peers(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    async def find_charge(owner: str, place: int, key: str) -> Happened[str] | NotDone:
        return Happened(f"receipt {place}") if ledger.has("charge", key) else NotDone()

    @holdfast.tool(verify=find_charge, limit_seconds=LIMIT_SECONDS)
    async def charge(owner: str, place: int, *, key: Key) -> str:
        await asyncio.sleep(0.001)
        ledger.write("charge", owner, place, key)
        return f"receipt {place}"

    @holdfast.agent(tools=[charge])
    async def buyer(run: holdfast.Run, owner: str, place: int) -> str:
        run.artifacts.append(place)
        return await run.call(charge, owner, place)

    @holdfast.agent(tools=[charge])
    async def middle(run: holdfast.Run, owner: str, place: int) -> list[str]:
        run.artifacts.append(place)
        own = await run.call(charge, owner, place)
        return [own, await run.peer("buyer", {"owner": owner, "place": place + 1})]

    @holdfast.agent(tools=[charge])
    async def broken(run: holdfast.Run, owner: str, place: int) -> str:
        await run.call(charge, owner, place)
        raise ValueError("no such source")

    return [buyer, middle, broken]


def caller() -> holdfast.Agent[[int], int]:
    @holdfast.agent(name="caller")
    async def agent(run: holdfast.Run, turns: int) -> int:
        done = run.value("done", int, 0)

        async def broken(given: dict[str, Any]) -> str:
            try:
                return await run.peer("broken", given)
            except PeerFailed as error:
                return str(error)

        while done.get() < turns:
            first = len(ROLES) * done.get()
            given = [{"owner": run.run_id, "place": first + n} for n in (0, 1, 3)]
            answers = await run.gather(
                run.peer("buyer", given[0]), run.peer("middle", given[1]), broken(given[2])
            )
            assert list(answers) == [
                f"receipt {first}",
                [f"receipt {first + 1}", f"receipt {first + 2}"],
                "Request to peer agent tool 'broken' failed: ValueError: no such source",
            ], answers
            done.set(done.get() + 1)
            await run.checkpoint()
        assert sorted(run.artifacts) == sorted(
            len(ROLES) * turn + n for turn in range(turns) for n in range(3)
        ), list(run.artifacts)
        return done.get()

    return agent
