"""A run re-enters with its last checkpoint, and what its turn has on record is given back."""

import asyncio
import gc
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCall, Usage
from holdfast.agents.turn.turn import Turn
from holdfast.errors import (
    InputDiffers,
    MisuseError,
    RunBlocked,
    RunFailed,
    TurnDiverged,
    UnsupportedValue,
)
from holdfast.telemetry import BATCH_COMMITTED
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


@dataclass
class Step:
    what: str
    done: bool = False


@dataclass
class Plan:
    goal: str
    steps: list[Step] = field(default_factory=list)


@async_test
async def test_same_id_and_input_give_the_stored_answer_and_another_input_raises(
    store: str,
) -> None:
    calls: list[str] = []

    @holdfast.agent
    async def double(run: holdfast.Run, number: int) -> int:
        calls.append(run.run_id)
        return number * 2

    async with holdfast.Holdfast(store, agents=[double]) as hf:
        assert await hf.run(double, 21, run_id="r") == 42
        assert await hf.run(double, 21, run_id="r") == 42
        with pytest.raises(InputDiffers, match="another input"):
            await hf.run(double, 22, run_id="r")
    assert calls == ["r"]


@pytest.mark.mission("S0-004")
@async_test
async def test_reply_is_not_paid_for_twice_when_the_agent_dies_after_it(store: str) -> None:
    paid: list[int] = []
    crashes = [True]

    async def model(talk: Any) -> Message:
        paid.append(len(talk))
        return Message.assistant("a reply " * 20, usage=Usage(usd=0.25, output_tokens=7))

    @holdfast.agent
    async def chat(run: holdfast.Run, request: str) -> str:
        talk = run.log("transcript", Message)
        if run.is_fresh:
            talk.append(Message.user(request))
        reply = await run.model(model, talk)
        talk.append(reply)
        await run.step(settle)
        if crashes:
            crashes.pop()
            raise Crash
        await run.checkpoint()
        return f"{reply.text.strip()} for {run.usage.usd}"

    async def settle() -> None:
        """Something to wait for: the reply is on disk by then."""

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        await start(hf, chat, "hello")
        assert await advance(hf, "r") is None
        ending = await advance(hf, "r")
        assert ending is not None
        assert ending.is_over
        assert (await hf.runs.result("r")).endswith("for 0.25")
        talk = (await hf.checkpoints.load("r"))["transcript"]
        assert [message["role"] for message in talk] == ["user", "assistant"]
        assert await hf.journal.verify("r") == []
    assert paid == [1]


@pytest.mark.mission("S4-072")
@async_test
async def test_turn_with_tools_costs_two_commits(store: str) -> None:
    counts: dict[str, int] = {}

    @holdfast.tool
    async def charge(cents: int) -> str:
        return f"charged {cents}"

    async def model(talk: Any, turn: int) -> Message:
        return Message.assistant(tool_calls=[ToolCall(f"c{turn}", "charge", {"cents": turn})])

    @holdfast.agent(tools=[charge])
    async def spend(run: holdfast.Run) -> list[int]:
        talk = run.log("transcript", Message)
        spent: list[int] = []
        for turn in range(5):
            before = counts.get(BATCH_COMMITTED, 0)
            reply = await run.model(model, talk, turn)
            talk.append(reply)
            talk.extend(await run.tools(reply.tool_calls))
            await run.checkpoint()
            spent.append(counts[BATCH_COMMITTED] - before)
        return spent

    def count(name: str, amount: int) -> None:
        counts[name] = counts.get(name, 0) + 1

    async with holdfast.Holdfast(store, agents=[spend], telemetry=count) as hf:
        assert await hf.run(spend, run_id="r") == [2] * 5
        assert (await kinds(hf, "r"))[2:7] == [
            "VERSIONS_RECORDED",
            "STEP_RECORDED",
            "EFFECT_ISSUED",
            "EFFECT_COMPLETED",
            "CHECKPOINT_CREATED",
        ]


