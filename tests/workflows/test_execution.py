"""Waves, conditions, failures and loops: what is carried out, in which order, with what end."""

import asyncio
import os
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import InputDiffers, WorkflowInvalid
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, BlockRun, Dependency, Input, Output
from holdfast.workflows.execution.events import BlockEnded, Event, WaveBegan
from tests.workflows.flows import Notes, call, flow, opened, prompt

HERE = "memory://"


@pytest.mark.mission("S1-011")
@async_test
async def test_blocks_go_wave_by_wave_and_give_to_those_that_come_after(store: str) -> None:
    notes, told = Notes(), list[Event]()
    made = flow(
        call("c", depends_on=["a", "b"], args={"what": "{{ blocks.a.outputs.result }}!"}),
        call("a"),
        call("b", args={"what": "{{ inputs.n + 1 }}"}),
        inputs={"n": Input(type="int", default=1)},
        outputs={
            "text": "{{ blocks.c.outputs.result }}",
            "number": Output(value="{{ inputs.n }}", type="int"),
        },
    )
    async with opened(store, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, {"n": 4}, run_id="r", observe=told.append)
        assert (outcome.status, outcome.error) == ("completed", "")
        assert outcome.outputs == {"text": "a noted! noted", "number": 4}
        assert outcome.waves == [["a", "b"], ["c"]]
        assert outcome.completed_waves == 2
        assert sorted(map(str, notes.done)) == ["5", "a", "a noted!"]
        assert notes.done[-1] == "a noted!"
        assert [event.blocks for event in told if isinstance(event, WaveBegan)] == outcome.waves
        history = await hf.checkpoints.history("r")
        assert [c.phase for c in reversed(history)] == ["wave 1 of 2", "wave 2 of 2"]
        again = await hf.workflows.run(made, {"n": 4}, run_id="r")
        assert (again.outputs, len(notes.done)) == (outcome.outputs, 3)
        with pytest.raises(InputDiffers, match=r"'r' was started with other inputs: 'n'\."):
            await hf.workflows.run(made, {"n": 5}, run_id="r")
        edited = msgspec.structs.replace(made, description="edited since")
        changed = r"with another definition: 'main' changed since\. .*`holdfast workflows resume r`"
        with pytest.raises(InputDiffers, match=changed):
            await hf.workflows.run(edited, {"n": 4}, run_id="r")
        with pytest.raises(InputDiffers) as refused:
            await hf.workflows.run(edited, {"n": 4}, run_id="r", owner="eve")
        assert "changed" not in str(refused.value)


@async_test
async def test_what_is_equal_in_two_blocks_is_done_twice(store: str) -> None:
    notes = Notes()
    same = {"what": "again"}
    made = flow(
        call("a", args=same),
        call("b", args=same),
        call("c", args=same, depends_on=["a"]),
        call("d", args=same, for_each=[1, 2], depends_on=["c"]),
    )
    async with opened(store, tools=[notes.tool]) as hf:
        assert (await hf.workflows.run(made)).status == "completed"
    assert notes.done == ["again"] * 5


@async_test
async def test_conditions_choose_a_branch_and_what_comes_after_is_skipped() -> None:
    notes = Notes()
    made = flow(
        call("yes", condition="{{ inputs.go }}"),
        call("no", condition="not inputs.go"),
        call("after", depends_on=["no"]),
        call("always", depends_on=[Dependency(block="no", required=False)]),
        inputs={"go": Input(type="bool")},
        outputs={"no": "{{ blocks.no.skipped }}", "yes": "{{ blocks.yes.succeeded }}"},
    )
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, {"go": True})
    assert (outcome.status, outcome.outputs) == ("completed", {"no": True, "yes": True})
    assert notes.done == ["yes", "always"]
    assert outcome.blocks["after"].error == "no was skipped"
    assert outcome.blocks["no"].error == "its condition does not hold"


@async_test
async def test_a_failed_block_fails_the_workflow_after_all_that_can_be_done(store: str) -> None:
    """Dependants are skipped, others go on, cleaning up comes last, and it is failed everywhere."""
    notes = Notes()
    notes.fails["bad"] = 1
    made = flow(
        call("bad"),
        call("other"),
        call("after", depends_on=["bad"]),
        call("far", depends_on=["after"]),
        call(
            "clean",
            depends_on=[Dependency(block="bad", required=False)],
            condition="{{ blocks.bad.failed }}",
        ),
        outputs={"never": "{{ blocks.other.outputs.result }}"},
    )
    async with opened(store, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert outcome.status == "failed"
        assert "block bad failed" in outcome.error
        assert "no bad today" in outcome.error
        assert outcome.outputs is None
        assert notes.done == ["other", "clean"]
        assert {name: result.status for name, result in outcome.blocks.items()} == {
            "bad": "failed",
            "other": "completed",
            "after": "skipped",
            "far": "skipped",
            "clean": "completed",
        }
        assert (await hf.runs.get("r")).status == "failed"
        assert [run.run_id for run in await hf.workflows.list("main", status="failed")] == ["r"]
        assert await hf.workflows.status("r") == outcome


@async_test
async def test_an_error_that_is_pardoned_lets_the_rest_go_on() -> None:
    notes = Notes()
    notes.fails["bad"] = 1
    made = flow(
        call("bad", continue_on_error=True),
        call("after", depends_on=["bad"], args={"what": "{{ blocks.bad.error }}"}),
        outputs={"failed": "{{ blocks.bad.failed }}"},
    )
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made)
    assert (outcome.status, outcome.outputs) == ("completed", {"failed": True})
    assert "no bad today" in notes.done[0]


