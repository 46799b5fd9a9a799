"""Checkpoints that tell of the work: every operation of seed 003 on both stores."""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

import holdfast
from holdfast import sync
from holdfast.engine.writing.unheld_runs import append_at_head
from holdfast.errors import (
    CheckpointConflict,
    CheckpointFinal,
    CheckpointNotFound,
    IllegalMove,
    InvalidIdentifier,
    LeaseHeld,
    MisuseError,
    RecordInvalid,
    RunEnded,
    ValueTooLarge,
)
from holdfast.kernel import indexes
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.records import LinkedTo
from holdfast.records import (
    CheckpointQuery,
    CheckpointService,
    Compliance,
    ContextSummary,
    Decision,
    ExecutionState,
    Item,
    Metadata,
    Metrics,
    Phase,
    Record,
    Recovery,
    StoredRecord,
    TestsStatus,
    hash_of,
)
from holdfast.settings import Settings
from holdfast.stores.reads import RunAtHead
from holdfast.sync.records import CheckpointService as BlockingService
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

EVERYTHING: dict[str, Any] = {
    "metadata": {"iteration": 7, "agent_type": "qa"},
    "execution_state": {
        "phase": "implementing",
        "completed_items": [{"id": "schema", "text": "the tables are there"}],
        "pending_items": [{"id": "api"}, {"id": "docs", "text": "écrire la page"}],
        "blocked_items": [{"id": "deploy", "blocker": "no credentials"}],
        "current_focus": "api",
    },
    "context_summary": {
        "key_decisions": [{"text": "PostgreSQL", "reason": "many machines"}],
        "assumptions": ["one region"],
        "constraints": ["no downtime"],
        "external_dependencies": ["stripe"],
    },
    "metrics": {
        "tokens_consumed": 12_345,
        "tools_invoked": 7,
        "files_modified": ["src/api.py"],
        "tests_status": {"passed": 5, "failed": 1, "skipped": 2, "coverage_percent": 81.5},
    },
    "recovery": {
        "rollback_instructions": "git revert HEAD",
        "continuation_prompt": "go on with the API",
    },
    "compliance": {"retention_policy": "7y"},
}


async def facts(hf: holdfast.Holdfast, task: str, kind: str) -> list[Any]:
    entries = await hf.journal.read(task)
    return [indexes.facts_of(entry) for entry in entries if entry.kind == kind]


@pytest.mark.mission("S3-011", "S3-012", "S3-013", "S3-014", "S3-015", "S3-016", "S3-017")
@pytest.mark.mission("S3-018", "S3-019", "S3-020", "S3-021", "S3-022", "S3-023", "S3-024")
@pytest.mark.mission("S3-025", "S3-026", "S3-027", "S3-028", "S3-029", "S3-030", "S3-031")
@pytest.mark.mission("S3-032", "S3-033", "S3-035", "S3-036", "S3-040", "S3-097", "S3-124")
@pytest.mark.mission("S3-041", "S3-048", "S3-122", "S3-171", "S3-174")
@async_test
async def test_checkpoint_has_every_field_of_the_schema(backend: Backend) -> None:
    moment = datetime(2026, 1, 24, 12, tzinfo=UTC)
    clock = ManualClock(int(moment.timestamp()) * 1_000_000)
    async with holdfast.open(backend.url, clock=clock) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "agent-1", EVERYTHING)
        found = await service.get_checkpoint(made.metadata.checkpoint_id)
    assert found is not None
    assert found == made
    assert found.version == "1.0"
    assert UUID(found.metadata.checkpoint_id).version == 7
    assert found.metadata.task_id == "task"
    assert found.metadata.agent_id == "agent-1"
    assert found.metadata.timestamp == "2026-01-24T12:00:00+00:00"
    assert (found.metadata.iteration, found.metadata.agent_type) == (7, "qa")
    assert found.execution_state.phase is Phase.IMPLEMENTING
    parts = Record.__struct_fields__[1:-1]
    assert {name: type(getattr(found, name)) for name in parts} == {
        "metadata": Metadata,
        "execution_state": ExecutionState,
        "context_summary": ContextSummary,
        "metrics": Metrics,
        "recovery": Recovery,
        "compliance": Compliance,
    }
    assert type(found.metrics.tests_status) is TestsStatus
    assert {type(each) for each in found.execution_state.pending_items} == {Item}
    told = msgspec.json.decode(msgspec.json.encode(found))
    for section in ("execution_state", "context_summary", "metrics"):
        assert told[section] == EVERYTHING[section]
    assert told["recovery"] == {"last_successful_state": "", **EVERYTHING["recovery"]}
    assert found.compliance.retention_policy == "7y"


