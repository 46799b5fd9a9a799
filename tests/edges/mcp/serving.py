"""A server over stdio in a process of its own: `python -m tests.edges.mcp.serving STORE LEDGER`.

It writes its pid beside the ledger, so that a test can kill it. With POINT and SKIP it dies there
by itself; with a further `idle` it works on no run, so that it dies in what a client asks of it.
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp import StdioServerParameters

from holdfast.edges.mcp import McpServer
from holdfast.testing.faults import arm
from tests import forked
from tests.edges.mcp.app import make

KEY = "a key of at least thirty-two bytes, shared by replicas"


def started(*orders: object) -> StdioServerParameters:
    """How a client starts such a server."""
    words = forked.command("-m", "tests.edges.mcp.serving", *orders, kind="mcp")
    return StdioServerParameters(
        command=words[0], args=words[1:], cwd=str(forked.ROOT), env=dict(os.environ)
    )


async def main(store: str, ledger: str, point: str = "", skip: str = "0", idle: str = "") -> None:
    if point:
        arm(point, "kill", skip=int(skip))
    async with make(store, ledger) as hf, McpServer(hf, keys=[KEY], works=not idle) as server:
        Path(f"{ledger}.pid").write_text(str(os.getpid()))
        await server.serve_stdio()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