@async_test
async def test_a_block_is_tried_again_as_often_as_it_says() -> None:
    notes = Notes()
    notes.fails |= {"twice": 2, "thrice": 3}
    made = flow(call("twice", retries=2), call("thrice", retries=2))
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made)
    assert notes.done == ["twice"]
    assert (outcome.blocks["twice"].attempts, outcome.blocks["thrice"].attempts) == (3, 3)
    assert outcome.blocks["thrice"].status == "failed"


@async_test
async def test_loops_go_over_lists_and_maps() -> None:
    notes = Notes()
    notes.fails["1b"] = 1
    made = flow(
        call(
            "list", for_each="{{ ['a', 'b'] }}", args={"what": "{{ each.index }}{{ each.value }}"}
        ),
        call("map", for_each={"x": 1, "y y/": 2}, args={"what": "{{ each.key }}={{ each.value }}"}),
        call("none", for_each=[]),
        call(
            "odd",
            for_each=[1, 2, 3],
            condition="{{ each.value % 2 }}",
            args={"what": "{{ each.value }}"},
        ),
        call(
            "end", depends_on=["map", "none"], args={"what": "{{ blocks.map.outputs['x'].result }}"}
        ),
        outputs={
            "second": "{{ blocks.map.rounds['y y/'].succeeded }}",
            "odd": "{{ blocks.odd.rounds | map(attribute='status') | list }}",
            "none": "{{ blocks.none.outputs }}",
        },
    )
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made)
    assert outcome.status == "failed"
    assert outcome.blocks["list"].error.startswith("1 of 2 rounds failed: ")
    assert sorted(map(str, notes.done)) == ["0a", "1", "3", "x=1", "x=1 noted", "y y/=2"]
    rounds = outcome.blocks["odd"].rounds
    assert rounds is not None
    assert [each.status for each in rounds] == ["completed", "skipped", "completed"]
    assert outcome.blocks["none"].status == "completed"


@pytest.mark.parametrize("pardons", [False, True])
@async_test
async def test_a_loop_one_after_another_stops_at_the_first_error_unless_it_is_pardoned(
    pardons: bool,
) -> None:
    notes = Notes()
    notes.fails[2] = 1
    made = flow(
        call(
            "loop",
            for_each=[1, 2, 3],
            for_each_mode="sequential",
            continue_on_error=pardons,
            args={"what": "{{ each.value }}"},
        )
    )
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made)
    assert notes.done == ([1, 3] if pardons else [1])
    assert outcome.status == ("completed" if pardons else "failed")
    rounds = outcome.blocks["loop"].rounds
    assert rounds is not None
    assert [r.status for r in rounds][2] == ("completed" if pardons else "skipped")


@async_test
async def test_no_more_rounds_run_at_once_than_a_loop_says_and_blocks_of_a_wave_do() -> None:
    running, most = set[int](), list[int]()
    met = asyncio.Barrier(2)

    @holdfast.tool(effect="read")
    async def work(n: int) -> None:
        running.add(n)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.discard(n)

    @holdfast.tool(effect="read")
    async def meet() -> None:
        await asyncio.wait_for(met.wait(), 60)

    made = flow(
        call(
            "loop",
            "work",
            for_each="{{ range(12) }}",
            max_parallel=3,
            args={"n": "{{ each.value }}"},
        ),
        call("one", "meet", args={}),
        call("two", "meet", args={}),
    )
    async with opened(HERE, tools=[work, meet]) as hf:
        assert (await hf.workflows.run(made)).status == "completed"
    assert max(most) == 3


@pytest.mark.parametrize(
    ("said", "most_at_once"), [(None, max(8, 4 * (os.cpu_count() or 1))), (2, 2)]
)
@async_test
async def test_a_wave_carries_out_so_many_blocks_at_once(
    said: int | None, most_at_once: int
) -> None:
    running: set[int] = set()
    most: list[int] = []

    @holdfast.tool(effect="read")
    async def work(n: int) -> None:
        running.add(n)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.discard(n)

    count = 3 * most_at_once
    made = flow(*(call(f"b{n}", "work", args={"n": n}) for n in range(count)), max_parallel=said)
    async with opened(HERE, tools=[work]) as hf:
        assert (await hf.workflows.run(made)).status == "completed"
    assert len(most) == count
    assert max(most) == most_at_once


