"""Starting, waiting for, watching and cancelling runs."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import faults
from holdfast.errors import (
    AgentNotFound,
    InputDiffers,
    MisuseError,
    RunCancelled,
    RunWaiting,
    UnsupportedValue,
)
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds

LIMIT_SECONDS = 240.0


@holdfast.agent
async def echo(run: holdfast.Run, words: str, times: int = 1) -> str:
    return " ".join([words] * times)


@async_test
async def test_started_run_waits_for_a_worker_or_for_whoever_wants_its_result(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[echo]) as hf:
        handle = await hf.start(echo, "hi", 2, run_id="r")
        assert await handle.status() == "ready"
        assert await handle.result() == "hi hi"
        assert [e.kind async for e in handle.events()][-1] == "RUN_COMPLETED"
        assert await (await hf.start(echo, "hi", 2, run_id="r")).result() == "hi hi"


@async_test
async def test_time_out_leaves_the_run_to_its_turn_and_it_can_be_resumed(store: str) -> None:
    go_on = asyncio.Event()
    turns: list[int] = []

    @holdfast.agent
    async def slow(run: holdfast.Run) -> int:
        done = run.value("done", int, 0)
        while done.get() < 3:
            turns.append(done.get())
            await go_on.wait()
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    async with holdfast.Holdfast(store, agents=[slow]) as hf:
        with pytest.raises(RunWaiting) as waiting:
            await hf.run(slow, run_id="r", timeout=0.05)
        assert waiting.value.run_id == "r"
        go_on.set()
        assert await hf.run(slow, run_id="r") == 3
        assert "RUN_RELEASED" in await kinds(hf, "r")
    assert turns == [0, 1, 2]


@async_test
async def test_caller_is_told_once_which_worker_holds_the_run(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        holdfast.Holdfast(store, agents=[echo]) as hf,
        holdfast.Holdfast(store) as other,
    ):
        handle = await hf.start(echo, "hi", run_id="r")
        await other.leases.take("r")
        with pytest.raises(RunWaiting), caplog.at_level(logging.WARNING, "holdfast"):
            await handle.result(timeout=0.05)
        (said,) = [record.getMessage() for record in caplog.records]
        assert said.startswith(f"run r is held by worker {other.worker}; if that was killed")


@async_test
async def test_waiting_session_is_named_by_what_it_waits_for(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[echo]) as hf:
        handle = await hf.start(echo, "hi", run_id="r")
        held = await hf.leases.take("r")
        await held.open_waits([holdfast.WaitSpec(name="approval", kind="question")], suspend=True)
        with pytest.raises(RunWaiting, match="question approval") as waiting:
            await handle.result(timeout=0.05)
        (wait,) = waiting.value.waits  # type: ignore[misc]
        await hf.waits.resolve(wait.wait_id, "yes")
        assert await handle.result() == "hi"


@async_test
async def test_cancelled_run_stops_at_its_next_await_whatever_its_code_does(store: str) -> None:
    reached = asyncio.Event()
    seen: list[str] = []

    @holdfast.agent
    async def stubborn(run: holdfast.Run) -> str:
        reached.set()
        for _ in range(2):
            try:
                await asyncio.sleep(3600)
            except BaseException as error:
                seen.append(type(error).__name__)
                break
        try:
            await run.checkpoint()
        except Exception as error:
            seen.append(type(error).__name__)
        return "done all the same"

    async with holdfast.Holdfast(store, agents=[stubborn]) as hf:
        handle = await hf.start(stubborn, run_id="r")
        task = asyncio.create_task(handle.result())
        await reached.wait()
        await handle.cancel(by="ann")
        with pytest.raises(RunCancelled):
            await task
        assert (await kinds(hf, "r"))[-1] == "RUN_CANCELLED"
    assert seen == ["CancelledError", "RunCancelled"]


@async_test
async def test_outcome_of_a_tool_is_recorded_although_its_run_was_cancelled(store: str) -> None:
    charging = asyncio.Event()
    cancelled = asyncio.Event()

    @holdfast.tool
    async def charge() -> str:
        charging.set()
        await cancelled.wait()
        return "receipt"

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        task = asyncio.create_task(hf.run(agent, run_id="r"))
        await charging.wait()
        await hf.runs.cancel("r")
        cancelled.set()
        with pytest.raises(RunCancelled):
            await task
        (effect,) = await hf.effects.of_run("r")
        found = await hf.effects.find(effect.key)
        assert found is not None
        assert (found.effect.status, found.result) == ("completed", "receipt")


@async_test
async def test_outcome_of_a_tool_is_recorded_though_a_step_is_lost_with_its_run(
    store: str,
) -> None:
    charging, has_thought, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @holdfast.tool
    async def charge() -> str:
        charging.set()
        await cancelled.wait()
        return "receipt"

    async def think() -> str:
        return "a thought"

    @holdfast.agent(tools=[charge], cadence=holdfast.every(turns=9))
    async def agent(run: holdfast.Run) -> list[str]:
        async def thought() -> str:
            await charging.wait()
            found = await run.step(think)  # it waits for the next commit
            has_thought.set()
            return found

        return [*await run.gather(run.call(charge), thought())]

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        task = asyncio.create_task(hf.run(agent, run_id="r"))
        await has_thought.wait()
        await hf.runs.cancel("r")
        cancelled.set()
        with pytest.raises(RunCancelled):
            await task
        assert "STEP_RECORDED" not in await kinds(hf, "r")
        (effect,) = await hf.effects.of_run("r")
        assert effect.status == "completed"


@async_test
async def test_pass_that_leaves_a_cancelled_run_is_not_interrupted_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is writing down what its tool did: that would be lost, and its caller be cancelled."""
    charging, cancelled = asyncio.Event(), asyncio.Event()
    leaving, decided = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @holdfast.tool
    async def charge() -> str:
        charging.set()
        await cancelled.wait()
        return "receipt"

    @holdfast.agent(tools=[charge])
    async def agent(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(str(tmp_path / "store.db"), agents=[agent]) as hf:
        is_lost = hf._work._is_lost

        async def is_lost_told_late(run_id: str, lease_seq: int) -> bool:
            """The pass hears it from a commit of its own before whoever watches can tell it."""
            found = await is_lost(run_id, lease_seq)
            cancelled.set()
            await leaving.wait()
            loop.call_soon(decided.set)
            return found

        def hold(point: str) -> None:
            if point == "batch.before_begin" and working.held.run.status == "cancelled":
                loop.call_soon_threadsafe(leaving.set)
                decided.wait(LIMIT_SECONDS)

        monkeypatch.setattr(hf._work, "_is_lost", is_lost_told_late)
        task = asyncio.create_task(hf.run(agent, run_id="r"))
        await charging.wait()
        (working,) = hf._work._passes.values()
        faults.install(hold)
        try:
            await hf.runs.cancel("r")
            with pytest.raises(RunCancelled):
                await task
        finally:
            faults.install(None)
        (effect,) = await hf.effects.of_run("r")
        assert effect.status == "completed"


@async_test
async def test_ten_callers_of_one_run_share_its_result(store: str) -> None:
    entered: list[str] = []

    @holdfast.agent
    async def once(run: holdfast.Run) -> int:
        entered.append(run.run_id)
        await asyncio.sleep(0.05)
        return len(entered)

    async with holdfast.Holdfast(store, agents=[once]) as hf:
        found = await asyncio.gather(*(hf.run(once, run_id="r") for _ in range(10)))
    assert found == [1] * 10


@async_test
async def test_run_of_an_agent_that_is_not_known_here_says_so(store: str) -> None:
    async with holdfast.Holdfast(store) as hf:
        await hf.runs.create("r", agent="stranger")
        twin = hf.another_worker()
        task = twin._work.start_pass(await twin.leases.take("r"))
        assert isinstance((await task).error, AgentNotFound)
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "no_agent")


