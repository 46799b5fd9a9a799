"""A part of the conformance kit through the SDK's own client; `make conformance` runs all of it."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, InputRequiredResult

from holdfast.testing.store_suite import async_test
from tests.edges.mcp.conformance.server import PLAIN, RUNS, fixture_server

LEGACY, MODERN = "legacy", "2026-07-28"
FILLED_IN = {"name": "Alice", "color": "blue", "ok": True}

both_wires = pytest.mark.parametrize("mode", [LEGACY, MODERN])


async def fill_in(context: object, params: ElicitRequestParams) -> ElicitResult:
    schema: dict[str, Any] = params.requested_schema
    content = {name: FILLED_IN[name] for name in schema["required"]}
    return ElicitResult(action="accept", content=content)


def words_of(result: CallToolResult) -> str:
    return result.content[0].text


@both_wires
@async_test
async def test_tools_prompts_and_resources_are_served(tmp_path: Path, mode: str) -> None:
    told: list[float] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(done)

    async with (
        fixture_server(str(tmp_path / "store.db")) as server,
        Client(server.lowlevel, mode=mode) as client,
    ):
        listed = {each.name: each for each in (await client.list_tools()).tools}
        assert listed.keys() >= {each.name for each in PLAIN} | RUNS
        assert "$anchor" in listed["json_schema_2020_12_tool"].input_schema["$defs"]["address"]
        mixed = await client.call_tool("test_multiple_content_types")
        assert [each.type for each in mixed.content] == ["text", "image", "resource"]
        assert (await client.call_tool("test_error_handling")).is_error
        await client.call_tool("test_tool_with_progress", progress_callback=progress)
        assert told == [0, 50, 100]
        found = await client.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert found.messages[0].content.text == "Prompt with arguments: arg1='a', arg2='b'"
        read = await client.read_resource("test://template/123/data")
        assert '"123"' in read.contents[0].text
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("test://nothing")


@async_test
async def test_a_client_with_forms_is_asked_in_them_until_the_run_is_done(tmp_path: Path) -> None:
    async with (
        fixture_server(str(tmp_path / "store.db")) as server,
        Client(server.lowlevel, mode=MODERN, elicitation_callback=fill_in) as client,
    ):
        twice = await client.call_tool("test_input_required_result_multi_round")
        assert words_of(twice) == "Alice likes blue."
        both = await client.session.call_tool("multi_input", allow_input_required=True)
        assert isinstance(both, InputRequiredResult)
        assert both.input_requests is not None
        assert set(both.input_requests) == {"first", "second"}


@async_test
async def test_a_client_without_forms_is_told_what_the_run_waits_for(tmp_path: Path) -> None:
    async with (
        fixture_server(str(tmp_path / "store.db")) as server,
        Client(server.lowlevel, mode=LEGACY, elicitation_callback=fill_in) as client,
    ):
        asked = (await client.call_tool("confirm_delete", {"filename": "a.txt"})).structured_content
        assert asked is not None
        assert asked["status"] == "waiting"
        assert asked["waiting"][0]["prompt"] == "Delete a.txt?"


@async_test
async def test_a_state_that_was_changed_reaches_no_run(tmp_path: Path) -> None:
    async with (
        fixture_server(str(tmp_path / "store.db")) as server,
        Client(server.lowlevel, mode=MODERN, elicitation_callback=fill_in) as client,
    ):
        name = "test_input_required_result_tampered_state"
        asked = await client.session.call_tool(name, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        filled = {"confirm": ElicitResult(action="accept", content={"ok": True})}
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool(
                name, input_responses=filled, request_state=f"{asked.request_state}-TAMPERED"
            )
        done = await client.session.call_tool(
            name, input_responses=filled, request_state=asked.request_state
        )
        assert words_of(done) == "state-ok"
