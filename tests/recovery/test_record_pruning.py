"""Versions of a framework's thread that are final stay when others are taken away."""

import pytest

import holdfast
from holdfast.engine.marked.marked_run import VersionChange
from holdfast.engine.marked.marks import Marks
from holdfast.engine.reading.log_views import LogView
from holdfast.errors import CheckpointFinal
from holdfast.kernel.marks import Mark
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend


@async_test
async def test_final_version_is_neither_pruned_nor_replaced(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        marks = Marks(hf._context, hf.leases, "framework")  # pyright: ignore[reportPrivateUsage]
        run = await marks.open("thread")
        for number in range(1, 5):
            value = f"state {number} " + "x" * 400

            def change(_: LogView, value: str = value) -> VersionChange:
                return VersionChange({}, {"state": value})

            await run.save(Mark("", str(number)), change)
        history = await hf.checkpoints.history("thread")
        second = next(each for each in history if each.version == 2)
        service = CheckpointService(hf)
        await service.finalize_checkpoint(second.checkpoint_id, "complete")
        before = await service.get_checkpoint(second.checkpoint_id)
        with pytest.raises(CheckpointFinal):
            await marks.prune(run, {1, 2}, note="old")
        with pytest.raises(CheckpointFinal):
            await run.save(Mark("", "2"), lambda _: VersionChange({}, {"state": 1}), replacing=2)
        await marks.prune(run, {1, 3}, note="old")
        assert [each.version for each in await hf.checkpoints.history("thread")] == [4, 2]
        assert (await hf.checkpoints.load("thread", 2))["state"].startswith("state 2")
        bodies = {entry.seq: entry.body for entry in await hf.journal.read("thread")}
        erased = {each.version for each in history if bodies[each.seq] is None}
        assert 1 in erased
        assert 2 not in erased, "what is final stays in the journal"
        assert await service.get_checkpoint(second.checkpoint_id) == before
        assert await hf.journal.verify("thread") == []
        await marks.erase(await marks.open("thread"), note="all of it")
        assert await service.get_checkpoint(second.checkpoint_id) is None
        assert await hf.journal.verify("thread") == []


@async_test
async def test_deleted_version_takes_the_rows_of_its_revisions_along(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = [await service.create_checkpoint("task", "a", {}) for _ in range(3)]
        for each in made:
            await service.update_checkpoint(each.checkpoint_id, {"metrics": {"tools_invoked": 1}})
        await hf.checkpoints.delete("task", 2)
        with backend.raw() as raw:
            rows = raw.rows("SELECT version, revision FROM revisions ORDER BY version")
            assert rows == [(1, 2), (3, 2)]
        assert await service.get_checkpoint(made[1].checkpoint_id) is None
        assert await hf.journal.verify("task") == []
