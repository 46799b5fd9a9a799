"""The operations on paused tasks: the eighteen cases of seed 000, on both stores."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import holdfast
from holdfast import sync
from holdfast.compat.mesh import (
    CheckpointService,
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    TaskExecutionContext,
)
from holdfast.engine.reading.journal import body_of
from holdfast.errors import IndexCorrupted
from holdfast.stores.sqlfiles import load_queries
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.conftest import DATABASE, new_database
from tests.peers.tasks import REFERENCE, add_calls, sub_task, task

AGENT = "Orchestrator"
FIRST, SECOND = sub_task("task-1", "inv-1", 0), sub_task("task-1", "inv-1", 1)


@asynccontextmanager
async def opened(
    store: str, clock: ManualClock | None = None
) -> AsyncGenerator[tuple[holdfast.Holdfast, CheckpointService]]:
    async with holdfast.open(store, clock=clock) as hf:
        yield hf, CheckpointService(hf)


async def answer_all(service: CheckpointService, made: TaskExecutionContext) -> None:
    for name in list(made.active_peer_sub_tasks):
        assert (await service.resolve_wait_once(name, {"from": name})).accepted


@pytest.mark.mission("S0-003", "S0-093", "S0-099")
@async_test
async def test_checkpoint_then_restore_gives_every_field(store: str) -> None:
    made = task()
    async with opened(store) as (_, service):
        await service.checkpoint_task(made, AGENT)
        await answer_all(service, made)
    async with opened(store) as (_, service):
        stored = await service.restore_task("task-1")
        assert stored is not None
        back = TaskExecutionContext.from_checkpoint_dict(stored)
        gone = {"active_peer_sub_tasks": {}, "parallel_tool_calls": {}}
        assert back.to_checkpoint_dict() == made.to_checkpoint_dict() | gone


@pytest.mark.mission("S0-012", "S0-044", "S0-075")
@async_test
async def test_checkpoint_makes_one_claimable_sub_task_per_peer(store: str) -> None:
    async with opened(store) as (hf, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        assert (await hf.runs.get("task-1")).status == "waiting"
        for number in range(3):
            name = sub_task("task-1", "inv-1", number)
            assert await service.claim_peer_sub_task(name) is not None
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S0-096")
@async_test
async def test_results_are_empty_at_the_start(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        assert await service.get_parallel_results("task-1", "inv-1") == []
        found = await service.get_parallel_invocation("task-1", "inv-1")
        assert found is not None
        assert (found.completed_count, found.total_expected) == (0, 3)


@pytest.mark.mission("S0-094")
@async_test
async def test_claim_gives_the_correlation_data_with_its_task_and_invocation(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(), AGENT)
        claimed = await service.claim_peer_sub_task(FIRST)
        assert claimed is not None
        assert (claimed["logical_task_id"], claimed["invocation_id"]) == ("task-1", "inv-1")
        assert (claimed["peer_tool_name"], claimed["function_call_id"]) == ("peer_0", "call-0")


@pytest.mark.mission("S0-020", "S0-094")
@async_test
async def test_second_claim_gives_none(store: str) -> None:
    async with opened(store) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        assert await service.claim_peer_sub_task(FIRST) is not None
        assert await service.claim_peer_sub_task(FIRST) is None
        assert await CheckpointService(hf.another_worker()).claim_peer_sub_task(FIRST) is None


@async_test
async def test_claim_of_an_unknown_sub_task_gives_none(store: str) -> None:
    async with opened(store) as (_, service):
        assert await service.claim_peer_sub_task("nobody") is None


@pytest.mark.mission("S0-016", "S0-017", "S0-018", "S0-095", "S0-096")
@async_test
async def test_results_are_counted_and_kept_in_order(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        told: list[tuple[int, int]] = []
        for number in range(3):
            claimed = await service.claim_peer_sub_task(sub_task("task-1", "inv-1", number))
            assert claimed is not None
            told.append(await service.record_parallel_result("task-1", "inv-1", {"n": number}))
        assert told == [(1, 3), (2, 3), (3, 3)]
        results = await service.get_parallel_results("task-1", "inv-1")
        assert results == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.mission("S0-081")
@async_test
async def test_result_of_an_unknown_invocation_is_none_of_none_and_changes_nothing(
    store: str,
) -> None:
    async with opened(store) as (hf, service):
        assert await service.record_parallel_result("nobody", "inv-1", "x") == (0, 0)
        await service.checkpoint_task(task(), AGENT)
        before = len(await hf.journal.read("task-1"))
        assert await service.record_parallel_result("task-1", "inv-9", "x") == (0, 0)
        assert await service.record_parallel_result("task-1", "inv-9", "x", FIRST) == (0, 0)
        assert await service.record_parallel_result("task-2", "inv-1", "x", FIRST) == (0, 0)
        assert await service.record_parallel_result("task-1", "inv-1", "x", "nobody") == (0, 0)
        assert len(await hf.journal.read("task-1")) == before
        assert await service.restore_task("task-1") is None


@async_test
async def test_restore_of_an_unknown_task_gives_none(store: str) -> None:
    async with opened(store) as (hf, service):
        assert await service.restore_task("nobody") is None
        assert await service.restore_task_from_checkpoint("nobody") is None
        assert await service.get_paused_task("nobody") is None
        await hf.runs.create("not-a-task")
        assert await service.restore_task("not-a-task") is None
        assert (await hf.runs.get("not-a-task")).status == "ready"


@pytest.mark.mission("S0-030", "S0-031", "S0-092")
@async_test
async def test_artifacts_go_there_and_back(store: str) -> None:
    made = task(calls=1)
    made.register_produced_artifact({"filename": "müsli.bin", "version": 7, "data": b"\x00\xff"})
    async with opened(store) as (_, service):
        await service.checkpoint_task(made, AGENT)
        await answer_all(service, made)
        restored = await service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        assert restored.task_context.produced_artifacts == made.produced_artifacts
        assert restored.results_to_inject == [{"from": FIRST}]


@pytest.mark.mission("S0-022", "S0-051", "S0-100")
@async_test
async def test_cleanup_ends_the_task_its_calls_and_its_counts(backend: Backend) -> None:
    async with opened(backend.url) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        assert await service.cleanup_task("task-1")
        assert await service.restore_task("task-1") is None
        assert await service.get_paused_task("task-1") is None
        assert await service.get_peer_sub_tasks_for_task("task-1") == []
        assert await service.get_parallel_invocation("task-1", "inv-1") is None
        assert not await service.cleanup_task("task-1")
        assert not await service.cleanup_task("nobody")
        run = await hf.runs.get("task-1")
        assert run.status == "cancelled"
        assert [wait.status for wait in await hf.waits.of_run("task-1")] == ["cancelled"] * 2
        with backend.raw() as raw:
            groups = raw.rows("SELECT status, closed_seq FROM wait_groups")
            ends = raw.rows("SELECT DISTINCT result_seq FROM waits")
            ((kind, last),) = raw.rows("SELECT kind, seq FROM journal ORDER BY seq DESC LIMIT 1")
        assert kind == "RUN_CANCELLED"
        assert (groups, ends) == ([("cancelled", last)], [(last,)]), "one commit ends all of it"
        assert await hf.journal.verify("task-1") == []


@pytest.mark.mission("S0-079", "S0-098")
@async_test
async def test_deadline_begins_anew_with_a_sign_of_life(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(timeout_seconds=30, clock=clock), AGENT)
        first = await service.get_peer_sub_task(FIRST)
        clock.advance(20)
        assert await service.reset_timeout_deadline(FIRST)
        later = await service.get_peer_sub_task(FIRST)
        assert await service.reset_timeout_deadline(FIRST, 90)
        latest = await service.get_peer_sub_task(FIRST)
        assert first is not None
        assert later is not None
        assert latest is not None
        assert later.timeout_deadline - first.timeout_deadline == pytest.approx(20)
        assert latest.timeout_deadline - later.timeout_deadline == pytest.approx(60)


@pytest.mark.mission("S0-088", "S0-114")
@async_test
async def test_deadline_counts_from_dispatch_and_not_from_the_pause(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (hf, service):
        dispatched_at = clock.now() / 1e6
        made = task(timeout_seconds=30, clock=clock)
        clock.advance(20)
        await service.checkpoint_task(made, AGENT)
        found = await service.get_peer_sub_task(FIRST)
        assert found is not None
        assert found.timeout_deadline - dispatched_at == pytest.approx(30)
        assert (await hf.waits.get(FIRST)).patience == 30_000_000
        clock.advance(9)
        assert await service.sweep_expired_timeouts(AGENT) == []
        assert await service.reset_timeout_deadline(FIRST), "a sign of life gives all 30 s again"
        clock.advance(2)
        ended = await service.sweep_expired_timeouts(AGENT)
        assert [each.sub_task_id for each in ended] == [SECOND]
        clock.advance(29)
        ended = await service.sweep_expired_timeouts(AGENT)
        assert [each.sub_task_id for each in ended] == [FIRST]


STEPPED = """
CREATE SCHEMA stepped;
CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql
    AS $$ SELECT pg_catalog.clock_timestamp() - interval '1 day' $$;
