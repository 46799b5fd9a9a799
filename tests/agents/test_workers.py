"""Workers: taking runs, racing for them, stopping, staying alive, and being idle."""

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.engine.reading import turns
from holdfast.errors import AgentNotFound, MisuseError
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds


async def ended(hf: holdfast.Holdfast, *run_ids: str) -> None:
    """Wait until these runs have ended, without helping."""
    for run_id in run_ids:
        async for _ in hf.runs.watch(run_id):
            pass


@async_test
async def test_worker_takes_runs_up_to_its_concurrency(store: str) -> None:
    running = most = 0
    full = asyncio.Event()

    @holdfast.agent
    async def busy(run: holdfast.Run, n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 60)
        running -= 1
        return n

    async with holdfast.Holdfast(store, agents=[busy]) as hf:
        handles = [await hf.start(busy, n, run_id=f"r{n}") for n in range(12)]
        worker = hf.new_worker(concurrency=3)
        task = asyncio.create_task(worker.run())
        await ended(hf, *(handle.run_id for handle in handles))
        worker.stop()
        await task
        assert [await hf.runs.result(f"r{n}") for n in range(12)] == list(range(12))
    assert (most, worker.advanced) == (3, 12)


@async_test
async def test_racing_workers_enter_each_run_once(store: str) -> None:
    entered: Counter[str] = Counter()

    @holdfast.agent
    async def once(run: holdfast.Run) -> str:
        entered[run.run_id] += 1
        await asyncio.sleep(0)
        return run.run_id

    async with (
        holdfast.Holdfast(store, agents=[once]) as one,
        holdfast.Holdfast(store, agents=[once]) as two,
    ):
        handles = [await one.start(once) for _ in range(30)]
        workers = [hf.new_worker(concurrency=4) for hf in (one, two, one.another_worker())]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        await ended(one, *(handle.run_id for handle in handles))
        for worker in workers:
            worker.stop()
        await asyncio.gather(*tasks)
    assert entered == {handle.run_id: 1 for handle in handles}


@async_test
async def test_stopping_worker_hands_back_at_the_boundary_of_a_turn(store: str) -> None:
    in_tool = asyncio.Event()
    go_on = asyncio.Event()
    calls: list[int] = []

    @holdfast.tool
    async def charge(turn: int) -> str:
        calls.append(turn)
        in_tool.set()
        await go_on.wait()
        return "ok"

    @holdfast.agent(tools=[charge])
    async def spender(run: holdfast.Run) -> int:
        turn = run.value("turn", int, 0)
        while turn.get() < 3:
            await run.call(charge, turn.get())
            turn.set(turn.get() + 1)
            await run.checkpoint()
        return turn.get()

    async with holdfast.Holdfast(store, agents=[spender]) as hf:
        await hf.start(spender, run_id="r")
        worker = hf.new_worker()
        task = asyncio.create_task(worker.run())
        await in_tool.wait()
        worker.stop()
        assert not task.done()
        go_on.set()
        await task
        run = await hf.runs.get("r")
        assert (run.status, run.worker) == ("ready", "")
        assert [e.status for e in await hf.effects.of_run("r")] == ["completed"]
        assert await hf.run(spender, run_id="r") == 3
    assert calls == [0, 1, 2]


@async_test
async def test_worker_that_is_cancelled_leaves_at_once_and_the_effect_is_in_doubt(
    store: str,
) -> None:
    in_tool = asyncio.Event()

    @holdfast.tool
    async def charge() -> str:
        in_tool.set()
        await asyncio.sleep(3600)
        return "never"

    @holdfast.agent(tools=[charge])
    async def spender(run: holdfast.Run) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[spender]) as hf:
        await hf.start(spender, run_id="r")
        task = asyncio.create_task(hf.new_worker().run())
        await in_tool.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await hf.runs.get("r")).status == "ready"
        assert [e.status for e in await hf.effects.of_run("r")] == ["unknown"]


@async_test
async def test_only_known_agents_are_taken(store: str) -> None:
    @holdfast.agent
    async def known(run: holdfast.Run) -> str:
        return "done"

    @holdfast.agent
    async def left_out(run: holdfast.Run) -> str:
        return "done"

    async with holdfast.Holdfast(store, agents=[known, left_out]) as hf:
        await hf.runs.create("a", agent="stranger")
        await hf.start(left_out, run_id="b")
        await hf.start(known, run_id="c")
        worker = hf.new_worker(agents=["known"])
        task = asyncio.create_task(worker.run())
        await ended(hf, "c")
        worker.stop()
        await task
        assert [(await hf.runs.get(r)).status for r in "ab"] == ["ready", "ready"]
        with pytest.raises(AgentNotFound, match="nobody"):
            hf.new_worker(agents=["nobody"])
        with pytest.raises(MisuseError):
            await worker.run()


