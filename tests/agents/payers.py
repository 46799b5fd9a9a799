"""Agents that pay for what they do, to be killed: what they really spent is in the ledger."""

import asyncio
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast import Cost, Message, ToolCall, Usage
from tests.agents.ledger import Ledger

MODEL_CENTS = 3
TOOL_CENTS = 1
MANY = 50


def make_payers(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    """One that pays in every turn, and one that calls many tools at once."""

    @holdfast.tool(effect="idempotent", cost=Cost(usd=TOOL_CENTS / 100))
    async def search(run: str, turn: int, n: int) -> str:
        ledger.write("tool", run, turn, str(n))
        await asyncio.sleep(0.001)
        return f"found {n}"

    async def model(run: str, turn: int) -> Message:
        ledger.write("model", run, turn)
        await asyncio.sleep(0.001)
        calls = [ToolCall(str(n), "search", {"run": run, "turn": turn, "n": n}) for n in range(3)]
        return Message.assistant("search", calls, usage=Usage(usd=MODEL_CENTS / 100))

    @holdfast.agent(name="payer", tools=[search], reserve=Cost(usd=MODEL_CENTS / 100))
    async def payer(run: holdfast.Run, turns: int) -> int:
        done = run.value("done", int, 0)
        while done.get() < turns:
            reply = await run.model(model, run.run_id, done.get())
            await run.tools(reply.tool_calls)
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    @holdfast.agent(name="crowd", tools=[search])
    async def crowd(run: holdfast.Run, turns: int) -> int:
        args = [{"run": run.run_id, "turn": 0, "n": n} for n in range(MANY)]
        calls = [ToolCall(str(n), "search", arg) for n, arg in enumerate(args)]
        found = await run.tools(calls)
        assert [m.results[0].content for m in found] == [f"found {n}" for n in range(MANY)]
        return turns

    return [payer, crowd]


def spent_cents(ledger: Ledger, run: str) -> int:
    """What a run has really spent, by the ledger alone."""
    prices = {"model": MODEL_CENTS, "tool": TOOL_CENTS}
    return sum(prices[line.what] for line in ledger.lines() if line.run == run)
