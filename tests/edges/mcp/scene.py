"""A store with a run of every kind, all of Ann's, and a server that works on none of them."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import mcp_types as types
from mcp import Client

import holdfast
from holdfast.edges.mcp import McpServer
from holdfast.settings import Settings
from holdfast.testing.store_suite.mark_commits import commit_late, erased
from holdfast.workflows import Kit
from holdfast.workflows.checks import definition_reader
from tests.agents.crashing import advance
from tests.backends import SQLiteBackend

FLOW = """
name: release
description: asks whether to release
inputs:
  who: {type: str}
blocks:
  - id: approve
    type: Prompt
    inputs: {prompt: "Release for {{ inputs.who }}?", choices: ["yes", "no"]}
outputs:
  said: "{{ blocks.approve.outputs.response }}"
"""
LARGE = "x" * 300_000
ODD = {
    "bytes": b"\x00\xff",
    "decimal": Decimal("1.10"),
    "moment": dt.datetime(2026, 11, 16, 9, tzinfo=dt.UTC),
    "id": UUID(int=7),
    "pair": (1, "two"),
    "most": 2**64 - 1,
    "text": "caf\u00e9 \u0000 \u2028",
}


@holdfast.agent
async def asker(run: holdfast.Run, name: str) -> str:
    """Asks how old somebody is."""
    return f"{name} is {await run.ask(f'How old is {name}?', schema=int)}"


@holdfast.tool(approval=True)
async def charge(cents: int) -> str:
    return f"charged {cents}"


@holdfast.tool
async def mail(to: str) -> str:
    raise ConnectionError("lost")


@holdfast.agent(tools=[charge])
async def payer(run: holdfast.Run) -> Any:
    return await run.call(charge, cents=500)


@holdfast.agent(tools=[mail])
async def mailer(run: holdfast.Run, to: str) -> Any:
    return await run.call(mail, to=to)


@dataclass
class Scene:
    hf: holdfast.Holdfast
    server: McpServer
    client: Client
    backend: SQLiteBackend
    question: str
    request: str
    withdrawn: str
    effect: str
    checkpoint: str

    async def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in (await self.client.list_tools()).tools}

    async def call(self, name: str, /, **given: Any) -> Any:
        """What a tool tells; it must not fail."""
        result = await self.client.call_tool(name, given)
        assert not result.is_error, result.structured_content
        return result.structured_content

    async def refuse(self, name: str, /, **given: Any) -> dict[str, Any]:
        """What a tool tells of its failure, which must be one that programs can read."""
        result = await self.client.call_tool(name, given)
        about = (name, ascii(given)[:200], ascii(result.structured_content)[:300])
        assert result.is_error, about
        assert result.structured_content is not None, about
        error = result.structured_content["error"]
        assert error.keys() == {"type", "kind", "message", "problems", "is_retryable"}, about
        assert error["type"], about
        assert error["message"], about
        assert "Traceback" not in error["message"], about
        (content,) = result.content
        assert isinstance(content, types.TextContent), about
        content.text.encode()
        return error

    def journal(self) -> list[tuple[Any, ...]]:
        """Every entry of every run, by plain SQL."""
        with self.backend.raw() as raw:
            return raw.entries()


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    backend = SQLiteBackend(folder / "scene.db")
    kit = Kit(definitions=[definition_reader.loads(FLOW)])
    hf = holdfast.Holdfast(
        backend.url,
        agents=[asker, payer, mailer],
        workflows=kit,
        settings=Settings(wakeup_poll_seconds=0.1),
    )
    async with hf:
        for agent, run_id, given in (
            (asker, "asking", ("Al",)),
            (payer, "permitting", ()),
            (mailer, "lost", ("bo@x",)),
            (asker, "cancelled", ("Cy",)),
        ):
            await hf.start(agent, *given, run_id=run_id, owner="ann")
            await advance(hf, run_id)
        await hf.runs.cancel("cancelled", by="ann")
        await hf.workflows.start(
            definition_reader.loads(FLOW), {"who": "Di"}, run_id="flow", owner="ann"
        )
        await advance(hf, "flow")
        newest = await _save(hf)
        (effect,) = await hf.effects.of_run("lost")
        (withdrawn,) = await hf.waits.of_run("cancelled")
        question, request = [
            (await hf.approvals.list(run_id=each))[0].wait_id for each in ("asking", "permitting")
        ]
        server = McpServer(hf, expose=[asker], works=False)
        async with server, Client(server.lowlevel) as client:
            yield Scene(
                hf=hf,
                server=server,
                client=client,
                backend=backend,
                question=question,
                request=request,
                withdrawn=withdrawn.wait_id,
                effect=str(effect.effect_id),
                checkpoint=newest,
            )


async def _save(hf: holdfast.Holdfast) -> str:
    """A run that has completed with three versions, and one all of whose bodies are erased."""
    await hf.runs.create("gone", owner="ann")
    gone = await hf.runs.open("gone")
    gone.set("plan", "secret")
    await gone.checkpoint()
    await gone.complete("secret")
    await commit_late(hf, "gone", erased((1, await hf.journal.head("gone"))))
    await hf.runs.create("saved", owner="ann")
    run = await hf.runs.open("saved")
    run.set("odd", ODD)
    run.append("log", 1)
    await run.checkpoint(phase="first")
    run.append("log", 2)
    run.set("large", LARGE)
    await run.checkpoint()
    run.set("odd", 3)
    newest = await run.checkpoint(phase="last")
    await run.complete({"odd": ODD})
    return str(newest.checkpoint_id)
