"""Small ways to drive the MCP server from tests: clients with forms, calls that must succeed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client

import holdfast
from holdfast.edges.mcp import McpServer
from tests.edges.mcp.app import make

WIRES = ("legacy", "2026-07-28")


@asynccontextmanager
async def served(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[holdfast.Holdfast, Any]]:
    """The app on a file, and the low-level server over it, with a worker in this process."""
    async with (
        make(str(tmp_path / "store.db"), tmp_path / "ledger") as hf,
        McpServer(hf, **options) as server,
    ):
        yield hf, server.lowlevel


def charges(tmp_path: Path) -> list[str]:
    """What the ledger says was charged."""
    ledger = tmp_path / "ledger"
    return ledger.read_text().split() if ledger.exists() else []


async def told(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured result of a call that must succeed."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.structured_content
    assert result.structured_content is not None
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The error of a call that must be refused."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is not None
    return result.structured_content["error"]


async def step(client: Client, tool: str, arguments: dict[str, Any], **retry: Any) -> Any:
    """One round of a call, without what the client would do by itself about a question."""
    return await client.session.call_tool(tool, arguments, allow_input_required=True, **retry)


class Person:
    """Fills in the forms that a client shows, with answers in order; remembers what was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[types.ElicitRequestFormParams] = []

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params)
        answer = self._answers.pop(0)
        if isinstance(answer, str) and answer in ("decline", "cancel"):
            return types.ElicitResult(action=answer)  # pyright: ignore[reportArgumentType]
        content = answer if isinstance(answer, dict) else {"answer": answer}
        return types.ElicitResult(action="accept", content=content)
