"""Time limits of an agent's own around calls of its run: the run is never left half changed."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncGenerator

import pytest

import holdfast
from holdfast import Budget, Cost, Happened, Settings, ToolCall
from holdfast.errors import OutcomeUnknown, RunFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds

LIMITS = (0, 0.0001, 0.0005, 0.001, 0.002, 0.005)


@contextlib.asynccontextmanager
async def limited(seconds: float) -> AsyncGenerator[None]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@async_test
async def test_checkpoint_that_a_time_limit_ends_is_stored_all_the_same(store: str) -> None:
    @holdfast.agent
    async def counts(run: holdfast.Run, seconds: float) -> list[int]:
        log, steps = run.log("l", str), 0

        async def step() -> int:
            nonlocal steps
            steps += 1
            return steps

        versions = list[int]()
        for n in range(30):
            log.append(f"{n}")
            await run.step(step)
            async with limited(seconds):
                await run.checkpoint()
            versions.append(run.version)
        assert steps == 30
        return versions

    async with holdfast.Holdfast(store, agents=[counts]) as hf:
        for seconds in LIMITS:
            handle = await hf.start(counts, seconds)
            assert [await handle.result() for _ in range(2)] == [list(range(1, 31))] * 2
            state = await hf.checkpoints.load(handle.run_id)
            assert state.parts["l"] == [f"{n}" for n in range(30)]
            assert "RECOVERY_INITIATED" not in await kinds(hf, handle.run_id)


@async_test
async def test_checkpoint_that_fails_after_its_time_limit_is_told_once(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run fails by it; asyncio does not log it as well, as an error that nobody has seen."""

    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        for n in range(3):
            run.log("log", str).append(str(n) * 60_000)
        async with limited(0):
            await run.checkpoint()
        return "never"

    settings = Settings(max_body_bytes=100_000)
    async with holdfast.Holdfast(store, agents=[agent], settings=settings) as hf:
        with pytest.raises(RunFailed, match="max_body_bytes"):
            await hf.run(agent)
        gc.collect()
    assert "never retrieved" not in caplog.text


@async_test
async def test_turns_after_a_limited_checkpoint_are_replayed_from_it(store: str) -> None:
    """The turn began anew: calls are counted from the checkpoint on, as they are after a crash."""
    made = list[int]()

    async def step(n: int) -> int:
        made.append(n)
        return n

    @holdfast.agent(recovery=holdfast.RecoveryPolicy(backoff_seconds=0.01))
    async def breaks(run: holdfast.Run) -> int:
        turn = run.value("turn", int, 0)
        while turn.get() < 3:
            await run.step(step, 1)
            await run.step(step, 1)
            if made == [1] * 4:
                made.append(0)
                raise ValueError("once")
            turn.set(turn.get() + 1)
            async with limited(0):
                await run.checkpoint()
        return len(made)

    async with holdfast.Holdfast(store, agents=[breaks]) as hf:
        assert await hf.run(breaks) == 7


@async_test
async def test_session_continues_after_a_limited_checkpoint(store: str) -> None:
    @holdfast.agent
    async def chat(run: holdfast.Run, message: str) -> int:
        log = run.log("talk", str)
        for part in message.split():
            log.append(part)
            async with limited(0):
                await run.checkpoint()
        return len(log)

    async with holdfast.Holdfast(store, agents=[chat]) as hf:
        session = hf.session(chat, "s")
        assert await session.send("a b c") == 3
        assert await session.send("d e") == 5


@async_test
async def test_call_that_a_time_limit_ends_before_its_tool_is_called_did_not_happen(
    store: str,
) -> None:
    called = list[int]()

    @holdfast.tool(cost=Cost(usd=0.01))
    async def pay(n: int) -> str:
        called.append(n)
        return "paid"

    @holdfast.agent(tools=[pay], budget=Budget(usd=1.0))
    async def pays(run: holdfast.Run) -> int:
        for n in range(20):
            async with limited(0):
                await run.call(pay, n)
            assert called == list(range(n))
            assert await run.call(pay, n) == "paid"
        return len(called)

    async with holdfast.Holdfast(store, agents=[pays]) as hf:
        assert await hf.run(pays, run_id="r") == 20
        by_status = [effect.status.value for effect in await hf.effects.of_run("r")]
        assert (by_status.count("not_done"), by_status.count("completed")) == (20, 20)
        account = await hf.budgets.get("r")
        assert (account.spent.usd_micros, account.reserved.usd_micros) == (200_000, 0)