@async_test
async def test_recorded_reply_is_named_in_the_transcript_not_stored_again(store: str) -> None:
    async def model(talk: Any) -> Message:
        return Message.assistant(random.Random(1).randbytes(10_000).hex())

    @holdfast.agent
    async def chat(run: holdfast.Run) -> int:
        talk = run.log("transcript", Message)
        talk.append(await run.model(model, talk))
        await run.checkpoint()
        return len(talk[0].text)

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        assert await hf.run(chat, run_id="r") == 20_000
        sizes = {e.kind: len(e.body or b"") for e in await hf.journal.read("r")}
        assert sizes["STEP_RECORDED"] > 1_000
        assert sizes["CHECKPOINT_CREATED"] < 100
        assert len((await hf.checkpoints.load("r"))["transcript"][0]["blocks"][0]["text"]) == 20_000


@pytest.mark.mission("S4-008", "S4-065")
@async_test
async def test_values_come_back_as_their_own_types_after_a_crash(store: str) -> None:
    crashes = [True]

    @holdfast.agent
    async def planner(run: holdfast.Run, goal: str) -> str:
        plan = run.value("plan", Plan, Plan(goal))
        if run.is_fresh:
            plan.set(Plan(goal, [Step("look", True), Step("leap")]))
            await run.checkpoint()
        if crashes:
            crashes.pop()
            raise Crash
        found = plan.get()
        assert isinstance(found, Plan)
        return ", ".join(f"{step.what}:{step.done}" for step in found.steps)

    async with holdfast.Holdfast(store, agents=[planner]) as hf:
        await start(hf, planner, "go")
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert await hf.runs.result("r") == "look:True, leap:False"


@async_test
async def test_effect_that_the_code_does_not_repeat_is_named_and_the_run_blocked(
    store: str,
) -> None:
    done: list[int] = []
    amounts = [500, 700]

    @holdfast.tool
    async def charge(cents: int) -> str:
        done.append(cents)
        return "ok"

    @holdfast.agent(tools=[charge])
    async def careless(run: holdfast.Run) -> str:
        amount = amounts.pop(0)
        await run.call(charge, amount)
        if amount == 500:
            raise Crash
        return "done"

    async with holdfast.Holdfast(store, agents=[careless]) as hf:
        await start(hf, careless)
        assert await advance(hf, "r") is None
        ending = await advance(hf, "r")
        assert ending is not None
        assert isinstance(ending.error, TurnDiverged)
        assert "charge" in str(ending.error)
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "breaker")
        with pytest.raises(RunBlocked, match="charge"):
            await hf.run(careless, run_id="r")
    assert done == [500]


@async_test
async def test_divergence_is_not_swallowed(store: str) -> None:
    passes = [1, 2]

    @holdfast.tool
    async def charge(cents: int) -> str:
        return "ok"

    @holdfast.agent(tools=[charge])
    async def careless(run: holdfast.Run) -> str:
        if passes.pop(0) == 1:
            await run.call(charge, 1)
            raise Crash
        with suppress(Exception):
            await run.checkpoint()
        return "as if nothing had happened"

    async with holdfast.Holdfast(store, agents=[careless]) as hf:
        await start(hf, careless)
        assert await advance(hf, "r") is None
        ending = await advance(hf, "r")
        assert ending is not None
        assert isinstance(ending.error, TurnDiverged)
        assert (await hf.runs.get("r")).status == "blocked"


@async_test
async def test_agent_that_raises_fails_its_run_and_says_what(store: str) -> None:
    @holdfast.agent
    async def broken(run: holdfast.Run) -> str:
        run.value("x", int, 0).set(5)
        raise ValueError("no such order")

    async with holdfast.Holdfast(store, agents=[broken]) as hf:
        with pytest.raises(RunFailed, match="ValueError: no such order") as failed:
            await hf.run(broken, run_id="r")
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(RunFailed, match="no such order"):
            await hf.run(broken, run_id="r")
        assert "test_turns" in (await hf.runs.result("r"))["traceback"]
        assert (await hf.checkpoints.load("r")).version == 0


@pytest.mark.parametrize(
    ("details", "kept"),
    [({"code": 7}, {"code": 7}), ({"code": object()}, {}), (7, {}), ({"traceback": "mine"}, {})],
)
@async_test
async def test_what_an_exception_says_of_itself_is_on_record_if_it_can_be(
    details: Any, kept: dict[str, Any]
) -> None:
    class Telling(Exception):
        failure_details = details

    @holdfast.agent
    async def broken(run: holdfast.Run) -> str:
        raise Telling("no such order")

    async with holdfast.Holdfast("memory://", agents=[broken]) as hf:
        with pytest.raises(RunFailed, match="no such order"):
            await hf.run(broken, run_id="r")
        found = await hf.runs.result("r")
        assert "Telling" in found.pop("traceback")
        assert found == kept


