"""A version that a recovery or a fork copied has a record of its own, with its own id."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

import holdfast
from holdfast import codec, ids
from holdfast.engine.writing.unheld_runs import append_at_head
from holdfast.errors import CheckpointConflict, CheckpointCorrupted, CheckpointFinal
from holdfast.kernel import records
from holdfast.kernel.checkpoints import CheckpointCreated, Delta, encode_body
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.record_schema import fields_of
from holdfast.records import CheckpointService, StoredRecord, hash_of
from holdfast.records.record_loader import moment
from holdfast.stores.reads import RunAtHead
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance
from tests.backends import Backend

FIRST: dict[str, Any] = {"execution_state": {"phase": "planning", "current_focus": "the plan"}}
SECOND: dict[str, Any] = {"execution_state": {"phase": "implementing"}}
LARGE: dict[str, Any] = {"execution_state": {"pending_items": [{"id": "x", "text": "y" * 50_000}]}}


def row_of(backend: Backend, run_id: str, version: int) -> tuple[str, int, int]:
    """Id, seq and moment of a version, as a stranger reads them."""
    with backend.raw() as raw:
        ((checkpoint_id, seq, at),) = raw.rows(
            "SELECT checkpoint_id, seq, created_at FROM checkpoints "
            "WHERE run_id = ? AND version = ?",
            run_id,
            version,
        )
    found = checkpoint_id if isinstance(checkpoint_id, UUID) else UUID(bytes=bytes(checkpoint_id))
    return str(found), seq, at


def check_is_of(backend: Backend, record: StoredRecord, run_id: str, version: int) -> None:
    checkpoint_id, seq, at = row_of(backend, run_id, version)
    told = (record.checkpoint_id, record.metadata.task_id, record.metadata.timestamp)
    assert told == (checkpoint_id, run_id, moment(at))
    assert record.compliance.event_log_ref == f"run:{run_id}#{seq}"
    assert record.compliance.hash == hash_of(record)
    assert record.run_version == version


async def latest_of(service: CheckpointService, task: str) -> StoredRecord:
    found = await service.get_latest_checkpoint(task)
    assert found is not None
    return found


@pytest.mark.parametrize("state", [FIRST, LARGE], ids=["small", "large"])
@async_test
async def test_recovered_version_has_a_record_of_its_own(
    backend: Backend, state: dict[str, Any]
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", state)
        await service.create_checkpoint("t", "ann", SECOND)
        await service.execute_recovery(first.checkpoint_id)
        latest = await latest_of(service, "t")
        check_is_of(backend, latest, "t", 3)
        assert latest.execution_state == first.execution_state
        assert latest.metadata.agent_id == "ann"
        assert latest.recovery.last_successful_state == first.checkpoint_id
        assert latest.parent_id == first.checkpoint_id
        assert await service.get_checkpoint(latest.checkpoint_id) == latest
        assert await service.get_checkpoint(first.checkpoint_id) == first
        found = await service.search_checkpoints({"task_id": "t"})
        assert len({each.checkpoint_id for each in found.checkpoints}) == 3


@async_test
async def test_recovered_version_is_continued_and_changed_by_its_id(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", FIRST)
        second = await service.create_checkpoint("t", "ann", SECOND)
        await service.execute_recovery(first.checkpoint_id)
        latest = await latest_of(service, "t")
        with pytest.raises(CheckpointConflict):
            await service.create_checkpoint("t", "ann", {}, expected_latest=first.checkpoint_id)
        changed = await service.update_checkpoint(
            latest.checkpoint_id, {"metrics": {"tools_invoked": 7}}, expected_revision=1
        )
        assert (changed.run_version, changed.revision) == (3, 2)
        assert changed.execution_state == first.execution_state
        assert await latest_of(service, "t") == changed
        assert await service.get_checkpoint(latest.checkpoint_id, revision=1) == latest
        await service.link_checkpoints(second.checkpoint_id, latest.checkpoint_id)
        await service.finalize_checkpoint(latest.checkpoint_id, "complete")
        with pytest.raises(CheckpointFinal):
            await service.update_checkpoint(latest.checkpoint_id, {"metrics": {"tools_invoked": 8}})
        final = await latest_of(service, "t")
        assert (final.is_final, final.parent_id) == (True, second.checkpoint_id)
        assert await service.get_checkpoint(first.checkpoint_id) == first
        child = await service.create_checkpoint(
            "t", "ann", {}, expected_latest=latest.checkpoint_id
        )
        assert child.recovery.last_successful_state == latest.checkpoint_id
        await hf.reindex("t")
        assert await service.get_checkpoint(latest.checkpoint_id) == final


@async_test
async def test_recovered_version_is_finalized_and_handed_over_as_it_is(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        for task in ("final", "given"):
            first = await service.create_checkpoint(task, "ann", FIRST)
            await service.create_checkpoint(task, "ann", SECOND)
            await service.execute_recovery(first.checkpoint_id)
        latest = await latest_of(service, "final")
        await service.finalize_checkpoint(latest.checkpoint_id, "complete")
        final = await latest_of(service, "final")
        assert (final.checkpoint_id, final.status) == (latest.checkpoint_id, "complete")
        assert final.execution_state == latest.execution_state
        latest = await latest_of(service, "given")
        given = await service.initiate_handoff(latest.checkpoint_id)
        assert (given.checkpoint_id, given.from_agent) == (latest.checkpoint_id, "ann")
        await service.acknowledge_handoff(latest.checkpoint_id, "bob")
        child = await service.create_checkpoint("given", "bob", {})
        assert child.parent_id == latest.checkpoint_id


@async_test
async def test_run_that_is_rewound_to_its_newest_version_tells_the_same(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("t", "ann", FIRST)
        for version in (2, 3):
            await hf.runs.rewind("t", version - 1)
            latest = await latest_of(service, "t")
            check_is_of(backend, latest, "t", version)
            assert latest.execution_state == made.execution_state
            assert latest.parent_id == row_of(backend, "t", version - 1)[0]


@pytest.mark.parametrize("way", ["recovery", "fork"])
@async_test
async def test_copy_has_the_last_revision_and_is_found(backend: Backend, way: str) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", FIRST, agent_type="qa", summary="old")
        await service.update_checkpoint(
            first.checkpoint_id,
            {"execution_state": {"phase": "testing", "current_focus": "the tests"}},
            summary="newer words",
        )
        await service.create_checkpoint("t", "ann", SECOND)
        task = "t"
        if way == "recovery":
            await service.execute_recovery(first.checkpoint_id)
        else:
            task = "fork"
            await hf.runs.fork("t", 1, new_run_id=task)
        copy = await latest_of(service, task)
        state = (copy.execution_state.phase, copy.execution_state.current_focus)
        assert state == ("testing", "the tests")
        assert (copy.revision, copy.is_final, copy.summary) == (1, False, "newer words")
        check_is_of(backend, copy, task, 3 if way == "recovery" else 1)
        for wanted in (
            {"text": "newer words"},
            {"agent_type": "qa"},
            {"phase": "testing"},
            {"agent_id": "ann"},
        ):
            found = await service.search_checkpoints(wanted)
            assert copy.checkpoint_id in {each.checkpoint_id for each in found.checkpoints}, wanted
        await hf.reindex(task)
        assert await latest_of(service, task) == copy
        assert await hf.journal.verify(task) == []


@pytest.mark.parametrize("edits", [None, {"mine": 1}], ids=["as it was", "edited"])
@async_test
async def test_fork_has_records_of_its_own(
    backend: Backend, edits: dict[str, object] | None
) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", FIRST)
        await service.create_checkpoint("t", "ann", SECOND)
        await hf.runs.fork("t", 1, new_run_id="fork", edits=edits)
        begun = (await service.get_checkpoint_history("fork"))[-1]
        check_is_of(backend, begun, "fork", 1)
        assert begun.parent_id == begun.recovery.last_successful_state == first.checkpoint_id
        latest = await latest_of(service, "fork")
        check_is_of(backend, latest, "fork", 2 if edits else 1)
        assert latest.execution_state == first.execution_state
        changed = await service.update_checkpoint(
            latest.checkpoint_id, {"metrics": {"tools_invoked": 7}}
        )
        assert changed.compliance.event_log_ref.startswith("run:fork#")
        await service.create_checkpoint("fork", "bob", {}, expected_latest=latest.checkpoint_id)
        assert await service.get_checkpoint(first.checkpoint_id) == first


@async_test
async def test_fork_of_an_agents_run_tells_its_progress_and_not_a_record_from_before(
    backend: Backend,
) -> None:
    @holdfast.agent
    async def work(run: holdfast.Run) -> str:
        run.progress.pend("roof", "is it tight?")
        await run.checkpoint()
        await run.signal("go")
        return "done"

    async with holdfast.open(backend.url, agents=[work]) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("t", "ann", FIRST)
        given = await service.initiate_handoff(made.checkpoint_id, to="work")
        await hf.handoffs.assign("t", given.handoff_id, "work")
        await advance(hf, "t")
        latest = await latest_of(service, "t")
        assert [item.id for item in latest.execution_state.pending_items] == ["roof"]
        await hf.runs.fork("t", latest.run_version, new_run_id="fork")
        copied = await latest_of(service, "fork")
        check_is_of(backend, copied, "fork", 1)
        assert [item.id for item in copied.execution_state.pending_items] == ["roof"]
        assert copied.execution_state.current_focus == ""


@pytest.mark.parametrize("way", ["fork", "rewind"])
@async_test
async def test_copy_of_a_version_without_a_record_has_none(backend: Backend, way: str) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("t")
        await run.checkpoint(phase="implementing")
        await run.checkpoint()
        if way == "fork":
            await hf.runs.fork("t", 1, new_run_id="copy")
        else:
            await hf.runs.rewind("t", 1, takeover=True)
        (copied,) = await hf.checkpoints.history("copy" if way == "fork" else "t", limit=1)
        assert copied.label == {"fork": "forked", "rewind": "rewound"}[way]
        assert copied.phase == "implementing"
        with backend.raw() as raw:
            assert raw.rows("SELECT run_id, version FROM records") == []


@async_test
async def test_copied_record_is_checked_by_the_hash_that_is_stored(backend: Backend) -> None:
    """Nobody but Holdfast writes entries that fit the chain, and yet their records are checked."""
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("t", "ann", FIRST)
        fields = fields_of(first)
        fields["execution_state"]["current_focus"] = "another plan"
        delta = Delta({}, {records.PART: msgspec.Raw(codec.encode(fields))}, [])
        copied = ids.uuid7()
        facts = CheckpointCreated(copied, 2, 1, 0, label="rewound")

        async def plan(head: RunAtHead, now: int) -> Sequence[Draft]:
            return [Draft(Kind.CHECKPOINT_CREATED, facts, encode_body(delta))]

        await append_at_head(hf._context, "t", plan)
        assert await hf.journal.verify("t") == []
        with pytest.raises(CheckpointCorrupted, match="hash"):
            await service.get_checkpoint(copied)
        latest = await latest_of(service, "t")
        assert (latest.run_version, latest.skipped) == (1, (str(copied),))
