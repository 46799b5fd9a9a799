"""A client that starts a release, tells what came of it in a line, and waits to be killed."""

import asyncio
import json
import sys
from pathlib import Path

from mcp import Client

from tests.edges.mcp.driving import told
from tests.edges.mcp.serving import started


async def main(store: str, folder: str) -> None:
    async with Client(started(store, Path(folder, "ledger"))) as client:
        paused = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
        print(json.dumps(paused), flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
