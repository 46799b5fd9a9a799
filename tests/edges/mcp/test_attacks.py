"""What was tried against the MCP server and once worked: it stays mended."""

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.edges.mcp import McpServer
from holdfast.edges.mcp.access.principals import principal_of
from holdfast.edges.mcp.catalogue import Catalogue
from holdfast.edges.mcp.forms import form_of
from holdfast.edges.mcp.meta import KEY, RUN_ID
from holdfast.edges.mcp.resources import subscriptions
from holdfast.edges.mcp.views import MOST_BYTES, QuestionView
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Kit
from tests.edges.mcp.app import ages, greet
from tests.edges.mcp.driving import Person, refused, served, step, told

YES = types.ElicitResult(action="accept", content={"answer": True, "approve": True})


@holdfast.agent
async def twice(run: holdfast.Run) -> list[bool]:
    """Asks two things under one name."""
    first = await run.ask("First?", schema=bool, name="ok")
    return [first, await run.ask("Second?", schema=bool, name="ok")]


@holdfast.tool(effect="mutate", approval=True)
async def pay(cents: int) -> str:
    return f"paid {cents}"


@holdfast.agent(tools=[pay])
async def payer(run: holdfast.Run) -> str:
    return await run.call(pay, cents=5)


def asking(schema: Any = None, choices: list[Any] | None = None) -> QuestionView:
    return QuestionView(
        name="q",
        wait_id="w",
        run_id="r",
        kind="question",
        prompt="?",
        schema=schema,
        choices=choices,
    )


@async_test
async def test_an_answer_that_is_said_again_reaches_no_later_question(tmp_path: Path) -> None:
    given = {"agent": "twice", "run_id": "mine"}
    async with (
        holdfast.Holdfast(str(tmp_path / "s.db"), agents=[twice], workflows=Kit()) as hf,
        McpServer(hf) as server,
        Client(server.lowlevel, elicitation_callback=Person()) as client,
    ):
        first = await step(client, "start_agent", given)
        second = await step(
            client,
            "start_agent",
            given,
            input_responses={"ok": YES},
            request_state=first.request_state,
        )
        assert second.input_requests["ok"].params.message == "Second?"
        again = await step(client, "start_agent", given, input_responses={"ok": YES})
        assert again.input_requests["ok"].params.message == "Second?"
        assert len(await hf.approvals.list()) == 1


@async_test
async def test_nobody_approves_what_nobody_has_seen(tmp_path: Path) -> None:
    async with (
        holdfast.Holdfast(str(tmp_path / "s.db"), agents=[payer], workflows=Kit()) as hf,
        McpServer(hf, expose=[payer]) as server,
        Client(server.lowlevel, elicitation_callback=Person()) as client,
    ):
        asked = await step(client, "payer", {}, input_responses={"pay": YES})
        assert isinstance(asked, types.InputRequiredResult)
        assert [each.kind for each in await hf.approvals.list()] == ["approval"]


@async_test
async def test_an_operation_that_is_asked_for_again_is_one_run(tmp_path: Path) -> None:
    async with (
        served(tmp_path, expose=[greet, ages]) as (hf, server),
        Client(server) as client,
    ):
        for tool, arguments in (
            ("greet", {"name": "Bo"}),
            ("start_agent", {"agent": "greet", "input": {"name": "Bo"}}),
            ("execute_workflow", {"name": "two"}),
        ):
            runs = [
                (await client.call_tool(tool, arguments, meta={KEY: "mine"})).meta[RUN_ID]  # pyright: ignore[reportOptionalSubscript]
                for _ in range(2)
            ]
            assert runs[0] == runs[1]
        assert len(await hf.runs.list()) == 3
        other = await client.call_tool("greet", {"name": "Al"}, meta={KEY: "mine"})
        assert other.structured_content is not None
        assert other.structured_content["error"]["type"] == "InputDiffers"


