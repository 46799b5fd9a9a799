"""Agents that hand over, for tests: each turn is one part of what they build."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

import holdfast
from holdfast import Cost, HandoffPolicy, Message
from tests.agents.ledger import Ledger

HANDED = (
    "HANDOFF_REQUESTED",
    "AGENT_HANDOFF",
    "HANDOFF_ASSIGNED",
    "HANDOFF_ACKNOWLEDGED",
    "HANDOFF_REVERTED",
)
STEPS = (*HANDED, "HANDOFF_RECEIVED", "HANDOFF_VERIFIED", "HANDOFF_SELECTED")


class Seen(msgspec.Struct):
    """What agents saw: of each turn who played it and how long its talk was, and all prompts."""

    turns: list[tuple[str, int, int]] = []
    prompts: list[str] = []


def builder(
    seen: Seen,
    *,
    name: str = "builder",
    turns: int = 4,
    hand_over_at: Mapping[int, str] = {},
    handoff: HandoffPolicy | None = None,
    ledger: Ledger | None = None,
    each: Callable[[holdfast.Run, int], Any] | None = None,
) -> holdfast.Agent[[str], str]:
    """Builds part after part; after the turns of `hand_over_at` it hands over to whom that says."""

    @holdfast.tool(effect="idempotent", cost=Cost(usd=0.01))
    async def pay(run: str, part: int) -> str:
        assert ledger is not None, "only those who pay call this"
        ledger.write("pay", run, part)
        return f"receipt {part}"

    @holdfast.agent(name=name, handoff=handoff, tools=[pay])
    async def agent(run: holdfast.Run, what: str) -> str:
        talk, done = run.log("transcript", Message), run.value("done", int, 0)
        if run.is_fresh and run.continuation is not None:
            seen.prompts.append(run.continuation.prompt)
        while done.get() < turns:
            turn = done.get() + 1
            talk.append(Message.user(f"part {turn}"))
            if ledger is not None:
                assert await run.call(pay, run.run_id, turn) == f"receipt {turn}"
            run.progress.complete(f"part-{turn}", f"part {turn} of {what}")
            done.set(turn)
            if each is not None:
                await each(run, turn)
            seen.turns.append((name, turn, len(talk)))
            if turn in hand_over_at:
                run.hand_over(hand_over_at[turn], "as it was told")
            await run.checkpoint()
        return f"{done.get()} parts of {what}"

    return agent


async def handed(
    hf: holdfast.Holdfast, run_id: str = "r", kinds: Collection[str] = HANDED
) -> list[str]:
    """What the journal of a run tells of handoffs; with `STEPS` every step of the orchestrator."""
    return [entry.kind for entry in await hf.journal.read(run_id) if entry.kind in kinds]