@async_test
async def test_heart_beats_from_its_thread_while_the_loop_is_busy_and_not_when_it_stands(
    store: str,
) -> None:
    @holdfast.agent
    async def busy(run: holdfast.Run, seconds: float) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.02)  # blocks, but for less than a lease at a time
            await asyncio.sleep(0)
        return "done"

    settings = Settings(lease_seconds=0.6)
    async with holdfast.Holdfast(store, agents=[busy], settings=settings) as hf:
        worker = hf.new_worker()
        await hf.start(busy, 1.5, run_id="r")
        task = asyncio.create_task(worker.run())
        await ended(hf, "r")
        heart = hf.leases.heart
        assert heart is not None
        assert heart.beats >= 3
        assert "LEASE_EXPIRED" not in await kinds(hf, "r")
        beats = heart.beats
        time.sleep(1.5)  # the loop stands still for more than a lease
        assert heart.beats - beats <= 2
        worker.stop()
        await task
    names = [thread.name for thread in threading.enumerate()]
    assert "holdfast-heart" not in names


@async_test
async def test_heart_goes_on_beating_after_an_error_that_nobody_expected(store: str) -> None:
    """Such as too many open files: a heart that stopped would cost a living worker its runs."""

    @holdfast.agent
    async def nothing(run: holdfast.Run) -> str:
        return "done"

    settings = Settings(lease_seconds=0.6)
    async with holdfast.Holdfast(store, agents=[nothing], settings=settings) as hf:
        worker = hf.new_worker()
        assert worker._heart is not None
        opening, failures = worker._heart._open_store, [OSError(24, "Too many open files")]

        def open_store() -> Any:
            if failures:
                raise failures.pop()
            return opening()

        worker._heart._open_store = open_store
        task = asyncio.create_task(worker.run())
        await hf.run(nothing)
        async with asyncio.timeout(60):
            while worker._heart.beats < 2:
                await asyncio.sleep(0.02)
        assert not failures
        worker.stop()
        await task


@async_test
async def test_heart_beats_again_when_its_store_is_opened_again(store: str) -> None:
    @holdfast.agent
    async def nothing(run: holdfast.Run) -> str:
        return "done"

    hf = holdfast.Holdfast(store, agents=[nothing], settings=Settings(lease_seconds=0.6))
    for _ in range(2):
        async with hf:
            worker = hf.new_worker()
            task = asyncio.create_task(worker.run())
            await hf.run(nothing)
            (first,) = await hf.leases.workers()
            now = first
            async with asyncio.timeout(20):
                while now.beats < first.beats + 2:
                    await asyncio.sleep(0.02)
                    (now,) = await hf.leases.workers()
            assert now.worker == first.worker
            worker.stop()
            await task


@async_test
async def test_task_beside_the_runs_is_started_again_after_an_error(store: str) -> None:
    """Say, the delivery of messages: without it replies wait for ever."""
    begun: list[int] = []
    again = asyncio.Event()

    async def deliver() -> None:
        begun.append(len(begun))
        if len(begun) == 1:
            raise OSError("nobody expected this")
        again.set()
        await asyncio.Event().wait()

    async with holdfast.Holdfast(store) as hf:
        worker = hf.new_worker(agents=[])
        worker.beside.append(deliver)
        working = asyncio.create_task(worker.run())
        await asyncio.wait_for(again.wait(), 60)
        worker.stop()
        await working
    assert begun == [0, 1]


@async_test
async def test_run_that_was_just_taken_is_handed_back_by_a_worker_that_stops(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    input_of = turns.input_of

    async def slowly(*args: Any) -> Any:
        looked.set()
        await asyncio.sleep(0.05)
        return await input_of(*args)

    @holdfast.agent
    async def two_turns(run: holdfast.Run) -> str:
        await run.checkpoint()
        return "done"

    async with holdfast.Holdfast(store, agents=[two_turns]) as hf:
        monkeypatch.setattr(turns, "input_of", slowly)
        await hf.start(two_turns, run_id="r")
        worker = hf.new_worker()
        task = asyncio.create_task(worker.run())
        await looked.wait()
        worker.stop()
        await task
        run = await hf.runs.get("r")
        assert (run.status, run.attempts) == ("ready", 0)


@async_test
async def test_workers_that_were_lost_long_ago_are_forgotten(tmp_path: Path) -> None:
    @holdfast.agent
    async def nothing(run: holdfast.Run) -> str:
        return ""

    clock = ManualClock()
    async with holdfast.Holdfast(str(tmp_path / "s.db"), agents=[nothing], clock=clock) as hf:
        lost = hf.another_worker()
        await lost.leases.renew()
        clock.advance(2 * 86_400)
        worker = hf.new_worker()
        task = asyncio.create_task(worker.run())
        async for _ in hf.runs.watch((await hf.start(nothing)).run_id):
            pass
        assert [w.worker for w in await hf.leases.workers()] == [hf.worker]
        worker.stop()
        await task
