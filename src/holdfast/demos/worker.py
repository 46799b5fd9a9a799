"""The worker of `holdfast demo`: `python -m holdfast.demos.worker`.

The same program whether it begins a run or resumes one. Its orders are the first line of
stdin; it says on stdout what it does, and ends when its stdin does: then the demo is gone.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agents.definitions.messages import Message
from holdfast.agents.definitions.tools import Tool
from holdfast.app import Holdfast
from holdfast.demos import agent, voice
from holdfast.demos.agent import BankClient
from holdfast.settings import Settings

LEASE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.2
_STANDING: Final = {
    "before": "is about to call the bank",
    "during": "has the bank's answer, and tells nobody",
    "after": "has the bank's answer, and asks the model what comes next",
}


class WorkerOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do; without a store it works as agents without Holdfast do."""

    store: str | None
    tenant: str
    run_id: str
    port: int
    folder: str
    pause_at: str | None = None
    thinking_seconds: float = 0.0


class DemoWorker:
    """One worker, and what it says."""

    def __init__(self, orders: WorkerOrders) -> None:
        self._orders = orders
        self._me = _me()

    def do(self) -> None:
        """Bring the run to its end."""
        bank = BankClient(self._orders.port, self.say, self._pause)
        tools = agent.make_tools(bank, Path(self._orders.folder))
        if self._orders.store is None:
            answer = agent.run_plainly(tools, self._model, self.say)
        else:
            answer = asyncio.run(self._run(self._orders.store, tools))
        self.say("ended", f"ends: {answer!r}")

    def say(self, event: str, what: str) -> None:
        voice.say(self._me, event, what)

    async def _run(self, store: str, tools: Sequence[Tool[..., object]]) -> str:
        orders = self._orders
        settings = Settings(
            tenant=orders.tenant, lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=_LOOK_SECONDS
        )
        support = agent.make_agent(tools, self._model, self.say)
        async with Holdfast(store, agents=[support], settings=settings) as hf:
            return await hf.run(support, agent.REQUEST, run_id=orders.run_id)

    def _model(self, talk: Sequence[Message]) -> Message:
        if any("ch-" in result.content for message in talk for result in message.results):
            self._pause("after")
        time.sleep(self._orders.thinking_seconds)
        reply = agent.think(talk)
        asked = ", ".join(call.name for call in reply.tool_calls)
        self.say("replied", f"the model asks for {asked}" if asked else "the model answers")
        return reply

    def _pause(self, moment: str) -> None:
        """Wait for ever at the moment that was ordered."""
        if moment == self._orders.pause_at:
            self.say("paused", _STANDING[moment])
            threading.Event().wait()


def main() -> int:
    return voice.obey(WorkerOrders, _me(), lambda orders: DemoWorker(orders).do())


def _me() -> str:
    return f"worker {os.getpid()}"


if __name__ == "__main__":
    sys.exit(main())