@async_test
async def test_model_that_a_time_limit_ends_before_it_is_called_costs_nothing(store: str) -> None:
    called = 0

    async def think() -> str:
        nonlocal called
        called += 1
        return "thought"

    @holdfast.agent(budget=Budget(usd=1.0), reserve=Cost(usd=0.01))
    async def thinks(run: holdfast.Run) -> int:
        for _ in range(20):
            async with limited(0):
                await run.model(think)
        return called

    async with holdfast.Holdfast(store, agents=[thinks]) as hf:
        made = await hf.run(thinks, run_id="r")
        account = await hf.budgets.get("r")
        assert (account.spent.usd_micros, account.reserved.usd_micros) == (made * 10_000, 0)


@pytest.mark.parametrize("seconds", LIMITS)
@async_test
async def test_every_call_of_a_run_may_have_a_time_limit(store: str, seconds: float) -> None:
    @holdfast.tool(effect="idempotent")
    async def note(n: int) -> int:
        return n

    @holdfast.tool(effect="idempotent")
    def note_in_thread(n: int) -> int:
        return n

    @holdfast.agent
    async def peer(run: holdfast.Run, n: int) -> int:
        return n

    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @holdfast.agent(tools=[note, note_in_thread])
    async def tries(run: holdfast.Run) -> str:
        done = run.value("done", int, 0)
        for n in range(done.get(), 5):
            done.set(n + 1)
            for call in (
                lambda n=n: run.call(note, n),
                lambda n=n: run.call(note_in_thread, n),
                lambda n=n: run.step(work, n),
                lambda n=n: run.model(work, n),
                lambda n=n: run.gather(run.call(note, n), run.step(work, n)),
                run.checkpoint,
            ):
                async with limited(seconds):
                    await call()
        if done.get() == 5:
            done.set(6)
            await run.checkpoint()
        async with limited(seconds):
            await run.peer(peer, 1)
        return "done"

    async with holdfast.Holdfast(store, agents=[tries, peer]) as hf:
        handle = await hf.start(tries)
        assert [await handle.result(), await handle.result()] == ["done", "done"]


@async_test
async def test_outcome_that_an_agent_meets_as_unknown_is_settled(store: str) -> None:
    """Not the agent's fault: the run continues, and whoever waits for it is told one thing."""
    entered = 0

    @holdfast.agent
    async def meets(run: holdfast.Run) -> int:
        nonlocal entered
        entered += 1
        if entered == 1:
            raise OutcomeUnknown
        return entered

    async with holdfast.Holdfast(store, agents=[meets], settings=Settings()) as hf:
        handle = await hf.start(meets)
        assert [await handle.result(), await handle.result()] == [2, 2]


class SlowThread:
    """A function that blocks in its thread until the time limit around it has passed."""

    def __init__(self) -> None:
        self.limit = asyncio.timeout(None)
        self.loop = asyncio.get_running_loop()
        self._passed = threading.Event()

    def outlast(self) -> None:
        if not self._passed.is_set():
            self.loop.call_soon_threadsafe(self._end_limit)
            assert self._passed.wait(60)

    def _end_limit(self) -> None:
        self.limit.reschedule(self.loop.time())
        self.loop.call_later(0.05, self._passed.set)


@pytest.mark.parametrize("beside", [0, 1])
@async_test
async def test_time_limit_around_a_blocking_read_is_seen_by_the_agent(
    store: str, beside: int
) -> None:
    slow = SlowThread()

    @holdfast.tool(effect="read")
    def look(n: int) -> int:
        slow.outlast()
        return n

    @holdfast.agent(tools=[look])
    async def looks(run: holdfast.Run) -> list[str]:
        calls = [ToolCall(f"c{n}", "look", {"n": n}) for n in range(1 + beside)]
        said = list[str]()
        try:
            async with slow.limit:
                await run.tools(calls)
        except TimeoutError:
            said.append("late")
        said.extend(message.results[0].content for message in await run.tools(calls))
        return said

    async with holdfast.Holdfast(store, agents=[looks]) as hf:
        assert await hf.run(looks) == ["late", *(f"{n}" for n in range(1 + beside))]


@async_test
async def test_time_limit_around_a_blocking_verify_is_seen_by_the_agent(store: str) -> None:
    slow = SlowThread()
    paid = list[str]()

    def find(key: str) -> Happened[str]:
        slow.outlast()
        return Happened(f"found {paid.index(key)}")

    @holdfast.tool(verify=find)
    async def pay(*, key: holdfast.Key) -> str:
        paid.append(key)
        raise ConnectionError("the answer was lost")

    @holdfast.agent(tools=[pay])
    async def pays(run: holdfast.Run) -> list[str]:
        said = list[str]()
        try:
            async with slow.limit:
                await run.call(pay)
        except TimeoutError:
            said.append("late")
        return [*said, await run.call(pay)]

    async with holdfast.Holdfast(store, agents=[pays]) as hf:
        assert await hf.run(pays) == ["late", "found 0"]
    assert len(paid) == 1
