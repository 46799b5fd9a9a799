"""Answers find the question they are meant for, and no other; late and repeated ones do no harm."""

from typing import Any

import pytest

import holdfast
from holdfast.agents.run import Run
from holdfast.errors import AlreadyAnswered, AnswerRefused, WaitNotFound
from holdfast.kernel.effects import EffectStatus as EffectStatus
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Workflow
from tests.workflows.flows import Notes, call, flow, opened, prompt

HERE = "memory://"


def asked(outcome: Any) -> list[str]:
    return sorted(each.block for each in outcome.waiting)


class Deploys:
    """A tool that a person must permit."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @holdfast.tool(effect="mutate", approval=True)
        async def deploy(what: str) -> str:
            self.done.append(what)
            return what

        self.tool = deploy


@holdfast.agent(name="helper")
async def helper(run: Run, times: int) -> list[Any]:
    return [await run.ask(f"May I, {at}?", name="approve") for at in range(times)]


@async_test
async def test_who_permits_a_call_answers_its_block_and_a_repeated_yes_permits_no_other(
    store: str,
) -> None:
    deploys = Deploys()
    made = flow(call("staging", "deploy"), call("production", "deploy"), prompt("deploy"))
    async with opened(store, tools=[deploys.tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == ["deploy", "production", "staging"]
        for _ in range(2):
            outcome = await hf.workflows.resume("r", {"staging": "yes"})
            assert asked(outcome) == ["deploy", "production"]
        outcome = await hf.workflows.resume("r", {"deploy": "yes"})
        assert asked(outcome) == ["production"]
        outcome = await hf.workflows.resume("r", {"production": "no"})
        assert (outcome.status, deploys.done) == ("failed", ["staging"])


@async_test
async def test_what_an_agent_asks_goes_by_its_block_and_is_answered_once(store: str) -> None:
    made = flow(
        prompt("approve"),
        Block(id="help", type="Agent", inputs={"agent": "helper", "input": 2}),
        outputs={"said": "{{ blocks.help.outputs.result }}"},
    )
    async with opened(store, agents=[helper]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == ["approve", "help/approve"]
        for _ in range(2):
            outcome = await hf.workflows.resume("r", {"approve": "publish"})
            assert asked(outcome) == ["help/approve"]
        for _ in range(2):
            outcome = await hf.workflows.resume("r", {"help/approve": "yes"})
            assert asked(outcome) == ["help/approve~2"]
        assert (await hf.workflows.asked("r", "help/approve~2")).prompt == "May I, 1?"
        outcome = await hf.workflows.resume("r", {"help/approve~2": "no"})
        assert outcome.outputs == {"said": ["yes", "no"]}


@async_test
async def test_agents_in_a_loop_ask_by_their_rounds() -> None:
    made = flow(
        Block(
            id="help",
            type="Agent",
            for_each=["a", "b"],
            for_each_mode="parallel",
            inputs={"agent": "helper", "input": 1},
        )
    )
    async with opened(HERE, agents=[helper]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == ["help[0]/approve", "help[1]/approve"]
        with pytest.raises(WaitNotFound, match=r"help\[0\]/approve"):
            await hf.workflows.resume("r", {"approve": "yes"})


@async_test
async def test_two_open_questions_of_one_name_are_answered_by_their_ids_only() -> None:
    @holdfast.agent(name="twice")
    async def twice(run: Run, _: Any) -> list[Any]:
        return list(await run.gather(run.peer("helper", 1), run.peer("helper", 1)))

    made = flow(
        Block(id="help", type="Agent", inputs={"agent": "twice", "input": 1}),
        outputs={"said": "{{ blocks.help.outputs.result }}"},
    )
    async with opened(HERE, agents=[helper, twice]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == ["help/approve", "help/approve"]
        with pytest.raises(AnswerRefused, match=outcome.waiting[0].wait_id):
            await hf.workflows.resume("r", {"help/approve": "yes"})
        answers = {each.wait_id: "yes" for each in outcome.waiting}
        outcome = await hf.workflows.resume("r", answers)
        assert outcome.outputs == {"said": [["yes"], ["yes"]]}


def tried_again() -> tuple[Notes, Workflow, Workflow]:
    notes = Notes()
    notes.fails = {"yes": 1}
    said = "{{ blocks.ok.outputs.response }}"
    below = flow(prompt("ok"), call("use", depends_on=["ok"], args={"what": said}), name="below")
    top = flow(Block(id="w", type="Workflow", retries=1, inputs={"workflow": "below"}))
    return notes, below, top


@async_test
async def test_a_repeated_answer_is_none_to_the_next_attempt(store: str) -> None:
    notes, below, top = tried_again()
    async with opened(store, tools=[notes.tool], definitions=[below]) as hf:
        assert asked(await hf.workflows.run(top, run_id="r")) == ["w/ok"]
        for _ in range(2):
            outcome = await hf.workflows.resume("r", {"w/ok": "yes"})
            assert asked(outcome) == ["w~2/ok"]
        outcome = await hf.workflows.resume("r", {"w~2/ok": "yes"})
        assert (outcome.status, notes.done) == ("completed", ["yes"])


@pytest.mark.parametrize("pardoned", [True, False])
@async_test
async def test_a_loop_whose_run_is_lost_is_a_block_that_failed(pardoned: bool) -> None:
    notes = Notes()
    loop = prompt("b", for_each=[1, 2], for_each_mode="sequential", continue_on_error=pardoned)
    made = flow(loop, call("after", depends_on=["b"]), call("beside"))
    async with opened(HERE, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        await hf.workflows.cancel(outcome.waiting[0].run_id)
        outcome = await hf.workflows.resume("r")
        assert outcome.status == ("completed" if pardoned else "failed")
        assert outcome.blocks["b"].status == "failed"
        assert "cancelled" in outcome.blocks["b"].error
        assert notes.done == (["beside", "after"] if pardoned else ["beside"])


@async_test
async def test_what_is_no_verdict_is_refused_also_when_one_was_given() -> None:
    deploys = Deploys()
    async with opened(HERE, tools=[deploys.tool]) as hf:
        await hf.workflows.run(flow(call("it", "deploy")), run_id="r")
        for given in (None, "yes"):
            await hf.workflows.resume("r", {} if given is None else {"it": given})
            for odd in ("maybe", ["x"], {"a": 1}, 1, None):
                with pytest.raises(AnswerRefused, match="Say yes or no"):
                    await hf.workflows.resume("r", {"it": odd})
        with pytest.raises(AlreadyAnswered):
            await hf.workflows.resume("r", {"it": "no"})
        assert (await hf.workflows.resume("r", {"it": True})).status == "completed"
        assert deploys.done == ["it"]


@async_test
async def test_if_one_answer_conflicts_none_is_given(store: str) -> None:
    async with opened(store) as hf:
        await hf.workflows.run(flow(prompt("a"), prompt("b"), prompt("c")), run_id="r")
        await hf.workflows.resume("r", {"a": "first"})
        with pytest.raises(AlreadyAnswered):
            await hf.workflows.resume("r", {"c": "new", "a": "another", "b": "new"})
        assert asked(await hf.workflows.status("r")) == ["b", "c"]


class Doubts:
    """A tool of whose call nobody knows whether it happened."""

    def __init__(self) -> None:
        @holdfast.tool(effect="mutate")
        async def doubt(what: str) -> str:
            raise ValueError(f"who knows whether {what} was done")

        self.tool = doubt


async def settle_all(hf: holdfast.Holdfast) -> None:
    for effect in await hf.effects.unsettled(status=EffectStatus.UNKNOWN):
        await hf.effects.settle(
            effect.effect_id, EffectStatus.COMPLETED, by="ann", result="done after all"
        )


@pytest.mark.parametrize("is_first", [True, False])
@async_test
async def test_a_prompt_beside_a_blocked_block_is_asked_and_answered_meanwhile(
    store: str, is_first: bool
) -> None:
    blocks = [prompt("ask"), call("it", "doubt")]
    made = flow(
        *(blocks if is_first else reversed(blocks)),
        outputs={"said": "{{ blocks.ask.outputs.response }} {{ blocks.it.outputs.result }}"},
    )
    async with opened(store, tools=[Doubts().tool]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert (outcome.status, asked(outcome)) == ("blocked", ["ask"])
        outcome = await hf.workflows.resume("r", {"ask": "yes"})
        assert (outcome.status, asked(outcome)) == ("blocked", [])
        await settle_all(hf)
        outcome = await hf.workflows.resume("r")
        assert outcome.outputs == {"said": "yes done after all"}


@async_test
async def test_a_prompt_asked_while_blocked_may_be_answered_after_it() -> None:
    below = flow(prompt("ask"), call("it", "doubt"), name="below")
    made = flow(Block(id="w", type="Workflow", inputs={"workflow": "below"}))
    async with opened(HERE, tools=[Doubts().tool], definitions=[below]) as hf:
        outcome = await hf.workflows.run(made, run_id="r")
        assert asked(outcome) == ["w/ask"]
        await settle_all(hf)
        outcome = await hf.workflows.resume("r")
        assert (outcome.status, asked(outcome)) == ("waiting", ["w/ask"])
        assert (await hf.workflows.resume("r", {"w/ask": "yes"})).status == "completed"


async def delay(hf: holdfast.Holdfast, run_id: str) -> None:
    held = await hf.leases.take(run_id)
    await held.release(delay_seconds=300, note="shell may still be running")


@async_test
async def test_what_a_workflow_waits_for_is_told(caplog: pytest.LogCaptureFixture) -> None:
    below = flow(prompt("ask"), name="below")
    made = flow(Block(id="w", type="Workflow", inputs={"workflow": "below"}))
    async with opened(HERE, definitions=[below]) as hf:
        await hf.workflows.start(flow(prompt("a")), run_id="alone")
        await delay(hf, "alone")
        await hf.workflows.resume("alone", timeout=0.2)
        assert "alone goes on in 300 s: shell may still be running" in caplog.text
        (question,) = (await hf.workflows.run(made, run_id="r")).waiting
        await hf.workflows.answer("r", {"w/ask": "yes"})
        await delay(hf, question.run_id)
        await hf.workflows.resume("r", timeout=2.5)
        assert f"{question.run_id} goes on in" in caplog.text


@async_test
async def test_a_pass_that_finds_its_questions_open_asks_them_no_second_time(store: str) -> None:
    made = flow(prompt("ask"), call("it", "doubt"))
    async with opened(store, tools=[Doubts().tool]) as hf:
        (question,) = (await hf.workflows.run(made, run_id="r")).waiting
        # As if the process had died when the question was stored and the run not yet blocked.
        await hf.runs.unblock("r", by="ann")
        outcome = await hf.workflows.resume("r")
        assert outcome.status == "blocked"
        assert [each.wait_id for each in outcome.waiting] == [question.wait_id]