ALTER DATABASE {} SET search_path = stepped, public, pg_catalog;
"""


@pytest.mark.mission("S0-036", "S0-085", "S0-088")
@async_test
async def test_moments_are_those_of_the_database_and_not_of_this_machine(
    postgres_server: str,
) -> None:
    name = f"{DATABASE}_stepped"
    with new_database(postgres_server, name) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(SQL(STEPPED).format(Identifier(name)))
        yesterday = (time.time() - 86_400) * 1e6
        async with opened(url) as (hf, service):
            await service.checkpoint_task(task(calls=1, timeout_seconds=3600), AGENT)
            paused, wait = await service.get_paused_task("task-1"), await hf.waits.get(FIRST)
            assert paused is not None
            assert paused.checkpointed_at * 1e6 == pytest.approx(yesterday, abs=600e6)
            assert wait.deadline == pytest.approx(yesterday + 3600e6, abs=600e6)
            assert await service.sweep_expired_timeouts(AGENT) == []


@pytest.mark.mission("S0-042")
@pytest.mark.parametrize("query", ["find_due_waits", "find_due_waits_of_agents", "next_deadline"])
def test_sweep_finds_deadlines_by_an_index(tmp_path: Path, query: str) -> None:
    backend = SQLiteBackend(tmp_path / "store.db")
    with sync.open(backend.url):
        pass
    sql = load_queries("holdfast.stores.sqlite")[query]
    given = max(int(number) for number in re.findall(r"\?(\d)", sql))
    with backend.raw() as raw:
        plan = [row[3] for row in raw.rows(f"EXPLAIN QUERY PLAN {sql}", *["x"] * given)]
    assert any("waits_due (tenant=? AND deadline" in line for line in plan), plan


@pytest.mark.mission("S0-114")
@async_test
async def test_call_whose_time_is_over_before_the_pause_ends_with_the_next_sweep(
    store: str,
) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (_, service):
        made = task(calls=1, timeout_seconds=30, clock=clock)
        clock.advance(40)
        await service.checkpoint_task(made, AGENT)
        (ended,) = await service.sweep_expired_timeouts(AGENT)
        assert ended.sub_task_id == FIRST
        (result,) = await service.get_parallel_results("task-1", "inv-1")
        assert "timed out after 30 seconds" in str(result)


@pytest.mark.mission("S0-041")
@async_test
async def test_correlation_data_does_not_hold_the_task_context(store: str) -> None:
    made = task(calls=1)
    context = dict(made.a2a_context)
    whole = {"original_task_context": {**context, "more": "of it"}, "a2a_context": context}
    data = dict(made.active_peer_sub_tasks[FIRST])
    made.register_peer_sub_task(FIRST, data | whole)
    async with opened(store) as (hf, service):
        await service.checkpoint_task(made, AGENT)
        found = await service.get_peer_sub_task(FIRST)
        assert found is not None
        assert found.correlation_data == data
        claimed = await service.claim_peer_sub_task(FIRST)
        assert claimed is not None
        assert not set(whole) & set(claimed)
        entries = await hf.journal.read("task-1")
        (body,) = [body_of(entry) for entry in entries if entry.kind == "WAITS_OPENED"]
        assert "user-1" not in str(body)
        await service.resolve_wait_once(FIRST, "x")
        restored = await service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        assert restored.task_context.a2a_context == context


@pytest.mark.mission("S0-098")
@async_test
async def test_deadline_of_what_is_unknown_or_over_is_not_reset(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(), AGENT)
        assert not await service.reset_timeout_deadline("nobody", 5)
        await service.resolve_wait_once(FIRST, "x")
        assert not await service.reset_timeout_deadline(FIRST, 5)


@pytest.mark.mission("S0-085", "S0-102", "S2-022")
@async_test
async def test_sweep_finds_what_has_expired(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task(timeout_seconds=30), AGENT)
        clock.advance(31)
        ended = await service.sweep_expired_timeouts(AGENT)
        assert [each.sub_task_id for each in ended] == [FIRST, SECOND]
        assert ended[0].correlation_data["peer_agent_name"] == "Peer0"
        assert await service.sweep_expired_timeouts(AGENT) == []
        assert (await hf.runs.get("task-1")).status == "ready"


@pytest.mark.mission("S0-085", "S0-102")
@async_test
async def test_sweep_leaves_the_tasks_of_other_agents_alone(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task("mine", timeout_seconds=30), AGENT)
        await service.checkpoint_task(task("theirs", timeout_seconds=30), "Another")
        clock.advance(31)
        ended = await service.sweep_expired_timeouts(AGENT)
        assert {each.logical_task_id for each in ended} == {"mine"}
        assert len(await service.get_peer_sub_tasks_for_task("theirs")) == 2


@async_test
async def test_sweep_leaves_alone_what_has_time_left(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (_, service):
        await service.checkpoint_task(task(timeout_seconds=30), AGENT)
        clock.advance(29)
        assert await service.sweep_expired_timeouts(AGENT) == []
        assert len(await service.get_peer_sub_tasks_for_task("task-1")) == 2


@pytest.mark.mission("S0-089", "S0-101")
@async_test
async def test_all_sub_tasks_of_a_task_are_listed(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(calls=12), AGENT)
        listed = await service.get_peer_sub_tasks_for_task("task-1")
        expected = [sub_task("task-1", "inv-1", number) for number in range(12)]
        assert [each.sub_task_id for each in listed] == expected
        await service.resolve_wait_once(SECOND, "answered")
        listed = await service.get_peer_sub_tasks_for_task("task-1")
        assert [each.sub_task_id for each in listed] == [FIRST, *expected[2:]]


@pytest.mark.mission("S0-101")
@async_test
async def test_unknown_task_has_no_sub_tasks(store: str) -> None:
    async with opened(store) as (_, service):
        assert await service.get_peer_sub_tasks_for_task("nobody") == []


# Records: every column by its name.


@dataclass(frozen=True)
class Table:
    record: type[msgspec.Struct]
    columns: str


TABLES = [
    Table(
        PausedTask,
        "logical_task_id agent_name a2a_context effective_session_id user_id current_invocation_id "
        "produced_artifacts artifact_signals_to_return response_buffer flags security_context "
        "token_usage checkpointed_at",
    ),
    Table(
        PeerSubTask,
        "sub_task_id logical_task_id invocation_id correlation_data timeout_deadline created_at",
    ),
    Table(
        ParallelInvocation,
        "logical_task_id invocation_id total_expected completed_count results",
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.record.__name__)
def test_record_has_every_column(table: Table) -> None:
    assert set(table.columns.split()) <= set(table.record.__struct_fields__)


@pytest.mark.mission("S0-024", "S0-025", "S0-026", "S0-027", "S0-028", "S0-029", "S0-030")
@pytest.mark.mission("S0-031", "S0-032", "S0-033", "S0-034", "S0-035", "S0-036")
@async_test
async def test_paused_task_has_the_values_of_its_columns(store: str) -> None:
    clock = ManualClock()
    made = task()
    async with opened(store, clock) as (hf, service):
        await service.checkpoint_task(task("another"), "Another")
        clock.advance(100)
        await service.checkpoint_task(made, AGENT)
        found = await service.get_paused_task("task-1")
        assert found == PausedTask(
            logical_task_id="task-1",
            agent_name=AGENT,
            a2a_context={
                "session_id": "session-1",
                "effective_session_id": "session-1:run",
                "user_id": "user-1",
            },
            effective_session_id="session-1:run",
            user_id="user-1",
            current_invocation_id="inv-1",
            produced_artifacts=[{"filename": "report.md", "version": 1, "tags": ["draft"]}],
            artifact_signals_to_return=[{"filename": "report.md", "version": 1}],
            response_buffer="so far",
            flags={"deep_research_sent": True},
            security_context={"auth_token": REFERENCE},
            token_usage={
                "total_input_tokens": 110,
                "total_output_tokens": 22,
                "total_cached_input_tokens": 5,
                "by_model": {"model-a": used(100, 20, 5), "model-b": used(10, 2, 0)},
                "by_source": {"agent": used(100, 20, 5), "tool": used(10, 2, 0)},
            },
            checkpointed_at=clock.now() / 1e6,
        )
        assert [run.run_id for run in await hf.runs.list(agent=AGENT)] == ["task-1"]
        assert [run.run_id for run in await hf.runs.list(agent="Another")] == ["another"]


def used(given: int, made: int, cached: int) -> dict[str, int]:
    return {"input_tokens": given, "output_tokens": made, "cached_input_tokens": cached}


@pytest.mark.mission("S0-024", "S0-037")
@async_test
async def test_task_has_one_record_however_often_it_is_checkpointed(backend: Backend) -> None:
    made = task()
    async with opened(backend.url) as (_, service):
        for text in ("", " and more", " and on"):
            made.append_to_run_based_buffer(text)
            await service.checkpoint_task(made, AGENT)
        await service.checkpoint_task(task("task-2"), AGENT)
        found = await service.get_paused_task("task-1")
        assert found is not None
        assert found.response_buffer == "so far and more and on"
        assert len(await service.get_peer_sub_tasks_for_task("task-1")) == 2
        with backend.raw() as raw:
            rows = raw.rows("SELECT run_id, status FROM runs ORDER BY run_id")
            waits = raw.rows("SELECT run_id, count(*) FROM waits GROUP BY run_id ORDER BY run_id")
        assert rows == [("task-1", "waiting"), ("task-2", "waiting")]
        assert waits == [("task-1", 2), ("task-2", 2)]


@pytest.mark.mission("S0-038", "S0-041", "S0-042", "S0-043", "S0-097", "S2-026")
@async_test
async def test_sub_task_has_the_values_of_its_columns(store: str) -> None:
    clock = ManualClock()
    async with opened(store, clock) as (hf, service):
        made = task(timeout_seconds=45.5, adk_function_call_id="adk-0", clock=clock)
        await service.checkpoint_task(made, AGENT)
        wait = await hf.waits.get(FIRST)
        assert await service.get_peer_sub_task(FIRST) == PeerSubTask(
            sub_task_id=FIRST,
            logical_task_id="task-1",
            invocation_id="inv-1",
            correlation_data=made.active_peer_sub_tasks[FIRST],
            timeout_deadline=clock.now() / 1e6 + 45.5,
            created_at=clock.now() / 1e6,
        )
        assert (wait.kind, wait.name, wait.patience) == ("peer", "Peer0", 45_500_000)
        assert await service.get_peer_sub_task("nobody") is None
        claimed = await service.claim_peer_sub_task(FIRST)
        assert claimed is not None, "reading it has claimed nothing"
        assert (claimed["adk_function_call_id"], claimed["peer_agent_name"]) == ("adk-0", "Peer0")
        clock.advance(46)
        assert [e.sub_task_id for e in await service.sweep_expired_timeouts(AGENT)] == [SECOND]
        (told,) = await service.get_parallel_results("task-1", "inv-1")
        assert told["adk_function_call_id"] == "adk-0"


@pytest.mark.mission("S0-039")
@async_test
async def test_call_of_a_task_that_is_not_stored_is_refused(backend: Backend) -> None:
    async with opened(backend.url) as (hf, service):
        await service.checkpoint_task(task(), AGENT)
        with backend.raw() as raw:
            raw.execute("UPDATE waits SET run_id = 'nobody' WHERE wait_id = ?", FIRST)
        for refused in (
            service.get_peer_sub_task(FIRST),
            service.claim_peer_sub_task(FIRST),
            service.resolve_wait_once(FIRST, "x"),
            service.record_parallel_result("nobody", "inv-1", "x", FIRST),
        ):
            with pytest.raises(IndexCorrupted, match=FIRST):
                await refused
        assert [entry.kind for entry in await hf.journal.read("task-1")][-1] == "RUN_WAITING"
        known = await service.get_peer_sub_task(SECOND)
        assert known is not None
        assert known.logical_task_id == "task-1"


@pytest.mark.mission("S0-040", "S0-045", "S0-046", "S0-050")
@async_test
async def test_calls_are_found_by_their_task_and_invocation(store: str) -> None:
    made = task(calls=2)
    add_calls(made, 1, "inv-2")
    async with opened(store) as (_, service):
        await service.checkpoint_task(made, AGENT)
        await service.checkpoint_task(task("task-2", calls=3), AGENT)
        listed = await service.get_peer_sub_tasks_for_task("task-1")
        assert [each.invocation_id for each in listed] == ["inv-1", "inv-1", "inv-2"]
        # Without its id a result is for the one call that is open in its invocation.
        assert await service.record_parallel_result("task-1", "inv-2", "single") == (1, 1)
        found = [
            await service.get_parallel_invocation(task_id, invocation_id)
            for task_id, invocation_id in (
                ("task-1", "inv-1"),
                ("task-1", "inv-2"),
                ("task-2", "inv-1"),
                ("task-2", "inv-2"),
            )
        ]
        assert found == [
            invocation("task-1", "inv-1", 2),
            invocation("task-1", "inv-2", 1, "single"),
            invocation("task-2", "inv-1", 3),
            None,
        ]


def invocation(task_id: str, name: str, total: int, *results: str) -> ParallelInvocation:
    return ParallelInvocation(
        logical_task_id=task_id,
        invocation_id=name,
        total_expected=total,
        completed_count=len(results),
        results=[*results],
    )


@pytest.mark.mission("S0-021", "S0-048")
@async_test
async def test_answers_that_come_at_the_same_time_are_all_counted(backend: Backend) -> None:
    names = [sub_task("task-1", "inv-1", number) for number in range(20)]
    async with opened(backend.url) as (hf, service):
        await service.checkpoint_task(task(calls=20), AGENT)
        # While the first write is on its way, the others gather.
        _, *told = await asyncio.gather(
            hf.runs.create("another"), *(hf.waits.resolve(name, name) for name in names)
        )
        assert sorted(each.completed for each in told) == list(range(1, 21))
        found = await service.get_parallel_invocation("task-1", "inv-1")
        assert found == invocation("task-1", "inv-1", 20, *names)
        with backend.raw() as raw:
            groups = raw.rows("SELECT resolved, failed, total, status FROM wait_groups")
        assert groups == [(20, 0, 20, "satisfied")]


@pytest.mark.mission("S0-047", "S0-048", "S0-049")
@async_test
async def test_invocation_has_the_values_of_its_columns(store: str) -> None:
    async with opened(store) as (_, service):
        await service.checkpoint_task(task(calls=3), AGENT)
        await service.resolve_wait_once(SECOND, {"text": "two"})
        assert await service.get_parallel_invocation("task-1", "inv-1") == ParallelInvocation(
            logical_task_id="task-1",
            invocation_id="inv-1",
            total_expected=3,
            completed_count=1,
            results=[{"text": "two"}],
        )


def test_code_that_blocks_can_do_the_same(store: str) -> None:
    with sync.open(store) as hf:
        service = sync.CheckpointService(hf, remint=lambda reference: reference.upper())
        service.checkpoint_task(task(), AGENT)
        for name in (FIRST, SECOND):
            assert service.claim_peer_sub_task(name) is not None
            service.record_parallel_result("task-1", "inv-1", {"from": name}, name)
        restored = service.restore_task_from_checkpoint("task-1")
        assert restored is not None
        assert restored.results_to_inject == [{"from": FIRST}, {"from": SECOND}]
        assert restored.task_context.security_context == {"auth_token": REFERENCE.upper()}
        assert service.cleanup_task("task-1", "done")
        assert hf.runs.result("task-1") == "done"
