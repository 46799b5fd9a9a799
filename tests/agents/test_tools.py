"""Tools: what is checked before a call, what is on record, and what happens in doubt."""

import asyncio
import contextlib
import threading
import time
from datetime import date
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

import holdfast
from holdfast import Happened, Key, Message, NotDone, Settings, ToolCall, ToolResult
from holdfast.engine import effects
from holdfast.errors import MisuseError, RunBlocked, ToolFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


class Declined(Exception):
    """The bank says no."""


class Bank:
    """Counts what is done, and may break after doing it."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.breaks: list[BaseException] = []
        self.breaks_before: list[BaseException] = []

    async def charge(self, cents: int, key: str) -> str:
        if self.breaks_before:
            raise self.breaks_before.pop()
        self.charges.append((key, cents))
        self.keys.append(key)
        if self.breaks:
            raise self.breaks.pop()
        return f"receipt {len(self.charges)}"

    async def find(self, key: str) -> Happened[str] | NotDone:
        at = self.keys.index(key) if key in self.keys else -1
        return NotDone("no such charge") if at < 0 else Happened(f"receipt {at + 1}")


def shop(bank: Bank, **options: Any) -> holdfast.Agent[[list[ToolCall]], list[ToolResult]]:
    """An agent that makes the calls it is told, each turn once."""

    @holdfast.tool(**options)
    async def charge(cents: int, *, key: Key) -> str:
        return await bank.charge(cents, key)

    @holdfast.agent(tools=[charge], name="shop")
    async def sell(run: holdfast.Run, calls: list[ToolCall]) -> list[ToolResult]:
        messages = await run.tools(calls)
        await run.checkpoint()
        return [message.results[0] for message in messages]

    return sell


CHARGE = [ToolCall("c1", "charge", {"cents": 500})]


def results(given: Any) -> list[tuple[str, bool]]:
    """Content and whether it is an error."""
    found = msgspec.convert(given, list[ToolResult])
    return [(result.content, result.is_error) for result in found]


@async_test
async def test_arguments_are_checked_before_anything_is_recorded(store: str) -> None:
    bank = Bank()
    agent = shop(bank)
    bad = [
        ToolCall("1", "charge", {"cents": "five"}),
        ToolCall("2", "charge", {}),
        ToolCall("3", "charge", {"cents": 5, "tip": 1}),
        ToolCall("4", "charge", "not json"),
        ToolCall("5", "refund", {"cents": 5}),
    ]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        answers = results(await hf.run(agent, bad, run_id="r"))
        assert all(is_error for _, is_error in answers)
        assert "Expected `int`" in answers[0][0]
        assert "cents" in answers[1][0]
        assert "tip" in answers[2][0]
        assert "the tools are: charge" in answers[4][0]
        assert "EFFECT_ISSUED" not in await kinds(hf, "r")
    assert bank.charges == []


@async_test
async def test_half_a_character_is_answered_as_any_wrong_argument(store: str) -> None:
    """Some parsers of JSON let a model write one, and no date can be read from it."""
    booked: list[date] = []

    @holdfast.tool
    async def book(day: date) -> str:
        booked.append(day)
        return "booked"

    @holdfast.agent(tools=[book])
    async def agent(run: holdfast.Run) -> str:
        (message,) = await run.tools([ToolCall("1", "book", {"day": "\ud800"})])
        return message.results[0].content

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        told = await hf.run(agent, run_id="r")
        assert told.startswith("book was not called: its arguments are not valid")
        assert "EFFECT_ISSUED" not in await kinds(hf, "r")
    assert booked == []


@pytest.mark.mission("S4-049", "S4-051", "S4-052")
@async_test
async def test_same_call_twice_in_a_run_is_one_operation_and_marked_as_a_replay(
    store: str,
) -> None:
    bank = Bank()
    agent = shop(bank)
    twice = [ToolCall("c1", "charge", {"cents": 5}), ToolCall("c2", "charge", {"cents": 5})]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        answers = results(await hf.run(agent, twice))
        assert answers == [("receipt 1", False), ("[idempotent replay of c1]: receipt 1", False)]
        assert results(await hf.run(agent, CHARGE)) == [("receipt 2", False)]
    assert [cents for _, cents in bank.charges] == [5, 500]


@async_test
async def test_intended_repeats_are_permitted_by_the_tool(store: str) -> None:
    bank = Bank()
    agent = shop(bank, repeat=True)
    twice = [ToolCall("c1", "charge", {"cents": 5}), ToolCall("c2", "charge", {"cents": 5})]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert results(await hf.run(agent, twice)) == [("receipt 1", False), ("receipt 2", False)]
    assert len(set(bank.keys)) == 2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("args", 2), ("call", 2), ("tenant", 1), (lambda cents: f"order-{cents}", 1)],
)
@async_test
async def test_key_policy_says_which_calls_of_two_runs_are_the_same(
    store: str, policy: Any, expected: int
) -> None:
    bank = Bank()
    agent = shop(bank, key=policy)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        for run_id in ("a", "b"):
            await hf.run(agent, CHARGE, run_id=run_id)
    assert len(bank.charges) == expected


@pytest.mark.mission("S4-032")
@async_test
async def test_reused_call_id_with_other_arguments_is_another_operation(store: str) -> None:
    bank = Bank()
    agent = shop(bank, key="call")
    calls = [ToolCall("c1", "charge", {"cents": 5}), ToolCall("c1", "charge", {"cents": 6})]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await hf.run(agent, calls, run_id="r")
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["completed"] * 2
    assert [cents for _, cents in bank.charges] == [5, 6]


@async_test
async def test_fork_sees_the_effects_of_its_lineage(store: str) -> None:
    bank = Bank()
    agent = shop(bank)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await hf.run(agent, CHARGE, run_id="r")
        fork = await hf.runs.fork("r", 1, new_run_id="fork")
        assert await advance(hf, fork.run_id) is not None
        found = results(await hf.runs.result("fork"))
        assert found == [("[idempotent replay of c1]: receipt 1", False)]
    assert len(bank.charges) == 1


@async_test
async def test_declined_card_does_not_block_the_run_and_can_be_tried_again(store: str) -> None:
    bank = Bank()
    bank.breaks_before = [Declined("insufficient funds")]
    agent = shop(bank, not_done_on=(Declined,))
    twice = [ToolCall("c1", "charge", {"cents": 5})]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        found = results(await hf.run(agent, twice, run_id="r"))
        assert found == [("charge raised Declined: insufficient funds", True)]
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["not_done"]
    assert bank.charges == []


@async_test
async def test_equal_calls_of_one_reply_are_declined_together(store: str) -> None:
    bank = Bank()
    bank.breaks_before = [Declined("insufficient funds")]
    agent = shop(bank, not_done_on=(Declined,))
    twice = [ToolCall("c1", "charge", {"cents": 5}), ToolCall("c2", "charge", {"cents": 5})]
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        found = results(await hf.run(agent, twice, run_id="r"))
        assert found == [("charge raised Declined: insufficient funds", True)] * 2
        assert (await kinds(hf, "r")).count("EFFECT_ISSUED") == 1
    assert bank.charges == []


@async_test
async def test_exception_of_a_mutating_tool_is_unknown_until_verify_tells(store: str) -> None:
    bank = Bank()
    bank.breaks = [ConnectionError("lost the answer")]
    agent = shop(bank, verify=bank.find)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
        bank.breaks_before = [ConnectionError("no route")]
        found = results(await hf.run(agent, CHARGE, run_id="s"))
        assert found == [("charge raised ConnectionError: no route", True)]
    assert len(bank.charges) == 1


@pytest.mark.mission("S4-057", "S4-059")
@async_test
async def test_crash_after_the_effect_is_found_by_verify_at_once(store: str) -> None:
    bank = Bank()
    bank.breaks = [Crash()]
    agent = shop(bank, verify=bank.find)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert results(await hf.runs.result("r")) == [("receipt 1", False)]
    assert len(bank.charges) == 1


@async_test
async def test_crash_before_the_effect_is_repeated_only_after_its_time_limit(store: str) -> None:
    bank = Bank()
    bank.breaks_before = [Crash()]
    agent = shop(bank, verify=bank.find, limit_seconds=1.0)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        run = await hf.runs.get("r")
        (effect,) = await hf.effects.of_run("r")
        assert (run.status, effect.status) == ("ready", "issued")
        assert run.ready_at >= effect.limit_at - 1
        assert bank.charges == []
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
        statuses = [effect.status for effect in await hf.effects.of_run("r")]
        assert statuses == ["not_done", "completed"]
    assert len(bank.charges) == 1


@async_test
async def test_call_of_a_lost_worker_is_left_alone_until_its_time_limit(store: str) -> None:
    bank = Bank()
    bank.breaks_before = [Crash()]
    agent = shop(bank, verify=bank.find, limit_seconds=600.0)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        run = await hf.runs.get("r")
        (effect,) = await hf.effects.of_run("r")
        assert (run.status, effect.status) == ("ready", "issued")
        assert run.ready_at >= effect.limit_at - 1
    assert bank.charges == []


@pytest.mark.mission("S4-058")
@pytest.mark.parametrize("way", ["happened", "did not happen", "retry"])
@async_test
async def test_doubt_that_nobody_can_settle_blocks_the_run_until_an_operator_does(
    store: str, way: str
) -> None:
    bank = Bank()
    bank.breaks = [ConnectionError("lost the answer")]
    agent = shop(bank)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match="holdfast effects resolve"):
            await hf.run(agent, CHARGE, run_id="r")
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "unknown_effect")
        (effect,) = await hf.effects.unsettled()
        if way == "happened":
            await hf.effects.settle(effect.effect_id, "completed", result="receipt 1", by="ann")
        else:
            await hf.effects.settle(
                effect.effect_id, "not_done", retry=way == "retry", by="ann", note="I looked"
            )
        assert (await hf.runs.get("r")).status == "ready"
        found = results(await hf.run(agent, CHARGE, run_id="r"))
    if way == "happened":
        assert (found, len(bank.charges)) == ([("receipt 1", False)], 1)
    elif way == "retry":
        assert (found, len(bank.charges)) == ([("receipt 2", False)], 2)
    else:
        assert (found, len(bank.charges)) == ([("charge did not happen", True)], 1)


@async_test
async def test_policies_fail_and_retry_are_only_taken_when_declared(store: str) -> None:
    bank = Bank()
    bank.breaks = [ConnectionError("lost")]
    failing = shop(bank, in_doubt="fail")
    async with holdfast.Holdfast(store, agents=[failing]) as hf:
        ((text, is_error),) = results(await hf.run(failing, CHARGE, run_id="r"))
        assert is_error
        assert text == "charge raised ConnectionError: lost (whether it happened is not known)"
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["unknown"]
    bank.breaks = [ConnectionError("lost"), ConnectionError("lost")]
    trying = shop(bank, in_doubt="retry")
    async with holdfast.Holdfast(store, agents=[trying]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(trying, CHARGE, run_id="s")
    assert len(bank.charges) == 3


@async_test
async def test_verify_that_forgets_to_answer_is_no_answer(store: str) -> None:
    bank = Bank()
    bank.breaks = [ConnectionError("lost")]

    async def forgets(cents: int) -> None:
        """Returns nothing."""

    agent = shop(bank, verify=forgets)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(agent, CHARGE, run_id="r")
    assert len(bank.charges) == 1


@async_test
async def test_idempotent_tool_is_simply_called_again_after_a_crash(store: str) -> None:
    bank = Bank()
    bank.breaks = [Crash()]
    agent = shop(bank, effect="idempotent")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert results(await hf.runs.result("r")) == [("receipt 2", False)]
        assert (await kinds(hf, "r")).count("EFFECT_ISSUED") == 1
    assert len(set(bank.keys)) == 1


@async_test
async def test_idempotent_tool_is_tried_as_often_as_it_says(store: str) -> None:
    bank = Bank()
    bank.breaks_before = [OSError("1"), OSError("2")]
    agent = shop(bank, effect="idempotent", retries=2)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert results(await hf.run(agent, CHARGE, run_id="r")) == [("receipt 1", False)]
        bank.breaks_before = [OSError("1"), OSError("2"), OSError("3")]
        found = results(await hf.run(agent, CHARGE, run_id="s"))
        assert found == [("charge raised OSError: 1", True)]


@pytest.mark.mission("S4-048")
@async_test
async def test_concurrent_identical_calls_run_once(store: str) -> None:
    running = 0
    most = 0

    @holdfast.tool(key="tenant")
    async def slow(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        return n

    @holdfast.agent(tools=[slow])
    async def caller(run: holdfast.Run) -> int:
        return await run.call(slow, 1)

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        assert await asyncio.gather(*(hf.run(caller) for _ in range(10))) == [1] * 10
    assert (running, most) == (1, 1)


@async_test
async def test_tool_is_cut_at_its_time_limit(store: str) -> None:
    @holdfast.tool(effect="idempotent", limit_seconds=0.1)
    async def endless() -> str:
        await asyncio.sleep(3600)
        return "never"

    @holdfast.agent(tools=[endless])
    async def caller(run: holdfast.Run) -> str:
        with pytest.raises(ToolFailed, match="endless raised TimeoutError: it took over"):
            await run.call(endless)
        return "went on"

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        assert await hf.run(caller) == "went on"


@async_test
async def test_blocking_tool_runs_in_a_thread_and_the_lease_is_renewed(store: str) -> None:
    beats: list[int] = []

    @holdfast.tool(effect="read")
    def blocks() -> bool:
        time.sleep(1.6)
        return threading.current_thread() is not threading.main_thread()

    @holdfast.agent(tools=[blocks])
    async def caller(run: holdfast.Run) -> bool:
        return await run.call(blocks)

    async with holdfast.Holdfast(store, agents=[caller], settings=Settings(lease_seconds=1)) as hf:
        task = asyncio.create_task(hf.run(caller, run_id="r"))
        async with holdfast.open(store) as other:
            while not task.done():
                beats += [w.expires_at for w in await other.leases.workers()]
                await other.leases.expire_lost()
                await asyncio.sleep(0.05)
        assert await task
        assert "LEASE_EXPIRED" not in await kinds(hf, "r")
    assert len(set(beats)) > 2


@async_test
async def test_permission_and_loops_are_answered_with_reasons(store: str) -> None:
    calls: list[int] = []

    @holdfast.tool(effect="read")
    async def look(n: int) -> int:
        calls.append(n)
        return n

    async def permit(tool: holdfast.Tool[..., Any], args: Any) -> Any:
        return "only small numbers" if args["n"] > 10 else None

    @holdfast.agent(tools=[look], permission=permit, loop_limit=2)
    async def looker(run: holdfast.Run) -> list[str]:
        asked = [ToolCall("x", "look", {"n": n}) for n in (11, 1, 1, 1, 2, 1)]
        found = [(await run.tools([call]))[0].results[0].content for call in asked]
        await run.checkpoint()
        return found

    async with holdfast.Holdfast(store, agents=[looker]) as hf:
        found = await hf.run(looker)
    assert found[0] == "look was not called: only small numbers"
    assert found[3].startswith("look was not called: the same call was made 2 times in a row")
    assert (found[1], found[5], calls) == ("1", "1", [1, 1, 2, 1])


@pytest.mark.parametrize("effect", ["read", "mutate"])
@async_test
async def test_long_result_is_cut_and_the_whole_is_kept(store: str, effect: Any) -> None:
    @holdfast.tool(effect=effect, max_result_chars=100)
    async def book() -> str:
        return "word " * 1000

    @holdfast.agent(tools=[book])
    async def reader(run: holdfast.Run) -> list[str]:
        (message,) = await run.tools([ToolCall("b", "book")])
        shown = message.results[0].content
        blob = shown.rpartition("blob ")[2].rstrip("]")
        return [shown, await run.blob(blob)]

    async with holdfast.Holdfast(store, agents=[reader]) as hf:
        shown, whole = await hf.run(reader)
    assert len(shown) < 250
    assert "100 of 5,000 characters are shown" in shown
    assert whole == "word " * 1000


@async_test
async def test_result_that_cannot_be_stored_is_kept_as_text(store: str) -> None:
    @holdfast.tool
    async def odd() -> object:
        return {1, 2}

    @holdfast.agent(tools=[odd])
    async def caller(run: holdfast.Run) -> str:
        (message,) = await run.tools([ToolCall("o", "odd")])
        return message.results[0].content

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        assert await hf.run(caller) == "{1, 2}"


def test_schema_describes_the_arguments_for_a_model() -> None:
    @holdfast.tool(effect="read")
    async def search(
        words: Annotated[str, msgspec.Meta(description="What to look for")],
        kind: Literal["web", "news"] = "web",
        ids: list[UUID] | None = None,
        *,
        key: Key,
    ) -> list[str]:
        """Search the web."""
        return [words]

    assert search.description == "Search the web."
    assert search.input_schema["required"] == ["words"]
    assert set(search.input_schema["properties"]) == {"words", "kind", "ids"}
    assert search.input_schema["properties"]["words"]["description"] == "What to look for"
    assert search.input_schema["additionalProperties"] is False


def test_side_effects_of_a_set_map_to_classes() -> None:
    def nothing() -> None: ...

    classes = {
        frozenset({"read"}): "read",
        frozenset({"write"}): "mutate",
        frozenset({"read", "mutate"}): "mutate",
        frozenset[str](): "read",
    }
    for given, expected in classes.items():
        assert holdfast.tool(side_effects=given)(nothing).policy.effect == expected
    assert holdfast.tool(nothing).policy.effect == "mutate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effect": "sometimes"}, "one of read, idempotent, mutate"),
        ({"effect": "read", "side_effects": {"read"}}, "either effect or side_effects"),
        ({"effect": "read", "verify": print}, "only reads"),
        ({"in_doubt": "pray"}, "ask, fail or retry"),
        ({"key": "vibes"}, "args, call, tenant or a function"),
        ({"limit_seconds": 0}, "above 0"),
    ],
)
def test_tool_that_makes_no_sense_is_refused_when_it_is_made(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MisuseError, match=message):
        holdfast.tool(**options)(lambda: None)


def test_signature_that_a_model_cannot_use_is_refused() -> None:
    def many(*words: str) -> None: ...
    def by_place(word: str, /) -> None: ...

    for bad in (many, by_place):
        with pytest.raises(MisuseError):
            holdfast.tool(bad)


@async_test
async def test_frozen_worker_that_wakes_late_does_not_make_the_call(store: str) -> None:
    """Between intent and call more than half the limit passes: the call is issued anew."""
    bank = Bank()
    waits = [0.4]

    agent = shop(bank, limit_seconds=0.6)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, CHARGE)
        twin = hf.another_worker()
        held = await twin.leases.take("r")
        begin = held.begin_effects

        async def begin_and_freeze(requests: Any) -> Any:
            begun = await begin(requests)
            if waits:
                time.sleep(waits.pop())
            return begun

        held.begin_effects = begin_and_freeze  # type: ignore[method-assign]
        task = twin._work.start_pass(held)
        assert (await task).is_over
        statuses = [effect.status for effect in await hf.effects.of_run("r")]
        assert statuses == ["not_done", "completed"]
    assert len(bank.charges) == 1


@async_test
async def test_messages_of_tools_keep_the_order_of_the_calls(store: str) -> None:
    @holdfast.tool(effect="read")
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @holdfast.agent(tools=[wait])
    async def caller(run: holdfast.Run) -> list[str]:
        calls = [ToolCall(str(n), "wait", {"seconds": s}) for n, s in enumerate((0.05, 0.0, 0.02))]
        found: list[Message] = await run.tools(calls)
        return [m.results[0].call_id for m in found]

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        assert await hf.run(caller) == ["0", "1", "2"]


@async_test
async def test_forks_that_wait_for_an_effect_of_their_lineage_go_on_when_it_is_settled(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are read at once."""
    monkeypatch.setattr(effects, "_PAGE", 2)
    forks = [f"fork-{n}" for n in range(4)]
    bank = Bank()
    bank.breaks = [ConnectionError("lost the answer")]

    @holdfast.tool
    async def charge(cents: int, *, key: Key) -> str:
        return await bank.charge(cents, key)

    @holdfast.agent(tools=[charge])
    async def sell(run: holdfast.Run) -> str:
        if run.version == 0:
            await run.checkpoint()
        return await run.call(charge, 5)

    async with holdfast.Holdfast(store, agents=[sell]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(sell, run_id="r")
        for fork in forks:
            await hf.runs.fork("r", 1, new_run_id=fork)
            assert await advance(hf, fork) is not None
            assert (await hf.runs.get(fork)).blocked_reason == "unknown_effect"
        (effect,) = await hf.effects.unsettled()
        assert effect.run_id == "r"
        await hf.effects.settle(effect.effect_id, "completed", result="receipt 1")
        assert {(await hf.runs.get(run_id)).status for run_id in ("r", *forks)} == {"ready"}
        for fork in forks:
            assert await advance(hf, fork) is not None
            assert await hf.runs.result(fork) == "receipt 1"
        assert await hf.run(sell, run_id="r") == "receipt 1"
    assert len(bank.charges) == 1


@async_test
async def test_cancelled_blocking_tool_is_waited_for_and_its_end_is_known(store: str) -> None:
    running = threading.Event()
    let_go = threading.Event()
    done: list[int] = []

    @holdfast.tool(in_doubt="fail")
    def charge() -> str:
        running.set()
        let_go.wait(60)
        done.append(1)
        return "receipt"

    @holdfast.agent(tools=[charge])
    async def caller(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        await start(hf, caller)
        task = hf._work.start_pass(await hf.leases.take("r"))
        while not running.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["completed"]
        assert await hf.run(caller, run_id="r") == "receipt"
    assert done == [1]


@async_test
async def test_cancelled_call_is_judged_only_after_its_time_limit(store: str) -> None:
    """Its request may be on its way to the vendor: that it is not there yet says nothing."""
    bank, asked = Bank(), list[int]()
    calling = asyncio.Event()

    async def find(key: str) -> Happened[str] | NotDone:
        asked.append(hf._work.context.now())
        return await bank.find(key)

    @holdfast.tool(verify=find, limit_seconds=1.5)
    async def charge(*, key: Key) -> str:
        if not calling.is_set():
            calling.set()
            await asyncio.sleep(60)
        return await bank.charge(5, key)

    @holdfast.agent(tools=[charge])
    async def sell(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[sell]) as hf:
        await start(hf, sell)
        task = hf._work.start_pass(await hf.leases.take("r"))
        await calling.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        effect = (await hf.effects.of_run("r"))[-1]
        assert effect.status == "unknown"
        assert await hf.run(sell, run_id="r") == "receipt 1"
        again = (await hf.effects.of_run("r"))[-1]
    assert again.issued_at >= effect.limit_at
    assert asked[-1] >= effect.limit_at
    assert bank.keys == [effect.key]


@async_test
async def test_call_that_an_agent_cut_off_is_not_made_again_before_its_time_limit(
    store: str,
) -> None:
    bank, limits = Bank(), asyncio.timeout(None)

    @holdfast.tool(verify=bank.find, limit_seconds=1.5)
    async def charge(*, key: Key) -> str:
        if not limits.expired():
            limits.reschedule(0)
            await asyncio.sleep(60)
        return await bank.charge(5, key)

    @holdfast.agent(tools=[charge])
    async def sell(run: holdfast.Run) -> str:
        if run.value("tried", int, 0).get() == 0:
            with contextlib.suppress(TimeoutError):
                async with limits:
                    await run.call(charge)
            run.value("tried", int, 0).set(1)
            await run.checkpoint()
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[sell]) as hf:
        assert await hf.run(sell, run_id="r") == "receipt 1"
        cut_off, again = (await hf.effects.of_run("r"))[-2:]
    assert again.issued_at >= cut_off.limit_at
    assert bank.keys == [again.key]
