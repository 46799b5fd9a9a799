"""Workers of a mesh: `python -m tests.peers.members STORE LEDGER MODULE:MAKE [TRANSPORT]`.

They take the commands of `tests.agents.victims`. A transport is disturbed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone, Settings
from holdfast.peers import open_transport
from holdfast.peers.exchange import Exchange
from tests.agents.ledger import Ledger
from tests.agents.victims import Make, main, named
from tests.peers.disturbing import Disturbing

LEASE_SECONDS = 1.0


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [*make_task(ledger), *make_part(ledger)]


def make_task(_: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    @holdfast.agent
    async def task(run: holdfast.Run, parts: int) -> list[str]:
        asked = [{"owner": run.run_id, "place": place} for place in range(parts)]
        return [*await run.gather(*(run.peer("part", given) for given in asked))]

    return [task]


def make_part(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    async def find_charge(owner: str, place: int, key: str) -> Happened[str] | NotDone:
        return Happened(f"{owner}/{place}") if ledger.has("charge", key) else NotDone()

    @holdfast.tool(verify=find_charge, limit_seconds=LEASE_SECONDS)
    async def charge(owner: str, place: int, *, key: Key) -> str:
        ledger.write("charge", owner, place, key)
        return f"{owner}/{place}"

    @holdfast.agent(tools=[charge])
    async def part(run: holdfast.Run, owner: str, place: int) -> str:
        return await run.call(charge, owner, place)

    return [part]


async def work(store: str, ledger: Ledger, make: Make, transport: str = "") -> None:
    given = Settings(lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=0.2, transport=transport)
    async with holdfast.Holdfast(store, agents=make(ledger), settings=given) as hf:
        if transport:
            disturbed = Disturbing(open_transport(transport, settings=given), os.getpid())
            hf._exchange = Exchange(hf._context, disturbed, hf._work)  # pyright: ignore[reportPrivateUsage] - a transport has no other way in
        worker = hf.new_worker(concurrency=16)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


if __name__ == "__main__":
    store, ledger, made, *more = sys.argv[1:]
    main(lambda: work(store, Ledger(Path(ledger)), named(made), *more))
