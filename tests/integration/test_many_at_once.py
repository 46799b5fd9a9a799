"""A thousand sessions that store a checkpoint in the same moment: none is refused, none is lost."""

import asyncio

import pytest

import holdfast
from holdfast import Settings
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

MANY = 1000


@pytest.mark.mission("S3-080", "S3-164")
@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_a_thousand_sessions_store_a_checkpoint_at_once(backend: Backend) -> None:
    # Fewer may wait in line than there are: the others wait for room, and none is refused.
    settings = Settings(lease_seconds=120.0, batch_commits=50, queue_commits=100)
    async with holdfast.open(backend.url, settings=settings) as hf:
        held = await asyncio.gather(*(hf.runs.open(f"r{n}") for n in range(MANY)))
        for number, run in enumerate(held):
            run.set("number", number)
        saved = await asyncio.gather(*(run.checkpoint() for run in held))
        assert len({each.checkpoint_id for each in saved}) == MANY
        for number in range(0, MANY, 100):
            assert (await hf.checkpoints.load(f"r{number}"))["number"] == number
    with backend.raw() as raw:
        stored = raw.rows("SELECT run_id, count(*) FROM checkpoints GROUP BY run_id")
    assert {run_id: int(many) for run_id, many in stored} == {f"r{n}": 1 for n in range(MANY)}


@pytest.mark.mission("S3-080", "S3-164")
@pytest.mark.chaos(backend=["sqlite"])
@async_test
async def test_a_thousand_records_are_created_at_once(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        making = (
            service.create_checkpoint(f"task-{n}", "agent", {}, summary=f"number {n}")
            for n in range(MANY)
        )
        made = await asyncio.gather(*making)
        found = await service.get_checkpoint(made[500].checkpoint_id)
    assert found == made[500]
    with backend.raw() as raw:
        stored = raw.rows("SELECT run_id, summary FROM records")
    assert dict(stored) == {f"task-{n}": f"number {n}" for n in range(MANY)}
