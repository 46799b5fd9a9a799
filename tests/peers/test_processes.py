"""Paused tasks and real processes: killed between the steps, or racing for the same answers."""

import signal

import pytest

import holdfast
from holdfast.compat.mesh import CheckpointService
from holdfast.errors import RunNotFound
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.peers.tasks import sub_task, task
from tests.processes import Child

AGENT = "Orchestrator"
INSTANCE = "tests.peers.instance"
CLAIMANTS = 8
CALLS = {"sqlite": 30, "postgres": 15}
CHAOS_CALLS = {"sqlite": 60, "postgres": 30}
# On PostgreSQL a pause is one statement, which commits itself.
BEFORE_COMMIT = {"sqlite": "batch.before_commit", "postgres": "batch.after_begin"}
ONE = sub_task("task-1", "inv-1", 0)


def killed(child: Child) -> bool:
    with pytest.raises(EOFError):
        child.answer()
    return child.wait() == -signal.SIGKILL


@pytest.mark.mission("S0-012", "S0-093")
@async_test
async def test_killed_before_the_commit_of_a_pause_nothing_is_stored(backend: Backend) -> None:
    store = backend.url
    with Child(INSTANCE, store) as child:
        child.ask(["arm", BEFORE_COMMIT[backend.name]])
        child.tell(["pause", "task-1", 3, AGENT])
        assert killed(child)
    async with holdfast.open(store) as hf:
        with pytest.raises(RunNotFound):
            await hf.runs.get("task-1")
        service = CheckpointService(hf)
        assert await service.get_peer_sub_task(ONE) is None
        await service.checkpoint_task(task(calls=3), AGENT)
        assert len(await service.get_peer_sub_tasks_for_task("task-1")) == 3


@pytest.mark.mission("S0-012", "S0-093")
@async_test
async def test_killed_after_the_commit_of_a_pause_all_is_stored(store: str) -> None:
    with Child(INSTANCE, store) as child:
        child.ask(["arm", "batch.after_commit"])
        child.tell(["pause", "task-1", 3, AGENT])
        assert killed(child)
    async with holdfast.open(store) as hf:
        service = CheckpointService(hf)
        paused = await service.get_paused_task("task-1")
        assert paused is not None
        assert paused.response_buffer == "so far"
        assert len(await service.get_peer_sub_tasks_for_task("task-1")) == 3
        counts = await service.get_parallel_invocation("task-1", "inv-1")
        assert counts is not None
        assert (counts.completed_count, counts.total_expected) == (0, 3)
        assert (await hf.runs.get("task-1")).status == "waiting"
        # The caller has seen no answer, and pauses the same task again.
        await service.checkpoint_task(task(calls=3), AGENT)
        for number in range(3):
            name = sub_task("task-1", "inv-1", number)
            resolved = await service.resolve_wait_once(name, number)
            assert (resolved.completed, resolved.total) == (number + 1, 3)
        restored = await service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        assert restored.results_to_inject == [0, 1, 2]
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S0-022")
@async_test
async def test_killed_between_claim_and_record_the_answer_is_not_lost(store: str) -> None:
    async with holdfast.open(store) as hf:
        await CheckpointService(hf).checkpoint_task(task(calls=1), AGENT)
        with Child(INSTANCE, store) as child:
            child.ask(["arm", "batch.after_commit"])
            child.tell(["claim", ONE])
            assert killed(child)
        assert await CheckpointService(hf).claim_peer_sub_task(ONE) is None
    # The broker gives the answer again, to another instance, when the claim is over.
    async with holdfast.open(store, clock=ManualClock()) as hf:
        service = CheckpointService(hf)
        assert await service.claim_peer_sub_task(ONE) is not None
        told = await service.record_parallel_result("task-1", "inv-1", "the answer", ONE)
        assert told == (1, 1)
        restored = await service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        assert restored.results_to_inject == ["the answer"]