@pytest.mark.mission("S3-015", "S3-018", "S3-156")
@async_test
async def test_every_type_and_phase_of_the_schema_is_accepted_and_no_other(
    backend: Backend,
) -> None:
    types = ["architecture", "implementation", "qa", "documentation"]
    phases = ["planning", "implementing", "testing", "reviewing", "complete", "handoff"]
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for agent_type in types:
            made = await service.create_checkpoint("t", "a", {}, agent_type=agent_type)
            assert made.metadata.agent_type == agent_type
        for phase in phases:
            made = await service.create_checkpoint("t", "a", {"execution_state": {"phase": phase}})
            assert made.execution_state.phase.value == phase
        with pytest.raises(RecordInvalid, match=f"'QA' is not one of {', '.join(types)}"):
            await service.create_checkpoint("t", "a", {}, agent_type="QA")
        with pytest.raises(RecordInvalid, match=r"\$\.execution_state\.phase"):
            await service.create_checkpoint("t", "a", {"execution_state": {"phase": "done"}})
        history = await service.get_checkpoint_history("t")
    assert [each.execution_state.phase.value for each in reversed(history)][4:] == phases


@pytest.mark.mission("S3-034", "S3-037", "S3-049", "S3-111", "S3-114", "S3-125", "S3-175")
@pytest.mark.mission("S3-182", "S3-128", "S3-109")
@async_test
async def test_checkpoints_of_a_task_are_a_chain_in_its_journal(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        assert await service.get_latest_checkpoint("task") is None
        made = [await service.create_checkpoint("task", a, {}) for a in ("one", "one", "two")]
        assert [each.run_version for each in made] == [1, 2, 3]
        assert [each.metadata.iteration for each in made] == [1, 1, 2]
        ids = [each.checkpoint_id for each in made]
        assert ids == sorted(ids)
        assert [each.recovery.last_successful_state for each in made] == ["", *ids[:2]]
        assert [each.parent_id for each in made] == ["", *ids[:2]]
        assert await service.get_latest_checkpoint("task") == made[2]
        told = await facts(hf, "task", "CHECKPOINT_CREATED")
        assert [str(each.checkpoint_id) for each in told] == ids
        assert [each.agent for each in told] == ["one", "one", "two"]
        for each in made:
            named = re.fullmatch(r"run:(.+)#(\d+)", each.compliance.event_log_ref)
            assert named
            (entry,) = await hf.journal.read(named[1], after=int(named[2]) - 1, limit=1)
            assert str(indexes.facts_of(entry).checkpoint_id) == each.checkpoint_id
        assert await hf.journal.verify("task") == []


@pytest.mark.mission("S3-034")
@async_test
async def test_state_may_be_a_record_and_name_an_earlier_checkpoint(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf, agent_types=["writer"])
        state = ExecutionState(phase=Phase.TESTING, completed_items=(Item("a"),))
        made = await service.create_checkpoint(
            "task", "a", Record(execution_state=state), agent_type="writer"
        )
        assert made.execution_state == state
        again = await service.create_checkpoint("task", "a", made)
        assert again.checkpoint_id != made.checkpoint_id
        assert again.execution_state == state
        named = {"recovery": {"last_successful_state": made.checkpoint_id}}
        third = await service.create_checkpoint("task", "a", named, agent_type="writer")
        assert third.recovery.last_successful_state == made.checkpoint_id


@pytest.mark.mission("S3-042", "S3-116", "S3-117", "S3-172", "S3-183")
@async_test
async def test_update_is_a_new_revision_and_the_old_one_stays(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", EVERYTHING, summary="first words")
        partial: dict[str, Any] = {
            "execution_state": {"phase": "testing", "pending_items": []},
            "metrics": {"tests_status": {"passed": 6}},
        }
        second = await service.update_checkpoint(made.checkpoint_id, partial, by="bob")
        third = await service.update_checkpoint(
            made.checkpoint_id, {}, summary="other words", expected_revision=2
        )
        assert (second.revision, third.revision) == (2, 3)
        assert second.execution_state.phase is Phase.TESTING
        assert second.execution_state.pending_items == ()
        assert second.execution_state.completed_items == made.execution_state.completed_items
        assert second.metrics.tests_status.passed == 6
        assert second.metrics.tests_status.failed == 1
        assert second.compliance.hash == hash_of(second) != made.compliance.hash
        assert await service.get_checkpoint(made.checkpoint_id) == third
        assert await service.get_checkpoint(made.checkpoint_id, revision=3) == third
        assert await service.get_checkpoint(made.checkpoint_id, revision=2) == second
        assert await service.get_checkpoint(made.checkpoint_id, revision=1) == made
        assert await service.get_checkpoint(made.checkpoint_id, revision=4) is None
        assert await service.get_checkpoint(made.checkpoint_id, revision=0) is None
        told = await facts(hf, "task", "CHECKPOINT_UPDATED")
        assert [each.fields for each in told] == [
            [
                "execution_state.pending_items",
                "execution_state.phase",
                "metrics.tests_status.passed",
            ],
            ["summary"],
        ]
        assert str(told[0].checkpoint_id) == made.checkpoint_id
        same = await service.update_checkpoint(made.checkpoint_id, {})
        assert same == third
        assert len(await facts(hf, "task", "CHECKPOINT_UPDATED")) == 2
        assert (await hf.checkpoints.load("task"))["holdfast.record"]["version"] == "1.0"
        assert await hf.journal.verify("task") == []


@pytest.mark.mission("S3-043", "S3-108", "S3-115", "S3-119", "S3-121", "S3-173", "S3-184")
@async_test
async def test_final_checkpoint_takes_no_change(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", EVERYTHING)
        await service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 8}})
        other = await service.create_checkpoint("task", "a", {})
        await service.finalize_checkpoint(made.checkpoint_id, "complete", by="bob")
        final = await service.get_checkpoint(made.checkpoint_id)
        assert final is not None
        assert (final.status, final.is_final, final.revision) == ("complete", True, 2)
        (told,) = await facts(hf, "task", "CHECKPOINT_FINALIZED")
        assert (str(told.checkpoint_id), told.status) == (made.checkpoint_id, "complete")
        assert told.hash == final.compliance.hash
        for attempt in (
            service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 9}}),
            service.update_checkpoint(made.checkpoint_id, {}),
            service.finalize_checkpoint(made.checkpoint_id, "failed"),
            service.link_checkpoints(other.checkpoint_id, made.checkpoint_id),
            hf.checkpoints.delete("task", 1),
        ):
            with pytest.raises(CheckpointFinal, match=r"complete.*entry 5"):
                await attempt
        assert await service.get_checkpoint(made.checkpoint_id) == final
        await service.link_checkpoints(made.checkpoint_id, other.checkpoint_id)
        await service.update_checkpoint(other.checkpoint_id, {"metrics": {"tools_invoked": 9}})


