"""The server over HTTP: who reaches it, whose runs they see, and replicas with the same keys."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from holdfast.edges.mcp import McpServer, TokenFile, http
from holdfast.edges.mcp.access import tokens
from holdfast.errors import MisuseError
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.app import greet, make
from tests.edges.mcp.driving import WIRES, charges, refused, step, told
from tests.edges.mcp.reaching import HEADERS, PING, client_at, serving

KEY, OTHER = "the key that two replicas share, say", "a key that nobody else has, whatever"
RELEASE = {"name": "release", "inputs": {"version": "1"}}
YES = {"approve": types.ElicitResult(action="accept", content={"answer": "yes"})}


class Forms:
    """Says that a client can show forms; the tests fill them in themselves."""

    async def __call__(self, context: Any, params: Any) -> types.ElicitResult:
        raise AssertionError("the test answers")


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_calls_and_progress_go_over_http(tmp_path: Path, wire: str) -> None:
    lines: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        lines.append(message)

    async with (
        serving(tmp_path, options={"expose": [greet]}) as (_, url),
        client_at(url, mode=wire) as client,
    ):
        result = await client.call_tool("greet", {"name": "Ada"}, progress_callback=progress)
        assert result.structured_content == {"result": "Hello, Ada!"}
        assert lines[-1] == "completed"


@pytest.mark.mission("S1-028")
@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_a_client_goes_on_after_its_server_was_started_anew(
    tmp_path: Path, wire: str
) -> None:
    async with serving(tmp_path) as (_, url):
        port = urlsplit(url).port
        going_on = client_at(url, mode=wire)
        client = await going_on.__aenter__()
        paused = await told(client, "execute_workflow", **RELEASE)
    async with serving(tmp_path, port=port):
        ended = await told(
            client, "resume_workflow", run_id=paused["run_id"], answers={"approve": "yes"}
        )
        await going_on.__aexit__(None, None, None)
    assert ended["status"] == "completed"
    assert charges(tmp_path) == ["1"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
@async_test
async def test_without_tokens_only_this_machine_is_served(tmp_path: Path, host: str) -> None:
    server = McpServer(make(str(tmp_path / "store.db"), tmp_path / "ledger"))
    with pytest.raises(MisuseError, match="--tokens FILE"):
        server.http_app(host=host)
    with pytest.raises(MisuseError, match="--tokens FILE"):
        await server.serve_http(host, 0)
    assert [http.is_loopback(each) for each in ("127.0.0.9", "localhost", "::1")] == [True] * 3


@async_test
async def test_pages_of_others_do_not_reach_it_through_a_browser(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url), httpx2.AsyncClient(headers=HEADERS) as browser:
        assert (await browser.post(url, json=PING)).status_code == 200
        rebound = await browser.post(url, json=PING, headers={"Host": "evil.example"})
        assert rebound.status_code == 421
        strange = await browser.post(url, json=PING, headers={"Origin": "https://evil.example"})
        assert strange.status_code == 403
        stream = await browser.get(url)
        assert (stream.status_code, stream.headers["allow"]) == (405, "POST")


@async_test
async def test_without_a_token_that_counts_it_is_401(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    good, _ = tokens.add(file, "ann")
    old, line = tokens.add(file, "bob")
    file.write_text(file.read_text().replace(line.digest, f"{line.digest} 2020-01-01T00:00:00Z"))
    reach = {"verifier": TokenFile(file), "allowed_hosts": ["agents.example"]}
    async with (
        serving(tmp_path, **reach) as (hf, url),
        httpx2.AsyncClient(headers=HEADERS) as client,
    ):
        for token in (None, "wrong", old, good[:-1]):
            given = {} if token is None else {"Authorization": f"Bearer {token}"}
            answer = await client.post(url, json=PING, headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer error=")
        bearer = {"Authorization": f"Bearer {good}", "Host": "agents.example"}
        assert (await client.post(url, json=PING, headers=bearer)).status_code == 200
        health = await client.get(url.replace("/mcp", "/healthz"))
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        assert await hf.runs.list() == []


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_runs_belong_to_whose_token_began_them(tmp_path: Path, wire: str) -> None:
    file = tmp_path / "tokens"
    ann, bob = (tokens.add(file, name)[0] for name in ("ann", "bob"))
    boss, _ = tokens.add(file, "boss", scopes=["operator"])
    async with serving(tmp_path, verifier=TokenFile(file)) as (hf, url):
        async with client_at(url, ann, mode=wire) as client:
            hers = await told(client, "execute_workflow", **RELEASE)
            listed = {each.name for each in (await client.list_tools()).tools}
        run_id, (question,) = hers["run_id"], hers["waiting"]
        assert (await hf.runs.get(run_id)).owner == "ann"
        before = await hf.journal.head(run_id)
        async with client_at(url, bob, mode=wire) as client:
            calls = of_others(run_id, question["wait_id"])
            assert calls.keys() <= listed
            for tool, arguments in calls.items():
                error = await refused(client, tool, **arguments)
                assert (error["kind"], tool) == ("not_found", tool)
            error = await refused(client, "execute_workflow", **RELEASE, run_id=run_id)
            assert (error["kind"], "ann" in error["message"]) == ("conflict", False)
            assert (await told(client, "list_runs"))["runs"] == []
            assert (await told(client, "list_runs", parent_id=run_id))["runs"] == []
            error = await refused(client, "list_runs", before=run_id)
            assert error["kind"] == "not_found"
        assert await hf.journal.head(run_id) == before
        async with client_at(url, boss, mode=wire) as client:
            assert [each["run_id"] for each in (await told(client, "list_runs"))["runs"]] == [
                run_id
            ]
            answers = {"approve": "yes"}
            ended = await told(client, "resume_workflow", run_id=run_id, answers=answers)
        assert ended["status"] == "completed"
        assert (await hf.approvals.get(question["wait_id"])).answered_by == "boss"


def of_others(run_id: str, wait_id: str) -> dict[str, dict[str, Any]]:
    """Calls of every tool that is given something of a run."""
    return {
        "get_run": {"run_id": run_id},
        "cancel_run": {"run_id": run_id},
        "resume_workflow": {"run_id": run_id, "answers": {"approve": "yes"}},
        "list_approvals": {"run_id": run_id},
        "answer": {"wait_id": wait_id, "value": "yes"},
        "list_unknown_effects": {"run_id": run_id},
        "get_checkpoint": {"run_id": run_id},
        "diff_checkpoints": {"run_id": run_id, "before": 1, "after": 1},
    }


@pytest.mark.mission("S1-057")
@async_test
async def test_state_is_json_over_http(store: str, tmp_path: Path) -> None:
    async with serving(tmp_path, store=store) as (_, url), client_at(url) as client:
        paused = await told(client, "execute_workflow", **RELEASE)
        shown = {"run_id": paused["run_id"]}
        await told(client, "resume_workflow", **shown, answers={"approve": "yes"})
        saved = await told(client, "get_checkpoint", **shown, version=1)
    assert saved["state"]["block.approve"]["outputs"] == {"response": "yes"}


@pytest.mark.mission("S1-030")
@async_test
async def test_what_one_replica_asks_is_answered_through_another(tmp_path: Path) -> None:
    shared = {"keys": [KEY]}
    async with (
        serving(tmp_path, options=shared) as (_, one),
        serving(tmp_path, options={"keys": [OTHER, KEY]}) as (_, two),
        client_at(one, elicitation_callback=Forms()) as first,
        client_at(two, elicitation_callback=Forms()) as second,
    ):
        asked = await step(first, "execute_workflow", RELEASE)
        assert isinstance(asked, types.InputRequiredResult)
        ended = await step(
            second,
            "execute_workflow",
            RELEASE,
            input_responses=YES,
            request_state=asked.request_state,
        )
        assert ended.structured_content["status"] == "completed"
    assert charges(tmp_path) == ["1"]


@async_test
async def test_a_state_that_was_not_sealed_for_this_caller_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    ann, bob = (tokens.add(file, name)[0] for name in ("ann", "bob"))
    reach: dict[str, Any] = {"verifier": TokenFile(file)}
    async with (
        serving(tmp_path, options={"keys": [KEY]}, **reach) as (hf, url),
        serving(tmp_path, options={"keys": [OTHER]}, **reach) as (_, strange),
        client_at(url, ann, elicitation_callback=Forms()) as hers,
        client_at(url, bob, elicitation_callback=Forms()) as his,
        client_at(strange, ann, elicitation_callback=Forms()) as elsewhere,
    ):
        asked = await step(hers, "execute_workflow", RELEASE)
        (run,) = await hf.runs.list()
        before = await hf.journal.head(run.run_id)
        state = asked.request_state
        tampered = state[:-8] + state[-8:].swapcase()
        for client, brought in ((his, state), (elsewhere, state), (hers, tampered), (hers, "v1.")):
            with pytest.raises(MCPError) as error:
                await step(
                    client,
                    "execute_workflow",
                    RELEASE,
                    input_responses=YES,
                    request_state=brought,
                )
            assert error.value.code == types.INVALID_PARAMS
        assert await hf.journal.head(run.run_id) == before
        assert len(await hf.runs.list()) == 1
    assert charges(tmp_path) == []
