"""Holds a LangGraph thread and is killed: `python -m tests.leasing.thread_holder STORE THREAD`."""

import asyncio
import os
import signal
import sys

import holdfast
from holdfast.engine.marked.marks import Marks
from tests.leasing.laborer import settings


async def main() -> None:
    store, thread = sys.argv[1:]
    async with holdfast.open(store, settings=settings(60)) as hf:
        run = await Marks(hf._context, hf.leases, "langgraph").open(thread)  # pyright: ignore[reportPrivateUsage] - the saver has one
        await run.hold()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
