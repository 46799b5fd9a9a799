"""A worker for runs that wait for a timer: `python -m tests.chaos.sleepers STORE LEDGER`.

It answers once it is there, begins at the first line on its stdin, and ends when that is closed.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import holdfast
from holdfast.errors import UnavailableError
from tests.agents.ledger import Ledger

AT_ONCE = 16
T = TypeVar("T")


async def wake(hf: holdfast.Holdfast, ledger: Ledger) -> None:
    """Go on with one run after another whose timer has fired."""
    while True:
        held = await patiently(lambda: hf.leases.next(agents=["sleeper"], timeout_seconds=60.0))
        if held is not None:
            ledger.write("woke", held.run_id, 0)
            await patiently(partial(held.complete, "awake"))


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Try again when the store is too busy with the other workers, as every worker does."""
    while True:
        try:
            return await call()
        except UnavailableError as error:
            print(f"trying again: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)


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
