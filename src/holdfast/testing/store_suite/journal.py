"""The journal: order, one chain, following it, compare-and-swap on its next position."""

import asyncio

import pytest

from holdfast.engine.effects import EffectRequest
from holdfast.engine.waits import WaitSpec
from holdfast.errors import RunNotFound
from holdfast.kernel.effects import EffectStatus
from holdfast.kernel.journal import ORIGIN, verify
from holdfast.testing.store_suite.backend import Backend, async_test


class JournalSuite:
    """What a store guarantees about the journal."""

    @async_test
    async def test_entries_are_numbered_without_gap_and_chained(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a", input="x" * 5000)
            for number in range(5):
                run.append("log", number)
                await run.checkpoint()
            await run.complete()
            entries = await hf.journal.read("a")
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            assert list(verify(entries, after=ORIGIN)) == []
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_reading_continues_after_a_seq(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            for number in range(6):
                await run.record("step", number)
            all_of_it = await hf.journal.read("a")
            assert await hf.journal.read("a", after=3, limit=2) == all_of_it[3:5]
            assert await hf.journal.read("a", after=100) == []
            with pytest.raises(RunNotFound):
                await hf.journal.read("none")

    @async_test
    async def test_concurrent_writers_of_many_runs_leave_whole_chains(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:

            async def work(name: str) -> None:
                run = await hf.runs.open(name)
                for number in range(10):
                    run.append("log", number)
                    await run.checkpoint()

            await asyncio.gather(*(work(f"run-{n}") for n in range(20)))
            for n in range(20):
                assert await hf.journal.verify(f"run-{n}") == []
                assert (await hf.checkpoints.load(f"run-{n}"))["log"] == list(range(10))

    @async_test
    async def test_outside_writes_between_two_commits_are_folded_in(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            issued = await run.record("step", 1)
            other = hf.another_worker()
            (begun,) = await run.begin_effects([EffectRequest(tool="t", args=1)])
            await other.effects.settle(begun.effect.effect_id, EffectStatus.NOT_DONE, by="alice")
            run.append("log", issued)
            checkpoint = await run.checkpoint()
            assert checkpoint.version == 1
            assert await hf.journal.verify("a") == []
            kinds = [entry.kind for entry in await hf.journal.read("a")]
            assert kinds[-2:] == ["EFFECT_NOT_DONE", "CHECKPOINT_CREATED"]

    @async_test
    async def test_tail_gives_every_entry_once_and_ends_with_the_run(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            seen: list[int] = []

            async def follow() -> None:
                seen.extend([entry.seq async for entry in hf.journal.tail("a")])

            following = asyncio.create_task(follow())
            for number in range(5):
                await run.record("step", number)
            await run.complete()
            await following
            assert seen == list(range(1, 9))

    @async_test
    async def test_reindex_gives_the_rows_that_were_there(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a", agent="flow", subject="release", owner="ann")
            run = await hf.runs.open("a")
            run.append("log", 1)
            await run.checkpoint(label="one")
            (begun,) = await run.begin_effects([EffectRequest(tool="t", args=1)])
            await run.finish_effect(begun, "done")
            await run.open_waits([WaitSpec(wait_id="w1"), WaitSpec(wait_id="w2")], suspend=True)
            await hf.waits.extend("w2", timeout_seconds=60)
            await hf.waits.resolve("w1", 1)
            before = (
                await hf.runs.get("a"),
                await hf.checkpoints.history("a"),
                await hf.effects.of_run("a"),
                await hf.waits.of_run("a"),
            )
            await hf.reindex("a")
            assert before == (
                await hf.runs.get("a"),
                await hf.checkpoints.history("a"),
                await hf.effects.of_run("a"),
                await hf.waits.of_run("a"),
            )
            assert await hf.journal.verify("a") == []
