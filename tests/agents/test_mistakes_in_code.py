"""Mistakes in agents' code that were answered with something else: each is refused in words."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCall
from holdfast.engine.reading import turns
from holdfast.errors import KeyReused, MisuseError, RunBlocked, RunFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start

Using = Callable[[holdfast.Run], Coroutine[Any, Any, Any]]


async def work(n: int = 0) -> int:
    return n


USES: dict[str, Using] = {
    "step": lambda run: run.step(work),
    "model": lambda run: run.model(work),
    "report": lambda run: run.report("half"),
    "checkpoint": lambda run: run.checkpoint(),
    "gather": lambda run: run.gather(),
}


@pytest.mark.parametrize("use", list(USES))
@async_test
async def test_task_that_outlived_its_run_is_refused(store: str, use: str) -> None:
    ended = asyncio.Event()
    left = list[asyncio.Task[Any]]()

    @holdfast.agent
    async def leaves(run: holdfast.Run) -> str:
        async def later() -> None:
            await ended.wait()
            await USES[use](run)

        left.append(asyncio.create_task(later()))
        return "done"

    async with holdfast.Holdfast(store, agents=[leaves]) as hf:
        assert await hf.run(leaves, run_id="r") == "done"
        before = await kinds(hf, "r")
        ended.set()
        with pytest.raises(MisuseError, match="after its agent's code had ended"):
            await left[0]
        assert await kinds(hf, "r") == before


@async_test
async def test_step_that_ends_after_its_message_was_answered_is_not_recorded(store: str) -> None:
    answered = asyncio.Event()
    left = list[asyncio.Task[Any]]()

    async def slow() -> str:
        await answered.wait()
        return "late"

    @holdfast.agent
    async def chat(run: holdfast.Run, message: str) -> str:
        if not left:
            left.append(asyncio.create_task(run.step(slow)))
            await asyncio.sleep(0)
        return message

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        session = hf.session(chat, "s")
        assert await session.send("one") == "one"
        answered.set()
        with pytest.raises(MisuseError, match="nothing was stored"):
            await left[0]
        assert await session.send("two") == "two"
        assert "STEP_RECORDED" not in await kinds(hf, "s")


@async_test
async def test_agent_that_forgets_an_await_fails_with_that_sentence(store: str) -> None:
    @holdfast.agent
    async def forgets(run: holdfast.Run, what: str) -> Any:
        return asyncio.ensure_future(work()) if what == "task" else run.step(work)

    async with holdfast.Holdfast(store, agents=[forgets]) as hf:
        for what, said in (("coroutine", r"coroutine \(Run.step\)"), ("task", "Task")):
            for _ in range(2):
                with pytest.raises(RunFailed, match=rf"forgets returned a {said}.*return await"):
                    await hf.run(forgets, what, run_id=what)
        with pytest.raises(RunFailed, match="forgets returned a coroutine"):
            await hf.session(forgets, "s").send("coroutine")


@async_test
async def test_step_that_returns_a_coroutine_says_so() -> None:
    @holdfast.agent
    async def forgets(run: holdfast.Run) -> Any:
        return await run.step(lambda: work())

    async with holdfast.Holdfast("memory://", agents=[forgets]) as hf:
        with pytest.raises(RunFailed, match="returned a coroutine that was never awaited"):
            await hf.run(forgets)


class Bank:
    """Keys a payment by its order alone, which is a mistake if the sum may differ."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int]] = []
        self.crashes = 0

        @holdfast.tool(key=lambda order, cents: order)
        async def pay(order: str, cents: int) -> int:
            self.paid.append((order, cents))
            return cents

        @holdfast.agent(tools=[pay])
        async def agent(run: holdfast.Run, sums: list[int]) -> list[int]:
            made = [await run.call(pay, "o1", cents) for cents in sums]
            if self.crashes:
                self.crashes -= 1
                raise Crash
            return made

        @holdfast.agent(tools=[pay], name="batch")
        async def batch(run: holdfast.Run, sums: list[int]) -> list[str]:
            calls = [ToolCall(f"c{n}", "pay", {"order": "o1", "cents": n}) for n in sums]
            told: list[Message] = await run.tools(calls)
            return [each.results[0].content for each in told]

        self.agent, self.batch = agent, batch