@async_test
async def test_an_expression_that_breaks_fails_its_block_and_says_so() -> None:
    notes = Notes()
    made = flow(
        call("a", args={"what": "{{ inputs.d.missing }}"}),
        call("b", condition="{{ inputs.d.missing > 1 }}"),
        call("c", for_each="{{ inputs.d.x }}"),
        call("d", args={"what": "{{ 'x' * 100000000 }}"}),
        call("e", args={"what": "{{ ().__class__ }}"}),
        inputs={"d": Input(type="dict", default={"x": 5})},
    )
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made)
    errors = {name: result.error for name, result in outcome.blocks.items()}
    assert "'dict object' has no attribute 'missing'" in errors["a"]
    assert "missing" in errors["b"]
    assert "goes over a list or a map, not over int" in errors["c"]
    assert "repeats something too often" in errors["d"]
    assert "__class__" in errors["e"]
    assert outcome.status == "failed"
    assert notes.done == []


@async_test
async def test_inputs_are_checked_all_at_once_before_anything_runs() -> None:
    made = flow(
        prompt("a"),
        inputs={
            "region": Input(choices=["eu", "us"]),
            "count": Input(type="int"),
            "size": Input(type="num", default=1.5),
            "note": Input(required=False),
        },
    )
    async with opened(HERE) as hf:
        with pytest.raises(WorkflowInvalid) as raised:
            await hf.workflows.run(made, {"region": "mars", "cuont": 3, "size": "big"})
        assert len(raised.value.problems) == 4
        for told in ("'eu', 'us'", "did you mean 'count'", "must be given (int)", "type num"):
            assert told in str(raised.value)
        assert await hf.workflows.list() == []


@async_test
async def test_the_time_is_read_once_for_a_wave(store: str) -> None:
    """After a pause it is what it was: a question that tells the time is not asked again."""
    made = flow(
        prompt("a", "Ship it now, at {{ now }}?"),
        outputs={"year": "{{ now().year >= 2024 }}", "at": "{{ now }}"},
    )
    async with opened(store) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        (asked,) = outcome.waiting
        assert "T" in asked.prompt
        outcome = await hf.workflows.resume("r", {"a": "yes"})
    assert (outcome.status, (outcome.outputs or {})["year"]) == ("completed", True)


class DoubleInputs(msgspec.Struct, forbid_unknown_fields=True):
    n: int


class Double:
    name = "Double"
    inputs = DoubleInputs
    waits = False
    takes_secrets = False

    async def execute(self, block: BlockRun, inputs: DoubleInputs) -> dict[str, Any]:
        return {"twice": await block.run.step(lambda: inputs.n * 2)}


@async_test
async def test_types_of_ones_own_take_part() -> None:
    made = flow(
        Block(id="a", type="Double", inputs={"n": "{{ 20 + 1 }}"}),
        outputs={"n": "{{ blocks.a.outputs.twice }}"},
    )
    async with opened(HERE, types=[Double()]) as hf:
        assert (await hf.workflows.run(made)).outputs == {"n": 42}
        wrong = flow(Block(id="a", type="Double", inputs={"n": "{{ 'x' }}"}), name="wrong")
        outcome = await hf.workflows.run(wrong)
    assert "do not fit a Double block" in outcome.blocks["a"].error


@async_test
async def test_events_tell_how_blocks_ended() -> None:
    notes, told = Notes(), list[Event]()
    notes.fails["b"] = 1
    async with opened(HERE, tools=[notes.tool]) as hf:
        await hf.workflows.run(flow(call("a"), call("b")), observe=told.append)
    ended = {event.path: event for event in told if isinstance(event, BlockEnded)}
    assert {path: event.status for path, event in ended.items()} == {
        "a": "completed",
        "b": "failed",
    }
    assert "no b today" in ended["b"].error


@async_test
async def test_outputs_that_nothing_refers_to_any_more_are_taken_out_of_the_state(
    store: str,
) -> None:
    notes = Notes()
    made = flow(
        call("a"),
        call("b", depends_on=["a"], args={"what": "{{ blocks.a.outputs.result }}"}),
        call("c", depends_on=["b"]),
        outputs={"b": "{{ blocks.b.outputs.result }}"},
    )
    async with opened(store, tools=[notes.tool], prunes=True) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert outcome.outputs == {"b": "a noted noted"}
        state = await hf.checkpoints.load("r")
        assert state["block.a"]["outputs"] is None
        assert outcome.blocks["a"].is_pruned
        assert outcome.blocks["a"].outputs is None
        assert outcome.blocks["b"].outputs == {"result": "a noted noted"}