@pytest.mark.mission("S3-044", "S3-128")
@async_test
async def test_checkpoints_are_linked_over_tasks_and_never_in_a_circle(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        one = [(await service.create_checkpoint("one", "a", {})).checkpoint_id for _ in range(3)]
        two = [(await service.create_checkpoint("two", "a", {})).checkpoint_id for _ in range(2)]
        await service.link_checkpoints(one[1], two[0], by="bob")
        await service.link_checkpoints(one[1], two[0])
        linked = await service.get_checkpoint(two[0])
        assert linked is not None
        assert linked.parent_id == one[1]
        (told,) = await facts(hf, "two", "CHECKPOINT_LINKED")
        assert (str(told.parent_id), str(told.child_id)) == (one[1], two[0])
        assert await facts(hf, "one", "CHECKPOINT_LINKED") == []
        for parent, child in ((two[1], one[0]), (one[0], one[0]), (two[0], one[1])):
            with pytest.raises(IllegalMove, match="circle"):
                await service.link_checkpoints(parent, child)
        await service.link_checkpoints(two[1], one[2])
        with pytest.raises(CheckpointNotFound):
            await service.link_checkpoints(str(uuid4()), one[0])
        assert await hf.journal.verify("two") == []


@async_test
async def test_link_to_a_circle_that_a_race_has_closed_is_made(backend: Backend) -> None:
    """Two writers that link two tasks to each other at once do not see each other's link."""
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        one, two, three = [
            (await service.create_checkpoint(task, "a", {})).checkpoint_id
            for task in ("one", "two", "three")
        ]
        for parent, task, child in ((one, "two", two), (two, "one", one)):
            linked = Draft(Kind.CHECKPOINT_LINKED, LinkedTo(UUID(parent), UUID(child), 1))

            async def plan(head: RunAtHead, now: int, linked: Draft = linked) -> Sequence[Draft]:
                return [linked]

            await append_at_head(hf._context, task, plan)
        async with asyncio.timeout(30):
            await service.link_checkpoints(one, three)
        found = await service.get_checkpoint(three)
        assert found is not None
        assert found.parent_id == one


@pytest.mark.mission("S3-050", "S3-098", "S3-127", "S3-128", "S3-176")
@async_test
async def test_history_is_read_in_pages(backend: Backend) -> None:
    others = Settings(tenant="others")
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url, settings=others) as hg:
        service = CheckpointService(hf)
        made: list[StoredRecord] = []
        for _ in range(7):
            made.append(await service.create_checkpoint("task", "a", {}))
            # Neither another task nor the same one of another tenant is in between.
            await service.create_checkpoint("tas", "a", {})
            theirs = await CheckpointService(hg).create_checkpoint("task", "a", {})
            assert await service.get_checkpoint(theirs.checkpoint_id) is None
        await service.update_checkpoint(made[3].checkpoint_id, {"metrics": {"tools_invoked": 1}})
        walked: list[StoredRecord] = []
        before = None
        while page := await service.get_checkpoint_history("task", limit=3, before=before):
            assert len(page) <= 3
            walked += page
            before = page[-1].run_version
        assert [each.checkpoint_id for each in walked] == [m.checkpoint_id for m in reversed(made)]
        assert [each.parent_id for each in walked] == [
            *(each.checkpoint_id for each in walked[1:]),
            "",
        ]
        assert walked[3].revision == 2
        assert await service.get_checkpoint_history("other") == []


