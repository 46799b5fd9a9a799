"""Tools for answers, calls in doubt and checkpoints; and what is said of every tool."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import mcp_types as types
import pytest
from mcp import Client

import holdfast
from holdfast import codec
from holdfast.edges.mcp import McpServer
from holdfast.edges.mcp.access.principals import Principal
from holdfast.edges.mcp.catalogue import Catalogue
from holdfast.edges.mcp.contract import FollowedRun, McpCall
from holdfast.edges.mcp.tools import OWN
from holdfast.engine import effects
from holdfast.errors import MisuseError, NotFoundError, RunNotFound
from holdfast.kernel.effects import EffectStatus
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Kit
from tests.agents.crashing import advance
from tests.edges.mcp.scene import LARGE, Scene, scene
from tests.edges.mcp.test_bad_input import right

CHANGING = ("cancel_run", "answer", "resolve_effect", "resume_workflow")
STARTING = ("execute_workflow", "execute_inline_workflow", "start_agent", "asker")


async def _progress(
    progress: float, total: float | None = None, message: str | None = None
) -> None:
    """Nobody listens."""


def call_by(made: Scene, name: str, *, is_operator: bool = False) -> McpCall:
    """A call of somebody who was authenticated."""
    return McpCall(
        hf=made.hf,
        catalogue=Catalogue(made.hf.workflows.kit, None),
        principal=Principal(name, is_operator=is_operator),
        client="test",
        progress=_progress,
    )


@async_test
async def test_every_tool_says_what_it_is_and_its_result_fits_its_schema(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        tools, known = await made.tools(), right(made)
        known["asker"] = {"name": "Ed"}
        for name, tool in tools.items():
            assert tool.description, name
            assert tool.title or name == "asker", "an agent has its name only"
            assert tool.annotations is not None, name
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            is_changing = name in CHANGING + STARTING
            assert tool.annotations.read_only_hint is not is_changing, name
            assert tool.annotations.idempotent_hint is (name not in STARTING), name
        last = sorted(tools, key=lambda name: (name in CHANGING, name == "cancel_run"))
        for name in last:
            output = tools[name].output_schema
            if output is None:
                assert name == "asker"
                continue
            jsonschema.Draft202012Validator.check_schema(output)
            jsonschema.validate(await made.call(name, **known[name]), output)


@async_test
async def test_agents_are_listed_with_the_input_they_take(tmp_path: Path) -> None:
    """All but those of Holdfast itself: who starts a `workflow` brings any definition along."""
    async with scene(tmp_path) as made:
        listed = (await made.call("list_agents"))["agents"]
        agents = {each["name"]: each for each in listed}
        assert "asker" in agents
        assert "workflow" not in agents
        assert agents["asker"]["description"] == "Asks how old somebody is."
        jsonschema.validate({"name": "Ed"}, agents["asker"]["input_schema"])


@async_test
async def test_a_loop_is_told_by_its_description_and_never_by_our_docstring(
    tmp_path: Path,
) -> None:
    async def model(talk: Sequence[holdfast.Message]) -> holdfast.Message:
        return holdfast.Message.assistant("done")

    told = holdfast.AgentLoop(model, name="told", description="Answers about orders.")
    plain = holdfast.AgentLoop(model, name="plain")
    async with (
        holdfast.Holdfast(str(tmp_path / "a.db"), agents=[told, plain], workflows=Kit()) as hf,
        McpServer(hf, expose=[told, plain], works=False) as server,
        Client(server.lowlevel) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        with pytest.raises(MisuseError, match="carries out any definition"):
            McpServer(hf, expose=[hf.agent("workflow")])
    assert tools["told"].description == "Answers about orders."
    assert tools["plain"].description == "Let the agent plain work on something."


@async_test
async def test_an_agent_that_fails_as_a_tool_is_told_as_any_failure(tmp_path: Path) -> None:
    @holdfast.agent
    async def fails(run: holdfast.Run) -> None:
        raise ValueError("no luck")

    async with (
        holdfast.Holdfast(str(tmp_path / "a.db"), agents=[fails], workflows=Kit()) as hf,
        McpServer(hf, expose=[fails]) as server,
        Client(server.lowlevel) as client,
    ):
        result = await client.call_tool("fails", {})
    assert result.is_error
    assert result.structured_content is not None
    error = result.structured_content["error"]
    assert (error["type"], error["message"]) == ("RunFailed", "ValueError: no luck")


@async_test
async def test_a_run_of_somebody_else_is_told_as_one_that_is_not_there(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        eve = call_by(made, "eve")
        said: list[str] = []
        for run_id in ("asking", "absent"):
            with pytest.raises(RunNotFound) as caught:
                await eve.run(run_id)
            said.append(str(caught.value).replace(run_id, "ID"))
        assert said[0] == said[1]


@async_test
async def test_every_change_can_be_asked_for_again(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        known = right(made)
        for name in CHANGING[1:]:
            await made.call(name, **known[name])
        await made.call("cancel_run", run_id="asking")
        before = made.journal()
        for name in CHANGING:
            told = await made.call(name, **known[name])
            assert "error" not in told
        for name, given in (
            ("answer", {"value": False}),
            ("resolve_effect", {"result": "lost"}),
            ("resolve_effect", {"outcome": "retry"}),
        ):
            changed = known[name] | given
            if changed.get("outcome") == "retry":
                del changed["result"]
            error = await made.refuse(name, **changed)
            assert error["kind"] == "conflict"
        error = await made.refuse("resume_workflow", run_id="flow", answers={"approve": "no"})
        assert error["type"] == "AlreadyAnswered"
        assert made.journal() == before


@async_test
async def test_question_is_listed_answered_and_seen_to_its_end(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        listed = await made.call("list_approvals")
        assert [each["run_id"] for each in listed["approvals"]] == ["asking", "permitting", "flow"]
        assert not listed["has_more"]
        first = await made.call("list_approvals", limit=1)
        assert (len(first["approvals"]), first["has_more"]) == (1, True)
        (own,) = (await made.call("list_approvals", run_id="permitting"))["approvals"]
        assert (own["tool"], own["args"]) == ("charge", {"cents": 500})
        view = await made.call("answer", wait_id=made.question, value=33)
        assert (view["run_id"], view["status"]) == ("asking", "ready")
        async with McpServer(made.hf) as server, Client(server.lowlevel) as client:
            given: dict[str, Any] = {"wait_id": own["wait_id"], "value": True, "wait_seconds": 60}
            given["digest"] = own["args_digest"]
            result = await client.call_tool("answer", given)
            assert result.structured_content is not None
            assert result.structured_content["result"] == "charged 500"
            seen = await client.call_tool("get_run", {"run_id": "asking", "wait_seconds": 60})
            assert seen.structured_content is not None
            assert seen.structured_content["result"] == "Al is 33"


@async_test
async def test_call_in_doubt_is_listed_and_resolved(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        (effect,) = (await made.call("list_unknown_effects"))["effects"]
        assert effect["effect_id"] == made.effect
        assert (effect["tool"], effect["args"], effect["run_id"]) == (
            "mail",
            {"to": "bo@x"},
            "lost",
        )
        assert (await made.call("list_unknown_effects", run_id="asking"))["effects"] == []
        told = await made.call(
            "resolve_effect", effect_id=made.effect, outcome="happened", result="sent"
        )
        assert (told["status"], told["run_status"]) == ("completed", "ready")
        assert (await made.call("list_unknown_effects"))["effects"] == []
        await advance(made.hf, "lost")
        view = await made.call("get_run", run_id="lost")
        assert (view["status"], view["result"]) == ("completed", "sent")


@async_test
async def test_checkpoint_is_shown_as_far_as_there_is_room(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        newest = await made.call("get_checkpoint", run_id="saved")
        assert newest["state"] == {"log": [1, 2], "odd": 3}
        assert newest["is_cut"]
        assert newest["left_out"] == {"large": len(LARGE) + 2}
        assert [each["version"] for each in newest["versions"]] == [3, 2, 1]
        assert newest == await made.call("get_checkpoint", checkpoint_id=made.checkpoint)
        first = await made.call("get_checkpoint", run_id="saved", version=1, parts=["odd"])
        assert first["phase"] == "first"
        assert first["state"]["odd"] == {
            "bytes": "AP8=",
            "decimal": "1.10",
            "moment": "2026-11-16T09:00:00Z",
            "id": "00000000-0000-0000-0000-000000000007",
            "pair": [1, "two"],
            "most": 2**64 - 1,
            "text": "caf\u00e9 \u0000 \u2028",
        }
        none = await made.call("get_checkpoint", run_id="saved", version=0)
        assert (none["state"], none["checkpoint_id"]) == ({}, None)
        diff = await made.call("diff_checkpoints", run_id="saved", before=1, after=3)
        assert diff["parts"] == ["large", "log", "odd"]
        assert diff["logs"] == {"log": {"kept": 1, "removed": [], "added": [2]}}
        assert diff["changed"]["odd"]["after"] == 3
        assert (diff["added"], diff["left_out"]) == ({}, {"large": len(LARGE) + 2})


@async_test
async def test_damaged_checkpoint_is_told_and_not_shown(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        with made.backend.raw() as raw:
            damage = "UPDATE journal SET body = x'00' WHERE run_id = 'saved' AND kind = ?"
            assert raw.execute(damage, "CHECKPOINT_CREATED")
        before = made.journal()
        for name, given in (
            ("get_checkpoint", {"run_id": "saved"}),
            ("get_checkpoint", {"checkpoint_id": made.checkpoint}),
            ("diff_checkpoints", {"run_id": "saved", "before": 0, "after": 1}),
        ):
            error = await made.refuse(name, **given)
            assert (error["type"], error["kind"]) == ("CheckpointCorrupted", "integrity")
        assert made.journal() == before


@async_test
async def test_call_in_doubt_whose_arguments_are_damaged_is_listed_still(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        with made.backend.raw() as raw:
            damage = "UPDATE journal SET body = x'00' WHERE run_id = 'lost' AND kind = ?"
            assert raw.execute(damage, "EFFECT_ISSUED") == 1
        (effect,) = (await made.call("list_unknown_effects"))["effects"]
        assert effect["effect_id"] == made.effect
        assert "args" not in effect
        assert "lost" in effect["problem"]


@async_test
async def test_word_on_a_call_is_finished_by_whoever_repeats_it(tmp_path: Path) -> None:
    """Who gave it first died between the commit and giving back the other runs that wait for it."""
    async with scene(tmp_path) as made:
        effect = await made.hf.effects.get(made.effect)
        await made.hf.runs.create("twin")
        await made.hf.runs.block("twin", "unknown_effect", note=f"see effect {made.effect}")
        body = codec.encode("sent")
        await effects.settle(made.hf._context, effect, EffectStatus.COMPLETED, body=body, by="ann")
        assert (await made.hf.runs.get("lost")).status == "ready"
        assert (await made.hf.runs.get("twin")).status == "blocked"
        said = {"effect_id": made.effect, "outcome": "happened", "result": "sent"}
        await made.call("resolve_effect", **said)
        assert (await made.hf.runs.get("twin")).status == "ready"
        before = made.journal()
        await made.call("resolve_effect", **said)
        assert made.journal() == before


@async_test
async def test_what_is_somebody_elses_is_not_there(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        tools, known, before = {tool.name: tool for tool in OWN}, right(made), made.journal()

        async def handled(name: str, call: McpCall, given: dict[str, Any] | None = None) -> Any:
            tool = tools[name]
            return await tool.handle(
                call, tool.arguments_of(known[name] if given is None else given)
            )

        bob, names = call_by(made, "bob"), ("asking", "flow", "lost", "saved", "permitting")
        about_runs = [
            name for name in tools if {"run_id", "wait_id", "effect_id"} & known[name].keys()
        ]
        for name in about_runs:
            if name in STARTING:
                continue
            with pytest.raises(NotFoundError) as refused:
                await handled(name, bob)
            if "run_id" not in known[name]:
                assert not any(run_id in str(refused.value) for run_id in names), name
        with pytest.raises(NotFoundError, match="there is no checkpoint") as refused:
            await handled("get_checkpoint", bob, {"checkpoint_id": made.checkpoint})
        assert "saved" not in str(refused.value)
        ann, operator = call_by(made, "ann"), call_by(made, "eve", is_operator=True)
        for name, key in (("list_approvals", "approvals"), ("list_unknown_effects", "effects")):
            listed = [getattr(await handled(name, who, {}), key) for who in (ann, operator, bob)]
            ids = [[each.run_id for each in found] for found in listed]
            assert ids[0] == ids[1] != ids[2] == []
        assert made.journal() == before
        assert await handled("answer", call_by(made, "ann")) == FollowedRun("permitting")
        assert (await made.hf.approvals.get(made.request)).answered_by == "ann"


@async_test
async def test_client_with_forms_is_asked_what_comes_next(tmp_path: Path) -> None:
    asked: list[str] = []

    async def fill_in(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"answer": 44})

    @holdfast.agent
    async def pair(run: holdfast.Run) -> list[int]:
        return [await run.ask(f"How old is {name}?", schema=int) for name in ("Al", "Bo")]

    async with holdfast.Holdfast("memory://", agents=[pair]) as hf, McpServer(hf) as server:
        await hf.start(pair, run_id="pair")
        async with Client(server.lowlevel) as plain:
            await plain.call_tool("get_run", {"run_id": "pair", "wait_seconds": 60})
        (first,) = await hf.approvals.list()
        async with Client(server.lowlevel, elicitation_callback=fill_in) as client:
            given = {"wait_id": first.wait_id, "value": 33, "wait_seconds": 60}
            result = await client.call_tool("answer", given)
    assert asked == ["How old is Bo?"]
    assert result.structured_content is not None
    assert result.structured_content["result"] == [33, 44]


@async_test
async def test_client_of_any_name_may_answer(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        info = types.Implementation(name="a\nb" * 200, version="1")
        async with Client(made.server.lowlevel, client_info=info) as client:
            result = await client.call_tool("answer", {"wait_id": made.question, "value": 7})
        assert not result.is_error, result.structured_content
        by = (await made.hf.approvals.get(made.question)).answered_by
        assert by == ("mcp:" + "a?b" * 200)[:255]