@pytest.mark.parametrize(
    "question",
    [
        asking({"type": ["string", "null"]}),
        asking({"type": "object", "properties": {"a": {"type": ["integer", "null"]}}}),
        asking({"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        asking(choices=[1, "1"]),
        asking(choices=[True, "true"]),
    ],
)
def test_what_a_form_cannot_say_is_not_asked_in_one(question: QuestionView) -> None:
    assert form_of(question) is None


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@async_test
async def test_an_address_that_is_asked_for_at_once_is_watched_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (hf, server), Client(server, mode="legacy") as client:
        paused = await told(client, "execute_workflow", name="two")
        uri = f"holdfast://runs/{paused['run_id']}/timeline"
        subscribe = client.session.subscribe_resource  # pyright: ignore[reportDeprecated]
        await asyncio.gather(*(subscribe(uri) for _ in range(20)))
        watching = [task for task in asyncio.all_tasks() if "_tell_of_growth" in repr(task)]
        assert len(watching) == 1
        assert len(await hf.runs.list()) == 1
    assert subscriptions.MOST_OF_ONE < subscriptions.MOST_WATCHES


def test_nobody_is_taken_for_somebody_else() -> None:
    def name(client: str, subject: str | None = None, issuer: str | None = None) -> str:
        claims = {"iss": issuer} if issuer else None
        token = AccessToken(token="t", client_id=client, scopes=[], subject=subject, claims=claims)
        return principal_of(token).name

    told_apart = [
        name("ann"),
        name("c", "ann"),
        name("c", "ann", "https://i"),
        name("c", "ann", "https://j"),
        name("c", "ann@https%3A%2F%2Fi"),
        name("person:ann"),
        name("c", "x" * 300),
        name("c", "x" * 301),
    ]
    assert len(set(told_apart)) == len(told_apart)
    assert name("one", "ann", "https://i") == name("other", "ann", "https://i")
    assert max(map(len, told_apart)) <= 255


@async_test
async def test_questions_that_are_too_large_are_cut_openly(tmp_path: Path) -> None:
    @holdfast.tool(effect="mutate", approval=True)
    async def post(text: str) -> str:
        return text

    @holdfast.agent(tools=[post])
    async def poster(run: holdfast.Run) -> str:
        return await run.call(post, text="x" * 2 * MOST_BYTES)

    async with (
        holdfast.Holdfast(str(tmp_path / "s.db"), agents=[poster], workflows=Kit()) as hf,
        McpServer(hf) as server,
        Client(server.lowlevel) as client,
    ):
        paused = await told(client, "start_agent", agent="poster")
        (question,) = paused["waiting"]
        assert question["is_cut"]
        assert "args" not in question
        ended = await told(
            client, "answer", wait_id=question["wait_id"], value=True, wait_seconds=20
        )
        assert ended["is_cut"]
        assert "/result" in ended["next"]


@async_test
async def test_reading_a_large_definition_holds_up_nobody(tmp_path: Path) -> None:
    text = "name: big\nblocks:\n" + "".join(
        f"- {{id: b{number}, type: Prompt, inputs: {{prompt: a}}}}\n" for number in range(400)
    )
    async with served(tmp_path) as (_, server), Client(server) as client:
        checking = asyncio.create_task(told(client, "validate_workflow", definition=text))
        looks = 0
        while not checking.done():
            await asyncio.sleep(0.001)
            looks += 1
        assert (await checking)["problems"] == []
    assert looks > 10


@async_test
async def test_a_file_that_goes_away_meanwhile_is_not_there_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.yaml").write_text(
        "name: here\nblocks:\n- {id: a, type: Prompt, inputs: {prompt: 'Well?'}}\n"
    )
    files = [tmp_path / "gone.yaml", tmp_path / "here.yaml"]
    monkeypatch.setattr(Catalogue, "_files", lambda _: files)
    async with served(tmp_path, workflows=tmp_path) as (_, server), Client(server) as client:
        listed = await told(client, "list_workflows")
        assert "here" in {each["name"] for each in listed["workflows"]}
        assert (await told(client, "execute_workflow", name="here"))["status"] == "waiting"
        assert (await refused(client, "execute_workflow", name="gone"))["kind"] == "not_found"
        monkeypatch.setattr(Catalogue, "find", lambda *_: asyncio.sleep(0, files[0]))
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("holdfast://workflows/gone")
