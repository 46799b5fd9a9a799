"""The time that a peer waits for a worker does not count against it; its work restarts the time."""

import asyncio
import os
import signal
import sys
import textwrap
import time

import pytest

import holdfast
from holdfast import Settings
from holdfast.clock import MICROSECONDS
from holdfast.errors import PeerTimedOut
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, start


def settings(**given: float) -> Settings:
    return Settings(wakeup_poll_seconds=0.1, **given)  # type: ignore[arg-type]


async def wait_until(condition, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


@async_test
async def test_eight_peers_on_one_slot_are_all_answered(store: str) -> None:
    began: list[int] = []

    @holdfast.agent
    async def slow(run: holdfast.Run, number: int) -> int:
        began.append(number)
        await asyncio.sleep(0.3)
        return number

    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[int]:
        return [*await run.gather(*(run.peer(slow, n, timeout=1.5) for n in range(8)))]

    async with holdfast.Holdfast(store, agents=[caller, slow], settings=settings()) as hf:
        handle = await hf.start(caller)
        working = asyncio.create_task(hf.new_worker(concurrency=1).run())
        await wait_until(lambda: ended(hf, handle.run_id))
        working.cancel()
        await asyncio.wait([working])
        assert await hf.runs.result(handle.run_id) == list(range(8))
        assert sorted(began) == list(range(8))


async def ended(hf: holdfast.Holdfast, run_id: str) -> bool:
    return (await hf.runs.get(run_id)).status in ("completed", "failed", "cancelled")


@async_test
async def test_time_limit_begins_when_a_worker_takes_the_peer(store: str) -> None:
    @holdfast.agent
    async def waiting(run: holdfast.Run, word: str) -> str:
        return await run.signal("go", str)

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer(waiting, "a", timeout=60, queue_timeout=3600)

    clock = ManualClock()
    async with holdfast.Holdfast(store, agents=[caller, waiting], clock=clock) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (queued,) = await hf.waits.of_run("r")
        assert queued.deadline - queued.opened_at == pytest.approx(3600 * MICROSECONDS, rel=0.01)
        held = await hf.runs.open(queued.wait_id)
        # Whoever dies here has begun the time: what says so is stored with the lease.
        clock.advance(1)
        await hf.leases.outbox.deliver()
        (taken,) = await hf.waits.of_run("r")
        assert taken.deadline - hf._context.now() <= 60 * MICROSECONDS
        await held.release()


@async_test
async def test_peer_that_waits_for_a_worker_has_no_deadline(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer("nobody", "a", timeout=0.05)

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        assert (wait.deadline, wait.patience) == (0, 50_000)
        await asyncio.sleep(0.1)
        assert await hf.waits.expire_due() == 0


@async_test
async def test_queue_timeout_bounds_the_wait_for_a_worker(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("nobody", "a", queue_timeout=0.1)
        except PeerTimedOut as error:
            return str(error)

    async with holdfast.Holdfast(store, agents=[caller], settings=settings()) as hf:
        told = await hf.run(caller, timeout=30)
        assert "or no worker took it within 0.1 seconds" in told


@async_test
async def test_each_checkpoint_restarts_the_deadline_up_to_the_first_caller(store: str) -> None:
    @holdfast.agent
    async def lowest(run: holdfast.Run, word: str) -> str:
        for _ in range(8):
            await asyncio.sleep(0.4)
            await run.checkpoint()
        return word

    @holdfast.agent
    async def middle(run: holdfast.Run, word: str) -> str:
        return await run.peer(lowest, word, timeout=2)

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer(middle, "done", timeout=2)

    async with holdfast.Holdfast(store, agents=[caller, middle, lowest], settings=settings()) as hf:
        handle = await hf.start(caller)
        working = asyncio.create_task(hf.new_worker().run())
        await wait_until(lambda: ended(hf, handle.run_id))
        working.cancel()
        await asyncio.wait([working])
        assert await hf.runs.result(handle.run_id) == "done"


@async_test
async def test_runs_that_nobody_called_owe_no_sign_of_life(store: str) -> None:
    async with holdfast.Holdfast(store) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        await held.checkpoint()
        assert await hf.messages.list() == []


@async_test
async def test_checkpoints_in_a_row_are_one_message(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer("busy", "a", timeout=60)

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        held = await hf.runs.open(wait.wait_id)
        begun = time.monotonic()
        for number in range(5):
            held.append("log", number)
            await held.checkpoint()
        passed = time.monotonic() - begun
        owed = await hf.messages.list()
        # At most four a second, however long five checkpoints take here.
        assert [each.kind for each in owed].count("working") <= 2 + int(4 * passed)
        assert {each.run_id for each in owed} <= {wait.wait_id}


PEER_THAT_DIES = """
    import asyncio, os, sys
    import holdfast

    @holdfast.agent
    async def dying(run: holdfast.Run, word: str) -> str:
        print("taken", flush=True)
        await asyncio.sleep(600)
        return word

    async def main() -> None:
        async with holdfast.Holdfast(sys.argv[1], agents=[dying]) as hf:
            await hf.new_worker().run()

    asyncio.run(main())
"""


@async_test
async def test_peer_whose_worker_is_killed_has_a_running_deadline(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("dying", "a", timeout=1)
        except PeerTimedOut:
            return "timed out"

    async with holdfast.Holdfast(store, agents=[caller], settings=settings()) as hf:
        handle = await hf.start(caller)
        working = asyncio.create_task(hf.new_worker(agents=["caller"]).run())
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(PEER_THAT_DIES),
            store,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"taken\n"
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await wait_until(lambda: ended(hf, handle.run_id))
        working.cancel()
        await asyncio.wait([working])
        assert await hf.runs.result(handle.run_id) == "timed out"