@pytest.mark.mission("S3-047", "S3-104", "S3-162")
@async_test
async def test_conflict_names_who_was_first(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("task", "alice", {}, expected_latest="")
        second = await service.create_checkpoint(
            "task", "alice", {}, expected_latest=first.checkpoint_id
        )
        for expected in (first.checkpoint_id, ""):
            with pytest.raises(CheckpointConflict) as conflict:
                await service.create_checkpoint("task", "bob", {}, expected_latest=expected)
            told = str(conflict.value)
            assert "alice" in told
            assert second.checkpoint_id in told
            assert second.metadata.timestamp in told
        with pytest.raises(CheckpointConflict, match="no checkpoint"):
            await service.create_checkpoint("new", "bob", {}, expected_latest=str(uuid4()))
        partial = {"metrics": {"tools_invoked": 1}}
        await service.update_checkpoint(
            first.checkpoint_id, partial, expected_revision=1, by="carol"
        )
        with pytest.raises(CheckpointConflict, match="carol wrote revision 2 at 20"):
            await service.update_checkpoint(first.checkpoint_id, {}, expected_revision=1)


@async_test
async def test_writer_that_is_refused_is_not_tried_again(backend: Backend) -> None:
    """The error of a second try would stand in the traceback after the one of the first."""
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        await service.create_checkpoint("task", "a", {})
        with pytest.raises(CheckpointConflict) as refused:
            await service.create_checkpoint("task", "b", {}, expected_latest="")
        assert refused.value.__context__ is None


@async_test
async def test_task_that_somebody_works_on_is_theirs(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url) as other:
        service = CheckpointService(other)
        made = await service.create_checkpoint("task", "a", {})
        another = await service.create_checkpoint("another", "a", {})
        held = await hf.runs.open("task")
        for attempt in (
            service.create_checkpoint("task", "a", {}),
            service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 1}}),
            service.finalize_checkpoint(made.checkpoint_id, "complete"),
            service.link_checkpoints(another.checkpoint_id, made.checkpoint_id),
        ):
            with pytest.raises(LeaseHeld, match=hf.worker):
                await attempt
        held.set("note", 1)
        await held.checkpoint(phase="testing")
        await held.release()
        found = await service.get_latest_checkpoint("task")
        assert found is not None
        assert (found.run_version, found.execution_state.phase) == (2, Phase.TESTING)
        await service.create_checkpoint("task", "a", {})
        assert (await other.checkpoints.load("task"))["note"] == 1
        held = await hf.runs.open("task")
        await held.complete()
        with pytest.raises(RunEnded, match="task is completed: it takes no more checkpoints"):
            await service.create_checkpoint("task", "a", {})
        await service.finalize_checkpoint(made.checkpoint_id, "complete")
        assert await hf.journal.verify("task") == []


