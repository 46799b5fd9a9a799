"""Two companies that share a transport and no database, for tests of what goes between them."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import holdfast
from holdfast.settings import Settings

SOON = 60.0


@asynccontextmanager
async def served(
    store: str, transport: str, agents: Sequence[Any], *, concurrency: int = 8, **settings: Any
) -> AsyncIterator[holdfast.Holdfast]:
    """An open Holdfast with a worker for its agents."""
    settings.setdefault("wakeup_poll_seconds", 0.1)
    made = Settings(transport=transport, **settings)
    async with holdfast.Holdfast(store, agents=agents, settings=made) as hf:
        worker = hf.new_worker(concurrency=concurrency)
        working = asyncio.create_task(worker.run())
        try:
            yield hf
        finally:
            worker.stop()
            await working


async def until(is_so: Callable[[], Any]) -> Any:
    """What comes to be so, before long."""
    async with asyncio.timeout(SOON):
        while not (found := await is_so()):
            await asyncio.sleep(0.02)
        return found


_LOCK = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def write_lock(path: Path) -> AsyncIterator[None]:
    """Another process has the write lock of a SQLite file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LOCK, str(path), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert (await process.stdout.readline()).strip() == b"locked"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()
