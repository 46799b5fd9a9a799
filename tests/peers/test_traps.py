"""What went wrong in the system that seed 000 describes, each as a test on both stores."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast import codec
from holdfast.compat.mesh import CheckpointService, TaskExecutionContext
from holdfast.errors import (
    Fenced,
    LeaseHeld,
    MisuseError,
    OutcomeUnknown,
    RunEnded,
    WaitExists,
)
from holdfast.testing import ManualClock
from holdfast.testing.clocks import outlive
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.integration.test_commits import FlakyApply, combiner_of
from tests.peers.tasks import REFERENCE, add_calls, call, sub_task, task

AGENT = "Orchestrator"
FIRST, SECOND = sub_task("task-1", "inv-1", 0), sub_task("task-1", "inv-1", 1)
TOKEN = "eyJhbGciOi.J0b2tlbi1ieXRlcw.c2lnbmF0dXJl"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def opened(
    store: str, clock: ManualClock
) -> AsyncGenerator[tuple[holdfast.Holdfast, CheckpointService]]:
    async with holdfast.open(store, clock=clock) as hf:
        yield hf, CheckpointService(hf)


async def restored(service: CheckpointService, task_id: str = "task-1") -> TaskExecutionContext:
    found = await service.restore_task_from_checkpoint(task_id)
    assert found is not None
    return found.task_context


# Claims.


@pytest.mark.mission("S0-022", "S0-094")
@async_test
async def test_claim_that_is_over_can_be_claimed_again(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        assert await service.claim_peer_sub_task(FIRST) is not None
        clock.advance(59)
        assert await service.claim_peer_sub_task(FIRST) is None
        clock.advance(2)
        other = CheckpointService(hf.another_worker())
        assert await other.claim_peer_sub_task(FIRST) is not None
        assert (await hf.waits.get(FIRST)).status == "open"
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S0-086")
@async_test
async def test_sweep_leaves_alone_what_is_claimed(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(timeout_seconds=30), AGENT)
        clock.advance(29)
        assert await service.claim_peer_sub_task(FIRST) is not None
        clock.advance(2)
        assert [e.sub_task_id for e in await service.sweep_expired_timeouts(AGENT)] == [SECOND]
        assert await hf.waits.expire_due() == 0
        told = await service.record_parallel_result("task-1", "inv-1", "in time", FIRST)
        assert told == (2, 2)


@async_test
async def test_sweep_takes_what_was_claimed_too_long_ago(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(timeout_seconds=30), AGENT)
        for name in (FIRST, SECOND):
            assert await service.claim_peer_sub_task(name) is not None
        clock.advance(61)
        assert len(await service.sweep_expired_timeouts(AGENT, limit=1)) == 1
        assert await hf.waits.expire_due() == 1


@async_test
async def test_claims_in_one_batch_see_one_another(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        claims = [hf.waits.claim(FIRST, by=f"handler-{n}") for n in range(20)]
        # While the first write is on its way, the others gather.
        _, *told = await asyncio.gather(hf.runs.create("another"), *claims)
        (winner,) = [claim for claim in told if claim is not None]
        assert (await hf.waits.get(FIRST)).claimed_by == winner.claimed_by


@async_test
async def test_reindex_keeps_a_claim(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        await service.claim_peer_sub_task(FIRST)
        await hf.reindex("task-1")
        assert await service.claim_peer_sub_task(FIRST) is None


# Answers.


@pytest.mark.mission("S2-012", "S2-015", "S2-028", "S2-031", "S2-033")
@async_test
async def test_late_answer_is_counted_logged_once_and_changes_nothing(
    store: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=1, timeout_seconds=600), AGENT)
        clock.advance(601)
        assert len(await service.sweep_expired_timeouts(AGENT)) == 1
        with caplog.at_level(logging.WARNING, "holdfast"):
            late = await service.resolve_wait_once(FIRST, "too late")
        assert not late.accepted
        assert not late.is_last
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert f"wait {FIRST} was expired by" in caplog.text
        assert (await hf.waits.get(FIRST)).duplicates == 1
        (result,) = await service.get_parallel_results("task-1", "inv-1")
        text = "Request to peer agent tool 'peer_0' timed out after 600 seconds."
        assert result["payload"] == {"error": text}
        assert result["adk_function_call_id"] == "call-0"
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S2-028")
@async_test
async def test_answer_that_comes_twice_counts_once(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=2), AGENT)
        first = await service.resolve_wait_once(FIRST, "one")
        again = await service.resolve_wait_once(FIRST, "two")
        assert (first.accepted, first.completed, first.total) == (True, 1, 2)
        assert (again.accepted, again.completed, again.total) == (False, 1, 2)
        assert await service.get_parallel_results("task-1", "inv-1") == ["one"]
        assert (await hf.waits.get(FIRST)).duplicates == 1
        unknown = await service.resolve_wait_once("nobody", "x")
        assert (unknown.accepted, unknown.total) == (False, 0)


@pytest.mark.mission("S2-013")
@async_test
async def test_answer_is_for_the_task_whose_call_it_names(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        for task_id in ("task-1", "task-2"):
            await service.checkpoint_task(task(task_id, calls=1), AGENT)
        told = await service.resolve_wait_once(sub_task("task-2", "inv-1", 0), "two")
        assert (told.logical_task_id, told.invocation_id) == ("task-2", "inv-1")
        assert (await hf.runs.get("task-1")).status == "waiting"
        assert await service.get_parallel_results("task-1", "inv-1") == []
        found = await service.restore_next(AGENT)
        assert found is not None
        assert (found.task_context.task_id, found.results_to_inject) == ("task-2", ["two"])


@pytest.mark.mission("S0-082")
@async_test
async def test_artifacts_and_flags_of_every_peer_survive_in_the_order_of_calls(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        for number in (2, 0, 1):
            result = {
                "produced_artifacts": [{"filename": f"peer-{number}.md"}],
                "artifact_signals_to_return": [{"filename": f"peer-{number}.md"}],
                "flags": {f"sent_by_{number}": True},
            }
            name = sub_task("task-1", "inv-1", number)
            await service.resolve_wait_once(name, result)
        back = await restored(service)
        names = [artifact["filename"] for artifact in back.produced_artifacts]
        assert names == ["report.md", "peer-0.md", "peer-1.md", "peer-2.md"]
        assert len(back.artifact_signals_to_return) == 4
        flags = {"deep_research_sent", "sent_by_0", "sent_by_1", "sent_by_2"}
        assert set(back.flags) == flags


@async_test
async def test_result_without_an_id_is_for_the_call_it_names(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        result = {"adk_function_call_id": "call-2", "payload": "two"}
        assert await service.record_parallel_result("task-1", "inv-1", result) == (1, 3)
        assert (await hf.waits.get(sub_task("task-1", "inv-1", 2))).status == "resolved"
        assert await service.claim_peer_sub_task(SECOND) is not None
        assert await service.record_parallel_result("task-1", "inv-1", "one") == (2, 3)
        assert (await hf.waits.get(SECOND)).status == "resolved"
        assert await service.record_parallel_result("task-1", "inv-1", "zero") == (3, 3)
        assert await service.record_parallel_result("task-1", "inv-1", "too many") == (3, 3)
        assert await service.get_parallel_results("task-1", "inv-1") == ["zero", "one", result]


@async_test
async def test_result_that_comes_again_without_an_id_is_not_taken_for_another_calls(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=4), AGENT)
        other = CheckpointService(hf)
        before = len(await hf.journal.read("task-1"))
        with pytest.raises(MisuseError, match=r"4 calls .* sub_task_id"):
            await service.record_parallel_result("task-1", "inv-1", "whose?")
        assert await other.claim_peer_sub_task(SECOND) is not None
        with pytest.raises(MisuseError, match="0 of them are claimed by this service"):
            await service.record_parallel_result("task-1", "inv-1", "whose?")
        assert len(await hf.journal.read("task-1")) == before
        assert await other.record_parallel_result("task-1", "inv-1", "one") == (1, 4)
        with pytest.raises(MisuseError, match="3 calls"):
            await other.record_parallel_result("task-1", "inv-1", "one")
        named = {"function_call_id": "call-0", "payload": "zero"}
        assert await service.record_parallel_result("task-1", "inv-1", named) == (2, 4)
        assert await service.record_parallel_result("task-1", "inv-1", named) == (2, 4)
        assert (await hf.waits.get(FIRST)).duplicates == 1
        for number in (2, 3):
            name = sub_task("task-1", "inv-1", number)
            assert await service.claim_peer_sub_task(name) is not None
        with pytest.raises(MisuseError, match="2 of them are claimed by this service"):
            await service.record_parallel_result("task-1", "inv-1", "whose?")
        assert await service.get_parallel_results("task-1", "inv-1") == [named, "one"]


@pytest.mark.mission("S0-106")
@async_test
async def test_answers_that_came_before_the_pause_are_counted(
    store: str, clock: ManualClock
) -> None:
    made = task(calls=3)
    assert made.claim_sub_task_completion(FIRST) is not None
    made.record_parallel_result("in memory", "inv-1")
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(made, AGENT)
        assert await service.get_parallel_results("task-1", "inv-1") == ["in memory"]
        assert await service.record_parallel_result("task-1", "inv-1", "b", SECOND) == (2, 3)
        last = await service.resolve_wait_once(sub_task("task-1", "inv-1", 2), "c")
        assert (last.completed, last.total, last.is_last) == (3, 3, True)
        found = await service.restore_task_from_checkpoint("task-1")
        assert found is not None
        assert found.results_to_inject == ["in memory", "b", "c"]


@async_test
async def test_answer_claimed_in_memory_must_be_recorded_before_the_pause(
    store: str, clock: ManualClock
) -> None:
    made = task(calls=2)
    made.claim_sub_task_completion(FIRST)
    async with opened(store, clock) as (_, service):
        with pytest.raises(MisuseError, match="record them first"):
            await service.checkpoint_task(made, AGENT)
        assert await service.get_paused_task("task-1") is None


# Time.


@pytest.mark.mission("S0-015", "S0-042", "S2-009")
@async_test
async def test_timeout_is_armed_though_the_caller_gave_none(store: str, clock: ManualClock) -> None:
    async with holdfast.open(store, clock=clock) as hf:
        await CheckpointService(hf).checkpoint_task(task("a", calls=1, clock=clock), AGENT)
        quick = CheckpointService(hf, default_timeout_seconds=5)
        await quick.checkpoint_task(task("b", calls=1, clock=clock), AGENT)
        named = task("c", calls=1, timeout_seconds=None, clock=clock)
        await quick.checkpoint_task(named, AGENT)
        for task_id, seconds in (("a", 600), ("b", 5), ("c", 5)):
            (wait,) = await hf.waits.of_run(task_id)
            assert wait.deadline - wait.opened_at == seconds * 1_000_000
    # Nothing of it is in memory: an instance that knows no task ends the calls.
    async with opened(store, clock) as (_, service):
        assert await service.sweep_expired_timeouts(AGENT) == []
        for seconds, tasks in ((5, ["b", "c"]), (595, ["a"])):
            clock.advance(seconds)
            ended = await service.sweep_expired_timeouts(AGENT)
            assert [each.logical_task_id for each in ended] == tasks


@pytest.mark.parametrize("timeout", [0, -1, "60", float("nan")])
@async_test
async def test_timeout_that_is_none_is_refused(timeout: Any) -> None:
    async with holdfast.open("memory://") as hf:
        with pytest.raises(MisuseError):
            await CheckpointService(hf).checkpoint_task(task(timeout_seconds=timeout), AGENT)


@pytest.mark.mission("S0-085", "S0-102")
@async_test
async def test_sweep_ends_any_number_in_the_order_of_deadlines(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (_, service):
        for number in range(25):
            made = task(f"task-{number}", calls=1, timeout_seconds=100 - number)
            await service.checkpoint_task(made, AGENT)
        clock.advance(101)
        some = await service.sweep_expired_timeouts(AGENT, limit=5)
        rest = await service.sweep_expired_timeouts(AGENT)
        tasks = [each.logical_task_id for each in (*some, *rest)]
        assert len(some) == 5
        assert tasks == [f"task-{number}" for number in reversed(range(25))]


@pytest.mark.mission("S0-092")
@async_test
async def test_last_timeout_makes_the_task_restorable(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(calls=2, timeout_seconds=30), AGENT)
        await service.resolve_wait_once(SECOND, "fine")
        assert await service.restore_task("task-1") is None
        clock.advance(31)
        (ended,) = await service.sweep_expired_timeouts(AGENT)
        found = await service.restore_task_from_checkpoint(ended.logical_task_id)
        assert found is not None
        error, fine = found.results_to_inject
        assert (error["status"], fine) == ("timeout", "fine")


# Pauses, one after another.


@async_test
async def test_second_checkpoint_of_the_same_task_is_one_more_version(
    store: str, clock: ManualClock
) -> None:
    made = task(calls=2)
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(made, AGENT)
        await service.resolve_wait_once(FIRST, "one")
        made.append_to_run_based_buffer(" and more")
        await service.checkpoint_task(made, AGENT)
        assert [c.version for c in await hf.checkpoints.history("task-1")] == [2, 1]
        found = await service.get_paused_task("task-1")
        assert found is not None
        assert found.response_buffer == "so far and more"
        assert (await service.resolve_wait_once(SECOND, "two")).is_last
        back = await service.restore_task_from_checkpoint("task-1")
        assert back is not None
        assert back.results_to_inject == ["one", "two"]
        assert await hf.journal.verify("task-1") == []


@async_test
async def test_checkpoint_of_a_leftover_with_new_calls_waits_for_all(
    store: str, clock: ManualClock
) -> None:
    made = task(calls=1)
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(made, AGENT)
        made.register_parallel_call_sent("inv-1")
        made.register_peer_sub_task("another", call(7, invocation_id="inv-1"))
        await service.checkpoint_task(made, AGENT)
        await service.resolve_wait_once(FIRST, "one")
        assert await service.restore_task("task-1") is None
        assert (await hf.runs.get("task-1")).status == "waiting"
        await service.resolve_wait_once("another", "two")
        back = await service.restore_task_from_checkpoint("task-1")
        assert back is not None
        assert back.results_to_inject == ["one", "two"]
        assert await hf.journal.verify("task-1") == []


@async_test
async def test_complete_task_that_is_checkpointed_again_can_be_restored(
    store: str, clock: ManualClock
) -> None:
    made = task(calls=1)
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(made, AGENT)
        await service.resolve_wait_once(FIRST, "one")
        await service.checkpoint_task(made, AGENT)
        assert (await hf.runs.get("task-1")).status == "ready"
        back = await service.restore_task_from_checkpoint("task-1")
        assert back is not None
        assert back.results_to_inject == ["one"]


@pytest.mark.mission("S0-014")
@async_test
async def test_task_may_pause_again_in_the_same_invocation(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=1), AGENT)
        await service.resolve_wait_once(FIRST, "one")
        back = await restored(service)
        back.register_peer_sub_task("next", call(1))
        await service.checkpoint_task(back, AGENT)
        assert not await service.release_task("task-1"), "nothing of it is left here"
        assert await service.get_parallel_results("task-1", "inv-1") == []
        assert await service.record_parallel_result("task-1", "inv-1", "two", "next") == (1, 1)
        found = await service.restore_task_from_checkpoint("task-1")
        assert found is not None
        assert found.results_to_inject == ["two"]
        assert [c.version for c in await hf.checkpoints.history("task-1")] == [2, 1]


@async_test
async def test_task_with_two_invocations_waits_for_both(store: str, clock: ManualClock) -> None:
    made = task(calls=2)
    add_calls(made, 1, "inv-2")
    other = sub_task("task-1", "inv-2", 0)
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(made, AGENT)
        assert await service.record_parallel_result("task-1", "inv-1", "a", FIRST) == (1, 2)
        assert await service.record_parallel_result("task-1", "inv-1", "b", SECOND) == (2, 2)
        assert await service.restore_task("task-1") is None
        assert await service.restore_next(AGENT) is None
        assert await service.record_parallel_result("task-1", "inv-2", "c", other) == (1, 1)
        found = await service.restore_task_from_checkpoint("task-1")
        assert found is not None
        assert found.results_to_inject == ["a", "b", "c"]
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S0-106")
@async_test
async def test_task_without_open_calls_can_be_restored_at_once(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(calls=0), AGENT)
        assert (await restored(service)).run_based_response_buffer == "so far"


@async_test
async def test_retry_count_is_kept_over_pauses(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (_, service):
        made = task(calls=0)
        for expected in (2, 3, 4):
            await service.checkpoint_task(made, AGENT)
            made = await restored(service)
            assert made.count_retry("node") == expected


@pytest.mark.mission("S0-069")
@async_test
async def test_what_is_stored_does_not_change_with_the_task(store: str, clock: ManualClock) -> None:
    made = task(calls=1)
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(made, AGENT)
        made.produced_artifacts[0]["tags"].append("later")
        made.active_peer_sub_tasks[FIRST]["peer_tool_name"] = "another"
        found = await service.get_peer_sub_task(FIRST)
        assert found is not None
        assert found.correlation_data["peer_tool_name"] == "peer_0"
        await service.resolve_wait_once(FIRST, "x")
        assert (await restored(service)).produced_artifacts[0]["tags"] == ["draft"]


@pytest.mark.mission("S0-038", "S0-039")
@async_test
async def test_sub_task_of_another_task_is_refused_and_nothing_stored(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(calls=1), AGENT)
        thief = task("task-2", calls=0)
        thief.register_peer_sub_task(FIRST, call(0))
        with pytest.raises(WaitExists):
            await service.checkpoint_task(thief, AGENT)
        assert await service.get_paused_task("task-2") is None
        await service.checkpoint_task(task("task-2", calls=0), AGENT)
        with pytest.raises(WaitExists):
            await service.checkpoint_task(thief, AGENT)


# Going on.


@pytest.mark.mission("S0-003", "S0-075", "S0-092")
@async_test
async def test_one_instance_goes_on_and_the_others_get_none(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=1), AGENT)
        await service.resolve_wait_once(FIRST, "x")
        other = CheckpointService(hf.another_worker())
        assert await service.restore_task("task-1") is not None
        assert await other.restore_task("task-1") is None
        assert await service.restore_task("task-1") is None
        assert await other.restore_next(AGENT) is None
        with pytest.raises(LeaseHeld):
            await other.checkpoint_task(task(calls=1), AGENT)
        assert await service.release_task("task-1")
        assert not await service.release_task("task-1")
        assert await other.restore_task("task-1") is not None


@async_test
async def test_instance_that_lost_its_task_can_neither_pause_nor_end_it(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=0), AGENT)
        made = await restored(service)
        twin = hf.another_worker()
        await outlive(twin, clock, lease_seconds=15)
        other = CheckpointService(twin)
        back = await restored(other)
        with pytest.raises(Fenced):
            await service.cleanup_task("task-1")
        assert await service.restore_task("task-1") is None
        await other.checkpoint_task(back, AGENT)
        back = await restored(other)
        assert back.task_id == made.task_id
        assert await other.cleanup_task("task-1", "the answer")
        assert await hf.runs.result("task-1") == "the answer"


@pytest.mark.mission("S0-075")
@async_test
async def test_zombie_cannot_overwrite_a_pause_of_who_went_on(
    store: str, clock: ManualClock
) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=0), AGENT)
        zombie = await restored(service)
        twin = hf.another_worker()
        await outlive(twin, clock, lease_seconds=15)
        other = CheckpointService(twin)
        back = await restored(other)
        back.append_to_run_based_buffer(" and on")
        await other.checkpoint_task(back, AGENT)
        zombie.append_to_run_based_buffer(" and wrong")
        with pytest.raises(Fenced):
            await service.checkpoint_task(zombie, AGENT)
        assert (await restored(other)).run_based_response_buffer == "so far and on"


@async_test
async def test_pause_whose_answer_was_lost_can_be_repeated(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=0), AGENT)
        back = await restored(service)
        back.append_to_run_based_buffer(" and more")
        combiner = combiner_of(hf)
        combiner._apply = FlakyApply(combiner._apply, stored=True)
        with pytest.raises(OutcomeUnknown):
            await service.checkpoint_task(back, AGENT)
        await service.checkpoint_task(back, AGENT)
        assert [c.version for c in await hf.checkpoints.history("task-1")] == [2, 1]
        assert (await restored(service)).run_based_response_buffer == "so far and more"


@pytest.mark.mission("S0-089")
@async_test
async def test_any_instance_cancels_a_paused_task_once(store: str, clock: ManualClock) -> None:
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(calls=2), AGENT)
        other = CheckpointService(hf.another_worker())
        told = await other.get_peer_sub_tasks_for_task("task-1")
        assert [each.correlation_data["peer_agent_name"] for each in told] == ["Peer0", "Peer1"]
        assert await other.cleanup_task("task-1")
        assert not await service.cleanup_task("task-1")
        assert not (await service.resolve_wait_once(FIRST, "late")).accepted
        with pytest.raises(RunEnded, match="cleaned up"):
            await service.checkpoint_task(task(calls=2), AGENT)


# Secrets.


def stored_bytes(backend: Backend) -> Iterator[bytes]:
    """Everything that is stored: all rows as they are, and every body as it was written."""
    with backend.raw() as raw:
        tables = (
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
            if backend.name == "sqlite"
            else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        )
        for (table,) in raw.rows(tables):
            for row in raw.rows(f"SELECT * FROM {table}"):
                for value in row:
                    yield bytes(value) if isinstance(value, bytes) else str(value).encode()
        for row in raw.entries():
            yield codec.unpack(row[7], bytes(row[11]))


@pytest.mark.mission("S0-034", "S0-107", "S0-108")
@async_test
async def test_no_token_is_in_the_store(backend: Backend, clock: ManualClock) -> None:
    made = task(calls=1)
    made.security_context = {"auth_token": TOKEN, "oauth": {"refresh_token": TOKEN[::-1]}}
    made.security_references = {"auth_token": REFERENCE}
    made.register_peer_sub_task(FIRST, call(0, original_task_context={"jwt": TOKEN}))
    async with holdfast.open(backend.url, clock=clock) as hf:
        minted: list[str] = []

        async def remint(reference: str) -> str:
            minted.append(reference)
            return f"fresh-{len(minted)}-{TOKEN}"

        service = CheckpointService(hf, remint=remint)
        await service.checkpoint_task(made, AGENT)
        await service.resolve_wait_once(FIRST, "x")
        back = await restored(service)
        assert back.security_context == {"auth_token": f"fresh-1-{TOKEN}"}
        await service.checkpoint_task(back, AGENT)
        assert (await restored(service)).security_context == {"auth_token": f"fresh-2-{TOKEN}"}
        assert minted == [REFERENCE, REFERENCE]
        written = list(stored_bytes(backend))
        assert any(REFERENCE.encode() in each for each in written)
        for token in (TOKEN, TOKEN[::-1]):
            assert not any(token.encode() in each for each in written)
    if backend.name == "sqlite":
        with open(backend.url, "rb") as file:
            assert TOKEN.encode() not in file.read()


@async_test
async def test_task_whose_token_cannot_be_made_is_given_back(
    store: str, clock: ManualClock
) -> None:
    async with holdfast.open(store, clock=clock) as hf:

        def refuse(reference: str) -> str:
            raise RuntimeError(json.dumps(reference))

        service = CheckpointService(hf, remint=refuse)
        await service.checkpoint_task(task(calls=0), AGENT)
        with pytest.raises(RuntimeError, match="secret"):
            await service.restore_task("task-1")
        assert (await hf.runs.get("task-1")).status == "ready"
        assert await CheckpointService(hf).restore_task("task-1") is not None
