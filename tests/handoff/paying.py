"""Agents that pay in each turn and hand over between them, to be killed."""

from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import HandoffPolicy, Happened, Key, NotDone
from tests.agents.ledger import Ledger

LIMIT_SECONDS = 0.4
NAMES = ("builder", "qa")


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    """Two agents that take turns: after each turn the other one goes on, in a fresh context."""
    return [relay(name, other, ledger) for name, other in zip(NAMES, NAMES[::-1], strict=True)]


def relay(name: str, other: str, ledger: Ledger) -> holdfast.Agent[[int], int]:
    async def find(run: str, turn: int, key: str) -> Happened[str] | NotDone:
        return Happened(f"receipt {turn}") if ledger.has("pay", key) else NotDone()

    @holdfast.tool(verify=find, limit_seconds=LIMIT_SECONDS)
    async def pay(run: str, turn: int, *, key: Key) -> str:
        ledger.write("pay", run, turn, key)
        return f"receipt {turn}"

    policy = HandoffPolicy(to=other, acknowledge_seconds=20.0)

    @holdfast.agent(name=name, tools=[pay], handoff=policy)
    async def agent(run: holdfast.Run, turns: int) -> int:
        done, talk = run.value("done", int, 0), run.log("transcript", str)
        assert len(talk) <= 1, "a fresh context begins without the talk of the last one"
        while done.get() < turns:
            turn = done.get()
            assert await run.call(pay, run.run_id, turn) == f"receipt {turn}"
            talk.append(f"paid {turn}")
            done.set(turn + 1)
            if turn + 1 < turns:
                run.hand_over()
            await run.checkpoint()
        return done.get()

    return agent
