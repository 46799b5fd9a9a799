"""A worker for runs that wait for a timer: `python -m tests.chaos.sleepers STORE LEDGER`.

It answers once it is there, begins at the first line on its stdin, and ends when that is closed.
"""

import asyncio
import json
import sys
from pathlib import Path

import holdfast
from tests.agents.ledger import Ledger

AT_ONCE = 16


async def wake(hf: holdfast.Holdfast, ledger: Ledger) -> None:
    """Go on with one run after another whose timer has fired."""
    while True:
        held = await hf.leases.next(agents=["sleeper"], timeout_seconds=60.0)
        if held is not None:
            ledger.write("woke", held.run_id, 0)
            await held.complete("awake")


async def work(store: str, ledger: Ledger) -> None:
    async with holdfast.open(store) as hf:
        print(json.dumps(hf.worker), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        tasks = [asyncio.create_task(wake(hf, ledger)) for _ in range(AT_ONCE)]
        reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([*tasks, reading], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        broken = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
        assert not broken, broken


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Ledger(Path(sys.argv[2]))))