@pytest.mark.mission("S0-022", "S0-116")
@async_test
async def test_killed_between_claim_and_record_a_silent_peer_times_out(store: str) -> None:
    async with holdfast.open(store) as hf:
        await CheckpointService(hf).checkpoint_task(task(calls=1), AGENT)
    with Child(INSTANCE, store) as child:
        assert child.ask(["claim", ONE])["peer_tool_name"] == "peer_0"
        child.close()
    async with holdfast.open(store, clock=ManualClock()) as hf:
        service = CheckpointService(hf)
        (ended,) = await service.sweep_expired_timeouts(AGENT)
        assert ended.sub_task_id == ONE
        assert await service.restore_task("task-1") is not None


@pytest.mark.mission("S0-116")
@async_test
async def test_killed_with_three_of_five_answers_another_instance_gets_the_rest(store: str) -> None:
    names = [sub_task("task-1", "inv-1", number) for number in range(5)]
    async with holdfast.open(store) as hf:
        await CheckpointService(hf).checkpoint_task(task(calls=5), AGENT)
    with Child(INSTANCE, store) as child:
        assert sorted(child.ask(["answer", [names[4], names[0], names[2]]])) == names[::2]
        child.process.kill()
        assert child.wait() == -signal.SIGKILL
    async with holdfast.open(store, clock=(clock := ManualClock())) as hf:
        service = CheckpointService(hf)
        told = await service.resolve_wait_once(names[1], {"from": names[1]})
        assert (told.accepted, told.completed, told.total) == (True, 4, 5)
        assert await service.restore_task("task-1") is None
        clock.advance(601)
        (ended,) = await service.sweep_expired_timeouts(AGENT)
        assert ended.sub_task_id == names[3]
        restored = await service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        *_, silent, _ = restored.results_to_inject
        answered = [{"from": name} for name in (*names[:3], names[4])]
        assert [each for each in restored.results_to_inject if each is not silent] == answered
        assert silent["status"] == "timeout"


@pytest.mark.mission("S0-018", "S0-092", "S0-111")
@async_test
async def test_killed_after_restore_another_instance_goes_on(store: str) -> None:
    async with holdfast.open(store) as hf:
        service = CheckpointService(hf)
        await service.checkpoint_task(task(calls=1), AGENT)
        await service.resolve_wait_once(ONE, "the answer")
        with Child(INSTANCE, store) as child:
            assert child.ask(["restore", "task-1"]) == ["the answer"]
            assert await service.restore_task("task-1") is None
            child.close()
        restored = await service.restore_next(AGENT, timeout_seconds=30)
        assert restored is not None
        assert restored.task_context.task_id == "task-1"
        assert restored.results_to_inject == ["the answer"]
        assert await service.cleanup_task("task-1", "done")
        assert await hf.runs.result("task-1") == "done"


@pytest.mark.mission("S0-005", "S0-020", "S0-021", "S0-044", "S0-048", "S0-049")
@pytest.mark.mission("S0-095", "S0-103", "S0-104", "S0-111", "S0-113")
@async_test
async def test_racing_instances_claim_each_answer_once_and_lose_none(
    backend: Backend, is_chaos: bool
) -> None:
    calls = (CHAOS_CALLS if is_chaos else CALLS)[backend.name]
    names = [sub_task("task-1", "inv-1", number) for number in range(calls)]
    async with holdfast.open(backend.url) as hf:
        await CheckpointService(hf).checkpoint_task(task(calls=len(names)), AGENT)
    children = [Child(INSTANCE, backend.url) for _ in range(CLAIMANTS)]
    try:
        for child in children:
            child.ask(["hello"])
        for child in children:
            child.tell(["claim_and_record", "task-1", "inv-1", names])
        told = [each for child in children for each in child.answer()]
    finally:
        for child in children:
            child.close()
    assert sorted(name for name, _, _ in told) == sorted(names)
    counts = sorted((completed, total) for _, completed, total in told)
    assert counts == [(n + 1, len(names)) for n in range(len(names))]
    with backend.raw() as raw:
        assert raw.rows("SELECT status, count(*) FROM waits GROUP BY status") == [
            ("resolved", len(names))
        ]
        groups = raw.rows("SELECT resolved, failed, total, status FROM wait_groups")
        assert groups == [(len(names), 0, len(names), "satisfied")]
        assert raw.rows("SELECT status FROM runs") == [("ready",)]
    async with holdfast.open(backend.url) as hf:
        results = await CheckpointService(hf).get_parallel_results("task-1", "inv-1")
        assert results == names
