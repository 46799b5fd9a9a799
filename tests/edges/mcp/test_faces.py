"""One run behind its faces: the structured result of every client, and forms for those with any."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server import request_state
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast.edges.mcp import McpServer
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.app import ages, greet, moves, travels
from tests.edges.mcp.driving import WIRES, Person, charges, refused, served, step, told

ACCEPT = {"answer": "yes"}
BOTH = """
name: both
blocks:
- {id: sure, type: Prompt, inputs: {prompt: "Sure?", choices: ["yes", "no"]}}
- {id: why, type: Prompt, inputs: {prompt: "Why?"}}
outputs:
  sure: "{{ blocks.sure.outputs.response }}"
  why: "{{ blocks.why.outputs.response }}"
"""


@pytest.mark.mission("S1-001")
@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_a_pause_is_a_result_that_says_how_to_go_on(tmp_path: Path, wire: str) -> None:
    async with served(tmp_path) as (_, server), Client(server, mode=wire) as client:
        paused = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
        assert paused["status"] == "waiting"
        (question,) = paused["waiting"]
        assert (question["name"], question["prompt"]) == ("approve", "Release 1?")
        assert question["choices"] == ["yes", "no"]
        assert f"resume_workflow(run_id='{paused['run_id']}'" in paused["next"]
        ended = await told(
            client, "resume_workflow", run_id=paused["run_id"], answers={"approve": "yes"}
        )
        assert (ended["status"], ended["result"]) == ("completed", {"said": "yes"})
        assert ended["blocks"]["charge"]["status"] == "completed"
    assert charges(tmp_path) == ["1"]


@async_test
async def test_a_client_of_the_older_wire_is_never_held_by_a_form(tmp_path: Path) -> None:
    person = Person("yes")
    async with (
        served(tmp_path) as (_, server),
        Client(server, mode="legacy", elicitation_callback=person) as client,
    ):
        paused = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
    assert paused["status"] == "waiting"
    assert person.asked == []


@pytest.mark.mission("S1-001")
@async_test
async def test_a_client_with_forms_is_asked_in_one(tmp_path: Path) -> None:
    person = Person("yes")
    async with (
        served(tmp_path) as (_, server),
        Client(server, elicitation_callback=person) as client,
    ):
        ended = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
    assert (ended["status"], ended["result"]) == ("completed", {"said": "yes"})
    (asked,) = person.asked
    assert asked.message == "Release 1?"
    assert asked.requested_schema["properties"]["answer"]["enum"] == ["yes", "no"]
    assert charges(tmp_path) == ["1"]


@pytest.mark.parametrize("how", ["decline", "cancel"])
@async_test
async def test_declining_leaves_the_run_waiting_and_listed(tmp_path: Path, how: str) -> None:
    async with (
        served(tmp_path) as (_, server),
        Client(server, elicitation_callback=Person(how)) as client,
    ):
        left = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
        assert left["status"] == "waiting"
        assert "waits" in left["note"]
        listed = await told(client, "list_runs", status="waiting")
        assert [run["run_id"] for run in listed["runs"]] == [left["run_id"]]
        ended = await told(
            client, "resume_workflow", run_id=left["run_id"], answers={"approve": "no"}
        )
    assert ended["result"] == {"said": "no"}
    assert charges(tmp_path) == []


@async_test
async def test_what_does_not_fit_is_asked_again_and_changes_nothing(tmp_path: Path) -> None:
    person = Person("maybe", "yes")
    async with (
        served(tmp_path) as (_, server),
        Client(server, elicitation_callback=person) as client,
    ):
        ended = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
    assert ended["result"] == {"said": "yes"}
    assert [each.message for each in person.asked] == [
        "Release 1?",
        '"maybe" is not one of the choices: "yes", "no". Release 1?',
    ]


@pytest.mark.parametrize(
    ("agent", "given", "wrong", "why"),
    [
        ("ages", {"name": "Bo"}, {"answer": 10**30}, "more than 64 bits"),
        ("buys", {"what": "tea"}, {"approve": True, "note": "x" * 5000}, "5000 characters"),
    ],
)
@async_test
async def test_what_cannot_be_stored_is_asked_again(
    tmp_path: Path, agent: str, given: Any, wrong: Any, why: str
) -> None:
    person = Person(wrong, "decline")
    async with (
        served(tmp_path) as (hf, server),
        Client(server, elicitation_callback=person) as client,
    ):
        await told(client, "start_agent", agent=agent, input=given, run_id="r")
        assert (await hf.runs.get("r")).status == "waiting"
    assert why in person.asked[1].message


@async_test
async def test_a_nested_question_reaches_the_form(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (_, server),
        Client(server, elicitation_callback=Person("yes")) as client,
    ):
        ended = await told(client, "execute_workflow", name="nested")
    assert ended["status"] == "completed"
    assert charges(tmp_path) == ["2"]


@async_test
async def test_several_questions_are_asked_together(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (_, server),
        Client(server, elicitation_callback=Person()) as client,
    ):
        asked = await step(client, "execute_workflow", {"name": "two"})
        assert isinstance(asked, types.InputRequiredResult)
        assert asked.input_requests is not None
        assert set(asked.input_requests) == {"first", "second"}
        one = {"first": types.ElicitResult(action="accept", content={"answer": "a"})}
        left = await step(
            client,
            "execute_workflow",
            {"name": "two"},
            input_responses=one,
            request_state=asked.request_state,
        )
        assert isinstance(left, types.InputRequiredResult)
        assert set(left.input_requests or {}) == {"second"}


@pytest.mark.mission("S1-006", "S1-054", "S1-055")
@async_test
async def test_a_second_question_of_a_wave_is_asked_and_nothing_is_an_answer(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (_, server), Client(server) as client:
        paused = await told(client, "execute_inline_workflow", definition=BOTH)
        assert [each["name"] for each in paused["waiting"]] == ["sure", "why"]
        run_id = paused["run_id"]
        left = await told(client, "resume_workflow", run_id=run_id, answers={"why": ""})
        assert [each["name"] for each in left["waiting"]] == ["sure"]
        ended = await told(client, "resume_workflow", run_id=run_id, answers={"sure": "no"})
    assert (ended["status"], ended["result"]) == ("completed", {"sure": "no", "why": ""})


@pytest.mark.mission("S1-004")
@async_test
async def test_answers_to_several_workflows_at_once_reach_their_own(tmp_path: Path) -> None:
    said = {"a": "yes", "b": "no", "c": "yes"}
    async with served(tmp_path) as (_, server), Client(server) as one, Client(server) as other:
        paused = await asyncio.gather(
            *(
                told(one, "execute_workflow", name="release", inputs={"version": each}, run_id=each)
                for each in said
            )
        )
        assert [view["waiting"][0]["prompt"] for view in paused] == [
            "Release a?",
            "Release b?",
            "Release c?",
        ]
        ended = await asyncio.gather(
            *(
                told(other, "resume_workflow", run_id=each, answers={"approve": said[each]})
                for each in reversed(said)
            )
        )
    assert {view["run_id"]: view["result"]["said"] for view in ended} == said
    assert sorted(charges(tmp_path)) == ["a", "c"]


@async_test
async def test_going_on_twice_is_harmless(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (hf, server),
        Client(server, elicitation_callback=Person()) as client,
    ):
        given = {"name": "release", "inputs": {"version": "1"}}
        asked = await step(client, "execute_workflow", given)
        answered = {"approve": types.ElicitResult(action="accept", content=ACCEPT)}
        for _ in range(2):
            ended = await step(
                client,
                "execute_workflow",
                given,
                input_responses=answered,
                request_state=asked.request_state,
            )
            assert ended.structured_content["result"] == {"said": "yes"}
        otherwise = {"approve": types.ElicitResult(action="accept", content={"answer": "no"})}
        late = await step(
            client,
            "execute_workflow",
            given,
            input_responses=otherwise,
            request_state=asked.request_state,
        )
        assert late.structured_content["result"] == {"said": "yes"}
        assert "was first" in late.structured_content["note"]
        assert len(await hf.runs.list()) == 1
    assert charges(tmp_path) == ["1"]


@async_test
async def test_two_clients_answer_one_question(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, server):
        one, other = Client(server), Client(server, mode="legacy")
        async with one, other:
            paused = await told(one, "execute_workflow", name="release", inputs={"version": "1"})
            run_id = paused["run_id"]
            ended = await told(one, "resume_workflow", run_id=run_id, answers={"approve": "yes"})
            error = await refused(
                other, "resume_workflow", run_id=run_id, answers={"approve": "no"}
            )
            assert (error["type"], error["kind"]) == ("AlreadyAnswered", "conflict")
            same = await told(other, "resume_workflow", run_id=run_id, answers={"approve": "yes"})
            assert ended["result"] == same["result"] == {"said": "yes"}
    assert charges(tmp_path) == ["1"]


@async_test
async def test_a_state_that_was_changed_is_refused_and_the_run_waits(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (hf, server),
        Client(server, elicitation_callback=Person()) as client,
    ):
        given = {"name": "release", "inputs": {"version": "1"}}
        asked = await step(client, "execute_workflow", given)
        head = await hf.journal.head((await hf.runs.list())[0].run_id)
        for state, arguments in (
            (asked.request_state[:-4] + "AAAA", given),
            (asked.request_state, {"name": "release", "inputs": {"version": "2"}}),
        ):
            with pytest.raises(MCPError) as refusal:
                await step(
                    client,
                    "execute_workflow",
                    arguments,
                    input_responses={
                        "approve": types.ElicitResult(action="accept", content=ACCEPT)
                    },
                    request_state=state,
                )
            assert refusal.value.error.code == types.INVALID_PARAMS
        (run,) = await hf.runs.list()
        assert run.status == "waiting"
        assert await hf.journal.head(run.run_id) == head


@async_test
async def test_a_form_can_be_answered_for_days_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"name": "release", "inputs": {"version": "1"}}
    answers = {"approve": types.ElicitResult(action="accept", content=ACCEPT)}
    async with (
        served(tmp_path) as (hf, server),
        Client(server, elicitation_callback=Person()) as client,
    ):
        asked = await step(client, "execute_workflow", given)
        brought: Any = {"input_responses": answers, "request_state": asked.request_state}
        (run,) = await hf.runs.list()
        head = await hf.journal.head(run.run_id)
        set_clock(monkeypatch, days=7.01)
        with pytest.raises(MCPError) as refusal:
            await step(client, "execute_workflow", given, **brought)
        assert refusal.value.error.code == types.INVALID_PARAMS
        assert await hf.journal.head(run.run_id) == head
        set_clock(monkeypatch, days=6.99)
        ended = await step(client, "execute_workflow", given, **brought)
        assert ended.structured_content["status"] == "completed"
    assert charges(tmp_path) == ["1"]


def set_clock(monkeypatch: pytest.MonkeyPatch, *, days: float) -> None:
    """Let it be so many days later for what seals forms, and for nothing else."""
    later = SimpleNamespace(time=lambda: time.time() + days * 86_400)
    monkeypatch.setattr(request_state, "time", later)


@async_test
async def test_an_agent_can_be_a_tool_of_its_own(tmp_path: Path) -> None:
    person = Person(7, {"street": "Elm", "number": 3})
    async with (
        served(tmp_path, expose=[greet, ages, moves, travels]) as (_, server),
        Client(server, elicitation_callback=person) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["greet"].description == "Greets somebody."
        assert tools["greet"].input_schema["required"] == ["name"]
        said = await client.call_tool("greet", {"name": "Bo", "loud": True})
        assert said.content[0].text == "HELLO, BO!"  # pyright: ignore[reportAttributeAccessIssue]
        assert await told(client, "ages", name="Al") == {"name": "Al", "age": 7}
        assert await told(client, "moves") == {"result": "Elm 3"}
        error = await refused(client, "greet", name=7)
        assert error["problems"] == ["name: 7 is not of type 'string'"]
        paused = await told(client, "travels")
        assert paused["status"] == "waiting"
        assert "answer(" in paused["next"]


@async_test
async def test_an_approval_is_a_form_too(tmp_path: Path) -> None:
    for verdict in ({"approve": True}, {"approve": False, "note": "too dear"}):
        person = Person(verdict)
        async with (
            served(tmp_path) as (_, server),
            Client(server, elicitation_callback=person) as client,
        ):
            ended = await told(client, "start_agent", agent="buys", input={"what": "tea"})
        assert person.asked[0].message == "Really buy tea?"
        if verdict["approve"]:
            assert ended["result"] == "bought tea"
        else:
            assert ended["status"] == "failed"
            assert "too dear" in ended["error"]


@async_test
async def test_the_same_run_id_starts_nothing_new(tmp_path: Path) -> None:
    async with served(tmp_path) as (hf, server), Client(server) as client:
        given = {"name": "release", "inputs": {"version": "1"}, "run_id": "mine"}
        first = await told(client, "execute_workflow", **given)
        again = await told(client, "execute_workflow", **given)
        assert first["waiting"] == again["waiting"]
        assert len(await hf.runs.list()) == 1
        given["inputs"] = {"version": "2"}
        assert (await refused(client, "execute_workflow", **given))["type"] == "InputDiffers"


@async_test
async def test_a_definition_of_the_clients_own(tmp_path: Path) -> None:
    text = "name: own\nblocks:\n- {id: ask, type: Prompt, inputs: {prompt: 'Sure?'}}\n"
    async with served(tmp_path) as (_, server), Client(server) as client:
        assert (await told(client, "validate_workflow", definition=text))["is_valid"]
        paused = await told(client, "execute_inline_workflow", definition=text)
        assert paused["waiting"][0]["prompt"] == "Sure?"
        wrong = await told(client, "validate_workflow", definition="name: own\nblocks: [{id: a}]")
        assert not wrong["is_valid"]
        assert wrong["problems"][0]["line"] == 2
        error = await refused(client, "execute_inline_workflow", definition="name: [")
        assert error["type"] == "WorkflowInvalid"
    async with served(tmp_path, inline=False) as (_, server), Client(server) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
    assert "execute_workflow" in names
    assert "execute_inline_workflow" not in names


@async_test
async def test_workflows_are_those_of_the_kit_and_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "good.yaml").write_text(
        "name: tidy\ndescription: Tidies up.\ninputs: {depth: {type: int, default: 2}}\n"
        "blocks:\n- {id: ask, type: Prompt, inputs: {prompt: 'Sure?'}}\n"
    )
    (folder / "bad.yaml").write_text("name: [\n")
    async with served(tmp_path, workflows=folder) as (_, server), Client(server) as client:
        listed = {
            each["name"]: each for each in (await told(client, "list_workflows"))["workflows"]
        }
        assert set(listed) == {"release", "nested", "two", "tidy", "bad"}
        assert listed["bad"]["problems"] > 0
        found = (await told(client, "list_workflows", search="TIDIES"))["workflows"]
        assert [each["name"] for each in found] == ["tidy"]
        info = await told(client, "get_workflow_info", name="tidy")
        assert info["inputs"]["depth"] == {"type": "int", "is_required": False, "default": 2}
        assert info["waves"] == [["ask"]]
        assert (await told(client, "execute_workflow", name="tidy"))["status"] == "waiting"
        error = await refused(client, "execute_workflow", name="nope")
        assert "there are: " in error["message"]


def test_what_must_stay_secret_is_not_asked_in_a_form() -> None:
    from holdfast.edges.mcp.forms import form_of
    from holdfast.edges.mcp.views import QuestionView

    for schema in ({"type": "string", "format": "password"}, {"type": "string", "writeOnly": True}):
        question = QuestionView(
            name="token",
            wait_id="w",
            run_id="r",
            kind="question",
            prompt="Token?",
            schema=schema,
        )
        assert form_of(question) is None


@async_test
async def test_a_store_without_a_kit_carries_out_workflows_too(tmp_path: Path) -> None:
    text = "name: own\nblocks:\n- {id: ask, type: Prompt, inputs: {prompt: 'Sure?'}}\n"
    async with (
        holdfast.open(str(tmp_path / "plain.db")) as hf,
        McpServer(hf) as server,
        Client(server.lowlevel) as client,
    ):
        paused = await told(client, "execute_inline_workflow", definition=text)
    assert paused["status"] == "waiting"


@async_test
async def test_a_run_whose_child_is_blocked_says_who_must_act(tmp_path: Path) -> None:
    text = (
        "name: outer\nblocks:\n- id: inner\n  type: Workflow\n"
        "  inputs: {workflow: release, inputs: {version: broken}}\n"
    )
    async with served(tmp_path) as (_, server), Client(server) as client:
        paused = await told(client, "execute_inline_workflow", definition=text)
        stuck = await told(
            client, "resume_workflow", run_id=paused["run_id"], answers={"inner/approve": "yes"}
        )
        assert (stuck["status"], stuck.get("waiting")) == ("waiting", None)
        assert "A run that it began is blocked" in stuck["next"]
        (below,) = (await told(client, "list_runs", parent_id=paused["run_id"]))["runs"]
        assert below["blocked_reason"] == "unknown_effect"
        (effect,) = (await told(client, "list_unknown_effects"))["effects"]
        await told(client, "resolve_effect", effect_id=effect["effect_id"], outcome="retry")
        again = (await told(client, "list_unknown_effects"))["effects"]
        assert [each["effect_id"] for each in again] != [effect["effect_id"]]
