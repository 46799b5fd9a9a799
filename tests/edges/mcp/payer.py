"""Agents that pay by tools of an MCP server, in a process to be killed.

    python -m tests.edges.mcp.payer STORE FILE

One of them can find out what became of a payment (run `verifies`), the other cannot (run `asks`).
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, NotDone
from holdfast.edges.mcp import McpTools, mcp_tools
from tests.edges.mcp import servers

LIMIT_SECONDS = 2.0


async def tools_of(file: Path) -> McpTools:
    async def find(number: int, key: str) -> Happened[str] | NotDone:
        is_there = any(line.key == key for line in servers.lines(file))
        return Happened(f"found {number}") if is_there else NotDone()

    options = {
        "pay_slowly": {"limit_seconds": LIMIT_SECONDS, "verify": find},
        "pay_and_wait": {"limit_seconds": LIMIT_SECONDS},
    }
    return await mcp_tools(servers.command(file), env=servers.environment(), options=options)


def payers(tools: McpTools) -> list[holdfast.Agent[[int], Any]]:
    def payer(name: str, tool: str) -> holdfast.Agent[[int], Any]:
        @holdfast.agent(tools=[*tools], name=name)
        async def pay(run: holdfast.Run, number: int) -> Any:
            return await run.call(tools[tool], number=number)

        return pay

    return [payer("verifies", "pay_slowly"), payer("asks", "pay_and_wait")]


async def main(store: str, file: Path) -> None:
    tools = await tools_of(file)
    await tools["look"](number=0)  # so that the time of a call is for the call
    agents = payers(tools)
    async with holdfast.Holdfast(
        store, agents=agents, settings=holdfast.Settings(lease_seconds=0.5)
    ) as hf:
        await asyncio.gather(
            *(hf.run(agent, n, run_id=agent.name) for n, agent in enumerate(agents))
        )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
