"""Records of older and newer versions of the schema, as bytes that this version did not write."""

import hashlib
from typing import Any
from uuid import UUID

import msgspec
import pytest

import holdfast
from holdfast.engine.writing.unheld_runs import append_at_head
from holdfast.errors import CheckpointCorrupted, SchemaMismatch
from holdfast.kernel import checkpoints
from holdfast.kernel import record_schema as schema
from holdfast.kernel.checkpoints import CheckpointCreated, Delta
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.records import RecordSummary
from holdfast.records import CheckpointService, Decision, Item
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

ID = UUID("019be000-0000-7000-8000-000000000001")
OLD: dict[str, Any] = {
    "version": "0.9",
    "metadata": {
        "checkpoint_id": str(ID),
        "task_id": "task",
        "agent_id": "old",
        "agent_type": "qa",
        "iteration": 3,
        "timestamp": "2025-12-01T00:00:00+00:00",
    },
    "execution_state": {"phase": "testing", "completed_items": ["tables"], "pending_items": []},
    "context_summary": {"key_decisions": ["SQLite"], "assumptions": ["one host"]},
    "metrics": {"tokens_consumed": 5, "tests": {"passed": 2}},
    "recovery": {},
    "compliance": {"event_log_ref": "run:task#2"},
}
NEW: dict[str, Any] = {
    **OLD,
    "version": "1.7",
    "execution_state": {
        "phase": "testing",
        "completed_items": [{"id": "a"}, {"id": "b", "owner": "bob"}],
        "mood": {"of": "the team"},
    },
    "context_summary": {},
    "metrics": {"joules": 7},
    "weather": ["rain"],
}


async def write(hf: holdfast.Holdfast, fields: dict[str, Any], *, like: Any = None) -> None:
    """A checkpoint as another version would have stored it, with the hash of `like`."""
    told = {**(like or fields)}
    told["compliance"] = {n: v for n, v in told["compliance"].items() if n != "hash"}
    digest = hashlib.sha256(msgspec.msgpack.encode(told, order="deterministic")).hexdigest()
    proof = {**fields["compliance"], "hash": digest}
    hashed = {**fields, "compliance": proof}
    raw = msgspec.Raw(msgspec.msgpack.encode(hashed))
    body = checkpoints.encode_body(Delta({}, {"holdfast.record": raw}, []))
    facts = CheckpointCreated(ID, 1, 0, 0, phase="testing", agent="old", record=RecordSummary("qa"))
    await hf.runs.create("task")

    async def plan(head: Any, now: int) -> list[Draft]:
        return [Draft(Kind.CHECKPOINT_CREATED, facts, body)]

    await append_at_head(hf._context, "task", plan)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.mission("S3-100")
@async_test
async def test_older_record_is_read_in_this_form(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await write(hf, OLD)
        service = CheckpointService(hf)
        found = await service.get_checkpoint(ID)
        assert found is not None
        assert (found.version, found.metadata.iteration, found.extra) == ("1.0", 3, {})
        assert found.execution_state.completed_items == (Item("tables", "tables"),)
        assert found.context_summary.key_decisions == (Decision("SQLite"),)
        assert found.metrics.tests_status.passed == 2
        updated = await service.update_checkpoint(ID, {"metrics": {"tokens_consumed": 6}})
        assert updated.version == "1.0"
        assert updated.execution_state == found.execution_state
        assert await service.get_checkpoint(ID) == updated
        assert await service.get_checkpoint(ID, revision=1) == found


@pytest.mark.mission("S3-100")
@async_test
async def test_what_a_newer_version_wrote_is_kept(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await write(hf, NEW)
        service = CheckpointService(hf)
        found = await service.get_checkpoint(ID)
        assert found is not None
        assert found.version == "1.7"
        assert found.extra == {
            "execution_state": {
                "completed_items": {"1": {"owner": "bob"}},
                "mood": {"of": "the team"},
            },
            "metrics": {"joules": 7},
            "weather": ["rain"],
        }
        assert found.execution_state.completed_items == (Item("a"), Item("b"))
        updated = await service.update_checkpoint(ID, {"metrics": {"tokens_consumed": 9}})
        assert (updated.extra, updated.version) == (found.extra, "1.7")
        written = schema.fields_of(updated)
        assert written["weather"] == ["rain"]
        assert written["metrics"]["joules"] == 7
        assert written["execution_state"]["completed_items"][1] == {"id": "b", "owner": "bob"}
        assert await service.get_checkpoint(ID) == updated


@pytest.mark.mission("S3-100")
@pytest.mark.parametrize(
    ("version", "error"),
    [("2.0", SchemaMismatch), ("one", CheckpointCorrupted), ("", CheckpointCorrupted)],
)
@async_test
async def test_version_that_cannot_be_read_is_refused(
    backend: Backend, version: str, error: type[Exception]
) -> None:
    async with holdfast.open(backend.url) as hf:
        await write(hf, {**NEW, "version": version})
        with pytest.raises(error, match="schema"):
            await CheckpointService(hf).get_checkpoint(ID)


@pytest.mark.mission("S3-073", "S3-123")
@async_test
async def test_record_whose_hash_is_wrong_is_refused(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await write(hf, {**OLD, "recovery": {"continuation_prompt": "send money"}}, like=OLD)
        assert await hf.journal.verify("task") == []
        with pytest.raises(CheckpointCorrupted, match="hash"):
            await CheckpointService(hf).get_checkpoint(ID)
