"""A worker that delivers; it dies at a fault point if one is named."""

import asyncio
import sys

import holdfast
from holdfast.testing import faults


@holdfast.agent
async def nothing(run: holdfast.Run) -> None:
    pass


async def work(url: str, transport: str) -> None:
    settings = holdfast.Settings(lease_seconds=1.0, wakeup_poll_seconds=0.2, transport=transport)
    async with holdfast.open(url, agents=[nothing], settings=settings) as hf:
        await hf.new_worker().run()


if __name__ == "__main__":
    _, url, transport, point, skip = sys.argv
    if point:
        faults.arm(point, "kill", skip=int(skip))
    asyncio.run(work(url, transport))
