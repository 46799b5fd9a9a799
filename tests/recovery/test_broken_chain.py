"""A chain that is broken is told to people, also for tasks outside; nothing goes on until then."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast import Settings, WaitSpec
from holdfast.errors import HoldfastError, IllegalMove, JournalCorrupted, LeaseHeld, RunBlocked
from holdfast.kernel import indexes
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend


async def five(hf: holdfast.Holdfast, backend: Backend) -> list[str]:
    """A task of six entries and five versions, whose third entry is gone."""
    service = CheckpointService(hf)
    made = [await service.create_checkpoint("task", "a", {}) for _ in range(5)]
    with backend.raw() as raw:
        assert raw.execute("DELETE FROM journal WHERE seq = 3") == 1
    return [each.checkpoint_id for each in made]


Op = Callable[[CheckpointService, list[str]], Awaitable[Any]]
OPERATIONS: dict[str, Op] = {
    "get": lambda s, made: s.get_checkpoint(made[4]),
    "latest": lambda s, made: s.get_latest_checkpoint("task"),
    "history": lambda s, made: s.get_checkpoint_history("task", limit=1),
    "create": lambda s, made: s.create_checkpoint("task", "a", {}),
    "update": lambda s, made: s.update_checkpoint(made[4], {"metrics": {"tools_invoked": 1}}),
    "finalize": lambda s, made: s.finalize_checkpoint(made[4], "complete"),
    "link": lambda s, made: s.link_checkpoints(made[0], made[4]),
    "initiate_handoff": lambda s, made: s.initiate_handoff(made[4]),
    "acknowledge_handoff": lambda s, made: s.acknowledge_handoff(made[4], "b"),
    "find_recovery_point": lambda s, made: s.find_recovery_point("task"),
    "execute_recovery": lambda s, made: s.execute_recovery(made[4]),
}


@pytest.mark.mission("S3-075", "S3-076")
@pytest.mark.parametrize("name", OPERATIONS)
@async_test
async def test_broken_chain_is_told_and_nothing_is_done(backend: Backend, name: str) -> None:
    async with holdfast.open(backend.url) as hf:
        made = await five(hf, backend)
        service = CheckpointService(hf)
        for _ in range(2):
            with pytest.raises(JournalCorrupted, match="entry 3 is missing"):
                await OPERATIONS[name](service, made)
        entries = await hf.journal.read("task", checked=False)
        told = [entry for entry in entries if entry.seq > 6]
        assert [entry.kind for entry in told] == ["CHECKPOINT_CORRUPTED", "RUN_BLOCKED"]
        corrupted = indexes.facts_of(told[0])
        assert (str(corrupted.checkpoint_id), corrupted.version) == (made[1], 2)
        run = await hf.runs.get("task")
        assert (run.status, run.blocked_reason) == ("blocked", "corruption")
        events = hf.events("start")
        fed = [(await anext(events)).kind for _ in entries]
        assert fed[-2:] == ["CHECKPOINT_CORRUPTED", "RUN_BLOCKED"]


@async_test
async def test_entry_is_missing_though_another_tenant_has_one_of_that_number(
    backend: Backend,
) -> None:
    others = Settings(tenant="others")
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url, settings=others) as hg:
        mine, theirs = CheckpointService(hf), CheckpointService(hg)
        for _ in range(3):
            await mine.create_checkpoint("task", "a", {})
            await theirs.create_checkpoint("task", "a", {})
        with backend.raw() as raw:
            gone = "DELETE FROM journal WHERE tenant = 'default' AND seq = 3"
            assert raw.execute(gone) == 1
        with pytest.raises(JournalCorrupted, match="entry 3 is missing"):
            await mine.get_latest_checkpoint("task")
        latest = await theirs.get_latest_checkpoint("task")
        assert latest is not None
        assert latest.run_version == 3


@pytest.mark.mission("S3-180", "S3-181")
@async_test
async def test_gap_that_a_person_accepts_is_on_the_record_and_the_task_goes_on(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        made = await five(hf, backend)
        service = CheckpointService(hf)
        with pytest.raises(JournalCorrupted):
            await service.get_latest_checkpoint("task")
        await hf.recoveries.execute("task", accept_gap=True, by="ann")
        latest = await service.get_latest_checkpoint("task")
        assert latest is not None
        child = await service.create_checkpoint("task", "a", {})
        point = await service.find_recovery_point("task")
        assert point is not None
        assert point.checkpoint_id == child.checkpoint_id
        await service.execute_recovery(point.checkpoint_id)
        # Another gap is another matter.
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM journal WHERE seq = 5") == 1
        with pytest.raises(JournalCorrupted, match="entry 5 is missing"):
            await service.get_checkpoint(made[4])


@pytest.mark.mission("S3-180")
@async_test
async def test_task_that_has_ended_offers_no_recovery_point(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        await service.create_checkpoint("task", "a", {})
        assert await service.find_recovery_point("task") is not None
        await hf.runs.cancel("task")
        assert await service.find_recovery_point("task") is None


async def hold(hf: holdfast.Holdfast) -> None:
    await hf.runs.open("task")


async def wait(hf: holdfast.Holdfast) -> None:
    held = await hf.runs.open("task")
    asked = WaitSpec(kind="approval", name="n", wait_id="w", timeout_seconds=600)
    await held.open_waits([asked], suspend=True)


@pytest.mark.parametrize(("begin", "error"), [(hold, LeaseHeld), (wait, IllegalMove)])
@async_test
async def test_task_at_work_offers_no_recovery_point_that_would_be_refused(
    backend: Backend,
    begin: Callable[[holdfast.Holdfast], Awaitable[None]],
    error: type[HoldfastError],
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", {})
        await begin(hf)
        with pytest.raises(error):
            await service.find_recovery_point("task")
        with pytest.raises(error):
            await service.execute_recovery(made.checkpoint_id)


@async_test
async def test_recovery_on_record_names_the_checkpoint_that_it_goes_back_to(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = [await service.create_checkpoint("task", "a", {}) for _ in range(3)]
        await service.execute_recovery(made[1].checkpoint_id, by="orchestrator")
        (initiated,) = [
            indexes.facts_of(entry)
            for entry in await hf.journal.read("task")
            if entry.kind == "RECOVERY_INITIATED"
        ]
    assert (str(initiated.checkpoint_id), initiated.version) == (made[1].checkpoint_id, 2)


@pytest.mark.mission("S3-155", "S3-198")
@pytest.mark.parametrize("to_older", [False, True], ids=["newest", "older"])
@async_test
async def test_recovering_without_progress_is_refused_after_three(
    backend: Backend, to_older: bool
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = [await service.create_checkpoint("task", "a", {}) for _ in range(2)]
        target = made[0 if to_older else 1].checkpoint_id
        for _ in range(3):
            await service.execute_recovery(target, by="orchestrator")
        for _ in range(2):
            with pytest.raises(RunBlocked, match="3 times, and came no further"):
                await service.find_recovery_point("task")
            with pytest.raises(RunBlocked, match="3 times, and came no further"):
                await service.execute_recovery(target, by="orchestrator")
        run = await hf.runs.get("task")
        assert (run.status, run.blocked_reason) == ("blocked", "breaker")
        entries = await hf.journal.read("task")
        assert [entry.kind for entry in entries[-2:]] == ["RECOVERY_FAILED", "RUN_BLOCKED"]
        await hf.runs.unblock("task", by="ann")
        assert await service.find_recovery_point("task") is not None
        await service.execute_recovery(target)
        # Whoever comes further may be recovered again.
        for _ in range(4):
            await service.create_checkpoint("task", "a", {})
            await service.execute_recovery(target)
        assert await hf.journal.verify("task") == []
