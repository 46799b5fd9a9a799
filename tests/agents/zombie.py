"""A worker that freezes itself: `python -m tests.agents.zombie STORE LEDGER WHERE`.

WHERE is `before` (the intent is on disk, the tool is not called yet) or `during` (the tool has done
what it does). It stops itself with SIGSTOP there, goes on when it is woken, and tells how it ended.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone, Settings
from holdfast.engine.held.leased_run import LeasedRun
from tests.agents.ledger import Ledger

SETTINGS = Settings(lease_seconds=0.5, wakeup_poll_seconds=0.1)


def buyer(ledger: Ledger, freeze: bool = False) -> holdfast.Agent[[], str]:
    async def find(key: str) -> Happened[str] | NotDone:
        return Happened("receipt") if ledger.has("charge", key) else NotDone()

    @holdfast.tool(verify=find, limit_seconds=1.0)
    async def charge(*, key: Key) -> str:
        ledger.write("charge", "r", 0, key)
        if freeze:
            stop()
        return "receipt"

    @holdfast.agent(tools=[charge], name="buyer")
    async def agent(run: holdfast.Run) -> str:
        return await run.call(charge)

    return agent


def stop() -> None:
    say("frozen")
    os.kill(os.getpid(), signal.SIGSTOP)


def freeze_after_intent() -> None:
    begin = LeasedRun.begin_effects

    async def begin_and_freeze(self: LeasedRun, requests: Any) -> Any:
        begun = await begin(self, requests)
        stop()
        return begun

    LeasedRun.begin_effects = begin_and_freeze  # type: ignore[method-assign]


async def main(store: str, ledger: Ledger, where: str) -> None:
    logging.basicConfig(level=logging.CRITICAL)
    if where == "before":
        freeze_after_intent()
    agent = buyer(ledger, freeze=where == "during")
    async with holdfast.Holdfast(store, agents=[agent], settings=SETTINGS) as hf:
        held = await hf.leases.take("r")
        ending = await hf._work.start_pass(held)
        say([ending.is_over, type(ending.error).__name__])


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Ledger(Path(sys.argv[2])), sys.argv[3]))
