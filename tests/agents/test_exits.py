"""Agent code that exits or raises a BaseException: it fails, its worker goes on, it is stopped."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.sync
from holdfast import Approval, BlockedReason, HandoffPolicy, RecoveryPolicy, RunStatus, Settings
from holdfast.errors import OutcomeUnknown, RunBlocked, ToolFailed
from holdfast.kernel.runs import RunRow
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds

QUICK = RecoveryPolicy(backoff_seconds=0.01)
SOON = Settings(wakeup_poll_seconds=0.05)


class Abort(BaseException):
    """A class of an agent's own."""


def leave(how: str) -> Any:
    """Leave the code that calls this in one of the ways that are no Exception."""
    if how == "exit":
        sys.exit(3)
    if how == "own":
        raise Abort("enough")
    if how == "closed":
        raise GeneratorExit
    raise BaseExceptionGroup("several", [Abort("one"), SystemExit(3)])


async def leave_async(how: str) -> Any:
    leave(how)


WAYS = ("exit", "own", "closed", "several")


async def blocked(hf: holdfast.Holdfast, run_id: str) -> RunRow:
    async for run in hf.runs.watch(run_id):
        if run.status is RunStatus.BLOCKED:
            return run
    raise AssertionError(f"{run_id} ended")


@pytest.mark.parametrize("how", WAYS)
@async_test
async def test_agent_that_exits_is_tried_again_and_then_blocked(store: str, how: str) -> None:
    entered = 0

    @holdfast.agent
    async def poison(run: holdfast.Run, how: str) -> None:
        nonlocal entered
        entered += 1
        leave(how)

    @holdfast.agent
    async def fine(run: holdfast.Run, n: int) -> int:
        return n

    async with holdfast.Holdfast(store, agents=[poison, fine], settings=SOON) as hf:
        await hf.start(poison, how, run_id="r")
        worker = hf.new_worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        run = await blocked(hf, "r")
        # The same worker goes on with the runs of others.
        await hf.start(fine, 7, run_id="other")
        async for _ in hf.runs.watch("other"):
            pass
        worker.stop()
        await working
        assert run.blocked_reason == BlockedReason.BREAKER
        assert (entered, await kinds(hf, "r")) == (
            3,
            [
                "RUN_CREATED",
                *["RUN_LEASED", "RECOVERY_INITIATED"],
                *["RUN_LEASED", "RECOVERY_COMPLETED", "RECOVERY_INITIATED"],
                *["RUN_LEASED", "RECOVERY_COMPLETED", "RECOVERY_FAILED", "RUN_BLOCKED"],
            ],
        )
        assert "3 tries failed" in await hf.runs.note("r")
        assert await hf.runs.result("other") == 7


@async_test
async def test_whoever_runs_an_agent_that_exits_is_told_that_it_is_blocked(store: str) -> None:
    @holdfast.agent(recovery=QUICK)
    async def poison(run: holdfast.Run) -> None:
        sys.exit(3)

    async with holdfast.Holdfast(store, agents=[poison]) as hf:
        for _ in range(2):
            with pytest.raises(RunBlocked, match="SystemExit: 3"):
                await hf.run(poison, run_id="r")


@async_test
async def test_progress_lets_an_agent_that_exits_be_tried_anew(store: str) -> None:
    exits = 0

    @holdfast.agent(recovery=QUICK)
    async def stumbles(run: holdfast.Run) -> int:
        nonlocal exits
        done = run.value("done", int, 0)
        while done.get() < 4:
            if exits < 2 * (done.get() + 1):
                exits += 1
                sys.exit(1)
            done.set(done.get() + 1)
            await run.checkpoint()
        return exits

    async with holdfast.Holdfast(store, agents=[stumbles]) as hf:
        assert await hf.run(stumbles, run_id="r") == 8


@async_test
async def test_session_whose_agent_exits_is_blocked(store: str) -> None:
    @holdfast.agent(recovery=QUICK)
    async def poison(run: holdfast.Run, message: str) -> str:
        if message == "leave":
            sys.exit(3)
        return message

    async with holdfast.Holdfast(store, agents=[poison]) as hf:
        chat = hf.session(poison, "s")
        assert await chat.send("hello") == "hello"
        with pytest.raises(RunBlocked, match="SystemExit: 3"):
            await chat.send("leave")


async def cancel_own_task(how: str) -> None:
    """Cancel the task of the agent that calls this, in one of the ways its code may do so."""
    own = asyncio.current_task()
    assert own is not None
    if how == "helper":
        asyncio.get_running_loop().call_soon(own.cancel)
        await asyncio.sleep(60)
    own.cancel()
    if how == "at_the_end":
        return  # it meets the cancellation when it awaits something again, and it does not
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if how != "swallowed":
            raise
    raise asyncio.CancelledError


