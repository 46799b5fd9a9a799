"""Tools that a person must permit: bound to exact arguments, for a while, once."""

from typing import Any

import pytest

import holdfast
from holdfast import Approval, Key, Message, ToolCall
from holdfast.errors import AlreadyAnswered, MisuseError, ToolFailed
from holdfast.kernel import indexes
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start


class Bank:
    """Counts what was done outside."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []

    def tool(self, **options: Any) -> holdfast.Tool[..., Any]:
        @holdfast.tool(**options)
        async def charge(customer: str, cents: int, *, key: Key) -> str:
            self.charged.append((customer, cents))
            return f"charged {cents}"

        return charge


def calling(tool: holdfast.Tool[..., Any], *calls: tuple[str, int]) -> holdfast.Agent[..., Any]:
    """An agent that makes these calls in one turn, and returns what a model would read."""

    @holdfast.agent(tools=[tool], name="agent")
    async def agent(run: holdfast.Run) -> list[str]:
        asked = [
            ToolCall(str(at), "charge", {"customer": customer, "cents": cents})
            for at, (customer, cents) in enumerate(calls)
        ]
        return [message.results[0].content for message in await run.tools(asked)]

    return agent


@pytest.mark.mission("S1-006")
@async_test
async def test_call_is_made_once_it_is_approved_and_the_effect_names_the_approval(
    store: str,
) -> None:
    bank = Bank()
    agent = calling(bank.tool(approval=True), ("ann", 500))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
        assert (asked.kind, asked.tool, asked.args) == (
            "approval",
            "charge",
            {"customer": "ann", "cents": 500},
        )
        assert bank.charged == []
        with pytest.raises(MisuseError, match="look at what you approve again"):
            await hf.approvals.approve(asked.wait_id, by="boss", digest="00")
        with pytest.raises(MisuseError, match="approve or reject it"):
            await hf.approvals.answer(asked.wait_id, True, by="boss")
        await hf.approvals.approve(asked.wait_id, by="boss", digest=asked.args_digest)
        with pytest.raises(AlreadyAnswered, match="boss was first"):
            await hf.approvals.reject(asked.wait_id, by="other")
        assert await hf.run(agent, run_id="r") == ["charged 500"]
        assert bank.charged == [("ann", 500)]
        issued = [
            indexes.facts_of(entry)
            for entry in await hf.journal.read("r")
            if entry.kind == "EFFECT_ISSUED"
        ]
        assert [facts.approval for facts in issued] == [asked.wait_id]
        assert issued[0].args_digest.hex() == asked.args_digest
        told = await hf.approvals.get(asked.wait_id)
        assert (told.answer, told.answered_by) == ({"approved": True, "note": ""}, "boss")


@async_test
async def test_rejected_call_is_not_made_and_the_model_reads_why(store: str) -> None:
    bank = Bank()
    agent = calling(bank.tool(approval=True), ("ann", 500))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
        await hf.approvals.reject(asked.wait_id, by="boss", note="too much")
        assert await hf.run(agent, run_id="r") == [
            "charge was not called: boss rejected it: too much"
        ]
        assert bank.charged == []


@async_test
async def test_rule_over_the_arguments_says_which_calls_need_it_and_others_go_on(
    store: str,
) -> None:
    bank = Bank()
    tool = bank.tool(approval=lambda customer, cents: cents > 100)
    agent = calling(tool, ("ann", 500), ("bob", 50), ("cyd", 900))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        assert bank.charged == [("bob", 50)]
        asked = {request.args["customer"]: request.wait_id for request in await hf.approvals.list()}
        assert sorted(asked) == ["ann", "cyd"]
        await hf.approvals.approve(asked["cyd"], by="boss")
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.approvals.reject(asked["ann"], by="boss")
        assert await hf.run(agent, run_id="r") == [
            "charge was not called: boss rejected it",
            "charged 50",
            "charged 900",
        ]
        assert bank.charged == [("bob", 50), ("cyd", 900)]


@async_test
async def test_approval_is_for_these_arguments_and_for_one_call(store: str) -> None:
    bank = Bank()
    tool = bank.tool(approval=True, repeat=True)

    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        done = run.value("done", int, 0)
        for cents in (1, 1, 2)[done.get() :]:
            await run.call(tool, "ann", cents)
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        seen: list[str] = []
        for cents in (1, 1, 2):
            await advance(hf, "r")
            (asked,) = await hf.approvals.list()
            assert asked.args["cents"] == cents
            assert asked.wait_id not in seen
            seen.append(asked.wait_id)
            await hf.approvals.approve(asked.wait_id, by="boss")
        assert await hf.run(agent, run_id="r") == 3
        assert bank.charged == [("ann", 1), ("ann", 1), ("ann", 2)]


@async_test
async def test_approval_survives_a_crash_between_it_and_the_call(store: str) -> None:
    bank, crashes = Bank(), [True, True]
    tool = bank.tool(approval=True)

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        result = await run.call(tool, "ann", 5)
        if crashes:
            crashes.pop()
            raise Crash
        return result

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await hf.approvals.approve(asked.wait_id, by="boss")
        for _ in range(3):
            await advance(hf, "r")
        assert await hf.run(agent, run_id="r") == "charged 5"
        assert bank.charged == [("ann", 5)]
        assert await hf.approvals.list() == []


@async_test
async def test_request_nobody_answers_expires_and_old_approvals_are_asked_for_again(
    tmp_path: Any,
) -> None:
    clock, bank = ManualClock(), Bank()
    tool = bank.tool(approval=Approval(expires_seconds=3600, valid_seconds=60))

    @holdfast.agent
    async def agent(run: holdfast.Run, cents: int) -> str:
        try:
            return await run.call(tool, "ann", cents)
        except ToolFailed as error:
            return str(error)

    async with holdfast.Holdfast(str(tmp_path / "s.db"), agents=[agent], clock=clock) as hf:
        await start(hf, agent, 1, run_id="expires")
        await advance(hf, "expires")
        clock.advance(3601)
        await hf.waits.expire_due()
        assert (
            await hf.run(agent, 1, run_id="expires")
            == "charge was not called: nobody approved it in time"
        )
        await start(hf, agent, 2, run_id="old")
        await advance(hf, "old")
        (asked,) = await hf.approvals.list()
        await hf.approvals.approve(asked.wait_id, by="boss")
        clock.advance(61)
        await advance(hf, "old")
        assert bank.charged == []
        (again,) = await hf.approvals.list()
        assert again.wait_id != asked.wait_id
        await hf.approvals.approve(again.wait_id, by="boss")
        assert await hf.run(agent, 2, run_id="old") == "charged 2"
        assert bank.charged == [("ann", 2)]


@async_test
async def test_approval_of_a_tool_that_was_changed_is_asked_for_again(store: str) -> None:
    bank = Bank()
    old = calling(bank.tool(approval=True), ("ann", 5))

    @holdfast.tool(approval=True)
    async def charge(customer: str | None, cents: int) -> str:
        bank.charged.append((customer or "nobody", cents))
        return "charged"

    new = calling(charge, ("ann", 5))
    async with holdfast.Holdfast(store, agents=[old]) as hf:
        await start(hf, old)
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
        await hf.approvals.approve(asked.wait_id, by="boss")
    async with holdfast.Holdfast(store, agents=[new]) as hf:
        await advance(hf, "r")
        assert bank.charged == []
        (again,) = await hf.approvals.list()
        assert again.wait_id != asked.wait_id


@pytest.mark.parametrize("approved", [True, False])
@async_test
async def test_equal_calls_of_one_reply_are_one_request(store: str, approved: bool) -> None:
    bank = Bank()
    agent = calling(bank.tool(approval=True), ("ann", 5), ("ann", 5), ("bob", 5))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        asked = {request.args["customer"]: request.wait_id for request in await hf.approvals.list()}
        assert sorted(asked) == ["ann", "bob"]
        await hf.approvals.approve(asked["bob"], by="boss")
        decide = hf.approvals.approve if approved else hf.approvals.reject
        await decide(asked["ann"], by="boss")
        told = await hf.run(agent, run_id="r")
        assert bank.charged.count(("ann", 5)) == int(approved)
        assert bank.charged.count(("bob", 5)) == 1
        if not approved:
            assert told[0] == told[1] == "charge was not called: boss rejected it"
        assert await hf.approvals.list() == []


@async_test
async def test_call_that_happened_before_needs_nobody_in_a_fork(store: str) -> None:
    bank = Bank()
    tool = bank.tool(approval=True)

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        if run.is_fresh:
            await run.checkpoint()
        return await run.call(tool, "ann", 5)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
        await hf.approvals.approve(asked.wait_id, by="boss")
        assert await hf.run(agent, run_id="r") == "charged 5"
        fork = await hf.runs.fork("r", 1)
        await advance(hf, fork.run_id)
        assert await hf.runs.result(fork.run_id) == "charged 5"
        assert bank.charged == [("ann", 5)]
        issued = await hf.effects.of_run("r")
        again = await hf.runs.fork("r", 1, resend=[issued[0].effect_id])
        await advance(hf, again.run_id)
        assert bank.charged == [("ann", 5)]
        (asked,) = await hf.approvals.list()
        await hf.approvals.approve(asked.wait_id, by="boss")
        await advance(hf, again.run_id)
        assert bank.charged == [("ann", 5), ("ann", 5)]


@async_test
async def test_what_is_not_approved_yet_reserves_nothing(store: str) -> None:
    bank = Bank()
    tool = bank.tool(approval=True, cost=holdfast.Cost(usd=1))

    @holdfast.agent(budget=holdfast.Budget(usd=2))
    async def agent(run: holdfast.Run) -> str:
        return await run.call(tool, "ann", 5)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        assert await hf.budgets.reservations("r") == []
        (asked,) = await hf.approvals.list()
        await hf.approvals.approve(asked.wait_id, by="boss")
        assert await hf.run(agent, run_id="r") == "charged 5"
        assert (await hf.budgets.costs("r")).total.usd_micros == 1_000_000


@async_test
async def test_rule_that_breaks_asks_a_person(store: str) -> None:
    bank = Bank()

    def rule(customer: str, cents: int) -> bool:
        raise ValueError("broken")

    agent = calling(bank.tool(approval=rule), ("ann", 5))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        await advance(hf, "r")
        assert bank.charged == []
        assert len(await hf.approvals.list()) == 1


def test_rule_must_take_the_arguments_by_name() -> None:
    with pytest.raises(MisuseError, match=r"must take its arguments by name \(customer, cents\)"):
        Bank().tool(approval=lambda amount: amount > 1)
    with pytest.raises(MisuseError, match="must be above 0"):
        Bank().tool(approval=Approval(valid_seconds=0))
    with pytest.raises(MisuseError, match="approval is True"):
        Bank().tool(approval="yes")


@async_test
async def test_loop_waits_for_approval_like_any_agent(store: str) -> None:
    bank = Bank()
    tool = bank.tool(approval=Approval(prompt=lambda customer, cents: f"Charge {customer}?"))

    async def model(transcript: list[Message]) -> Message:
        last = transcript[-1]
        if last.role == "user":
            call = ToolCall("1", "charge", {"customer": "ann", "cents": 5})
            return Message.assistant("", [call])
        return Message.assistant(last.results[0].content)

    loop = holdfast.AgentLoop(model, tools=[tool])
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        await start(hf, loop, "go")
        await advance(hf, "r")
        (asked,) = await hf.approvals.list()
        assert asked.prompt == "Charge ann?"
        await hf.approvals.approve(asked.wait_id, by="boss")
        assert await hf.run(loop, "go", run_id="r") == "charged 5"
        assert bank.charged == [("ann", 5)]
