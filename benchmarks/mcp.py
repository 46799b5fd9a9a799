"""MCP: what a question and its answer cost over each wire, and what a call costs that waits.

As a module it serves: `python -m benchmarks.mcp URL` over stdio, and with `http` on any port, which
it prints; a line, or the end of its input, ends it.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from mcp import Client, StdioServerParameters

import holdfast
from benchmarks.contract import Place
from benchmarks.processes import ROOT, child
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch, percentile
from benchmarks.sizes import Sizes
from holdfast.edges.mcp import McpServer
from holdfast.workflows import Block, Input, Kit, Workflow

NAMES = ("mcp_call", "mcp_call_stdio", "mcp_call_http", "mcp_watching_cpu")
_SECONDS = 4.0
_WATCHING = 20


@holdfast.tool
async def pay(n: int) -> int:
    """Do next to nothing."""
    return n + 1


@holdfast.agent
async def sleeper(run: holdfast.Run) -> None:
    """Wait for nobody."""
    await run.sleep(seconds=3600)


ASKING = Workflow(
    name="asking",
    inputs={"n": Input(type="int")},
    blocks=[
        Block(id="ok", type="Prompt", inputs={"prompt": "May {{ inputs.n }} be paid?"}),
        Block(
            id="pay",
            type="Tool",
            inputs={"tool": "pay", "args": {"n": "{{ inputs.n }}"}},
            depends_on=["ok"],
        ),
    ],
    outputs={"paid": "{{ blocks.pay.outputs.result }}"},
)


def _opened(url: str) -> holdfast.Holdfast:
    return holdfast.Holdfast(
        url, agents=[sleeper], workflows=Kit(tools=[pay], definitions=[ASKING])
    )


async def mcp(place: Place, sizes: Sizes) -> list[Row]:
    """The numbers of the MCP server on one store."""
    many = sizes.workflow_pauses
    in_python = await _in_python(place.new_store(), many)
    wires = (("mcp_call", _here), ("mcp_call_stdio", _piped), ("mcp_call_http", _over_http))
    rows: list[Row] = []
    for name, connected in wires:
        async with connected(place.new_store()) as client:
            spent = await _answered(client, many)
        note = f"start, question, answer, result; p95 {percentile(spent.samples, 95):.1f} ms"
        rows.append(judged(name, spent.median, "ms", floor=in_python.median, note=note))
    return [*rows, await _watching_cpu(place.new_store())]


async def _in_python(url: str, many: int) -> Stopwatch:
    """The same by the verbs of Python, in a process that works on its runs itself."""
    spent = Stopwatch()
    async with _opened(url) as hf:
        for n in range(many + 1):
            with spent:
                outcome = await hf.workflows.run(ASKING, {"n": n}, run_id=f"r{n}")
                outcome = await hf.workflows.resume(outcome.run_id, {"ok": "yes"})
            assert outcome.outputs == {"paid": n + 1}, outcome
    del spent.samples[0]  # what is compiled once
    return spent


async def _answered(client: Client, many: int) -> Stopwatch:
    spent = Stopwatch()
    for n in range(many + 1):
        given = {"name": "asking", "inputs": {"n": n}, "run_id": f"r{n}"}
        with spent:
            await _told(client, "execute_workflow", given)
            answers = {"run_id": f"r{n}", "answers": {"ok": "yes"}}
            ended = await _told(client, "resume_workflow", answers)
        assert ended["result"] == {"paid": n + 1}, ended
    del spent.samples[0]
    return spent


async def _told(client: Client, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, given)
    assert result.structured_content is not None, result
    return result.structured_content


async def _watching_cpu(url: str) -> Row:
    """The processor time of this process, client and server, for each call that waits a second."""
    async with _here(url) as client:
        await _told(client, "start_agent", {"agent": "sleeper", "run_id": "s", "wait_seconds": 1})
        idle = await _spent(asyncio.sleep(_SECONDS))
        watch = {"run_id": "s", "wait_seconds": _SECONDS}
        calls = (_told(client, "get_run", watch) for _ in range(_WATCHING))
        watched = await _spent(asyncio.gather(*calls))
    each = (watched - idle) / _WATCHING / _SECONDS * 1000
    note = f"{_WATCHING} calls that wait; without them {idle / _SECONDS * 1000:.1f} ms/s"
    return judged("mcp_watching_cpu", each, "ms/s", note=note)


async def _spent(waiting: Any) -> float:
    before = time.process_time()
    await waiting
    return time.process_time() - before


@contextlib.asynccontextmanager
async def _here(url: str) -> AsyncIterator[Client]:
    async with _opened(url) as hf, McpServer(hf) as server, Client(server.lowlevel) as client:
        yield client


@contextlib.asynccontextmanager
async def _piped(url: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "benchmarks.mcp", url],
        cwd=str(ROOT),
        env=dict(os.environ),
    )
    async with Client(server) as client:
        yield client


@contextlib.asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[Client]:
    async with child("benchmarks.mcp", url, "http") as server:
        async with Client(await server.line()) as client:
            yield client
        server.tell("end")


async def _serve(url: str, wire: str = "stdio") -> None:
    async with _opened(url) as hf, McpServer(hf) as server:
        if wire == "stdio":
            await server.serve_stdio()
            return
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), server.stopping.begin)
        await server.serve_http(port=0, told=lambda told: print(told, flush=True))


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