CANCELS = ("directly", "helper", "at_the_end", "swallowed")


@pytest.mark.parametrize("how", CANCELS)
@async_test
async def test_agent_that_cancels_its_own_task_is_tried_again_and_then_blocked(
    store: str, how: str
) -> None:
    entered = 0

    @holdfast.agent(recovery=QUICK)
    async def selfish(run: holdfast.Run, how: str) -> None:
        nonlocal entered
        entered += 1
        await cancel_own_task(how)

    @holdfast.agent
    async def fine(run: holdfast.Run, n: int) -> int:
        return n

    async with holdfast.Holdfast(store, agents=[selfish, fine], settings=SOON) as hf:
        await hf.start(selfish, how, run_id="r")
        worker = hf.new_worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(30):
            run = await blocked(hf, "r")
        await hf.start(fine, 7, run_id="other")
        async for _ in hf.runs.watch("other"):
            pass
        worker.stop()
        await working
        assert (run.blocked_reason, entered) == (BlockedReason.BREAKER, 3)
        assert "agent selfish cancelled its own task" in await hf.runs.note("r")
        assert await hf.runs.result("other") == 7


@pytest.mark.parametrize("how", CANCELS)
@async_test
async def test_whoever_runs_an_agent_that_cancels_its_own_task_is_not_cancelled(how: str) -> None:
    @holdfast.agent(recovery=QUICK)
    async def selfish(run: holdfast.Run, message: str) -> str:
        if message in CANCELS:
            await cancel_own_task(message)
        return message

    async with holdfast.Holdfast("memory://", agents=[selfish]) as hf:
        async with asyncio.timeout(30):
            with pytest.raises(RunBlocked, match="agent selfish cancelled its own task"):
                await hf.run(selfish, how, run_id="r")
            chat = hf.session(selfish, "s")
            assert await chat.send("hello") == "hello"
            with pytest.raises(RunBlocked, match="agent selfish cancelled its own task"):
                await chat.send(how)


@async_test
async def test_unknown_outcome_of_another_store_is_counted_as_a_failure_of_the_agent(
    store: str,
) -> None:
    entered = 0

    @holdfast.agent
    async def careless(run: holdfast.Run) -> None:
        nonlocal entered
        entered += 1
        raise OutcomeUnknown("the answer of another store was lost")

    async with holdfast.Holdfast(store, agents=[careless], settings=SOON) as hf:
        async with asyncio.timeout(30):
            with pytest.raises(RunBlocked, match="answer of another store"):
                await hf.run(careless, run_id="r")
        assert entered == 3


@async_test
async def test_payment_whose_agent_cancels_its_own_task_is_made_once(store: str) -> None:
    paid: list[str] = []

    @holdfast.tool
    async def pay(order: str) -> str:
        paid.append(order)
        return "paid"

    @holdfast.agent(recovery=QUICK)
    async def selfish(run: holdfast.Run) -> None:
        await run.call(pay, "o1")
        await cancel_own_task("directly")

    async with holdfast.Holdfast(store, agents=[selfish]) as hf, asyncio.timeout(30):
        with pytest.raises(RunBlocked):
            await hf.run(selfish, run_id="r")
        assert paid == ["o1"]


def test_blocking_face_outlives_an_agent_that_exits(tmp_path: Path) -> None:
    @holdfast.agent(recovery=QUICK)
    async def poison(run: holdfast.Run, how: str) -> str:
        return leave(how) if how in WAYS else how

    with holdfast.sync.Holdfast(str(tmp_path / "store.db"), agents=[poison]) as hf:
        for how in WAYS:
            with pytest.raises(RunBlocked, match="3 tries failed"):
                hf.run(poison, how)
        assert hf.run(poison, "stay") == "stay"


Body = Callable[[holdfast.Run], Awaitable[Any]]


def bodies() -> dict[str, Body]:
    @holdfast.tool(key=lambda: leave("exit"))
    async def keyed() -> str:
        return "keyed"

    async def in_gather(run: holdfast.Run) -> None:
        await run.gather(run.step(leave_async, "exit"), run.step(leave_async, "own"))

    async def in_key_of_a_batch(run: holdfast.Run) -> None:
        await run.tools([holdfast.ToolCall("1", "keyed", {}), holdfast.ToolCall("2", "keyed", {})])

    return {
        "step": lambda run: run.step(leave_async, "exit"),
        "step in a thread": lambda run: run.step(leave, "exit"),
        "model": lambda run: run.model(leave_async, "own"),
        "gather": in_gather,
        "key": lambda run: run.call(keyed),
        "key of a batch": in_key_of_a_batch,
    }


