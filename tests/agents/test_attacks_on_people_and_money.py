"""What attacks on questions, approvals, budgets, schedules and forks have found stays mended."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import Approval, Budget, Cost, Key, Message, ToolCall, Usage
from holdfast.errors import AlreadyAnswered, MisuseError, NotDone, RunEnded, ToolFailed
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, start


async def asked(hf: holdfast.Holdfast) -> dict[str, str]:
    return {request.prompt: request.wait_id for request in await hf.approvals.list()}


@async_test
async def test_tool_is_given_what_was_approved_whatever_others_do_to_it(store: str) -> None:
    sent: list[list[int]] = []
    orders = [5]

    def rule(cents: list[int]) -> bool:
        cents.append(1)
        return True

    @holdfast.tool(approval=rule)
    async def pay(cents: list[int]) -> str:
        sent.append(list(cents))
        cents.append(9)
        return "paid"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        orders[:] = [5]

        async def change() -> None:
            orders[0] = 5_000_000

        told, _ = await run.gather(run.call(pay, orders), change())
        return told

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        assert request.args == {"cents": [5]}
        await hf.approvals.approve(request.wait_id, by="boss")
        assert await hf.run(agent, run_id="r") == "paid"
        assert sent == [[5]]
        (effect,) = await hf.effects.of_run("r")
        assert effect.args_digest.hex() == request.args_digest


@async_test
async def test_number_is_the_same_operation_however_it_is_written(store: str) -> None:
    sent: list[float] = []

    @holdfast.tool
    async def pay(usd: float, memo: str = "") -> str:
        sent.append(usd)
        return "paid"

    @holdfast.agent(tools=[pay])
    async def agent(run: holdfast.Run) -> str:
        await run.call(pay, 5)
        await run.call(pay, 5.0, memo="")
        (told,) = await run.tools([ToolCall("1", "pay", {"usd": 5})])
        return told.results[0].content

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent) == "[idempotent replay of ]: paid"
        assert sent == [5.0]


@async_test
async def test_argument_of_another_type_is_refused_before_anything_is_done(store: str) -> None:
    @holdfast.tool
    async def pay(cents: int) -> str:
        return "paid"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        with pytest.raises(MisuseError, match="cents of pay is not a int"):
            await run.call(pay, "five")
        return "refused"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "refused"
        assert await hf.effects.of_run("r") == []


@async_test
async def test_parameter_that_was_added_does_not_send_again_in_a_fork(store: str) -> None:
    sent: list[int] = []

    def made(with_memo: bool) -> holdfast.Agent[..., Any]:
        async def pay(cents: int) -> str:
            sent.append(cents)
            return "paid"

        async def pay_with_memo(cents: int, memo: str = "") -> str:
            return await pay(cents)

        tool = holdfast.tool(name="pay")(pay_with_memo if with_memo else pay)

        @holdfast.agent(name="payer")
        async def agent(run: holdfast.Run) -> str:
            if run.is_fresh:
                await run.checkpoint()
            return await run.call(tool, 5)

        return agent

    old, new = made(False), made(True)
    async with holdfast.Holdfast(store, agents=[old]) as hf:
        assert await hf.run(old, run_id="q") == "paid"
    async with holdfast.Holdfast(store, agents=[new]) as hf:
        fork = await hf.runs.fork("q", 1)
        await advance(hf, fork.run_id)
        assert await hf.runs.result(fork.run_id) == "paid"
        assert sent == [5]


@async_test
async def test_approval_is_used_once_by_twins_in_branches(store: str) -> None:
    tried: list[int] = []

    @holdfast.tool(approval=True, not_done_on=(ValueError,))
    async def pay(cents: int) -> str:
        tried.append(cents)
        if len(tried) == 1:
            raise ValueError("declined")
        return "paid"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[str]:
        async def attempt() -> str:
            try:
                return await run.call(pay, 5)
            except ToolFailed as error:
                return str(error)

        told = await run.gather(attempt(), attempt())
        await run.ask("Well?")
        return list(told)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        first, second = await hf.approvals.list()
        await hf.approvals.reject(first.wait_id, by="boss")
        await hf.approvals.approve(second.wait_id, by="boss")
        await advance(hf, "r")
        await hf.approvals.answer((await asked(hf))["Well?"], "yes", by="ann")
        told = await hf.run(agent, run_id="r")
        assert tried == [5]
        assert sorted("declined" in each for each in told) == [False, True]


@async_test
async def test_rejection_does_not_lapse(tmp_path: Any) -> None:
    clock = ManualClock()

    @holdfast.tool(approval=Approval(valid_seconds=60))
    async def pay(cents: int) -> str:
        return "paid"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        try:
            await run.call(pay, 5)
        except ToolFailed as error:
            return f"{error} / {await run.ask('And now?')}"
        return "paid"

    async with holdfast.Holdfast(str(tmp_path / "s.db"), agents=[agent], clock=clock) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        await hf.approvals.reject(request.wait_id, by="boss")
        await advance(hf, "r")
        clock.advance(2 * 86_400)
        await hf.approvals.answer((await asked(hf))["And now?"], "nothing", by="ann")
        assert await hf.run(agent, run_id="r") == ("pay was not called: boss rejected it / nothing")


@async_test
async def test_approval_after_its_time_is_refused_though_nobody_has_swept(tmp_path: Any) -> None:
    clock = ManualClock()

    @holdfast.tool(approval=Approval(expires_seconds=10))
    async def pay(cents: int) -> str:
        return "paid"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return await run.call(pay, 5)

    async with holdfast.Holdfast(str(tmp_path / "s.db"), agents=[agent], clock=clock) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        clock.advance(11)
        with pytest.raises(AlreadyAnswered, match="the time to answer was over"):
            await hf.approvals.approve(request.wait_id, by="boss")


@async_test
async def test_permission_that_changes_after_the_approval_is_told_to_the_model(store: str) -> None:
    is_open = [True]

    @holdfast.tool(approval=True)
    async def pay(cents: int) -> str:
        return "paid"

    def office_hours(tool: Any, arguments: Any) -> bool:
        return is_open[0]

    @holdfast.agent(tools=[pay], permission=office_hours)
    async def agent(run: holdfast.Run) -> str:
        (told,) = await run.tools([ToolCall("1", "pay", {"cents": 5})])
        return told.results[0].content

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        await hf.approvals.approve(request.wait_id, by="boss")
        is_open[0] = False
        assert await hf.run(agent, run_id="r") == "pay was not called: it is not permitted"


@pytest.mark.parametrize("has_timeout", [True, False])
@async_test
async def test_signal_that_another_branch_takes_is_waited_for_again(
    store: str, has_timeout: bool
) -> None:
    limit: dict[str, Any] = {"timeout": 0.05, "default": "none"} if has_timeout else {}

    @holdfast.agent
    async def agent(run: holdfast.Run) -> list[str]:
        async def first() -> str:
            await run.ask("Ready?")
            return await run.signal("s", str)

        return list(await run.gather(first(), run.signal("s", str, **limit)))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.signal("r", "s", "one")
        await hf.approvals.answer((await asked(hf))["Ready?"], "yes", by="ann")
        running = asyncio.create_task(hf.run(agent, run_id="r"))
        await asyncio.sleep(0.2)
        with suppress(RunEnded):  # it did not wait for another
            await hf.signal("r", "s", "two")
        told = await asyncio.wait_for(running, 60)
        assert "one" in told
        assert set(told) <= {"one", "two", "none"}


@async_test
async def test_child_that_is_cancelled_in_a_paid_call_keeps_no_room_of_its_parent(
    store: str,
) -> None:
    began = asyncio.Event()

    async def slow() -> Message:
        began.set()
        await asyncio.sleep(60)
        return Message.assistant("never")

    async def quick() -> Message:
        return Message.assistant("done", usage=Usage(usd=1.0))

    @holdfast.agent(reserve=Cost(usd=1))
    async def stuck(run: holdfast.Run) -> str:
        return (await run.model(slow)).text

    @holdfast.agent(reserve=Cost(usd=1))
    async def other(run: holdfast.Run) -> str:
        return (await run.model(quick)).text

    async with holdfast.Holdfast(store, agents=[stuck, other]) as hf:
        await hf.runs.create("team", budget=Budget(usd=2))
        handle = await hf.start(stuck, run_id="a", parent="team")
        waiting = asyncio.create_task(handle.result())
        await asyncio.wait_for(began.wait(), 60)
        await hf.runs.cancel("a")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await hf.run(other, run_id="b", parent="team") == "done"
        with pytest.raises(holdfast.errors.RunBlocked, match="budget"):
            await hf.run(other, run_id="c", parent="team", timeout=30)
        assert await hf.budgets.reservations("team") == []


@async_test
async def test_model_that_is_cut_off_by_the_agent_counts_as_spent(store: str) -> None:
    limit = asyncio.timeout(None)

    async def slow() -> Message:
        limit.reschedule(asyncio.get_running_loop().time())  # not before the call is paid for
        await asyncio.sleep(60)
        return Message.assistant("never")

    @holdfast.agent(budget=Budget(usd=2), reserve=Cost(usd=1))
    async def agent(run: holdfast.Run) -> str:
        try:
            async with limit:
                await run.model(slow)
        except TimeoutError:
            return "went on"
        return "never"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "went on"
        assert await hf.budgets.reservations("r") == []
        assert (await hf.budgets.costs("r")).lost.usd_micros == 1_000_000


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, 10),
        ({"input_tokens": 7, "output_tokens": 3, "usd": 0.5}, 10),
        ({"nothing": 1}, 100),
        ({"input_tokens": "many"}, 100),
    ],
)
@async_test
async def test_usage_in_any_shape_is_counted_or_what_was_reserved_is(
    store: str, usage: dict[str, Any], tokens: int
) -> None:
    async def reply() -> dict[str, Any]:
        return {"text": "hello", "usage": usage}

    @holdfast.agent(budget=Budget(tokens=10**6), reserve=Cost(tokens=100))
    async def agent(run: holdfast.Run) -> str:
        return (await run.model(reply))["text"]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "hello"
        assert (await hf.budgets.costs("r")).total.tokens == tokens
        assert await hf.budgets.reservations("r") == []


@async_test
async def test_schedule_passes_over_what_is_no_change(store: str) -> None:
    @holdfast.agent
    async def report(run: holdfast.Run) -> str:
        return "done"

    async with holdfast.Holdfast(store, agents=[report]) as hf:
        await hf.schedule(report, name="s", every_seconds=3600)
        await advance(hf, "schedule:s")
        await hf.signal("schedule:s", "schedule", "garbage")
        await advance(hf, "schedule:s")
        assert (await hf.runs.get("schedule:s")).status == "waiting"
        (found,) = await hf.schedules.list()
        assert found.every_seconds == 3600
        changed = await hf.schedule(report, name="s", every_seconds=60)
        assert changed.every_seconds == 60


@async_test
async def test_edited_fork_goes_on_under_an_agent_that_refuses_changes(store: str) -> None:
    def made(version: str) -> holdfast.Agent[..., Any]:
        @holdfast.agent(name="made", version=version, on_change="refuse")
        async def agent(run: holdfast.Run) -> str:
            plan = run.value("plan", str, "old")
            if run.is_fresh:
                plan.set("old")
                await run.checkpoint()
            return plan.get()

        return agent

    first, second = made("1"), made("2")
    async with holdfast.Holdfast(store, agents=[first]) as hf:
        assert await hf.run(first, run_id="r") == "old"
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        fork = await hf.runs.fork("r", 1, by="ann", edits={"plan": "new"})
        await advance(hf, fork.run_id)
        assert await hf.runs.result(fork.run_id) == "new"


@async_test
async def test_question_nobody_could_answer_is_refused_when_it_is_asked(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> Any:
        with pytest.raises(MisuseError, match="cannot be used"):
            await run.ask("What?", schema={"$ref": "#/nowhere"})
        return await run.ask("Which?", choices=[(1, 2), (3, 4)])

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        await hf.approvals.answer((await asked(hf))["Which?"], [3, 4], by="ann")
        assert await hf.run(agent, run_id="r") == [3, 4]


@async_test
async def test_workers_lost_between_answers_were_not_without_progress(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        for number in range(4):
            await run.ask(f"Question {number}?")
        return "done"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        for number in range(4):
            lost = hf.another_worker()
            await lost.leases.take("r", takeover=True)
            await lost.leases.close()  # as if it had died
            assert await hf.leases.expire_lost() == 1
            assert (await hf.runs.get("r")).status == "ready"
            await advance(hf, "r")
            prompt = f"Question {number}?"
            await hf.approvals.answer((await asked(hf))[prompt], "go", by="ann")
        assert await hf.run(agent, run_id="r") == "done"


@async_test
async def test_request_is_open_while_the_calls_beside_it_are_made(store: str) -> None:
    seen: list[int] = []

    async with holdfast.Holdfast(store) as hf:

        @holdfast.tool(approval=True)
        async def pay(cents: int, *, key: Key) -> str:
            return "paid"

        @holdfast.tool(effect="read")
        async def look() -> str:
            seen.append(len(await hf.approvals.list()))
            return "seen"

        @holdfast.agent(tools=[pay, look])
        async def agent(run: holdfast.Run) -> list[str]:
            calls = [ToolCall("1", "pay", {"cents": 5}), ToolCall("2", "look", {})]
            return [message.results[0].content for message in await run.tools(calls)]

        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        await hf.approvals.approve(request.wait_id, by="boss")
        assert await hf.run(agent, run_id="r") == ["paid", "seen"]
        assert seen == [1]  # and it was not read again after the wait


@async_test
async def test_paid_read_is_paid_once_however_often_the_run_waits(store: str) -> None:
    read: list[int] = []

    @holdfast.tool(effect="read", cost=Cost(usd=1))
    async def look() -> str:
        read.append(1)
        return "seen"

    @holdfast.agent(budget=Budget(usd=1.5))
    async def agent(run: holdfast.Run) -> str:
        told = await run.call(look)
        await run.sleep(seconds=0.01)
        await run.sleep(seconds=0.01)
        return told

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "seen"
        assert read == [1]
        assert (await hf.budgets.costs("r")).total.usd_micros == 1_000_000
        assert await hf.budgets.reservations("r") == []


@async_test
async def test_call_that_did_not_happen_may_be_told_by_the_tool(store: str) -> None:
    @holdfast.tool(approval=True, cost=Cost(usd=1))
    async def pay(cents: int) -> str:
        raise NotDone("the bank is closed")

    @holdfast.agent(budget=Budget(usd=5))
    async def agent(run: holdfast.Run) -> str:
        try:
            return await run.call(pay, 5)
        except ToolFailed as error:
            return str(error)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (request,) = await hf.approvals.list()
        await hf.approvals.approve(request.wait_id, by="boss")
        assert "the bank is closed" in await hf.run(agent, run_id="r")
        assert (await hf.budgets.costs("r")).total.usd_micros == 0


@async_test
async def test_effect_that_was_sent_again_stands_for_the_first_and_can_be_sent_again(
    store: str,
) -> None:
    sent: list[int] = []

    @holdfast.tool
    async def pay(cents: int) -> str:
        sent.append(cents)
        return f"receipt {len(sent)}"

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        if run.is_fresh:
            await run.checkpoint()
        told = await run.call(pay, 5)
        return f"{told}, {await run.ask('Well?')}"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (first,) = await hf.effects.of_run("r")
        await hf.runs.rewind("r", 1, by="ann", resend=[first.effect_id])
        await advance(hf, "r")
        assert len(sent) == 2
        await hf.runs.rewind("r", 1, by="ann")
        await advance(hf, "r")
        assert len(sent) == 2
        second = (await hf.effects.of_run("r"))[-1]
        await hf.runs.rewind("r", 1, by="ann", resend=[second.effect_id])
        await advance(hf, "r")
        assert len(sent) == 3
        fork = await hf.runs.fork("r", 1)
        await advance(hf, fork.run_id)
        assert len(sent) == 3
        for run_id in ("r", fork.run_id):
            (question,) = await hf.approvals.list(run_id=run_id)
            await hf.approvals.answer(question.wait_id, "good", by="ann")
            await advance(hf, run_id)
            assert await hf.runs.result(run_id) == "receipt 3, good"
