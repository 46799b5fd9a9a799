"""An agent whose calls do not depend on its run's id, so that a fork of it makes the same ones."""

from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone
from tests.agents.ledger import Ledger
from tests.agents.victims import LIMIT_SECONDS

TURNS = 3


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    def tool_of(name: str, **policy: Any) -> holdfast.Tool[..., Any]:
        async def look(what: str, turn: int, key: str) -> Happened[str] | NotDone:
            return Happened(f"{name} {turn}") if ledger.has(name, key) else NotDone()

        async def act(what: str, turn: int, *, key: Key) -> str:
            ledger.write(name, what, turn, key)
            return f"{name} {turn}"

        make_tool = holdfast.tool(name=name, verify=look, limit_seconds=LIMIT_SECONDS, **policy)
        return make_tool(act)

    charge, ping = tool_of("charge"), tool_of("ping", repeat=True)

    @holdfast.agent(tools=[charge, ping], name="courier")
    async def courier(run: holdfast.Run, what: str) -> list[str]:
        done = run.log("done", str)
        while len(done) < 2 * TURNS:
            turn = len(done) // 2
            done.append(await run.call(charge, what, turn))
            done.append(await run.call(ping, what, turn))
            await run.checkpoint()
        return list(done)

    return [courier]