@pytest.mark.parametrize("where", list(bodies()))
@async_test
async def test_code_that_a_run_calls_exits_as_its_agent_does(where: str) -> None:
    body = bodies()[where]

    @holdfast.tool(key=lambda: leave("exit"))
    async def keyed() -> str:
        return "keyed"

    @holdfast.agent(tools=[keyed], recovery=QUICK)
    async def agent(run: holdfast.Run) -> None:
        await body(run)

    async with holdfast.Holdfast("memory://", agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match="3 tries failed"):
            await hf.run(agent, run_id="r")


@pytest.mark.parametrize("how", WAYS)
@async_test
async def test_agent_may_catch_what_a_branch_exited_with(how: str) -> None:
    @holdfast.agent
    async def careful(run: holdfast.Run) -> str:
        try:
            await run.gather(run.step(leave_async, how), run.step(leave_async, how))
        except BaseException as error:
            return type(error).__name__
        return "nothing"

    names = {"exit": "SystemExit", "own": "Abort", "closed": "GeneratorExit"}
    async with holdfast.Holdfast("memory://", agents=[careful]) as hf:
        assert await hf.run(careful) == names.get(how, "BaseExceptionGroup")


@pytest.mark.parametrize("how", WAYS)
@async_test
async def test_only_the_call_of_a_tool_that_exits_fails(how: str) -> None:
    @holdfast.tool(in_doubt="fail")
    async def pay(n: int) -> None:
        leave(how)

    @holdfast.tool(in_doubt="fail", verify=lambda n: leave(how))
    def pay_verified(n: int) -> None:
        leave(how)

    @holdfast.agent(tools=[pay, pay_verified])
    async def agent(run: holdfast.Run) -> str:
        with pytest.raises(ToolFailed, match="it alone was ended"):
            await run.call(pay, 1)
        with pytest.raises(ToolFailed, match="it alone was ended"):
            await run.call(pay_verified, 1)
        told = await run.tools([holdfast.ToolCall(str(n), "pay", {"n": n}) for n in (2, 3)])
        return told[1].results[0].content

    async with holdfast.Holdfast("memory://", agents=[agent]) as hf:
        assert "it alone was ended" in await hf.run(agent)


@async_test
async def test_approval_rule_that_exits_asks_a_person() -> None:
    @holdfast.tool(approval=Approval(when=lambda n: leave("exit"), prompt=lambda n: leave("own")))
    async def pay(n: int) -> str:
        return "paid"

    @holdfast.agent(tools=[pay])
    async def agent(run: holdfast.Run) -> str:
        return await run.call(pay, 1)

    async with holdfast.Holdfast("memory://", agents=[agent]) as hf:
        await hf.start(agent, run_id="r")
        with pytest.raises(holdfast.errors.RunWaiting):
            await hf.run(agent, run_id="r", timeout=0.5)
        (asked,) = await hf.approvals.list(run_id="r")
        await hf.approvals.approve(asked.wait_id, by="ana")
        assert await hf.run(agent, run_id="r") == "paid"


@async_test
async def test_handoff_whose_summary_and_successor_exit_does_not_stop_anybody() -> None:
    async def summarize(record: Any, talk: Any) -> str:
        return leave("exit")

    policy = HandoffPolicy(
        window=100_000,
        summarize=summarize,
        select=lambda succession: leave("exit"),
    )

    @holdfast.agent(handoff=policy)
    async def giver(run: holdfast.Run) -> str:
        if run.continuation is None and run.version == 0:
            run.hand_over()
            await run.checkpoint()
        return "done"

    async with holdfast.Holdfast("memory://", agents=[giver]) as hf:
        with pytest.raises(RunBlocked, match="could not be chosen: RuntimeError: it raised Sys"):
            await hf.run(giver, run_id="r")


INTERRUPTED = """
import asyncio, sys, holdfast

@holdfast.agent
async def busy(run: holdfast.Run) -> None:
    print("entered", flush=True)
    while True:
        pass

async def main() -> None:
    async with holdfast.Holdfast(sys.argv[1], agents=[busy]) as hf:
        await hf.run(busy, run_id="r")

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
"""


def test_ctrl_c_in_the_middle_of_an_agent_stops_its_process(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    command = [sys.executable, "-c", INTERRUPTED, store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"entered\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in said

    async def look() -> int:
        async with holdfast.Holdfast(store) as hf:
            return (await hf.runs.get("r")).attempts

    assert asyncio.run(look()) == 0