@async_test
async def test_input_that_does_not_fit_the_agent_fails_the_run_clearly(store: str) -> None:
    async with holdfast.Holdfast(store, agents=[echo]) as hf:
        await hf.runs.create("r", agent="echo", input={"words": 5})
        await hf.runs.create("s", agent="echo", input={"times": 5})
        for run_id in ("r", "s"):
            twin = hf.another_worker()
            task = twin._work.start_pass(await twin.leases.take(run_id))
            assert isinstance((await task).error, UnsupportedValue)
            assert (await hf.runs.get(run_id)).status == "failed"
        with pytest.raises(MisuseError, match="cannot be started like this"):
            await hf.run(echo)  # type: ignore[call-overload]


def test_what_is_no_agent_is_refused_when_it_is_made() -> None:
    def blocking(run: holdfast.Run) -> str:
        return "x"

    async def many(run: holdfast.Run, *words: str) -> str:
        return "x"

    async def nothing() -> str:
        return "x"

    for bad in (blocking, many, nothing):
        with pytest.raises(MisuseError):
            holdfast.agent(bad)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="two agents"):
        holdfast.Holdfast("memory://", agents=[echo, holdfast.agent(name="echo")(echo.function)])


@async_test
async def test_input_that_was_written_down_in_another_way_is_the_same(store: str) -> None:
    @holdfast.agent
    async def greet(run: holdfast.Run, name: str) -> str:
        return f"hello {name}"

    async with holdfast.Holdfast(store, agents=[greet]) as hf:
        await hf.runs.create("r", agent="greet", input="ann")
        assert await hf.run(greet, "ann", run_id="r") == "hello ann"
        with pytest.raises(InputDiffers):
            await hf.run(greet, "bob", run_id="r")
