"""Child processes that measure: started from this interpreter, spoken to by lines, always ended."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 120.0


class Child:
    """One process that runs a module of this package."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self) -> str:
        """The next line it prints."""
        assert self._process.stdout is not None, "started with a pipe"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a child process ended early; what it said is above")
        return line.decode().strip()

    async def answer(self) -> Any:
        """The next line it prints, as JSON."""
        return json.loads(await self.line())

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(f"{line}\n".encode())


@contextlib.asynccontextmanager
async def child(module: str, *arguments: object) -> AsyncIterator[Child]:
    """A process that is gone when the block ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *map(str, arguments)), stdin=pipe, stdout=pipe, cwd=ROOT
    )
    try:
        yield Child(process)
        assert process.stdin is not None, "started with a pipe"
        process.stdin.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ask(module: str, *arguments: object) -> Any:
    """What a process prints as its one line of JSON."""
    async with child(module, *arguments) as process:
        return await process.answer()
