"""An instance of `holdfast demo peers`: `python -m holdfast.demos.peers_instance`.

A worker like any other. Its orders are the first line of stdin; it says on stdout what it does.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.agents.definitions.agent import Agent, agent
from holdfast.agents.run import Run
from holdfast.app import Holdfast
from holdfast.demos import voice
from holdfast.settings import Settings

CALLER: Final = "holdfast-demo-caller"
PEER: Final = "holdfast-demo-peer"
LEASE_SECONDS: Final = 1.0
_CONCURRENCY: Final = 2
_LOOK_SECONDS: Final = 0.2
_WORK_SECONDS: Final = 0.15

Say = Callable[[str, str], None]


class PeersOrders(msgspec.Struct, frozen=True, kw_only=True):
    """Which agents an instance serves, and where."""

    store: str
    tenant: str
    agents: list[str]
    transport: str = ""


def answer_of(task: int, number: int) -> str:
    """What a peer answers: each differs from all others."""
    return f"answer {number} to task {task}"


def make_agents(say: Say) -> dict[str, Agent[..., Any]]:
    """The caller and its peer, which work for a moment and say what they do."""

    async def work() -> None:
        await asyncio.sleep(_WORK_SECONDS)

    @agent(name=PEER)
    async def peer(run: Run, question: dict[str, int]) -> str:
        task, number = question["task"], question["number"]
        say("began", f"peer {number} works on task {task}")
        await run.step(work)
        await run.step(work)
        say("answered", f"peer {number} has an answer to task {task}")
        return answer_of(task, number)

    @agent(name=CALLER, peers=[PEER])
    async def caller(run: Run, task: int, peers: int) -> list[str]:
        if run.is_fresh:
            say("asked", f"task {task} asks {peers} peers, and is left to them")
            await run.checkpoint()
        questions = [{"task": task, "number": number} for number in range(1, peers + 1)]
        answers = await run.gather(*(run.peer(PEER, question) for question in questions))
        say("ended", f"task {task} has all {peers} answers")
        return [*answers]

    return {each.name: each for each in (caller, peer)}


def serve(orders: PeersOrders) -> None:
    """Work until killed, or until the demo has ended."""
    asyncio.run(_serve(orders))


async def _serve(orders: PeersOrders) -> None:
    known = make_agents(lambda event, what: voice.say(_me(), event, what))
    settings = Settings(
        tenant=orders.tenant,
        lease_seconds=LEASE_SECONDS,
        wakeup_poll_seconds=_LOOK_SECONDS,
        transport=orders.transport,
    )
    agents = [known[name] for name in orders.agents]
    async with Holdfast(orders.store, agents=agents, settings=settings) as hf:
        worker = hf.new_worker(concurrency=_CONCURRENCY)
        voice.say(_me(), "ready", f"is worker {hf.worker}")
        await worker.run()


def _me() -> str:
    return f"instance {os.getpid()}"


def main() -> int:
    return voice.obey(PeersOrders, _me(), serve)


if __name__ == "__main__":
    sys.exit(main())
