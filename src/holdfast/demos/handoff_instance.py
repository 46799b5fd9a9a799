"""An instance of `holdfast demo handoff`: `python -m holdfast.demos.handoff_instance`.

A worker like any other, with a scripted model whose context fills. Its orders are the first line of
stdin; it says on stdout what it does.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.messages import Message, ToolCall, Usage
from holdfast.agents.definitions.progress_tools import progress_tools
from holdfast.agents.definitions.tools import tool
from holdfast.agents.loop import AgentLoop
from holdfast.app import Holdfast
from holdfast.demos import voice
from holdfast.settings import Settings

AGENT: Final = "holdfast-demo-builder"
LEASE_SECONDS: Final = 1.0
WINDOW: Final = 4000
ITEMS: Final = 9
_TOKENS_PER_MESSAGE: Final = 220
_LOOK_SECONDS: Final = 0.2

Say = Callable[[str, str], None]


class HandoffOrders(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance works, and the item before which it stops to be killed."""

    store: str
    tenant: str
    stand_still_at: int = 0


def policy() -> HandoffPolicy:
    return HandoffPolicy(context=0.7, window=WINDOW, prompt_tokens=1200)


def make_agent(say: Say, *, stand_still_at: int = 0) -> AgentLoop:
    """Return a builder: its model does the items in order, by what its context says is done."""

    @tool(effect="idempotent")
    async def build(item: int) -> str:
        """Build one item of the plan."""
        return f"item {item} is built"

    async def model(talk: list[Message]) -> Message:
        done = _done(talk)
        used = _TOKENS_PER_MESSAGE * len(talk)
        if len(talk) == 1:
            text = f"begins a fresh context that knows of {done} items" if done else "begins"
            say("began", text)
        if done == ITEMS:
            return Message.assistant(f"all {ITEMS} items are built", usage=_usage(used))
        item = done + 1
        if item == stand_still_at:
            say("still", f"works on item {item}, and is to be killed")
            await asyncio.Event().wait()
        say("builds", f"item {item}; its context uses {used / WINDOW:.0%}")
        calls = [
            ToolCall(f"build-{item}", "build", {"item": item}),
            ToolCall(f"done-{item}", "progress_item", {"action": "complete", "id": f"item-{item}"}),
        ]
        return Message.assistant(tool_calls=calls, usage=_usage(used))

    return AgentLoop(model, tools=[build, *progress_tools], name=AGENT, handoff=policy())


def _done(talk: list[Message]) -> int:
    """Count the items built, by what is in the context: the record, and replies since."""
    recorded = talk[0].text.count("| - item-")
    return recorded + sum(call.name == "build" for m in talk for call in m.tool_calls)


def _usage(used: int) -> Usage:
    return Usage(input_tokens=used, output_tokens=60)


def serve(orders: HandoffOrders) -> None:
    """Work until killed, or until the demo has ended."""
    asyncio.run(_serve(orders))


async def _serve(orders: HandoffOrders) -> None:
    builder = make_agent(
        lambda event, what: voice.say(_me(), event, what),
        stand_still_at=orders.stand_still_at,
    )
    settings = Settings(
        tenant=orders.tenant, lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=_LOOK_SECONDS
    )
    async with Holdfast(orders.store, agents=[builder], settings=settings) as hf:
        voice.say(_me(), "ready", f"is worker {hf.worker}")
        await hf.new_worker(concurrency=1).run()


def _me() -> str:
    return f"worker {os.getpid()}"


def main() -> int:
    return voice.obey(HandoffOrders, _me(), serve)


if __name__ == "__main__":
    sys.exit(main())
