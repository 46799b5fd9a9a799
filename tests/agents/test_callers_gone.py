"""Whoever waits for a run goes away: a cancelled request must not cut a payment in two."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import EffectStatus, RunStatus, Settings
from holdfast.agents.work import work
from holdfast.errors import RunBlocked
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds


class Shop:
    """An agent that pays, and thinks before and after."""

    def __init__(self) -> None:
        self.paying, self.may_end = asyncio.Event(), asyncio.Event()
        self.paid = list[int]()
        self.turns = list[int]()

        @holdfast.tool
        async def pay(cents: int) -> str:
            self.paying.set()
            await self.may_end.wait()
            self.paid.append(cents)
            return "paid"

        @holdfast.agent(tools=[pay])
        async def buyer(run: holdfast.Run, turns: int) -> list[int]:
            done = run.value("done", int, 0)
            while done.get() < turns:
                await run.call(pay, done.get())
                done.set(done.get() + 1)
                await run.checkpoint()
            return self.paid

        @holdfast.agent(tools=[pay])
        async def seller(run: holdfast.Run, message: int) -> str:
            return await run.call(pay, message)

        self.buyer, self.seller, self.pay = buyer, seller, pay


async def leave_while_paying(shop: Shop, calling: Any) -> None:
    task = asyncio.ensure_future(calling)
    await shop.paying.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not shop.paid


async def not_running(hf: holdfast.Holdfast, run_id: str) -> RunStatus:
    async for run in hf.runs.watch(run_id):
        if run.status is not RunStatus.RUNNING:
            return run.status
    return (await hf.runs.get(run_id)).status


@async_test
async def test_tool_of_a_caller_that_is_gone_is_finished_and_recorded(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.buyer]) as hf:
        await leave_while_paying(shop, hf.run(shop.buyer, 2, run_id="r"))
        assert (await hf.runs.get("r")).status is RunStatus.RUNNING
        shop.may_end.set()
        # Its turn is ended here, and the run goes back to the workers.
        assert await not_running(hf, "r") is RunStatus.READY
        (paid,) = await hf.effects.of_run("r")
        assert paid.status is EffectStatus.COMPLETED
        assert await kinds(hf, "r") == [
            "RUN_CREATED",
            "RUN_LEASED",
            "VERSIONS_RECORDED",
            "EFFECT_ISSUED",
            "EFFECT_COMPLETED",
            "CHECKPOINT_CREATED",
            "RUN_RELEASED",
        ]
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        async for _ in hf.runs.watch("r"):
            pass
        worker.stop()
        await working
        assert await hf.runs.result("r") == [0, 1]


@async_test
async def test_next_caller_attaches_to_what_is_being_finished(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.buyer]) as hf:
        await leave_while_paying(shop, hf.run(shop.buyer, 1, run_id="r"))
        again = asyncio.create_task(hf.run(shop.buyer, 1, run_id="r"))
        handle = await hf.start(shop.buyer, 1, run_id="r")
        other = asyncio.create_task(handle.result())
        await asyncio.sleep(0)
        shop.may_end.set()
        assert await again == await other == [0]
    assert shop.paid == [0]


@async_test
async def test_message_of_a_sender_that_is_gone_is_answered(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.seller]) as hf:
        chat = hf.session(shop.seller, "s")
        await leave_while_paying(shop, chat.send(7, id="m"))
        shop.may_end.set()
        assert await chat.send(7, id="m") == "paid"
    assert shop.paid == [7]


@async_test
async def test_peer_of_a_caller_that_is_gone_is_finished(store: str) -> None:
    shop = Shop()

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer(shop.seller, 7)

    async with holdfast.Holdfast(store, agents=[shop.seller, caller]) as hf:
        await leave_while_paying(shop, hf.run(caller, run_id="r"))
        shop.may_end.set()
        assert await hf.run(caller, run_id="r") == "paid"
    assert shop.paid == [7]


@async_test
async def test_time_limits_of_any_length_leave_no_run_behind(store: str) -> None:
    """Wherever the caller is when it goes: the run can be asked for again, and pays once."""
    paid = list[int]()

    @holdfast.tool
    async def pay(n: int) -> int:
        paid.append(n)
        await asyncio.sleep(0.001)
        return n

    @holdfast.agent(tools=[pay])
    async def buyer(run: holdfast.Run, n: int) -> int:
        await run.checkpoint()
        return await run.call(pay, n)

    async with holdfast.Holdfast(store, agents=[buyer]) as hf:
        for n in range(30):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hf.run(buyer, n, run_id=f"r{n}"), n / 2000)
            assert await hf.run(buyer, n, run_id=f"r{n}") == n
    assert paid == list(range(30))


@async_test
async def test_closing_waits_for_a_tool_as_long_as_the_settings_say(store: str) -> None:
    shop = Shop()
    loop = asyncio.get_running_loop()
    async with holdfast.Holdfast(store, agents=[shop.buyer]) as hf:
        await leave_while_paying(shop, hf.run(shop.buyer, 1, run_id="r"))
        loop.call_later(0.3, shop.may_end.set)
    async with holdfast.Holdfast(store, agents=[shop.buyer]) as hf:
        assert await hf.run(shop.buyer, 1, run_id="r") == [0]
    assert shop.paid == [0]


@pytest.mark.parametrize("is_blocking", [False, True])
@async_test
async def test_outcome_is_unknown_of_a_tool_that_outlasts_the_shutdown(
    store: str, is_blocking: bool
) -> None:
    paying, may_end = threading.Event(), threading.Event()

    if is_blocking:

        @holdfast.tool
        def pay() -> str:
            paying.set()
            may_end.wait(60)
            return "paid"
    else:

        @holdfast.tool(limit_seconds=2.0)
        async def pay() -> str:
            paying.set()
            await asyncio.sleep(60)
            return "paid"

    @holdfast.agent(tools=[pay])
    async def buyer(run: holdfast.Run) -> str:
        (paid,) = await run.gather(run.call(pay))
        return paid

    short = Settings(shutdown_seconds=0.2)
    try:
        async with holdfast.Holdfast(store, agents=[buyer], settings=short) as hf:
            task = asyncio.create_task(hf.run(buyer, run_id="r"))
            while not paying.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
        async with holdfast.Holdfast(store, agents=[buyer]) as hf:
            (paid,) = await hf.effects.of_run("r")
            assert (await hf.runs.get("r")).status is RunStatus.READY
            if is_blocking:  # its thread works on: it may happen until its time limit is over
                assert paid.status is EffectStatus.ISSUED
                with pytest.raises(holdfast.errors.RunWaiting):
                    await hf.run(buyer, run_id="r", timeout=0.5)
                return
            assert paid.status is EffectStatus.UNKNOWN
            with pytest.raises(RunBlocked, match="nobody knows whether pay happened"):
                await hf.run(buyer, run_id="r")
    finally:
        may_end.set()


@pytest.mark.parametrize("in_doubt", ["ask", "retry"])
@async_test
async def test_nothing_is_paid_beside_a_thread_that_was_left_behind(
    store: str, in_doubt: Any
) -> None:
    """Its call may happen yet, however long its time limit is over."""
    paying, may_end = threading.Event(), threading.Event()
    begun, paid = list[str](), list[str]()

    def find(key: str) -> holdfast.Happened[str] | holdfast.NotDone:
        return holdfast.Happened("found") if key in paid else holdfast.NotDone()

    @holdfast.tool(verify=find, in_doubt=in_doubt, limit_seconds=1.0)
    def pay(*, key: holdfast.Key) -> str:
        begun.append(key)
        paying.set()
        may_end.wait(60)
        paid.append(key)
        return "paid"

    @holdfast.agent(tools=[pay])
    async def buyer(run: holdfast.Run) -> str:
        return await run.call(pay)

    try:
        short = Settings(shutdown_seconds=0.1)
        async with holdfast.Holdfast(store, agents=[buyer], settings=short) as hf:
            task = asyncio.create_task(hf.run(buyer, run_id="r"))
            while not paying.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
        async with holdfast.Holdfast(store, agents=[buyer]) as hf:
            effect = (await hf.effects.of_run("r"))[-1]
            while hf._work.context.now() <= effect.limit_at:
                await asyncio.sleep(0.01)
            with pytest.raises(holdfast.errors.RunWaiting):
                await hf.run(buyer, run_id="r", timeout=1.5)
            assert (begun, paid) == ([effect.key], [])
            may_end.set()
            assert await hf.run(buyer, run_id="r") == "found"
    finally:
        may_end.set()
    assert begun == paid == [effect.key]


@async_test
async def test_closing_does_not_wait_for_code_that_catches_its_cancellation(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work, "_BREAK_OFF_SECONDS", 0.2)
    entered, closed = asyncio.Event(), asyncio.Event()

    @holdfast.agent
    async def stubborn(run: holdfast.Run) -> None:
        entered.set()
        while not closed.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await closed.wait()

    short = Settings(shutdown_seconds=0.1)
    async with holdfast.Holdfast(store, agents=[stubborn], settings=short) as hf:
        task = asyncio.create_task(hf.run(stubborn, run_id="r"))
        await entered.wait()
        task.cancel()
    assert "does not stop; it is left behind: r" in caplog.text
    async with holdfast.Holdfast(store) as hf:
        await hf.leases.expire_lost()
        assert (await hf.runs.get("r")).status is RunStatus.READY
    left = [each for each in asyncio.all_tasks() if each.get_name() == "holdfast run r"]
    closed.set()
    await asyncio.wait(left)
    assert all(each.cancelled() or each.exception() is not None or each.result() for each in left)


INTERRUPTED = """
import asyncio, sys, holdfast, holdfast.sync

@holdfast.tool
async def pay() -> str:
    print("paying", flush=True)
    await asyncio.sleep(0.5)
    return "paid"

@holdfast.agent(tools=[pay])
async def buyer(run: holdfast.Run) -> str:
    return await run.call(pay)

with holdfast.sync.Holdfast(sys.argv[1], agents=[buyer]) as hf:
    try:
        hf.run(buyer, run_id="r")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_in_the_blocking_face_lets_the_tool_end(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    command = [sys.executable, "-c", INTERRUPTED, store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"paying\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"interrupted\n")

    async def look() -> object:
        async with holdfast.Holdfast(store) as hf:
            return await hf.runs.result("r")

    assert asyncio.run(look()) == "paid"
