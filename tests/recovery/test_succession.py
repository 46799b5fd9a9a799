"""Tasks of agents outside are handed over and recovered by their checkpoints."""

from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast.errors import CheckpointFinal, ConflictError, IllegalMove
from holdfast.kernel.records import Phase
from holdfast.records import CheckpointService
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

STATE: dict[str, Any] = {
    "execution_state": {
        "phase": "implementing",
        "completed_items": [{"id": "a", "text": "the schema"}],
        "pending_items": [{"id": "b", "text": "the service"}],
    }
}


async def kinds(hf: holdfast.Holdfast, task: str) -> list[str]:
    return [entry.kind for entry in await hf.journal.read(task, checked=False)]


@pytest.mark.mission("S3-178", "S3-179", "S3-058", "S3-065", "S3-067")
@async_test
async def test_task_is_handed_over_and_acknowledged_once(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("t", "ann", STATE)
        given = await service.initiate_handoff(made.checkpoint_id, by="ann")
        assert (given.status, given.from_agent, given.task_id) == ("given", "ann", "t")
        assert "the service" in given.continuation_prompt
        last = await service.get_checkpoint(made.checkpoint_id)
        assert last is not None
        assert (last.is_final, last.status) == (True, "handoff")
        assert last.execution_state.phase is Phase.HANDOFF
        assert last.recovery.continuation_prompt == given.continuation_prompt
        with pytest.raises(CheckpointFinal):
            await service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 1}})
        await service.acknowledge_handoff(made.checkpoint_id, "bob")
        await service.acknowledge_handoff(made.checkpoint_id, "bob")
        with pytest.raises(ConflictError, match="bob"):
            await service.acknowledge_handoff(made.checkpoint_id, "cid")
        child = await service.create_checkpoint("t", "bob", STATE)
        assert child.parent_id == made.checkpoint_id
        assert child.metadata.iteration == 2
        (handoff,) = await hf.handoffs.of_run("t")
        assert (handoff.status, handoff.to) == ("acknowledged", "bob")
        assert (await kinds(hf, "t")).count("HANDOFF_ACKNOWLEDGED") == 1
        assert not await hf.journal.verify("t")


@pytest.mark.mission("S3-065")
@async_test
async def test_handoff_that_nobody_acknowledges_goes_back(tmp_path: Any) -> None:
    clock = ManualClock()
    async with holdfast.Holdfast(str(tmp_path / "s.db"), clock=clock) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("t", "ann", STATE)
        await service.initiate_handoff(made.checkpoint_id, acknowledge_seconds=5)
        clock.advance(timedelta(seconds=6).total_seconds())
        assert await hf.waits.expire_due() == 1
        with pytest.raises(ConflictError, match="reverted"):
            await service.acknowledge_handoff(made.checkpoint_id, "bob")
        run = await hf.runs.get("t")
        assert (run.status.value, run.handoff, run.reverts) == ("ready", "", 1)
        await service.create_checkpoint("t", "ann", STATE)


@async_test
async def test_only_the_latest_checkpoint_can_be_handed_over(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", STATE)
        second = await service.create_checkpoint("t", "ann", STATE)
        with pytest.raises(ConflictError, match=second.checkpoint_id):
            await service.initiate_handoff(first.checkpoint_id)
        with pytest.raises(IllegalMove, match="initiate_handoff"):
            await service.acknowledge_handoff(first.checkpoint_id, "bob")
        assert "AGENT_HANDOFF" not in await kinds(hf, "t")


@pytest.mark.mission("S3-180", "S3-181", "S3-069", "S3-074", "S3-150")
@async_test
async def test_task_is_recovered_from_its_newest_checkpoint_that_verifies(
    backend: Backend,
) -> None:
    async with holdfast.Holdfast(backend.url) as hf:
        service = CheckpointService(hf)
        good = await service.create_checkpoint("t", "ann", STATE)
        bad = await service.create_checkpoint("t", "ann", STATE)
    with backend.raw() as raw:
        (seq,) = raw.rows("SELECT max(seq) FROM journal WHERE run_id = ?", "t")[0]
        raw.execute(
            "UPDATE journal SET nonce = ? WHERE run_id = ? AND seq = ?", bytes(16), "t", seq
        )
    async with holdfast.Holdfast(backend.url) as hf:
        service = CheckpointService(hf)
        point = await service.find_recovery_point("t")
        assert point is not None
        assert (point.checkpoint_id, point.skipped) == (good.checkpoint_id, (bad.checkpoint_id,))
        result = await service.execute_recovery(good.checkpoint_id, by="ops")
        assert (result.status, result.version) == ("ready", 3)
        after = await service.create_checkpoint("t", "bob", STATE)
        assert after.run_version == 4
        told = await kinds(hf, "t")
        assert "CHECKPOINT_CORRUPTED" in told
        assert told.index("RECOVERY_INITIATED") < told.index("RECOVERY_COMPLETED")
        assert await hf.checkpoints.load("t")


@pytest.mark.mission("S3-180")
@async_test
async def test_task_without_checkpoints_has_no_recovery_point(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url) as hf:
        await hf.runs.create("t")
        assert await CheckpointService(hf).find_recovery_point("t") is None


@async_test
async def test_run_of_an_agent_is_asked_to_hand_over(backend: Backend) -> None:
    @holdfast.agent
    async def work(run: holdfast.Run) -> str:
        if run.continuation is not None:
            return "fresh"
        if run.is_fresh:
            await run.checkpoint(label="first")
        await run.signal("go")
        await run.checkpoint()
        return "stale"

    async with holdfast.Holdfast(backend.url, agents=[work]) as hf:
        handle = await hf.start(work, run_id="r")
        with pytest.raises(holdfast.errors.RunWaiting):
            await handle.result(timeout=0.2)
        service = CheckpointService(hf)
        latest = await service.get_latest_checkpoint("r")
        assert latest is not None
        asked = await service.initiate_handoff(latest.checkpoint_id)
        assert asked.status == "requested"
        await hf.signal("r", "go")
        assert await handle.result(timeout=20) == "fresh"
