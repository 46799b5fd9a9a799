"""Attacks that have succeeded once: each lost a run, or did something twice."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Happened, NotDone, Settings, ToolCall
from holdfast.engine.context import Context
from holdfast.errors import RunBlocked, RunFailed, StoreUnavailable
from holdfast.kernel.journal import Entry
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start


async def settled(hf: holdfast.Holdfast, run_id: str) -> str:
    """The status of a run once nobody here takes or releases it any more."""
    for _ in range(200):
        status = (await hf.runs.get(run_id)).status
        if status != "running":
            return status
        await asyncio.sleep(0.01)
    return "running"


@async_test
async def test_cancel_during_a_checkpoint_gives_the_run_back(store: str) -> None:
    @holdfast.agent
    async def counter(run: holdfast.Run) -> int:
        count = run.value("count", int, 0)
        while count.get() < 40:
            count.set(count.get() + 1)
            await run.checkpoint()
        return count.get()

    async with holdfast.Holdfast(store, agents=[counter]) as hf:
        for n in range(10):
            await hf.start(counter, run_id=f"r{n}")
            task = asyncio.create_task(hf.run(counter, run_id=f"r{n}"))
            await asyncio.sleep(0.004 * (n + 1))
            task.cancel()
            await asyncio.wait([task])
            assert await settled(hf, f"r{n}") in ("ready", "completed")
            assert await hf.run(counter, run_id=f"r{n}") == 40


@async_test
async def test_steps_of_branches_are_matched_by_their_branch(store: str) -> None:
    made = 0
    charged: list[tuple[str, str]] = []
    crashes = [True]

    @holdfast.tool
    async def charge(customer: str, order: str) -> str:
        charged.append((customer, order))
        return "ok"

    async def make_id(seconds: float) -> str:
        nonlocal made
        made += 1
        number = made
        await asyncio.sleep(seconds)
        return f"id{number}"

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> list[str]:
        async def branch(customer: str) -> str:
            order = await run.step(make_id, 0.0)
            if customer == "ann" and crashes:
                await asyncio.sleep(0.1)
                crashes.pop()
                raise Crash
            return await run.call(charge, customer, order)

        return await run.gather(branch("ann"), branch("bob"))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        assert charged == [("bob", "id2")]
        ending = await advance(hf, "r")
        assert ending is not None
        assert (ending.is_over, ending.error) == (True, None)
    assert charged == [("bob", "id2"), ("ann", "id1")]


@async_test
async def test_calls_are_matched_by_their_key(store: str) -> None:
    orders: list[str] = []
    crashes = [True]

    @holdfast.tool(key="call")
    async def order(what: str) -> str:
        orders.append(what)
        return f"order {len(orders)}"

    @holdfast.agent(tools=[order])
    async def agent(run: holdfast.Run) -> list[str]:
        async def branch(call_id: str, seconds: float) -> str:
            await asyncio.sleep(seconds)
            (message,) = await run.tools([ToolCall(call_id, "order", {"what": "tea"})])
            if crashes:
                crashes.pop()
                await run.step(lambda: 1)
                raise Crash
            return message.results[0].content

        first = 0.2 if crashes else 0.0
        return await run.gather(branch("A", first), branch("B", 0.0))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        ending = await advance(hf, "r")
        assert ending is not None
        assert ending.is_over
        found = [(e.call_id, e.status) for e in await hf.effects.of_run("r")]
    assert sorted(found) == [("A", "completed"), ("B", "completed")]
    assert orders == ["tea", "tea"]


@async_test
async def test_worker_beside_a_caller_in_one_process_does_not_fence_it(store: str) -> None:
    entered: list[str] = []

    @holdfast.agent
    async def once(run: holdfast.Run) -> str:
        entered.append(run.run_id)
        await asyncio.sleep(0.002)
        return run.run_id

    async with holdfast.Holdfast(store, agents=[once]) as hf:
        worker = hf.new_worker()
        task = asyncio.create_task(worker.run())
        names = [f"r{n}" for n in range(20)]
        assert [await hf.run(once, run_id=name) for name in names] == names
        worker.stop()
        await task
    assert entered == names


@async_test
async def test_store_that_fails_between_lease_and_load_does_not_strand_the_run(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        return "done"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        context: Context = hf._context
        read = context.store.journal.read
        failures = [StoreUnavailable("away for a moment")]

        async def fail_once(run_id: str, *, after: int, limit: int) -> list[Entry]:
            if failures:
                raise failures.pop()
            return await read(run_id, after=after, limit=limit)

        monkeypatch.setattr(context.store.journal, "read", fail_once)
        with pytest.raises(StoreUnavailable):
            await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "running"
        await advance(hf, "r")
        assert await hf.runs.result("r") == "done"


@async_test
async def test_call_that_was_given_up_is_not_followed_for_ever(store: str) -> None:
    calls: list[int] = []
    limits: list[asyncio.Timeout] = []

    @holdfast.tool(effect="idempotent", key="args")
    async def slow(n: int) -> str:
        calls.append(n)
        if len(calls) == 1:
            limits[0].reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(3600)
        return "done"

    @holdfast.agent(tools=[slow])
    async def agent(run: holdfast.Run) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await run.call(slow, 1)
        except TimeoutError:
            return await run.call(slow, 1)
        return "no time-out"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, timeout=60) == "done"
    assert calls == [1, 1]


@pytest.mark.parametrize("result", ["file-\udc80", "x" * 200_000], ids=["half a character", "big"])
@async_test
async def test_effect_is_completed_whatever_its_tool_returned(store: str, result: str) -> None:
    calls: list[int] = []

    @holdfast.tool
    async def odd() -> str:
        calls.append(1)
        return result

    @holdfast.agent(tools=[odd])
    async def agent(run: holdfast.Run) -> int:
        return len(await run.call(odd))

    settings = Settings(max_body_bytes=100_000)
    async with holdfast.Holdfast(store, agents=[agent], settings=settings) as hf:
        assert await hf.run(agent, run_id="r") > 5
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["completed"]
    assert calls == [1]


@async_test
async def test_checkpoint_that_is_too_large_fails_the_run_once(store: str) -> None:
    entered: list[int] = []

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        entered.append(1)
        for n in range(3):
            run.log("log", str).append(str(n) * 60_000)
        await run.checkpoint()
        return "never"

    settings = Settings(max_body_bytes=100_000)
    async with holdfast.Holdfast(store, agents=[agent], settings=settings) as hf:
        with pytest.raises(RunFailed, match="max_body_bytes"):
            await hf.run(agent)
    assert entered == [1]


@async_test
async def test_cancellation_that_nobody_asked_for_is_an_error_of_the_agent(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run, words: str) -> str:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner
        return words

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunFailed, match="awaited something that was cancelled"):
            await hf.run(agent, "a")
        with pytest.raises(RunFailed, match="awaited something that was cancelled"):
            await hf.session(agent, "s").send("a")


@async_test
async def test_intent_whose_call_was_never_made_asks_nobody(store: str) -> None:
    calls: list[int] = []
    waiting = asyncio.Event()

    @holdfast.tool
    async def charge() -> str:
        calls.append(1)
        return "receipt"

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        held = await hf.leases.take("r")
        begin = held.begin_effects

        async def begin_and_hang(requests: Any) -> Any:
            await begin(requests)
            waiting.set()
            await asyncio.sleep(60)

        held.begin_effects = begin_and_hang  # type: ignore[method-assign]
        task = hf._work.start_pass(held)
        await waiting.wait()
        task.cancel()
        await asyncio.wait([task])
        assert [effect.status for effect in await hf.effects.of_run("r")] == ["not_done"]
        assert await hf.run(agent, run_id="r") == "receipt"
    assert calls == [1]


@async_test
async def test_effect_that_is_settled_while_verify_is_asked_does_not_block_the_run(
    store: str,
) -> None:
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def find() -> Happened[str] | NotDone:
        asked.set()
        await go_on.wait()
        raise OSError("the vendor is away")

    @holdfast.tool(verify=find, limit_seconds=1.0)
    async def charge() -> str:
        raise Crash

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        (effect,) = await hf.effects.of_run("r")
        await hf.effects.settle(effect.effect_id, "unknown")
        twin = asyncio.create_task(advance(hf, "r"))
        await asked.wait()
        await hf.effects.settle(effect.effect_id, "completed", result="by hand")
        go_on.set()
        assert await twin is not None
        assert (await hf.runs.get("r")).status == "ready"
        assert await hf.run(agent, run_id="r") == "by hand"


@async_test
async def test_what_was_told_of_a_doubtful_call_is_told_again(store: str) -> None:
    calls: list[int] = []
    told: list[str] = []
    crashes = [True]

    async def find() -> NotDone:
        if crashes:
            raise OSError("the vendor is away")
        return NotDone()

    @holdfast.tool(in_doubt="fail", verify=find)
    async def charge() -> str:
        calls.append(1)
        raise ConnectionError("line dead")

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        (message,) = await run.tools([ToolCall("c", "charge")])
        told.append(message.results[0].content)
        await run.step(lambda: 1)
        if crashes:
            crashes.pop()
            raise Crash
        return "done"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert await hf.runs.result("r") == "done"
    assert (calls, len(set(told)), len(told)) == ([1], 1, 2)


@async_test
async def test_suspension_that_a_branch_swallows_still_suspends_the_run(store: str) -> None:
    @holdfast.tool
    async def charge() -> str:
        raise ConnectionError("line dead")

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> list[str]:
        async def branch() -> str:
            try:
                return await run.call(charge)
            except BaseException:
                return "swallowed"

        return await run.gather(branch())

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(agent)


@async_test
async def test_permission_that_was_refused_is_asked_again_after_a_crash(store: str) -> None:
    sent: list[int] = []
    crashes = [True]

    @holdfast.tool(key="call")
    async def mail(to: str) -> str:
        sent.append(1)
        return "sent"

    def permit(tool: holdfast.Tool[..., Any], args: Any) -> bool:
        return not sent

    @holdfast.agent(tools=[mail], permission=permit)
    async def agent(run: holdfast.Run) -> list[str]:
        first = await run.tools([ToolCall("1", "mail", {"to": "ann"})])
        second = await run.tools([ToolCall("2", "mail", {"to": "ann"})])
        await run.step(lambda: 1)
        if crashes:
            crashes.pop()
            raise Crash
        return [m.results[0].content for m in (*first, *second)]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        assert await hf.runs.result("r") == ["sent", "mail was not called: it is not permitted"]
    assert sent == [1]


@async_test
async def test_declined_call_can_be_made_again_in_the_same_turn(store: str) -> None:
    calls: list[int] = []

    @holdfast.tool
    async def charge(cents: int) -> str:
        calls.append(cents)
        if len(calls) == 1:
            raise NotDone("declined")
        return "receipt"

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> list[str]:
        call = ToolCall("c", "charge", {"cents": 5})
        found = [*(await run.tools([call])), *(await run.tools([call]))]
        return [message.results[0].content for message in found]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent) == ["charge raised NotDone: declined", "receipt"]
    assert calls == [5, 5]