@async_test
async def test_key_that_meets_other_arguments_raises_and_names_both(store: str) -> None:
    bank = Bank()
    async with holdfast.Holdfast(store, agents=[bank.agent]) as hf:
        with pytest.raises(RunFailed, match="KeyReused: pay was not called") as told:
            await hf.run(bank.agent, [100, 200], run_id="r")
        assert isinstance(told.value.__cause__, KeyReused)
        (first,) = await hf.effects.of_run("r")
        said = str(told.value)
        assert f"effect {first.effect_id} of run r" in said
        assert first.args_digest.hex()[:16] in said
        assert bank.paid == [("o1", 100)]
        # In another run of the tenant it is the same key.
        with pytest.raises(RunFailed, match=f"effect {first.effect_id} of run r"):
            await hf.run(bank.agent, [300])
        assert await hf.run(bank.agent, [100, 100]) == [100, 100]
        assert bank.paid == [("o1", 100)]


@async_test
async def test_model_is_told_that_a_key_is_used_by_another_call(store: str) -> None:
    bank = Bank()
    async with holdfast.Holdfast(store, agents=[bank.batch]) as hf:
        told = await hf.run(bank.batch, [100, 200])
        assert told[0] == "100"
        assert "its key 'pay:o1' is used by call c100 with other arguments" in told[1]
        assert bank.paid == [("o1", 100)]


@async_test
async def test_same_arguments_are_replayed_after_crash_fork_and_rewind(store: str) -> None:
    bank = Bank()
    bank.crashes = 1
    async with holdfast.Holdfast(store, agents=[bank.agent]) as hf:
        await start(hf, bank.agent, [100, 100])
        assert await advance(hf, "r") is None
        assert (await advance(hf, "r")) is not None
        assert await hf.runs.result("r") == [100, 100]
        await hf.runs.fork("r", version=0, new_run_id="f")
        assert await hf.run(bank.agent, [100, 100], run_id="f") == [100, 100]
        assert bank.paid == [("o1", 100)]


@async_test
async def test_reason_of_a_block_is_found_whatever_follows_it(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_PAGE", 7)

    @holdfast.agent
    async def waits(run: holdfast.Run) -> None:
        await run.signal("never")

    async with holdfast.Holdfast(store, agents=[waits]) as hf:
        await hf.start(waits, run_id="r")
        await hf.runs.block("r", "breaker", note="the reason")
        await asyncio.gather(*(hf.signal("r", "other", n, id=f"{n}") for n in range(60)))
        assert await hf.runs.note("r") == "the reason"
        with pytest.raises(RunBlocked, match="the reason"):
            await hf.run(waits, run_id="r")


@async_test
async def test_question_that_is_not_awaited_is_no_consent(store: str) -> None:
    paid: list[int] = []

    @holdfast.tool
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    @holdfast.agent(tools=[pay])
    async def forgets(run: holdfast.Run, cents: int) -> str:
        if not run.ask(f"Pay {cents}?", schema=bool):
            return "declined"
        return await run.call(pay, cents)

    async with holdfast.Holdfast(store, agents=[forgets]) as hf:
        with pytest.raises(RunFailed, match=r"run\.ask\(…\) was not awaited, so nothing was done"):
            await hf.run(forgets, 5000, run_id="r")
        assert paid == []
        assert "EFFECT_ISSUED" not in await kinds(hf, "r")


@pytest.mark.parametrize("verb", ["call", "ask", "sleep", "signal", "peer"])
@async_test
async def test_run_does_not_complete_with_a_call_that_was_not_awaited(verb: str) -> None:
    @holdfast.tool
    async def pay() -> str:
        raise AssertionError("it is not called")

    @holdfast.agent(tools=[pay])
    async def forgets(run: holdfast.Run) -> str:
        _ = {
            "call": lambda: run.call(pay),
            "ask": lambda: run.ask("?", schema=bool),
            "sleep": lambda: run.sleep(seconds=9),
            "signal": lambda: run.signal("go"),
            "peer": lambda: run.peer("other"),
        }[verb]()
        return "done"

    async with holdfast.Holdfast("memory://", agents=[forgets]) as hf:
        said = rf"run\.{verb}\(…\) was not awaited, so nothing was done: write `await run\.{verb}"
        with pytest.raises(RunFailed, match=said):
            await hf.run(forgets)


@async_test
async def test_calls_may_be_made_first_and_awaited_later() -> None:
    @holdfast.tool(effect="read")
    async def double(n: int) -> int:
        return 2 * n

    @holdfast.agent(tools=[double])
    async def collects(run: holdfast.Run) -> list[int]:
        one, two = (run.call(double, n) for n in (1, 2))
        three, four = (run.step(work, n) for n in (3, 4))
        task = asyncio.create_task(four)
        return [*await run.gather(one, three), await two, await task]

    async with holdfast.Holdfast("memory://", agents=[collects]) as hf:
        assert await hf.run(collects) == [2, 3, 4, 4]
