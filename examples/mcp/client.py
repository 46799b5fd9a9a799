"""A client of the shop's MCP server that sees it killed, and no run lost.

    python examples/mcp/client.py

Works in a folder of its own, and prints what happens. It needs `pip install -e '.[mcp]'`.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client

HERE = Path(__file__).parent


@contextmanager
def shop() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server over HTTP in a process of its own, and its URL."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    words = [holdfast, "mcp", "--app", "shop:hf", "--http", "0"]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process, url_of(process)
    finally:
        process.terminate()
        process.wait()


def url_of(process: subprocess.Popen[str]) -> str:
    """Where the server says it is."""
    assert process.stderr is not None
    for line in process.stderr:
        if "http://" in line:
            return line[line.index("http://") :].split()[0]
    raise SystemExit("the server did not start")


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured result of a call."""
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is not None
    return result.structured_content


async def killed_between() -> None:
    """A workflow pauses, its server is killed, and another one goes on with it."""
    with shop() as (server, url):
        async with Client(url) as client:
            run = await call(
                client,
                "execute_workflow",
                name="refund",
                inputs={"order": "7", "cents": 1250},
                run_id="refund-7",
            )
            print(f"{run['run_id']} is {run['status']}: {run['waiting'][0]['prompt']}")
        server.kill()
        print("the server is killed, with -9")
    with shop() as (_, url):
        async with Client(url) as client:
            await finish(client)


async def finish(client: Client) -> None:
    """Answer what the run asks, twice, and once too late."""
    waiting = await call(client, "list_runs", status="waiting")
    print(f"a second server has it: {[each['run_id'] for each in waiting['runs']]}")
    for _ in range(2):
        run = await call(client, "resume_workflow", run_id="refund-7", answers={"permit": "yes"})
        print(f"answered yes: {run['status']}, {run['result']}")
    said = await call(client, "resume_workflow", run_id="refund-7", answers={"permit": "no"})
    print(f"answered no: {said['error']['type']}, {said['error']['message']}")


async def asked_in_forms() -> None:
    """An agent whose questions this client shows in forms; here a script fills them in."""
    answers: list[Any] = ["it is blue", True]

    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        answer = answers.pop(0)
        print(f"a form asks: {params.message} -> {answer!r}")
        return types.ElicitResult(action="accept", content={"answer": answer})

    with shop() as (_, url):
        async with Client(url, elicitation_callback=fill_in) as client:
            run = await call(client, "start_agent", agent="support", input={"order": "8"})
            print(f"the agent is {run['status']}: {run['result']}")


async def tell() -> None:
    await killed_between()
    await asked_in_forms()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(tell())
        print(f"the ledger: {Path('refunds.txt').read_text().splitlines()}")
        os.chdir(HERE)


if __name__ == "__main__":
    main()
