"""Reaching the MCP server over HTTP: in this process, or as the command in one of its own."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import holdfast
from holdfast.edges.mcp import McpServer
from tests.edges.mcp.app import make
from tests.processes import LIMIT_SECONDS, ROOT

COMMAND = [sys.executable, "-c", "from holdfast.cli import main; main()", "mcp"]
HEADERS = {"Accept": "application/json, text/event-stream"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
PROGRAM = """
import asyncio
import holdfast
from tests.edges.mcp.app import RELEASE, ages, greet
from holdfast.settings import Settings
from holdfast.workflows import Kit

print("printed while importing")

@holdfast.agent
async def prints(run: holdfast.Run) -> str:
    print("printed while working")
    return "done"

@holdfast.agent
async def sleeps(run: holdfast.Run) -> str:
    await run.sleep(seconds=600)
    return "awake"

async def forever() -> None:
    open("begun", "w").close()
    await asyncio.Event().wait()

@holdfast.agent
async def hangs(run: holdfast.Run) -> None:
    await run.step(forever)

hf = holdfast.Holdfast(
    "store.db",
    agents=[prints, sleeps, hangs, ages, greet],
    settings=Settings(wakeup_poll_seconds=0.1, lease_seconds=2),
    workflows=Kit(definitions=[RELEASE]),
)
"""


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *,
    store: str = "",
    port: int = 0,
    options: dict[str, Any] | None = None,
    **reach: Any,
) -> AsyncIterator[tuple[holdfast.Holdfast, str]]:
    """The app on a file or another store, and the URL at which it is served from this process."""
    async with (
        make(store or str(tmp_path / "store.db"), tmp_path / "ledger") as hf,
        McpServer(hf, **(options or {})) as server,
    ):
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            server.serve_http(port=port, on_serving=found.set_result, **reach)
        )
        try:
            yield hf, await asyncio.wait_for(found, LIMIT_SECONDS)
        finally:
            server.stopping.begin()
            await task


@asynccontextmanager
async def client_at(url: str, token: str = "", **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LIMIT_SECONDS) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


class Served:
    """The command with a program in a folder, in a process of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        (folder / "program.py").write_text(PROGRAM)
        self.process = subprocess.Popen(
            [*COMMAND, *words], cwd=folder, env=environment(folder), stderr=subprocess.PIPE
        )
        self._said: list[str] = []
        self._is_told = threading.Event()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, b""):
            self._said.append(line.decode())
            self._is_told.set() if b"serving MCP on" in line else None
        self._is_told.set()

    @property
    def url(self) -> str:
        assert self._is_told.wait(LIMIT_SECONDS)
        found = re.search(r"serving MCP on (\S+)", "".join(self._said))
        assert found is not None, self._said
        return found[1]

    def wait(self) -> tuple[int, str]:
        """How it ended, and what it said."""
        code = self.process.wait(LIMIT_SECONDS)
        self._reading.join(LIMIT_SECONDS)
        return code, "".join(self._said)

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def environment(folder: Path) -> dict[str, str]:
    """That of this process, but for a home of the test's own."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONWARNINGS": "error",
    }