@async_test
async def test_checkpoints_of_agents_are_read_and_finalized_too(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r", agent="worker")
        held.set("note", 1)
        await held.checkpoint()
        await held.release()
        service = CheckpointService(hf)
        with pytest.raises(IllegalMove, match="'worker'"):
            await service.create_checkpoint("r", "a", {})
        found = await service.get_latest_checkpoint("r")
        assert found is not None
        assert (found.metadata.task_id, found.metadata.agent_id) == ("r", "worker")
        assert found.compliance.hash == hash_of(found)
        await service.finalize_checkpoint(found.checkpoint_id, "handoff")
        final = await service.get_checkpoint(found.checkpoint_id)
        assert final is not None
        assert (final.status, final.revision) == ("handoff", 2)
        assert final.compliance.hash == hash_of(final)
        assert await hf.journal.verify("r") == []


@async_test
async def test_progress_of_an_agent_is_in_its_record(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r", agent="writer")
        sections = ("execution_state", "context_summary", "metrics")
        held.set("holdfast.progress", {name: EVERYTHING[name] for name in sections})
        await held.checkpoint(agent="writer-1")
        service = CheckpointService(hf)
        found = await service.get_latest_checkpoint("r")
        assert found is not None
        told = msgspec.json.decode(msgspec.json.encode(found))
        assert {name: told[name] for name in sections} == {n: EVERYTHING[n] for n in sections}
        assert found.metadata.agent_id == "writer-1"
        assert found.context_summary.key_decisions == (Decision("PostgreSQL", "many machines"),)


@pytest.mark.mission("S3-051", "S3-052", "S3-130", "S3-177")
@async_test
async def test_search_filters_alone_and_together(backend: Backend) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    clock = ManualClock(int(start.timestamp()) * 1_000_000)
    async with holdfast.open(backend.url, clock=clock) as hf:
        service = CheckpointService(hf)
        made: list[StoredRecord] = []
        for number in range(12):
            made.append(
                await service.create_checkpoint(
                    f"task-{number % 2}",
                    f"agent-{number % 3}",
                    {"execution_state": {"phase": "testing" if number % 4 else "planning"}},
                    agent_type="qa" if number % 6 else "documentation",
                    label="nightly" if number % 5 == 0 else "",
                    summary=f"Number {number}: the migration's done; naïve café_run",
                )
            )
            clock.advance(3600)
        await service.finalize_checkpoint(made[4].checkpoint_id, "complete")
        await service.update_checkpoint(
            made[5].checkpoint_id, {"execution_state": {"phase": "handoff"}}, summary="changed"
        )

        async def numbers(**query: Any) -> list[int]:
            found = await service.search_checkpoints(CheckpointQuery(**query))
            assert found.cursor == ""
            ids = [each.checkpoint_id for each in made]
            return [ids.index(each.checkpoint_id) for each in found.checkpoints]

        assert await numbers() == list(reversed(range(12)))
        assert await numbers(task_id="task-1", agent_id="agent-2") == [11, 5]
        assert await numbers(agent_type="documentation") == [6, 0]
        assert await numbers(phase="planning") == [8, 4, 0]
        assert await numbers(phase="handoff") == [5]
        assert await numbers(status="complete") == [4]
        assert await numbers(status="complete", agent_id="agent-0") == []
        assert await numbers(label="nightly", phase="testing") == [10]
        since, until = start + timedelta(hours=3), start + timedelta(hours=6)
        assert await numbers(since=since, until=until) == [5, 4, 3]
        assert await numbers(text="MIGRATION done", task_id="task-1") == [11, 9, 7, 3, 1]
        assert await numbers(text="changed") == [5]
        assert await numbers(text="café run") == await numbers(text="naïve")
        assert await numbers(text="cafe") == []
        assert await numbers(text="number 11") == [11]
        by_agent = await service.get_checkpoints_by_agent("agent-1", since, until)
        assert [each.checkpoint_id for each in by_agent.checkpoints] == [made[4].checkpoint_id]
        await hf.reindex("task-1")
        assert await numbers(text="changed") == [5]


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "a OR b",
        "NEAR(a b)",
        "words:a",
        "*",
        "a*",
        "^a",
        "'; DROP TABLE records; --",
        "()",
        "-a",
    ],
)
@async_test
async def test_text_of_a_search_is_no_syntax(backend: Backend, text: str) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        await service.create_checkpoint("task", "a", {}, summary="b")
        assert (await service.search_checkpoints({"text": text})).checkpoints == ()
        assert len((await service.search_checkpoints({"text": "b"})).checkpoints) == 1