@async_test
async def test_step_without_a_type_that_would_come_back_otherwise_is_refused(store: str) -> None:
    async def untyped():  # type: ignore[no-untyped-def]
        return Plan("x")

    async def typed(n: int) -> Plan:
        return Plan("x" * n)

    @holdfast.agent
    async def steps(run: holdfast.Run) -> str:
        plan = await run.step(typed, 3)
        assert isinstance(plan, Plan)
        with pytest.raises(MisuseError, match="say in its signature"):
            await run.step(untyped)
        assert await run.step(lambda: [1, (2, 3)]) == [1, (2, 3)]
        return plan.goal

    async with holdfast.Holdfast(store, agents=[steps]) as hf:
        assert await hf.run(steps) == "xxx"


@async_test
async def test_equal_steps_are_told_apart_by_their_number(store: str) -> None:
    drawn: list[int] = []
    crashes = [True]

    async def draw() -> int:
        drawn.append(len(drawn))
        return drawn[-1]

    @holdfast.agent
    async def lottery(run: holdfast.Run) -> list[int]:
        first = [await run.step(draw) for _ in range(3)]
        if crashes:
            crashes.pop()
            raise Crash
        return [*first, await run.step(draw)]

    async with holdfast.Holdfast(store, agents=[lottery]) as hf:
        await start(hf, lottery)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert await hf.runs.result("r") == [0, 1, 2, 3]
    assert drawn == [0, 1, 2, 3]


@async_test
async def test_log_can_be_cut_replaced_and_read_like_a_list(store: str) -> None:
    @holdfast.agent
    async def editor(run: holdfast.Run) -> list[str]:
        log = run.log("log", str)
        log.extend(["a", "b", "c", "d"])
        await run.checkpoint()
        log[1] = "B"
        del log[0]
        log.append("e")
        log.cut(3)
        assert run.log("log", str) is log
        assert (len(log), log[-1], log[:2], "B" in log) == (3, "d", ["B", "c"], True)
        return list(log)

    async with holdfast.Holdfast(store, agents=[editor]) as hf:
        assert await hf.run(editor, run_id="r") == ["B", "c", "d"]
        assert (await hf.checkpoints.load("r"))["log"] == ["B", "c", "d"]


@async_test
async def test_part_of_another_type_is_refused(store: str) -> None:
    @holdfast.agent
    async def writes(run: holdfast.Run) -> str:
        run.log("log", str).append("a")
        with pytest.raises(MisuseError, match="kept by Holdfast"):
            run.value("holdfast.usage", int)
        with pytest.raises(MisuseError, match="before"):
            run.value("log", int)
        return "ok"

    @holdfast.agent(name="reads")
    async def reads(run: holdfast.Run) -> str:
        with pytest.raises(UnsupportedValue, match="log"):
            run.log("log", int)
        return "ok"

    async with holdfast.Holdfast(store, agents=[writes, reads]) as hf:
        assert await hf.run(writes, run_id="r") == "ok"
        fork = await hf.runs.fork("r", 1)
        held = await hf.leases.take(fork.run_id)
        with pytest.raises(UnsupportedValue):
            holdfast.Log(held, "log", int, lambda item: None)


@async_test
async def test_what_a_turn_has_started_does_not_keep_its_state_in_memory(store: str) -> None:
    """A task, say of a connection pool, copies the context it is made in, and may live for long."""
    left: list[asyncio.Task[bool]] = []

    @holdfast.agent
    async def starts(run: holdfast.Run) -> None:
        run.value("held", bytes).set(b"x" * 1000)
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[starts]) as hf:
        await hf.run(starts, run_id="large")
        gc.collect()
        turns = [each for each in gc.get_objects() if isinstance(each, Turn)]
        assert not left[0].done()
        left[0].cancel()
    assert [each for each in turns if each.held.run_id == "large"] == []
