"""Runs as tasks of clients that know the extension; its wire is that of 2026-07-28."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp import Client
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError

from holdfast.edges.mcp import Exposed
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.app import ages, breaks, fails, greet, moves, travels, twice
from tests.edges.mcp.driving import charges, served, told
from tests.edges.mcp.tasking import (
    TASKS,
    WithTasks,
    accepted,
    ask,
    begun,
    get,
    shows_forms,
    tasked,
    until,
    update,
    working,
)

NEEDED = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
UNKNOWN = "no-such-task"


@contextmanager
def refusing(code: int) -> Iterator[Any]:
    with pytest.raises(MCPError) as caught:
        yield caught
    assert caught.value.code == code


@contextmanager
def signed_in(name: str, *scopes: str) -> Iterator[None]:
    token = AccessToken(token="t", client_id=name, scopes=list(scopes))
    before = auth_context_var.set(AuthenticatedUser(token))
    try:
        yield
    finally:
        auth_context_var.reset(before)


@async_test
async def test_a_task_is_its_run_and_ends_with_what_the_tool_would_have_given(
    tmp_path: Path,
) -> None:
    calls: dict[str, dict[str, Any]] = {
        "greet": {"name": "Bo"},
        "start_agent": {"agent": "greet", "input": {"name": "Bo"}},
    }
    async with (
        served(tmp_path, expose=[greet], works=False) as (hf, server),
        tasked(server) as client,
        Client(server) as plain,
    ):
        tasks = {tool: await begun(client, tool, **given) for tool, given in calls.items()}
        async with working(hf):
            for tool, task in tasks.items():
                assert (await hf.runs.get(task["taskId"])).agent == "greet"
                assert (task["resultType"], task["status"]) == ("task", "working")
                assert task["ttlMs"] is None
                assert task["pollIntervalMs"] > 0
                assert not task.keys() & {"task", "result", "inputRequests", "requestState"}
                ended = await until(client, task["taskId"], "completed")
                assert ended["createdAt"] == task["createdAt"] < ended["lastUpdatedAt"]
                result = types.CallToolResult.model_validate(ended["result"])
                same = await plain.call_tool(tool, calls[tool])
                assert timeless(result.structured_content) == timeless(same.structured_content)
            waited = await client.session.call_tool(
                "start_agent", {**calls["start_agent"], "wait_seconds": 20}
            )
            assert waited.structured_content is not None
            assert waited.structured_content["result"] == "Hello, Bo!"


def timeless(content: dict[str, Any] | None) -> dict[str, Any]:
    """A result without what differs from run to run."""
    return {n: v for n, v in (content or {}).items() if n not in ("run_id", "created_at")}


@async_test
async def test_a_failed_run_is_an_error_of_the_tool_and_a_protocol_error_one_of_the_call(
    tmp_path: Path,
) -> None:
    async with (
        served(tmp_path, expose=[fails, breaks], works=False) as (hf, server),
        tasked(server) as client,
        Client(server) as plain,
    ):
        failing = (await begun(client, "fails"))["taskId"]
        breaking = (await begun(client, "breaks"))["taskId"]
        async with working(hf):
            failed = await until(client, failing, "completed")
            broken = await until(client, breaking, "failed")
            with refusing(-32050) as caught:
                await plain.call_tool("breaks", {})
        assert failed["result"]["isError"] is True
        assert "no luck today" in failed["result"]["content"][0]["text"]
        assert "result" not in broken
        assert broken["error"]["code"] == -32050
        assert broken["error"]["message"] == caught.value.message == "the upstream is gone"
        assert broken["error"]["data"] == caught.value.data == {"after": 3}
        assert "ProtocolError" in (await hf.runs.result(breaking))["traceback"]


@async_test
async def test_each_question_leaves_with_its_answer_and_the_others_stay(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, server), tasked(server) as client:
        task_id = (await begun(client, "execute_workflow", name="two"))["taskId"]
        asked = await until(client, task_id, "input_required")
        first, second = asked["inputRequests"]
        assert {each["method"] for each in asked["inputRequests"].values()} == {
            "elicitation/create"
        }
        assert await update(client, task_id, {first: accepted(answer="a")}) == {
            "resultType": "complete"
        }
        seen = [await get(client, task_id) for _ in range(10)]
        assert {(each["status"], *each["inputRequests"]) for each in seen} == {
            ("input_required", second)
        }
        await update(client, task_id, {second: accepted(answer="b"), first: accepted(answer="z")})
        ended = await until(client, task_id, "completed")
        assert ended["result"]["structuredContent"]["status"] == "completed"


@async_test
async def test_what_is_no_answer_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[ages]) as (hf, server), tasked(server) as client:
        task_id = (await begun(client, "ages", name="Bo"))["taskId"]
        (key,) = (await until(client, task_id, "input_required"))["inputRequests"]
        before = await hf.journal.head(task_id)
        for harmless in (
            {"unknown-key": {"ignored": True}},
            {"age": accepted(answer=3)},
            {key: {"action": "decline"}},
            {key: {"action": "cancel"}},
            {},
        ):
            assert await update(client, task_id, harmless) == {"resultType": "complete"}
        for wrong in ("many", None, 12, {"action": "maybe"}):
            response = wrong if isinstance(wrong, int | dict) else accepted(answer=wrong)
            with refusing(types.INVALID_PARAMS) as caught:
                await update(client, task_id, {key: response})
            assert list(caught.value.data["problems"]) == [key]
        with refusing(types.INVALID_PARAMS):
            await update(client, task_id, ["no object"])
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for unknown in (UNKNOWN, "\0", ""):
                with refusing(types.INVALID_PARAMS):
                    await ask(client, method, unknown, inputResponses={})
        assert await hf.journal.head(task_id) == before
        assert list((await get(client, task_id))["inputRequests"]) == [key]


@async_test
async def test_what_cannot_be_stored_is_no_answer_either(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[ages]) as (hf, server), tasked(server) as client:
        for agent, given, wrong in (
            ("ages", {"name": "Bo"}, {"answer": 10**30}),
            ("buys", {"what": "tea"}, {"approve": True, "note": "x" * 5000}),
        ):
            task_id = (await begun(client, "start_agent", agent=agent, input=given))["taskId"]
            (key,) = (await until(client, task_id, "input_required"))["inputRequests"]
            before = await hf.journal.head(task_id)
            with refusing(types.INVALID_PARAMS) as caught:
                await update(client, task_id, {key: accepted(**wrong)})
            assert list(caught.value.data["problems"]) == [key]
            assert await hf.journal.head(task_id) == before


@async_test
async def test_of_two_clients_with_different_answers_the_first_is_heard(tmp_path: Path) -> None:
    async with (
        served(tmp_path, expose=[ages]) as (hf, server),
        tasked(server) as one,
        tasked(server) as other,
    ):
        task_id = (await begun(one, "ages", name="Bo"))["taskId"]
        (key,) = (await until(one, task_id, "input_required"))["inputRequests"]
        acks = await asyncio.gather(
            *(
                update(client, task_id, {key: accepted(answer=age)})
                for client, age in ((one, 33), (other, 44), (one, 33))
            )
        )
        assert acks == [{"resultType": "complete"}] * 3
        ended = await until(other, task_id, "completed")
        await update(other, task_id, {key: accepted(answer=55)})
        said = (await hf.approvals.get(key)).answer
        assert said in (33, 44)
        assert ended["result"]["structuredContent"] == {"name": "Bo", "age": said}
        assert await get(one, task_id) == ended


@async_test
async def test_what_no_form_shows_is_told_with_the_tool_that_answers_it(tmp_path: Path) -> None:
    async with (
        served(tmp_path, expose=[travels, ages]) as (hf, server),
        tasked(server) as client,
        tasked(server, has_forms=False) as formless,
    ):
        for who, tool, given in ((client, "travels", {}), (formless, "ages", {"name": "Bo"})):
            task_id = (await begun(who, tool, **given))["taskId"]
            async with asyncio.timeout(60):
                while not (open_ := await hf.approvals.list(run_id=task_id)):
                    await asyncio.sleep(0.02)
            seen = await get(who, task_id)
            assert seen["status"] == "working"
            assert "inputRequests" not in seen
            assert open_[0].prompt in seen["statusMessage"]
            assert f"answer(wait_id='{open_[0].wait_id}'" in seen["statusMessage"]
        await hf.runs.block(task_id, "breaker", by="ops", note="hands off")
        blocked = await get(client, task_id)
        assert blocked["status"] == "input_required"
        assert "hands off" in blocked["statusMessage"]


@async_test
async def test_a_cancelled_task_stays_so_and_an_ended_one_as_it_ended(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[ages]) as (hf, server), tasked(server) as client:
        task_id = (await begun(client, "ages", name="Bo"))["taskId"]
        (key,) = (await until(client, task_id, "input_required"))["inputRequests"]
        done = (await hf.start(greet, "Bo")).run_id
        await until(client, done, "completed")
        for each in (task_id, done, task_id):
            assert await ask(client, "tasks/cancel", each) == {"resultType": "complete"}
        await update(client, task_id, {key: accepted(answer=3)})
        cancelled = await get(client, task_id)
        assert cancelled["status"] == "cancelled"
        assert not cancelled.keys() & {"result", "error", "inputRequests"}
        assert (await hf.runs.get(task_id)).status == "cancelled"
        assert (await get(client, done))["status"] == "completed"


@async_test
async def test_an_agent_chooses_whether_its_runs_are_tasks(tmp_path: Path) -> None:
    chosen = [Exposed(moves, tasks="required"), Exposed(twice, tasks="after_input")]
    async with (
        served(tmp_path, expose=[*chosen, Exposed(fails, tasks="never")]) as (hf, server),
        tasked(server) as client,
        Client(server) as plain,
    ):
        with refusing(types.MISSING_REQUIRED_CLIENT_CAPABILITY) as caught:
            await plain.call_tool("moves", {})
        assert caught.value.data == NEEDED
        assert await hf.runs.list() == []
        assert (await begun(client, "moves"))["resultType"] == "task"

        asked = await client.session.call_tool(
            "twice", {}, allow_input_required=True, allow_claimed=True
        )
        assert isinstance(asked, types.InputRequiredResult)
        (key,) = asked.input_requests or {}
        again = await client.session.call_tool(
            "twice",
            {},
            input_responses={key: types.ElicitResult(action="accept", content={"answer": "a"})},
            request_state=asked.request_state,
            allow_claimed=True,
        )
        task = again.model_dump(by_alias=True)
        assert task["resultType"] == "task"
        left = await until(client, task["taskId"], "input_required")
        await update(
            client, task["taskId"], {each: accepted(answer="b") for each in left["inputRequests"]}
        )
        ended = await until(client, task["taskId"], "completed")
        assert ended["result"]["structuredContent"] == {"result": "a b"}

        never = await client.session.call_tool("fails", {})
        assert never.is_error


@async_test
async def test_who_does_not_declare_tasks_in_a_request_has_none(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[greet]) as (hf, server):
        async with tasked(server, mode="legacy") as legacy:
            found = await legacy.call_tool("greet", {"name": "Bo"})
            assert found.structured_content == {"result": "Hello, Bo!"}
            (run,) = await hf.runs.list()
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with refusing(types.METHOD_NOT_FOUND):
                    await ask(legacy, method, run.run_id, inputResponses={})
        async with Client(server) as plain, tasked(server) as client:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with refusing(types.MISSING_REQUIRED_CLIENT_CAPABILITY) as caught:
                    await ask(plain, method, UNKNOWN)
                assert caught.value.data == NEEDED
            for method in ("tasks/list", "tasks/result"):
                with refusing(types.METHOD_NOT_FOUND):
                    await ask(client, method, run.run_id)


@async_test
async def test_the_task_of_somebody_else_is_not_there(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[ages]) as (hf, server):
        with signed_in("ann"):
            async with tasked(server) as ann:
                task_id = (await begun(ann, "ages", name="Bo"))["taskId"]
                (key,) = (await until(ann, task_id, "input_required"))["inputRequests"]
        assert (await hf.runs.get(task_id)).owner == "ann"
        before = await hf.journal.head(task_id)
        answers = {key: accepted(answer=3)}
        with signed_in("bob"):
            async with tasked(server) as bob:
                for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                    with refusing(types.INVALID_PARAMS) as theirs:
                        await ask(bob, method, task_id, inputResponses=answers)
                    with refusing(types.INVALID_PARAMS) as none:
                        await ask(bob, method, UNKNOWN, inputResponses=answers)
                    said = theirs.value.message.replace(task_id, UNKNOWN)
                    assert (said, theirs.value.data) == (none.value.message, none.value.data)
        assert await hf.journal.head(task_id) == before
        with signed_in("ops", "operator"):
            async with tasked(server) as ops:
                await update(ops, task_id, answers)
                await until(ops, task_id, "completed")


@async_test
async def test_over_http_a_request_is_routed_by_the_name_of_its_task(tmp_path: Path) -> None:
    async with served(tmp_path, expose=[ages]) as (_, server):
        app = server.streamable_http_app(json_response=True)
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http,
        ):
            made = await post(http, "tools/call", "ages", name="ages", arguments={"name": "Bo"})
            task_id = made.json()["result"]["taskId"]
            assert made.json()["result"]["ttlMs"] is None
            assert "ttlMs" in made.json()["result"]
            seen = await post(http, "tasks/get", task_id, taskId=task_id)
            assert seen.json()["result"]["taskId"] == task_id
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                for header in ("another", None):
                    wrong = await post(http, method, header, taskId=task_id, inputResponses={})
                    assert wrong.status_code == 400
                    assert wrong.json()["error"]["code"] == types.HEADER_MISMATCH
            bare = await post(http, "tasks/get", "gate-test", can={}, taskId="gate-test")
            assert bare.status_code == 400
            assert bare.json()["error"]["data"] == NEEDED


async def post(
    http: httpx.AsyncClient, method: str, named: str | None, *, can: Any = None, **params: Any
) -> httpx.Response:
    """One request of a client without a session, as the wire of 2026-07-28 has it."""
    version = "2026-07-28"
    able = {"extensions": {TASKS: {}}} if can is None else can
    prefix = "io.modelcontextprotocol"
    meta = {f"{prefix}/protocolVersion": version, f"{prefix}/clientCapabilities": able}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": method,
    }
    if named is not None:
        headers["Mcp-Name"] = named
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return await http.post("/mcp", json=body, headers=headers)


@async_test
async def test_a_client_that_follows_tasks_sees_nothing_but_a_call(tmp_path: Path) -> None:
    following = WithTasks({"answer": "yes"})
    async with (
        served(tmp_path) as (_, server),
        Client(server, extensions=[following], elicitation_callback=shows_forms) as client,
    ):
        ended = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
    assert (ended["status"], ended["result"]) == ("completed", {"said": "yes"})
    assert following.followed == [ended["run_id"]]
    assert charges(tmp_path) == ["1"]
