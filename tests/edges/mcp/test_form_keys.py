"""A form goes by the question's name, and what comes back is for that question alone."""

from pathlib import Path

import msgspec
from mcp import Client
from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

import holdfast
from holdfast import Run, agent
from holdfast.edges.mcp.server import McpServer
from holdfast.testing.store_suite import async_test


class Agreed(msgspec.Struct):
    ok: bool


@agent
async def ask_twice(run: Run) -> str:
    """Ask twice under the same name."""
    first = await run.ask("Delete it?", schema=Agreed, name="sure")
    second = await run.ask("Delete the copies too?", schema=Agreed, name="sure")
    return f"{first.ok}, {second.ok}"


async def refuse(context: object, params: object) -> ElicitResult:
    raise AssertionError("the test drives the rounds itself")


def accept(ok: bool) -> dict[str, ElicitResult]:
    return {"sure": ElicitResult(action="accept", content={"ok": ok})}


def asked(result: object) -> tuple[str, str]:
    """The state of a result that asks under the name, and its question."""
    assert isinstance(result, InputRequiredResult)
    assert result.input_requests is not None
    assert result.request_state is not None
    return result.request_state, result.input_requests["sure"].params.message


@async_test
async def test_an_answer_sent_again_does_not_answer_the_next_question_of_that_name(
    tmp_path: Path,
) -> None:
    async with (
        holdfast.open(str(tmp_path / "store.db"), agents=[ask_twice]) as hf,
        McpServer(hf, expose=[ask_twice]) as server,
        Client(server.lowlevel, mode="2026-07-28", elicitation_callback=refuse) as client,
    ):

        async def call(state: str | None = None, ok: bool | None = None) -> object:
            return await client.session.call_tool(
                "ask_twice",
                request_state=state,
                input_responses=None if ok is None else accept(ok),
                allow_input_required=True,
            )

        first, question = asked(await call())
        assert question == "Delete it?"
        assert asked(await call(first, True))[1] == "Delete the copies too?"
        second, question = asked(await call(first, True))
        assert question == "Delete the copies too?"
        done = await call(second, False)
        assert isinstance(done, CallToolResult)
        assert done.structured_content == {"result": "True, False"}
        again = await call(second, False)
        assert isinstance(again, CallToolResult)
        assert again.structured_content == done.structured_content
        assert len(await hf.runs.list()) == 1
