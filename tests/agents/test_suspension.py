"""Suspension cannot be swallowed, whatever the agent's code does; and where it could get lost, the
call is refused before anything is written."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import holdfast
from holdfast import ToolCall
from holdfast.errors import MisuseError, RunFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, kinds, start

ExitReason = Callable[[holdfast.Run, Callable[[], Awaitable[Any]]], Awaitable[Any]]


async def bare_except(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        await call()
    except BaseException:
        return "swallowed"


async def except_exception(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with suppress(Exception):
        await call()


async def finally_returns(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        await call()
    finally:
        return "from finally"  # noqa: B012 - what is tested


async def in_body_of_task_group(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with suppress(BaseException):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            await call()


async def in_body_of_anyio_group(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with suppress(BaseException):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
            await call()


async def in_anyio_scope(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with anyio.move_on_after(30):
        await call()


async def in_shielded_scope(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with anyio.CancelScope(shield=True):
        await call()


async def in_timeout(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        await call()


async def in_gather_of_the_run(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    async def branch() -> Any:
        return await call()

    with suppress(BaseException):
        await run.gather(branch(), branch())


async def swallowed_and_tried_again(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    for _ in range(3):
        with suppress(BaseException):
            await call()
    with suppress(BaseException):
        await run.checkpoint()
    with suppress(BaseException):
        await run.step(lambda: 1)


WAYS: list[ExitReason] = [
    bare_except,
    except_exception,
    finally_returns,
    in_body_of_task_group,
    in_body_of_anyio_group,
    in_anyio_scope,
    in_shielded_scope,
    in_timeout,
    in_gather_of_the_run,
    swallowed_and_tried_again,
]


def doubtful(way: ExitReason) -> tuple[holdfast.Agent[[], str], list[int]]:
    """An agent whose tool is in doubt: its call suspends the run."""
    done: list[int] = []

    @holdfast.tool
    async def charge(cents: int) -> str:
        done.append(cents)
        raise ConnectionError("lost the answer")

    @holdfast.agent(tools=[charge], name="doubtful")
    async def agent(run: holdfast.Run) -> str:
        async def call() -> Any:
            return await run.tools([ToolCall("c", "charge", {"cents": 5})])

        await way(run, call)
        return "as if nothing had happened"

    return agent, done


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@async_test
async def test_suspension_is_not_swallowed_by(way: ExitReason) -> None:
    agent, done = doubtful(way)
    async with holdfast.Holdfast("memory://", agents=[agent]) as hf:
        await start(hf, agent)
        ending = await advance(hf, "r")
        assert ending is not None
        assert (ending.is_over, ending.error) == (False, None)
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "unknown_effect")
        assert "CHECKPOINT_CREATED" not in await kinds(hf, "r")
    assert done == [5]


async def own_task(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    await asyncio.create_task(call())  # type: ignore[arg-type]


async def gathered(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    await asyncio.gather(call(), call())


async def task_group(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(call())  # type: ignore[arg-type]
    except* MisuseError as group:
        raise group.exceptions[0] from None


async def waited_for(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    done, _ = await asyncio.wait([asyncio.ensure_future(call())])
    done.pop().result()


async def anyio_group(run: holdfast.Run, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(call)
    except* MisuseError as found:
        raise found.exceptions[0] from None


@pytest.mark.parametrize(
    "way", [own_task, gathered, task_group, waited_for, anyio_group], ids=lambda way: way.__name__
)
@async_test
async def test_call_outside_the_agents_own_task_is_refused_before_anything_is_written(
    way: ExitReason,
) -> None:
    agent, done = doubtful(way)
    async with holdfast.Holdfast("memory://", agents=[agent]) as hf:
        with pytest.raises(RunFailed, match=r"run\.gather"):
            await hf.run(agent, run_id="r")
        assert "EFFECT_ISSUED" not in await kinds(hf, "r")
    assert done == []


@async_test
async def test_gather_lets_running_effects_end_before_it_suspends(store: str) -> None:
    events: list[str] = []

    @holdfast.tool
    async def doubt() -> str:
        raise ConnectionError("lost")

    @holdfast.tool
    async def slow() -> str:
        await asyncio.sleep(0.05)
        events.append("slow ended")
        return "slow"

    @holdfast.agent(tools=[doubt, slow])
    async def agent(run: holdfast.Run) -> list[str]:
        return await run.gather(run.call(doubt), run.call(slow))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent)
        assert await advance(hf, "r") is not None
        statuses = {e.tool: e.status for e in await hf.effects.of_run("r")}
        assert statuses == {"doubt": "unknown", "slow": "completed"}
        (unknown,) = await hf.effects.unsettled()
        await hf.effects.settle(unknown.effect_id, "completed", result="it was there")
        assert await hf.run(agent, run_id="r") == ["it was there", "slow"]
    assert events == ["slow ended"]


@async_test
async def test_fast_outcome_is_stored_while_a_slow_tool_still_runs(store: str) -> None:
    fast_is_stored = asyncio.Event()

    @holdfast.tool
    async def fast() -> str:
        return "fast"

    @holdfast.tool
    async def slow() -> str:
        await asyncio.wait_for(fast_is_stored.wait(), 60)
        return "slow"

    @holdfast.agent(tools=[fast, slow])
    async def agent(run: holdfast.Run) -> int:
        return len(await run.tools([ToolCall("1", "fast"), ToolCall("2", "slow")]))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        task = asyncio.create_task(hf.run(agent, run_id="r"))
        await start(hf, agent)
        async for entry in hf.journal.tail("r"):
            if entry.kind == "EFFECT_COMPLETED":
                fast_is_stored.set()
                break
        assert await task == 2


@async_test
async def test_checkpoint_in_a_branch_is_refused(store: str) -> None:
    @holdfast.agent
    async def agent(run: holdfast.Run) -> str:
        async def branch() -> None:
            await run.checkpoint()

        with pytest.raises(MisuseError, match="branch"):
            await run.gather(branch())
        return "ok"

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent) == "ok"
