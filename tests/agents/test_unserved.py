"""Runs whose agent no live worker serves: it is said where people look, and nothing fails."""

import asyncio
import logging

import pytest

import holdfast
from holdfast.errors import RunWaiting
from holdfast.kernel import served_agents
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, start

SENTENCE = "no live worker serves 'reserch'; served now: {}"


@holdfast.agent
async def caller(run: holdfast.Run) -> str:
    return await run.peer("reserch", "gold")


@holdfast.agent
async def writer(run: holdfast.Run) -> str:
    return "written"


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while not any(words in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.05)


async def ready_for_long(hf: holdfast.Holdfast, clock: ManualClock) -> None:
    """A caller that waits for a peer which nobody takes."""
    await start(hf, caller)
    await advance(hf, "r")
    clock.advance(11)


@async_test
async def test_agent_counts_as_unserved_after_a_while_and_only_then(store: str) -> None:
    clock = ManualClock()
    async with holdfast.Holdfast(store, agents=[caller, writer], clock=clock) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        peers = await hf.runs.list(parent_id="r")
        assert served_agents.unserved(peers, [], now=clock.now()) == {}
        clock.advance(11)
        await hf.leases.serve(["writer", "research"])
        workers = await hf.leases.workers()
        said = served_agents.unserved(peers, workers, now=clock.now())
        assert said == {"reserch": SENTENCE.format("research, writer")}
        await hf.leases.serve(["reserch"])
        workers = await hf.leases.workers()
        assert served_agents.unserved(peers, workers, now=clock.now()) == {}


@async_test
async def test_whoever_waits_for_a_run_is_told_that_nobody_serves_its_peer(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with holdfast.Holdfast(store, agents=[caller], clock=clock) as hf:
            await ready_for_long(hf, clock)
            handle = await hf.start(caller, run_id="r")
            waiting = asyncio.create_task(handle.result())
            await until_logged(caplog, SENTENCE.format("nothing"))
            waiting.cancel()
            await asyncio.wait([waiting])
            with pytest.raises(RunWaiting, match="no live worker serves 'reserch'"):
                await handle.result(timeout=0.1)
            assert (await hf.runs.get("r")).status == "waiting"


@async_test
async def test_worker_of_a_caller_logs_that_nobody_serves_its_peer(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with holdfast.Holdfast(store, agents=[caller, writer], clock=clock) as hf:
            await ready_for_long(hf, clock)
            worker = hf.new_worker()
            working = asyncio.create_task(worker.run())
            await until_logged(caplog, SENTENCE.format("caller, writer"))
            worker.stop()
            await working
    told = [r for r in caplog.records if "no live worker serves" in r.getMessage()]
    assert len(told) == 1