@pytest.mark.mission("S3-177")
@async_test
async def test_pages_of_a_search_stay_while_new_ones_come(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        wanted = [
            (await service.create_checkpoint(f"t{n % 3}", "a", {}, summary="same")).checkpoint_id
            for n in range(10)
        ]
        for text in ("", "same"):
            walked: list[str] = []
            query = CheckpointQuery(limit=3, text=text, until=datetime.now(UTC))
            while True:
                found = await service.search_checkpoints(query)
                walked += [each.checkpoint_id for each in found.checkpoints]
                await service.create_checkpoint("t1", "a", {}, summary="same")
                if not found.cursor:
                    break
                query = msgspec.structs.replace(query, cursor=found.cursor)
            assert [each for each in walked if each in wanted] == list(reversed(wanted))
            assert len(walked) == len(set(walked))


@async_test
async def test_page_that_has_all_that_is_left_has_no_cursor(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for _ in range(4):
            await service.create_checkpoint("task", "a", {})
        first = await service.search_checkpoints({"limit": 2})
        second = await service.search_checkpoints({"limit": 2, "cursor": first.cursor})
        assert [each.run_version for each in first.checkpoints] == [4, 3]
        assert [each.run_version for each in second.checkpoints] == [2, 1]
        assert (second.cursor, second.damaged) == ("", ())


@pytest.mark.mission("S3-110", "S3-156")
@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"execution": {}}, "execution"),
        ({"execution_state": {"phases": "testing"}}, "execution_state"),
        ({"execution_state": {"phase": "sleeping"}}, "execution_state.phase"),
        ({"execution_state": {"completed_items": [{"id": "a", "by": "b"}]}}, "completed_items"),
        ({"execution_state": {"completed_items": [{"text": "a"}]}}, "id"),
        ({"execution_state": {"completed_items": "a"}}, "completed_items"),
        ({"execution_state": []}, "execution_state"),
        ({"metrics": {"tokens_consumed": -1}}, "metrics.tokens_consumed"),
        ({"metrics": {"tokens_consumed": "1"}}, "tokens_consumed"),
        ({"metrics": {"tests_status": {"passed": 2**70}}}, "passed"),
        ({"metrics": {"tests_status": {"coverage_percent": 101}}}, "coverage_percent"),
        ({"metrics": {"tests_status": {"coverage_percent": float("nan")}}}, "coverage_percent"),
        ({"metadata": {"iteration": 0}}, "metadata.iteration"),
        ({"metadata": {"agent_type": "manager"}}, "metadata.agent_type"),
        ({"metadata": {"task_id": "t"}}, "metadata.task_id"),
        ({"compliance": {"hash": "0"}}, "compliance.hash"),
        ({"compliance": {"signature": "0"}}, "compliance.signature"),
        ({"recovery": {"continuation_prompt": None}}, "continuation_prompt"),
        ({"recovery": {"continuation_prompt": "\ud800"}}, "continuation_prompt"),
        ([], "mapping"),
        (None, "mapping"),
    ],
)
@async_test
async def test_state_that_does_not_fit_is_refused_with_its_path(
    backend: Backend, state: Any, path: str
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        with pytest.raises(MisuseError, match=re.escape(path)):
            await service.create_checkpoint("task", "a", state)
        assert [run_id async for run_id in hf.journal.run_ids()] == []
        made = await service.create_checkpoint("task", "a", {})
        with pytest.raises(MisuseError, match=re.escape(path)):
            await service.update_checkpoint(made.checkpoint_id, state)
        assert await hf.journal.head("task") == 2


@pytest.mark.mission("S3-174", "S3-195")
@async_test
async def test_other_bad_input_is_refused_and_writes_nothing(backend: Backend) -> None:
    settings = Settings(max_body_bytes=10_000)
    async with holdfast.open(backend.url, settings=settings) as hf:
        service = CheckpointService(hf)
        long = {"recovery": {"continuation_prompt": "x" * 20_000}}
        with pytest.raises(ValueTooLarge, match="max_body_bytes"):
            await service.create_checkpoint("task", "a", long)
        with pytest.raises(InvalidIdentifier):
            await service.create_checkpoint("", "a", {})
        with pytest.raises(InvalidIdentifier):
            await service.create_checkpoint("task", "a\nb", {})
        for more in ({"summary": "x" * 2001}, {"summary": "\0"}, {"label": "a\0"}):
            with pytest.raises(MisuseError):
                await service.create_checkpoint("task", "a", {}, **more)
        assert [run_id async for run_id in hf.journal.run_ids()] == []
        assert await service.get_checkpoint("nonsense") is None
        assert await service.get_checkpoint(uuid4()) is None
        for attempt in (
            service.update_checkpoint("nonsense", {}),
            service.finalize_checkpoint(str(uuid4()), "complete"),
        ):
            with pytest.raises(CheckpointNotFound):
                await attempt
        for query in (
            {"limit": 0},
            {"limit": 1001},
            {"cursor": "x"},
            {"order_by": "run_id"},
            {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - what is refused
            {"task_id": ""},
        ):
            with pytest.raises(MisuseError):
                await service.search_checkpoints(query)


@async_test
async def test_none_in_place_of_a_text_is_refused_before_anything_is_written(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for what in ("label", "summary", "agent_type"):
            wrong: dict[str, Any] = {what: None}
            with pytest.raises(RecordInvalid, match=f"{what} must be a string, not NoneType"):
                await service.create_checkpoint("task", "agent-1", {}, **wrong)
        assert await hf.runs.list() == []
        made = await service.create_checkpoint("task", "agent-1", {})
        nobody: dict[str, Any] = {"by": None}
        with pytest.raises(RecordInvalid, match="by must be a string"):
            await service.finalize_checkpoint(made.checkpoint_id, "complete", **nobody)
        with pytest.raises(RecordInvalid, match="summary must be a string, not int"):
            await service.update_checkpoint(made.checkpoint_id, {}, summary=1)  # pyright: ignore[reportArgumentType] - what nobody should give
        assert await service.get_checkpoint(made.checkpoint_id) == made


def test_service_that_is_given_the_blocking_holdfast_names_the_one_that_fits() -> None:
    with sync.open("memory://") as hf:
        with pytest.raises(MisuseError, match=r"holdfast\.sync\.records\.CheckpointService"):
            CheckpointService(hf)  # pyright: ignore[reportArgumentType] - what nobody should give
        made = BlockingService(hf).create_checkpoint("task", "agent-1", {})
    assert made.revision == 1
