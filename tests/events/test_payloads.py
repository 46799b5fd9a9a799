"""What subscribers are told of the events of seed 003, §5.2: every field, by its value."""

from typing import Any

import pytest

import holdfast
from holdfast import HandoffPolicy, RecoveryPolicy
from holdfast.errors import RunBlocked
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.handoff.relays import Seen, builder

NAMED = {
    "CHECKPOINT_CREATED": ("checkpointId", "taskId", "agentId"),
    "CHECKPOINT_UPDATED": ("checkpointId", "fields"),
    "CHECKPOINT_FINALIZED": ("checkpointId", "status"),
    "AGENT_HANDOFF": ("fromCheckpoint", "toAgent"),
    "RECOVERY_INITIATED": ("checkpointId", "reason"),
    "RECOVERY_COMPLETED": ("checkpointId", "newAgentId"),
    "CHECKPOINT_CORRUPTED": ("checkpointId", "error"),
    # Those that the seed leaves out, with what they need.
    "HANDOFF_ASSIGNED": ("handoffId", "to"),
    "HANDOFF_ACKNOWLEDGED": ("handoffId", "agent"),
    "RECOVERY_FAILED": ("checkpointId", "reason", "note"),
}


async def payloads(hf: holdfast.Holdfast) -> list[tuple[str, dict[str, Any]]]:
    """The events so far that the seed names, with the fields that it names."""
    last = await hf.runs.create("the last")
    told: list[tuple[str, dict[str, Any]]] = []
    async for event in hf.events("start"):
        if event.run_id == last.run_id:
            break
        if event.kind in NAMED:
            told.append((event.kind, {name: event.data[name] for name in NAMED[event.kind]}))
    return told


@pytest.mark.mission("S3-182", "S3-183", "S3-184", "S3-185", "S3-186", "S3-187", "S3-109")
@async_test
async def test_events_of_a_task_have_every_field_of_the_seed(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        first = await service.create_checkpoint("task-1", "ada", {})
        await service.update_checkpoint(
            first.checkpoint_id,
            {"metrics": {"tools_invoked": 3}, "execution_state": {"current_focus": "walls"}},
        )
        await service.finalize_checkpoint(first.checkpoint_id, "complete")
        second = await service.create_checkpoint("task-1", "bob", {})
        await service.initiate_handoff(second.checkpoint_id, to="eve")
        await service.acknowledge_handoff(second.checkpoint_id, "eve")
        await service.execute_recovery(second.checkpoint_id)
        third = await service.create_checkpoint("task-1", "kim", {})
        told = await payloads(hf)
    one, two = first.checkpoint_id, second.checkpoint_id
    created = {"taskId": "task-1", "agentId": "ada"}
    changed = ["execution_state.current_focus", "metrics.tools_invoked"]
    expected = [
        ("CHECKPOINT_CREATED", {"checkpointId": one, **created}),
        ("CHECKPOINT_UPDATED", {"checkpointId": one, "fields": changed}),
        ("CHECKPOINT_FINALIZED", {"checkpointId": one, "status": "complete"}),
        ("CHECKPOINT_CREATED", {"checkpointId": two, "taskId": "task-1", "agentId": "bob"}),
        ("CHECKPOINT_UPDATED", {"checkpointId": two, "fields": PROMPTED}),
        ("CHECKPOINT_FINALIZED", {"checkpointId": two, "status": "handoff"}),
        ("AGENT_HANDOFF", {"fromCheckpoint": two, "toAgent": "eve"}),
        ("RECOVERY_INITIATED", {"checkpointId": two, "reason": "error"}),
        ("RECOVERY_COMPLETED", {"checkpointId": two, "newAgentId": "kim"}),
        (
            "CHECKPOINT_CREATED",
            {"checkpointId": third.checkpoint_id, "taskId": "task-1", "agentId": "kim"},
        ),
    ]
    for kind in (kind for kind, _ in expected):
        of_kind = [payload for name, payload in told if name == kind]
        assert of_kind == [payload for name, payload in expected if name == kind], kind


PROMPTED = ["execution_state.phase", "recovery.continuation_prompt"]


@pytest.mark.mission("S3-185", "S3-187")
@async_test
async def test_event_of_a_handoff_names_nobody_until_somebody_is_chosen(store: str) -> None:
    policy = HandoffPolicy(select=lambda _: "qa")
    giver = builder(Seen(), turns=2, hand_over_at={1: ""}, handoff=policy)
    receiver = builder(Seen(), turns=2, name="qa")
    async with holdfast.Holdfast(store, agents=[giver, receiver]) as hf:
        assert await hf.run(giver, "a house", run_id="r") == "2 parts of a house"
        (handoff,) = await hf.handoffs.of_run("r")
        told = [each for each in await payloads(hf) if "HANDOFF" in each[0]]
    assert told == [
        ("AGENT_HANDOFF", {"fromCheckpoint": str(handoff.checkpoint_id), "toAgent": ""}),
        ("HANDOFF_ASSIGNED", {"handoffId": handoff.handoff_id, "to": "qa"}),
        ("HANDOFF_ACKNOWLEDGED", {"handoffId": handoff.handoff_id, "agent": "qa"}),
    ]


@pytest.mark.mission("S3-186", "S3-187")
@async_test
async def test_events_of_recoveries_tell_why_who_goes_on_and_that_none_can(store: str) -> None:
    """An agent stores a version, fails, is tried once more, fails again, and is given up."""

    @holdfast.agent(name="payer", recovery=RecoveryPolicy(tries=2, backoff_seconds=0.01))
    async def agent(run: holdfast.Run) -> None:
        if run.version == 0:
            run.value("n", int, 0).set(1)
            await run.checkpoint()
        raise ValueError("no luck")

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(agent, run_id="r", timeout=30)
        (checkpoint,) = await hf.checkpoints.history("r")
        told = [each for each in await payloads(hf) if "RECOVERY" in each[0]]
    at = str(checkpoint.checkpoint_id)
    note = "2 tries failed without progress: ValueError: no luck"
    assert told == [
        ("RECOVERY_INITIATED", {"checkpointId": at, "reason": "error"}),
        ("RECOVERY_COMPLETED", {"checkpointId": at, "newAgentId": "payer"}),
        ("RECOVERY_FAILED", {"checkpointId": at, "reason": "error", "note": note}),
    ]


@pytest.mark.mission("S3-188")
@async_test
async def test_event_of_a_corrupt_checkpoint_has_every_field_of_the_seed(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        await service.create_checkpoint("task-1", "ada", {})
        bad = await service.create_checkpoint("task-1", "ada", {})
        with backend.raw() as raw:
            raw.execute(
                "UPDATE journal SET nonce = ? WHERE seq = (SELECT max(seq) FROM journal)", bytes(16)
            )
        latest = await service.get_latest_checkpoint("task-1")
        assert latest is not None
        assert latest.skipped == (bad.checkpoint_id,)
        ((kind, payload), *_) = [each for each in await payloads(hf) if "CORR" in each[0]]
    assert (kind, payload["checkpointId"]) == ("CHECKPOINT_CORRUPTED", bad.checkpoint_id)
    assert "entry 3" in payload["error"]
