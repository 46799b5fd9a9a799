"""A giver that stops itself right before it commits its handoff: `… STORE LEDGER`."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Settings
from holdfast.faults import install
from tests.agents.ledger import Ledger
from tests.handoff import paying

SETTINGS = Settings(lease_seconds=0.5, wakeup_poll_seconds=0.1)


def make(ledger: Path) -> Sequence[holdfast.Agent[..., Any]]:
    return paying.make(Ledger(ledger))


def freeze(point: str) -> None:
    if point == "handoff.prompted":
        install(None)
        say("frozen")
        os.kill(os.getpid(), signal.SIGSTOP)


async def main(store: str, ledger: Path) -> None:
    logging.basicConfig(level=logging.CRITICAL)
    install(freeze)
    async with holdfast.Holdfast(store, agents=make(ledger), settings=SETTINGS) as hf:
        ending = await hf._work.start_pass(await hf.leases.take("r"))
        say([ending.is_over, type(ending.error).__name__])


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
