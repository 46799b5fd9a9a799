"""Workflows that ended long ago are erased as whole trees; those that wait are kept."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

import holdfast
from holdfast import errors, tool
from holdfast.engine.maintenance.erasure import erase_run
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Kit, Workflow
from tests.backends import Backend
from tests.workflows.checkpointing import HOUR

EMPTY = 8
SECRET = "a word that nobody may find again"


@tool(effect="mutate")
async def deploy(word: str) -> str:
    return f"deployed {word}"


@tool(effect="mutate", not_done_on=(ValueError,))
async def refuse(word: str) -> str:
    raise ValueError(f"not {word}")


INNER = Workflow(
    name="inner",
    inputs={},
    blocks=[
        Block(id="act", type="Tool", inputs={"tool": "deploy", "args": {"word": SECRET}}),
        Block(id="ask", type="Prompt", inputs={"prompt": f"Is {SECRET} right?"}),
    ],
    outputs={"said": "{{ blocks.ask.outputs.response }}"},
)
OUTER = Workflow(
    name="outer",
    blocks=[Block(id="below", type="Workflow", inputs={"workflow": "inner"})],
    outputs={"said": "{{ blocks.below.outputs.said }}"},
)
FAILS = Workflow(
    name="fails",
    blocks=[Block(id="act", type="Tool", inputs={"tool": "refuse", "args": {"word": SECRET}})],
)


@asynccontextmanager
async def opened(url: str, clock: ManualClock) -> AsyncGenerator[holdfast.Holdfast]:
    kit = Kit(tools=[deploy, refuse], definitions=[INNER])
    async with holdfast.open(url, clock=clock, workflows=kit) as hf:
        yield hf


async def clean(hf: holdfast.Holdfast, hours: float = 24) -> int:
    return await hf.workflows.cleanup_expired(hours)


async def run_ids(hf: holdfast.Holdfast) -> list[str]:
    return [run.run_id for run in await hf.workflows.list(nested=True)]


def largest_body(backend: Backend) -> int:
    """Bodies are compressed: what holds a word of ours has more bytes than an empty state."""
    with backend.raw() as raw:
        return max(len(entry[-2] or b"") for entry in raw.entries())


@pytest.mark.mission("S1-063", "S1-064", "S1-085")
@async_test
async def test_ended_tree_is_erased_and_its_chain_verifies(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        outcome = await hf.workflows.run(OUTER, run_id="w")
        (asked,) = outcome.waiting
        outcome = await hf.workflows.resume("w", {asked.block: SECRET})
        assert outcome.status == "completed"
        assert largest_body(backend) > EMPTY
        clock.advance(24 * HOUR)
        assert await clean(hf) == 0
        clock.advance(1)
        assert await clean(hf) == 1
        assert await clean(hf) == 0
        for run_id in await run_ids(hf):
            assert await hf.journal.verify(run_id) == []
            assert (await hf.runs.get(run_id)).status == "completed"
            assert (await hf.checkpoints.load(run_id)).parts == {}
            with pytest.raises(errors.BodyErased):
                await hf.runs.input(run_id)
        assert len(await run_ids(hf)) == 2
    assert largest_body(backend) <= EMPTY


@pytest.mark.mission("S1-032", "S1-064")
@async_test
async def test_workflow_that_waits_is_kept_however_old_it_is(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        (asked,) = (await hf.workflows.run(OUTER, run_id="w")).waiting
        clock.advance(5000 * HOUR)
        assert await clean(hf, 0) == 0
        outcome = await hf.workflows.resume("w", {asked.block: "yes"})
        assert outcome.outputs == {"said": "yes"}


@async_test
async def test_blocked_and_ready_workflows_are_kept(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        await hf.workflows.start(OUTER, run_id="ready")
        await hf.workflows.start(OUTER, run_id="blocked")
        await hf.runs.block("blocked", "breaker")
        clock.advance(5000 * HOUR)
        assert await clean(hf, 0) == 0
        assert await hf.runs.input("ready")
        assert await hf.runs.input("blocked")


@pytest.mark.mission("S1-064")
@async_test
async def test_failed_and_cancelled_workflows_expire_from_their_end_on(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        await hf.workflows.run(FAILS, run_id="failed")
        await hf.workflows.run(OUTER, run_id="cancelled")
        clock.advance(20 * HOUR)
        await hf.workflows.cancel("cancelled")
        while any(run.status == "waiting" for run in await hf.workflows.list(nested=True)):
            await hf.leases.tend()
        clock.advance(5 * HOUR)
        assert await clean(hf) == 1
        with pytest.raises(errors.BodyErased):
            await hf.runs.input("failed")
        assert await hf.runs.input("cancelled")
        clock.advance(20 * HOUR)
        assert await clean(hf) == 1
        for run_id in await run_ids(hf):
            assert await hf.journal.verify(run_id) == []
    assert largest_body(backend) <= EMPTY


@async_test
async def test_runs_of_other_agents_are_left_alone(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        held = await hf.runs.open("other", agent="support", input=SECRET)
        await held.complete(SECRET)
        clock.advance(5000 * HOUR)
        assert await clean(hf, 0) == 0
        assert await hf.runs.result("other") == SECRET


@async_test
async def test_tree_that_was_half_erased_is_erased_whole_the_next_time(backend: Backend) -> None:
    clock = ManualClock()
    async with opened(backend.url, clock) as hf:
        (asked,) = (await hf.workflows.run(OUTER, run_id="w")).waiting
        await hf.workflows.resume("w", {asked.block: "yes"})
        clock.advance(25 * HOUR)
        (below,) = [run_id for run_id in await run_ids(hf) if run_id != "w"]
        # Each run is erased in a commit of its own: here the process died after the first one.
        assert await erase_run(hf._context, below, note="died")  # pyright: ignore[reportPrivateUsage]
        assert await clean(hf) == 1
        for run_id in await run_ids(hf):
            assert await hf.journal.verify(run_id) == []
            kinds = [entry.kind for entry in await hf.journal.read(run_id)]
            assert kinds.count("BODIES_ERASED") == 1
    assert largest_body(backend) <= EMPTY
