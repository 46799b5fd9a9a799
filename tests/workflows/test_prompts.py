"""Prompts: all that can be asked is asked, each is answered on its own, days later, anywhere."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import AlreadyAnswered, AnswerRefused, RunNotFound, WaitNotFound
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Input, Kit, Workflow
from tests.workflows.flows import Notes, call, flow, opened, prompt

HERE = "memory://"


def asked(outcome: Any) -> list[str]:
    return sorted(each.block for each in outcome.waiting)


def child() -> Workflow:
    return flow(
        prompt("ok", "May {{ inputs.who }} come in?"),
        prompt("why", depends_on=["ok"], condition="{{ blocks.ok.outputs.response == 'no' }}"),
        name="child",
        inputs={"who": Input()},
        outputs={"said": "{{ blocks.ok.outputs.response }}"},
    )


@pytest.mark.mission("S1-001", "S1-006", "S1-055")
@async_test
async def test_all_prompts_of_a_wave_are_asked_and_answered_in_any_order(store: str) -> None:
    notes = Notes()
    made = flow(
        prompt("a"),
        prompt("b", choices=["yes", "no"]),
        prompt("c", schema={"type": "integer", "minimum": 1}),
        call("pay"),
        call(
            "end",
            depends_on=["a", "b", "c"],
            args={"what": "{{ blocks.b.outputs.response }} {{ blocks.c.outputs.response }}"},
        ),
        outputs={"a": "{{ blocks.a.outputs.response }}"},
    )
    async with opened(store, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert (outcome.status, asked(outcome)) == ("waiting", ["a", "b", "c"])
        assert outcome.blocks["pay"].status == "completed"
        by_block = {each.block: each for each in outcome.waiting}
        assert by_block["b"].choices == ["yes", "no"]
        assert by_block["c"].schema == {"type": "integer", "minimum": 1}
        with pytest.raises(AnswerRefused, match=r"b: .*not one of the choices.*; c: "):
            await hf.workflows.resume("r", {"a": "fine", "b": "perhaps", "c": "x"})
        assert asked(await hf.workflows.status("r")) == ["a", "b", "c"]
        outcome = await hf.workflows.resume("r", {"c": 3})
        assert asked(outcome) == ["a", "b"]
        outcome = await hf.workflows.resume("r", {"b": "yes", "a": ""})
    assert (outcome.status, outcome.outputs) == ("completed", {"a": ""})
    assert notes.done == ["pay", "yes 3"]


@pytest.mark.mission("S1-054")
@async_test
async def test_the_same_answer_again_is_harmless_and_another_is_a_conflict(store: str) -> None:
    notes = Notes()
    made = flow(prompt("a"), call("pay", depends_on=["a"]))
    async with opened(store, tools=[notes.tool]) as hf:
        await hf.workflows.run(made, run_id="r")
        first = await hf.workflows.resume("r", {"a": ""}, by="ann")
        assert await hf.workflows.resume("r", {"a": ""}, by="bob") == first
        with pytest.raises(AlreadyAnswered, match="ann was first"):
            await hf.workflows.resume("r", {"a": "no"}, by="bob")
        with pytest.raises(WaitNotFound, match="no block 'b' of run r"):
            await hf.workflows.resume("r", {"b": "no"})
        with pytest.raises(RunNotFound):
            await hf.workflows.resume("other", {"a": "no"})
    assert notes.done == ["pay"]


@pytest.mark.mission("S1-081")
@async_test
async def test_resumes_at_the_same_time_go_on_once(store: str) -> None:
    notes = Notes()
    made = flow(prompt("a"), call("pay", depends_on=["a"]))
    async with opened(store, tools=[notes.tool]) as hf:
        await hf.workflows.run(made, run_id="r")
        twin = hf.another_worker()
        faces = [hf.workflows, twin.workflows] * 4
        outcomes = await asyncio.gather(*(face.resume("r", {"a": "yes"}) for face in faces))
    assert {outcome.status for outcome in outcomes} == {"completed"}
    assert notes.done == ["pay"]


@async_test
async def test_prompts_of_nested_workflows_and_loops_are_asked_by_their_paths(store: str) -> None:
    made = flow(
        prompt("top"),
        Block(
            id="each",
            type="Workflow",
            for_each={"ann": 1, "bob": 2},
            inputs={"workflow": "child", "inputs": {"who": "{{ each.key }}"}},
        ),
        prompt("turn", "{{ each.value }}?", for_each=["x", "y"], for_each_mode="sequential"),
        prompt("all", "{{ each.value }}?", for_each=["x", "y"]),
        outputs={
            "each": "{{ blocks.each.outputs }}",
            "turn": "{{ blocks.turn.outputs | map(attribute='response') | list }}",
            "all": "{{ blocks.all.outputs | map(attribute='response') | list }}",
        },
    )
    async with opened(store, definitions=[child()]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == [
            "all[0]",
            "all[1]",
            "each[ann]/ok",
            "each[bob]/ok",
            "top",
            "turn[0]",
        ]
        # A loop goes on while other blocks of the wave are still asked about.
        outcome = await hf.workflows.resume("r", {"turn[0]": "t0", "each[bob]/ok": "no"})
        assert asked(outcome) == [
            "all[0]",
            "all[1]",
            "each[ann]/ok",
            "each[bob]/why",
            "top",
            "turn[1]",
        ]
        answers = {
            "turn[1]": "t1",
            "all[1]": "a1",
            "all[0]": "a0",
            "top": "",
            "each[ann]/ok": "yes",
        }
        outcome = await hf.workflows.resume("r", {**answers, "each[bob]/why": "late"})
        assert (outcome.status, outcome.outputs) == (
            "completed",
            {
                "each": {"ann": {"said": "yes"}, "bob": {"said": "no"}},
                "turn": ["t0", "t1"],
                "all": ["a0", "a1"],
            },
        )
        assert [run.run_id for run in await hf.workflows.list()] == ["r"]
        assert len(await hf.workflows.list("child", nested=True)) == 2


@async_test
async def test_three_levels_ask_and_give_back(store: str) -> None:
    low = flow(prompt("q"), name="low", outputs={"r": "{{ [blocks.q.outputs.response, none] }}"})
    mid = flow(
        Block(
            id="m",
            type="Workflow",
            for_each=[1, 2],
            for_each_mode="sequential",
            inputs={"workflow": "low"},
        ),
        name="mid",
        outputs={"r": "{{ blocks.m.outputs }}"},
    )
    top = flow(
        Block(id="t", type="Workflow", inputs={"workflow": "mid"}),
        prompt("after", depends_on=["t"]),
        outputs={"r": "{{ blocks.t.outputs.r[1].r }}"},
    )
    async with opened(store, definitions=[low, mid]) as hf:
        outcome = await hf.workflows.run(top, run_id="r")
        for path in ("t/m[0]/q", "t/m[1]/q", "after"):
            assert asked(outcome) == [path]
            outcome = await hf.workflows.resume("r", {path: path})
    assert outcome.outputs == {"r": ["t/m[1]/q", None]}


@async_test
async def test_a_failure_below_is_told_above() -> None:
    notes = Notes()
    notes.fails["low"] = 1
    low = flow(call("low"), name="child")
    made = flow(Block(id="a", type="Workflow", inputs={"workflow": "child"}))
    async with opened(HERE, tools=[notes.tool], definitions=[low]) as hf:
        outcome = await hf.workflows.run(made)
    assert outcome.status == "failed"
    assert outcome.blocks["a"].error.startswith("workflow child: block low failed: ")


@async_test
async def test_a_question_has_a_deadline_and_a_default(backend: Any) -> None:
    clock = ManualClock()
    made = flow(
        prompt("a", timeout=3600, default="silence"),
        prompt("b", timeout=7200),
        outputs={"a": "{{ blocks.a.outputs.response }}"},
    )
    kit = Kit()
    async with holdfast.Holdfast(backend.url, clock=clock, workflows=kit) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert all(each.deadline is not None for each in outcome.waiting)
        clock.advance(3601)
        outcome = await hf.workflows.resume("r", timeout=10)
        assert asked(outcome) == ["b"]
        clock.advance(3600)
        outcome = await hf.workflows.resume("r", timeout=10)
    assert outcome.status == "failed"
    assert "nobody answered 'b?' in time" in outcome.error
    assert outcome.blocks["a"].outputs == {"response": "silence"}


@pytest.mark.mission("S1-030")
@async_test
async def test_a_paused_run_goes_on_with_the_definition_it_was_started_with(store: str) -> None:
    """In another process that knows no file, no definition, and another version of the workflow."""
    notes = Notes()
    old = flow(
        Block(id="n", type="Workflow", inputs={"workflow": "child", "inputs": {"who": "old"}}),
        call("pay", depends_on=["n"]),
    )
    async with opened(store, tools=[notes.tool], definitions=[child()]) as hf:
        await hf.workflows.run(old, run_id="r")
    newer = flow(prompt("ok", "Something else?"), name="child")
    async with opened(store, tools=[notes.tool], definitions=[newer]) as hf:
        assert (await hf.workflows.definition("r")) == old
        (waiting,) = (await hf.workflows.status("r")).waiting
        assert waiting.prompt == "May old come in?"
        outcome = await hf.workflows.resume("r", {"n/ok": "yes"})
    assert (outcome.status, notes.done) == ("completed", ["pay"])


@async_test
async def test_waits_for_moments_signals_agents_and_permissions(store: str) -> None:
    paid: list[int] = []

    @holdfast.tool(approval=True)
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    @holdfast.agent
    async def research(run: holdfast.Run, topic: str) -> str:
        return f"about {topic}"

    made = flow(
        Block(id="a", type="Agent", inputs={"agent": "research", "input": "cats"}),
        Block(id="s", type="Wait", inputs={"signal": "go"}),
        Block(id="t", type="Wait", inputs={"seconds": 0.05}),
        Block(id="p", type="Tool", inputs={"tool": "pay", "args": {"cents": 5}}),
        outputs={"a": "{{ blocks.a.outputs.result }}", "s": "{{ blocks.s.outputs.value }}"},
    )
    async with opened(store, tools=[pay], agents=[research]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        (question,) = outcome.waiting
        assert (question.kind, question.block) == ("approval", "p")
        await hf.signal("r", "go", {"n": 1})
        outcome = await hf.workflows.resume("r", {question.wait_id: "yes"}, by="ann")
        assert await hf.workflows.resume("r", {question.wait_id: True}, by="ann") == outcome
    assert (outcome.status, paid) == ("completed", [5])
    assert outcome.outputs == {"a": "about cats", "s": {"n": 1}}
