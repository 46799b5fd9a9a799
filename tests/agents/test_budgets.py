"""Budgets are durable state: reserved before a call, settled after it, and never escaped."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

import holdfast
from holdfast import Amounts, Budget, Cost, Message, ToolCall, Usage
from holdfast.errors import MisuseError, RunBlocked, RunNotFound
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start

USD = 1_000_000


class Paid:
    """A model that costs money, and counts how often it was really asked."""

    def __init__(self, usd: float = 0.4, tokens: int = 10) -> None:
        self.asked: list[int] = []
        self.usd = usd
        self.tokens = tokens

    async def reply(self, talk: Any) -> Message:
        self.asked.append(len(talk))
        used = Usage(usd=self.usd, output_tokens=self.tokens)
        return Message.assistant(f"reply {len(talk)}", usage=used)

    def agent(
        self, turns: int, *, name: str = "talker", **options: Any
    ) -> holdfast.Agent[[str], str]:
        async def talker(run: holdfast.Run, request: str) -> str:
            talk = run.log("transcript", Message)
            while len(talk) < turns:
                talk.append(await run.model(self.reply, talk))
                await run.checkpoint()
            return talk[-1].text

        return holdfast.agent(name=name, **options)(talker)


async def whole(hf: holdfast.Holdfast, *run_ids: str) -> None:
    """The rows are what the journal says, and stay so when they are rebuilt."""
    for run_id in run_ids:
        assert await hf.journal.verify(run_id) == []
        before = await hf.budgets.get(run_id), await hf.budgets.reservations(run_id)
        await hf.reindex(run_id)
        assert (await hf.budgets.get(run_id), await hf.budgets.reservations(run_id)) == before
        assert await hf.journal.verify(run_id) == []


@async_test
async def test_run_whose_budget_is_spent_is_blocked_and_goes_on_when_raised(store: str) -> None:
    paid = Paid(0.4)
    talker = paid.agent(5, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        with pytest.raises(RunBlocked, match=r"0\.80 of 1\.00 USD.*runs budget r --add 5usd"):
            await hf.run(talker, "go", run_id="r", budget=Budget(usd=1.0))
        assert paid.asked == [0, 1]
        assert (await hf.runs.get("r")).blocked_reason == "budget"
        await hf.budgets.add("r", Budget(usd=1.0), by="ann", note="it is worth it")
        assert (await hf.runs.get("r")).status == "ready"
        assert await hf.run(talker, "go", run_id="r") == "reply 4"
        account = await hf.budgets.get("r")
        assert account is not None
        assert (account.usd_limit, account.spent_usd, account.reserved_usd) == (2 * USD, 2 * USD, 0)
        assert account.spent_turns == 5
        set_by = [e for e in await hf.journal.read("r") if e.kind == "BUDGET_SET"]
        assert set_by[-1].actor == "ann"
        await whole(hf, "r")
    assert paid.asked == [0, 1, 2, 3, 4]


@async_test
async def test_raised_budget_unblocks_its_run_in_the_same_commit(store: str) -> None:
    """A process that died between the two would leave the run blocked."""
    paid = Paid(0.4)
    talker = paid.agent(1, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(talker, "go", run_id="r", budget=Budget(usd=0.1))
        await hf.budgets.add("r", Budget(usd=1.0))
        *_, raised, unblocked = await hf.journal.read("r")
        assert (raised.kind, unblocked.kind) == ("BUDGET_SET", "RUN_UNBLOCKED")
        assert raised.at == unblocked.at, "one commit"


@async_test
async def test_without_reservation_a_budget_is_exceeded_by_one_call_at_most(store: str) -> None:
    paid = Paid(0.4)
    talker = paid.agent(9, budget=Budget(usd=1.0))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(talker, "go", run_id="r")
        account = await hf.budgets.get("r")
        assert account is not None
        assert account.spent_usd == 800_000, "the third would not fit: the others cost 0.4"
        assert account.limits.usd_micros == USD, "the agent's own budget"


@pytest.mark.parametrize(
    ("budget", "asked", "told"),
    [
        (Budget(tokens=25), 2, "20 of 25 tokens"),
        (Budget(turns=3), 3, "3 of 3 turns"),
        (Budget(usd=0.1), 1, "0.40 of 0.10 USD"),
    ],
)
@async_test
async def test_every_limit_stops_a_run(store: str, budget: Budget, asked: int, told: str) -> None:
    paid = Paid(0.4, tokens=10)
    talker = paid.agent(9)
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        with pytest.raises(RunBlocked, match=told):
            await hf.run(talker, "go", run_id="r", budget=budget)
        assert len(paid.asked) == asked
        await whole(hf, "r")


@async_test
async def test_wall_time_stops_a_run() -> None:
    clock = ManualClock()
    paid = Paid()
    talker = paid.agent(9)
    async with holdfast.Holdfast("memory://", agents=[talker], clock=clock) as hf:
        await start(hf, talker, "go")
        await hf.budgets.set("r", Budget(seconds=3600))
        clock.advance(3600)
        await advance(hf, "r")
        assert paid.asked == []
        assert (await hf.runs.get("r")).blocked_reason == "budget"
        await hf.budgets.add("r", Budget(seconds=60))
        await advance(hf, "r")
        assert len(paid.asked) == 9


@async_test
async def test_call_that_nobody_saw_the_end_of_counts_as_spent_and_says_so(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def model(talk: Any) -> Message:
        asked.append("x")
        if len(asked) == 1:
            raise Crash
        return Message.assistant("done", usage=Usage(usd=0.3))

    @holdfast.agent(reserve=Cost(usd=0.5), budget=Budget(usd=2.0, turns=2))
    async def agent(run: holdfast.Run) -> str:
        return (await run.model(model, run.log("t", Message))).text

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        (left,) = await hf.budgets.reservations("r")
        assert (left.usd_micros, left.spender, left.what) == (500_000, "r", "model:" + NAME(model))
        with caplog.at_level(logging.WARNING, logger="holdfast"):
            await advance(hf, "r")
        assert "counts as spent: 0.50 USD" in caplog.text
        costs = await hf.budgets.costs("r")
        assert (costs.total.usd_micros, costs.lost.usd_micros) == (800_000, 500_000)
        assert costs.total.turns == 1, "it is the same turn"
        account = await hf.budgets.get("r")
        assert account is not None
        assert (account.spent_usd, account.reserved_usd) == (800_000, 0)
        assert await hf.budgets.reservations("r") == []
        await whole(hf, "r")


@async_test
async def test_turn_whose_first_call_of_a_model_failed_is_counted_by_the_next(store: str) -> None:
    asked: list[int] = []

    async def reply() -> Message:
        asked.append(len(asked))
        if len(asked) == 1:
            raise ConnectionError("overloaded")
        return Message.assistant("done", usage=Usage(usd=0.1))

    @holdfast.agent(budget=Budget(turns=3))
    async def talker(run: holdfast.Run) -> str:
        with contextlib.suppress(ConnectionError):
            await run.model(reply)
        return (await run.model(reply)).text

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        assert await hf.run(talker, run_id="r") == "done"
        account = await hf.budgets.get("r")
        assert account is not None
        assert (len(asked), account.spent_turns) == (2, 1)
        await whole(hf, "r")


@async_test
async def test_turn_with_a_call_that_was_cut_off_beside_one_that_failed_is_counted_once(
    store: str,
) -> None:
    is_asked, has_failed, limit = asyncio.Event(), asyncio.Event(), asyncio.timeout(None)

    async def slow() -> Message:
        is_asked.set()
        await has_failed.wait()
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(60)
        return Message.assistant("never")

    async def fails() -> Message:
        await is_asked.wait()
        raise ConnectionError("overloaded")

    async def reply() -> Message:
        return Message.assistant("done", usage=Usage(usd=0.1))

    @holdfast.agent(budget=Budget(turns=3))
    async def talker(run: holdfast.Run) -> str:
        async def cut_off() -> None:
            with contextlib.suppress(TimeoutError):
                async with limit:
                    await run.model(slow)

        async def failing() -> None:
            with contextlib.suppress(ConnectionError):
                await run.model(fails)
            has_failed.set()

        await run.gather(cut_off(), failing())
        return (await run.model(reply)).text

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        assert await hf.run(talker, run_id="r") == "done"
        account = await hf.budgets.get("r")
        assert account is not None
        assert account.spent_turns == 1
        await whole(hf, "r")


@pytest.mark.parametrize("begins", ["together", "later", "later, and the first fails"])
@async_test
async def test_turn_of_models_that_are_asked_beside_each_other_is_counted_once(
    store: str, begins: str
) -> None:
    """Also if the call fails for which the turn was reserved."""
    asked, has_ended = [asyncio.Event(), asyncio.Event()], asyncio.Event()

    async def first() -> Message:
        asked[0].set()
        await asked[1].wait()
        if "fails" in begins:
            raise ConnectionError("overloaded")
        return Message.assistant("one", usage=Usage(usd=0.1))

    async def second() -> Message:
        asked[1].set()
        await has_ended.wait()
        return Message.assistant("two", usage=Usage(usd=0.1))

    @holdfast.agent(budget=Budget(turns=2))
    async def talker(run: holdfast.Run) -> None:
        async def ask_first() -> None:
            with contextlib.suppress(ConnectionError):
                await run.model(first)
            has_ended.set()

        async def ask_second() -> None:
            if begins != "together":
                await asked[0].wait()
            await run.model(second)

        await run.gather(ask_first(), ask_second())
        await run.checkpoint()
        await run.model(Paid(0.1).reply, [])

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.run(talker, run_id="r")
        account = await hf.budgets.get("r")
        assert account is not None
        assert account.spent_turns == 2
        await whole(hf, "r")


@async_test
async def test_tool_that_is_cut_off_counts_no_turn(store: str) -> None:
    limit = asyncio.timeout(None)

    @holdfast.tool(cost=Cost(usd=0.1), effect="read")
    async def look() -> str:
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(60)
        return "never"

    async def reply() -> Message:
        return Message.assistant("done", usage=Usage(usd=0.1))

    @holdfast.agent(tools=[look], budget=Budget(turns=3))
    async def talker(run: holdfast.Run) -> str:
        with contextlib.suppress(TimeoutError):
            async with limit:
                await run.call(look)
        return (await run.model(reply)).text

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        assert await hf.run(talker, run_id="r") == "done"
        account = await hf.budgets.get("r")
        assert account is not None
        assert (account.spent_turns, account.spent_usd) == (1, 200_000)
        await whole(hf, "r")


def NAME(function: Any) -> str:
    return function.__qualname__


@async_test
async def test_call_that_raises_costs_nothing(store: str) -> None:
    async def model(talk: Any) -> Message:
        raise RuntimeError("overloaded")

    @holdfast.agent(reserve=Cost(usd=0.5), budget=Budget(usd=1.0))
    async def agent(run: holdfast.Run) -> str:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await run.model(model, run.log("t", Message))
        return "tried"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == "tried"
        assert (await hf.budgets.costs("r")).total == Amounts()
        notes = [e for e in await hf.journal.read("r") if e.kind == "COST_RECORDED"]
        assert len(notes) == 3
        await whole(hf, "r")


@async_test
async def test_children_and_forks_draw_on_the_budgets_above_them(store: str) -> None:
    paid = Paid(0.4)
    talker = paid.agent(2, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.runs.create("boss", budget=Budget(usd=1.0))
        assert await hf.run(talker, "a", run_id="one", parent="boss") == "reply 1"
        assert (await hf.runs.get("one")).parent_id == "boss"
        with pytest.raises(RunBlocked, match="runs budget boss --add"):
            await hf.run(talker, "b", run_id="two", parent="one")
        fork = await hf.runs.fork("one", 1, new_run_id="copy")
        assert fork.parent_id == ""
        await advance(hf, "copy")
        assert (await hf.runs.get("copy")).blocked_reason == "budget"
        costs = await hf.budgets.costs("boss")
        assert {run: a.usd_micros for run, a in costs.by_run.items()} == {"one": 800_000}
        await hf.budgets.add("boss", Budget(usd=2.0))
        assert (await hf.runs.get("two")).status == "ready"
        assert (await hf.runs.get("copy")).status == "ready"
        assert await hf.run(talker, "b", run_id="two") == "reply 1"
        await whole(hf, "boss", "one", "two", "copy")
        with pytest.raises(RunNotFound, match="nobody"):
            await hf.start(talker, "c", parent="nobody")


@async_test
async def test_what_an_ancestor_has_no_room_for_is_given_back_to_the_own_budget(
    store: str,
) -> None:
    paid = Paid(0.4)
    talker = paid.agent(1, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.runs.create("boss", budget=Budget(usd=0.1))
        with pytest.raises(RunBlocked, match="budget of run boss"):
            await hf.run(talker, "a", run_id="one", parent="boss", budget=Budget(usd=9))
        account = await hf.budgets.get("one")
        assert account is not None
        assert (account.spent_usd, account.reserved_usd) == (0, 0)
        assert [a.run_id for a in await hf.budgets.over("one")] == ["one", "boss"]
        assert paid.asked == []
        await whole(hf, "boss", "one")


@async_test
async def test_death_between_the_own_record_and_the_parents_settles_what_it_really_cost(
    store: str,
) -> None:
    paid = Paid(0.3)
    talker = paid.agent(1, reserve=Cost(usd=0.5))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.runs.create("boss", budget=Budget(usd=5.0))
        await start(hf, talker, "go")
        # What a parent is told comes last: a death before that leaves just this reservation.
        await hf.runs.create("kid", agent="talker", input={"request": "x"}, parent_id="boss")
        twin = hf.another_worker()
        held = await twin.leases.take("kid")
        from holdfast.engine.budgets.purse import Purchase, Ticket
        from holdfast.kernel.budgets import Recorded

        (ticket,) = await held.purse.reserve([Purchase("model:m", Amounts(500_000), True)])
        assert isinstance(ticket, Ticket)
        assert ticket.others == ("boss",)
        cost = Recorded("kid", "model:m", "talker", 1, Amounts(300_000), ticket.reservation_id)
        held.purse.charge(ticket, cost)
        await held.stage.flush()
        await advance(hf, "kid")
        account = await hf.budgets.get("boss")
        assert account is not None
        assert (account.spent_usd, account.reserved_usd) == (600_000, 0)
        assert (await hf.budgets.costs("boss")).lost == Amounts()
        # A late word of the one that was thought dead changes nothing.
        await held.purse.settle_others(ticket, cost)
        assert await hf.budgets.get("boss") == account


@async_test
async def test_tools_that_cannot_be_afforded_are_not_issued_and_the_others_are(
    store: str,
) -> None:
    done: list[int] = []

    @holdfast.tool(cost=Cost(usd=0.3), effect="idempotent")
    async def search(n: int) -> str:
        done.append(n)
        return f"found {n}"

    @holdfast.tool(effect="read", cost=lambda words: Cost(tokens=words))
    async def read(words: int) -> str:
        return "read"

    @holdfast.agent(tools=[search, read])
    async def agent(run: holdfast.Run) -> list[str]:
        calls = [ToolCall(str(n), "search", {"n": n}) for n in range(5)]
        messages = await run.tools([*calls, ToolCall("r", "read", {"words": 7})])
        return [message.results[0].content for message in messages]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match="tool:search"):
            await hf.run(agent, run_id="r", budget=Budget(usd=1.0))
        assert done == [0, 1, 2]
        issued = [e for e in await kinds(hf, "r") if e == "EFFECT_ISSUED"]
        assert len(issued) == 3
        await hf.budgets.add("r", Budget(usd=1.0))
        result = await hf.run(agent, run_id="r")
        assert result == [f"found {n}" for n in range(5)] + ["read"]
        assert done == [0, 1, 2, 3, 4], "none was paid for again"
        costs = await hf.budgets.costs("r")
        assert costs.by_call["tool:search"].usd_micros == 1_500_000
        assert costs.by_call["tool:read"].tokens == 7, "what was read and paid for is kept"
        await whole(hf, "r")


@async_test
async def test_limit_that_is_exceeded_does_not_stop_a_call_that_takes_nothing_of_it(
    store: str,
) -> None:
    @holdfast.tool(cost=Cost(usd=0.3), effect="idempotent")
    async def search(n: int) -> str:
        return f"found {n}"

    @holdfast.agent(tools=[search])
    async def agent(run: holdfast.Run) -> str:
        await run.model(Paid(0.1, tokens=30).reply, [])
        (message,) = await run.tools([ToolCall("c", "search", {"n": 1})])
        return message.results[0].content

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r", budget=Budget(usd=1.0, tokens=25)) == "found 1"
        account = await hf.budgets.get("r")
        assert account is not None
        assert (account.spent.tokens, account.spent_usd) == (30, 400_000)
        await whole(hf, "r")


@async_test
async def test_parallel_branches_share_a_budget_and_all_end_before_it_blocks(store: str) -> None:
    done: list[int] = []

    @holdfast.tool(cost=Cost(usd=0.1), effect="idempotent")
    async def search(n: int) -> int:
        await asyncio.sleep(0)
        done.append(n)
        return n

    @holdfast.agent
    async def agent(run: holdfast.Run) -> int:
        return sum(await run.gather(*(run.call(search, n) for n in range(50))))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(agent, run_id="r", budget=Budget(usd=2.0))
        assert len(done) == 20
        await hf.budgets.add("r", Budget(usd=3.0))
        assert await hf.run(agent, run_id="r") == sum(range(50))
        assert sorted(done) == list(range(50))
        await whole(hf, "r")


@async_test
async def test_soft_limit_warns_once_for_each_limit(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    paid = Paid(0.25)
    talker = paid.agent(4)
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.runs.create("boss", budget=Budget(usd=1.0, soft=0.5))
        with caplog.at_level(logging.WARNING, logger="holdfast"):
            await hf.run(talker, "go", run_id="r", parent="boss", budget=Budget(turns=4, soft=0.6))
        assert "budget of run boss is nearly spent: 0.50 of 1.00 USD" in caplog.text
        assert "budget of run r is nearly spent: 3 of 4 turns" in caplog.text
        for run_id in ("r", "boss"):
            assert (await kinds(hf, run_id)).count("BUDGET_WARNED") == 1
        await hf.budgets.add("r", Budget(turns=1))
        account = await hf.budgets.get("r")
        assert account is not None
        assert account.warned == 0, "a raised limit may warn again"
        await whole(hf, "r", "boss")


@pytest.mark.mission("S3-005")
@async_test
async def test_costs_are_known_without_a_budget_and_cost_no_commit(store: str) -> None:
    paid = Paid(0.4, tokens=3)
    talker = paid.agent(2)
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await hf.run(talker, "go", run_id="r")
        costs = await hf.budgets.costs("r")
        assert costs.total == Amounts(800_000, 0, 6, 2)
        assert costs.by_turn == {1: Amounts(400_000, 0, 3, 1), 2: Amounts(400_000, 0, 3, 1)}
        assert list(costs.by_agent) == ["talker"]
        assert await hf.budgets.get("r") is None
        entries = await hf.journal.read("r")
        replies = [e for e in entries if e.kind in ("STEP_RECORDED", "COST_RECORDED")]
        assert [e.at for e in replies[::2]] == [e.at for e in replies[1::2]], "one commit each"
        await whole(hf, "r")


@async_test
async def test_raise_that_comes_while_the_run_is_being_blocked_is_not_missed(store: str) -> None:
    paid = Paid(0.4)
    talker = paid.agent(2, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await start(hf, talker, "go")
        await hf.budgets.set("r", Budget(usd=0.5))
        twin = hf.another_worker()
        held = await twin.leases.take("r", takeover=True)
        block = held.block

        async def raised_first(*args: Any, **kwargs: Any) -> None:
            await hf.budgets.add("r", Budget(usd=5))
            await block(*args, **kwargs)

        held.block = raised_first  # type: ignore[method-assign]
        await twin._work.start_pass(held)
        assert (await hf.runs.get("r")).status == "ready"
        assert await hf.run(talker, "go", run_id="r") == "reply 1"


@pytest.mark.mission("S4-010")
@async_test
async def test_session_keeps_its_budget_over_messages(store: str) -> None:
    paid = Paid(0.4)

    @holdfast.agent(budget=Budget(usd=1.0), reserve=Cost(usd=0.4))
    async def chat(run: holdfast.Run, message: str) -> str:
        return (await run.model(paid.reply, run.log("t", Message))).text

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        session = hf.session(chat, "s")
        await session.send("one")
        await session.send("two")
        with pytest.raises(RunBlocked, match=r"0\.80 of 1\.00 USD"):
            await session.send("three", id="3")
        await hf.budgets.add("s", Budget(usd=1.0))
        assert await session.send("three", id="3") == "reply 0"
        assert len(paid.asked) == 3


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Budget(), "needs a limit"),
        (lambda: Budget(usd=-1), "0 or more"),
        (lambda: Budget(usd=float("nan")), "must be a number"),
        (lambda: Budget(usd=1, soft=2), "soft"),
        (lambda: Budget(tokens=1.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Cost(usd=-1), "0 or more"),
    ],
)
def test_budget_that_cannot_be_is_refused(made: Any, told: str) -> None:
    with pytest.raises(MisuseError, match=told):
        made()


def test_money_is_never_understated_and_has_no_noise() -> None:
    assert Cost(usd=0.1 + 0.2).amounts.usd_micros == 300_000
    assert Cost(usd=0.0000001).amounts.usd_micros == 1


@async_test
async def test_first_budget_that_comes_while_a_run_works_counts_from_its_next_commit_on(
    store: str,
) -> None:
    """A run that has none does not ask the store before each call; its journal tells it."""
    paid = Paid(0.4)
    looks: list[str] = []

    @holdfast.agent(name="talker", reserve=Cost(usd=0.4))
    async def talker(run: holdfast.Run, request: str) -> str:
        talk = run.log("transcript", Message)
        while len(talk) < 5:
            talk.append(await run.model(paid.reply, talk))
            if len(talk) == 3:
                await hf.budgets.set("r", Budget(usd=0.1))
            await run.checkpoint()
        return talk[-1].text

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        budgets: Any = hf._context.store.budgets
        of_runs = budgets.of_runs

        async def counted(run_ids: Any) -> Any:
            looks.append(f"after {len(paid.asked)} replies")
            return await of_runs(run_ids)

        budgets.of_runs = counted
        with pytest.raises(RunBlocked, match="budget"):
            await hf.run(talker, "hello", run_id="r")
        assert len(paid.asked) == 3
        assert "after 1 replies" not in looks
        assert "after 2 replies" not in looks
        budgets.of_runs = of_runs
        await whole(hf, "r")
