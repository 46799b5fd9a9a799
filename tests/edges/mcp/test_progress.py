"""What is told while a call waits: a line for each entry, in words, whatever its kind is."""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from mcp import Client

from holdfast import codec
from holdfast.edges.mcp.resources import lines
from holdfast.kernel import (
    budgets,
    checkpoints,
    effects,
    indexes,
    journal,
    marks,
    records,
    runs,
    signals,
    versions,
    waits,
)
from holdfast.kernel.budgets import Amounts, Limits
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Kind, NoFacts, Origin
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.app import RELEASE
from tests.edges.mcp.driving import WIRES, served, told

EFFECT = UUID(int=1)
QUESTION = waits.WaitFacts("w1", "question", "approve", 0)
SIGNAL = waits.WaitFacts("w2", "signal", "paid", 0)
NAMES = {str(EFFECT): "charge", "w1": "an answer: approve"}
ENDED = codec.encode({"status": "failed", "seconds": 1.0})
COST = Amounts(usd_micros=1_500_000, input_tokens=10, output_tokens=5)

LINES: dict[Kind, tuple[msgspec.Struct, str]] = {
    Kind.RUN_CREATED: (runs.RunCreated("greeter", parent_id="p"), "begun: greeter, for p"),
    Kind.RUN_LEASED: (runs.RunLeased("w9"), "worker w9 took it"),
    Kind.RUN_RELEASED: (runs.Released(note="stopping"), "given back for any worker: stopping"),
    Kind.RUN_WAITING: (runs.Suspended("g"), "sleeps until what it waits for is there"),
    Kind.RUN_BLOCKED: (
        runs.Blocked(runs.BlockedReason.BUDGET, "spent"),
        "blocked, an operator must act (budget): spent",
    ),
    Kind.RUN_UNBLOCKED: (runs.Released(), "may go on"),
    Kind.RUN_COMPLETED: (runs.RunFinished(), "completed"),
    Kind.RUN_FAILED: (runs.RunFinished("no\nluck\x1b[2J"), "failed: no luck\ufffd[2J"),
    Kind.RUN_CANCELLED: (runs.RunFinished("x" * 500), f"cancelled: {'x' * 288}…"),
    Kind.RUN_REWOUND: (runs.Rewound(3), "goes on from version 3"),
    Kind.LEASE_EXPIRED: (runs.LeaseExpired("w9", 1), "worker w9 was not heard of in time"),
    Kind.CHECKPOINT_CREATED: (
        checkpoints.CheckpointCreated(EFFECT, 2, 1, 1, phase="plan", label="first"),
        "saved version 2: plan first",
    ),
    Kind.CHECKPOINT_CORRUPTED: (
        checkpoints.Corrupted(EFFECT, 2, "bad", 1),
        "version 2 is damaged, fell back to 1",
    ),
    Kind.CHECKPOINT_DELETED: (checkpoints.Deleted(EFFECT, 2), "version 2 was deleted"),
    Kind.CHECKPOINTS_PRUNED: (marks.Pruned([(1, 3), (5, 5)]), "versions 1 to 3, 5 pruned"),
    Kind.WRITES_RECORDED: (
        marks.Written("", "n", "t", "t/1", []),
        "recorded what task t/1 wrote",
    ),
    Kind.STATE_VALUES: (NoFacts(), "stored large values"),
    Kind.STATE_BASE: (checkpoints.BaseFacts(4), "stored a shorter way to version 4"),
    Kind.STEP_RECORDED: (checkpoints.Step("ended:build"), "block build failed"),
    Kind.VERSIONS_RECORDED: (
        versions.Versions("1.2", "m"),
        "noted what the agent is made of: 1.2 m",
    ),
    Kind.EFFECT_ISSUED: (
        effects.Issued(EFFECT, "key", "charge", "c", b"", 0, 1),
        "calls charge",
    ),
    Kind.EFFECT_COMPLETED: (effects.EffectSettled(EFFECT), "charge is done"),
    Kind.EFFECT_NOT_DONE: (
        effects.EffectSettled(EFFECT, "refused"),
        "charge was not done: refused",
    ),
    Kind.EFFECT_UNKNOWN: (effects.EffectSettled(EFFECT), "charge may or may not have been done"),
    Kind.WAITS_OPENED: (
        waits.WaitsOpened("g", 1, (QUESTION, SIGNAL)),
        "waits for 1 of an answer: approve, the signal: paid",
    ),
    Kind.WAIT_RESOLVED: (waits.WaitSettled("w1", "g"), "got an answer: approve"),
    Kind.WAIT_EXPIRED: (waits.WaitSettled("w1", "g"), "waited too long for an answer: approve"),
    Kind.WAIT_CANCELLED: (waits.WaitSettled("w3", "g"), "waits no more for what it waited for"),
    Kind.GROUP_CLOSED: (
        waits.Closed("g", waits.GroupStatus.SATISFIED, wakes=True),
        "what it waited for together is satisfied",
    ),
    Kind.SIGNAL_RECEIVED: (signals.SignalReceived("s", "paid"), "received the signal paid"),
    Kind.SIGNAL_TAKEN: (signals.SignalTaken("s"), "dealt with a signal"),
    Kind.BUDGET_SET: (budgets.Set(Limits(), is_first=True), "has a budget"),
    Kind.BUDGET_RESERVED: (
        budgets.Reserved("r", "run", "model:m", COST),
        "model:m may cost 1.5 USD, 15 tokens",
    ),
    Kind.BUDGET_WARNED: (budgets.Warned("usd", "80%"), "nearly at its limit of usd: 80%"),
    Kind.COST_RECORDED: (
        budgets.Recorded("run", "model:m", "a", 1, COST, is_lost=True),
        "model:m cost 1.5 USD, 15 tokens, of which nobody saw the end",
    ),
    Kind.CHECKPOINT_UPDATED: (
        records.Updated(EFFECT, 2, 3, [], "", ""),
        "version 2 has revision 3",
    ),
    Kind.CHECKPOINT_FINALIZED: (
        records.Finalized(EFFECT, 2, 3, "done", ""),
        "version 2 is final: done",
    ),
    Kind.CHECKPOINT_LINKED: (
        records.LinkedTo(EFFECT, EFFECT, 2),
        f"version 2 continues checkpoint {EFFECT}",
    ),
    Kind.HANDOFF_REQUESTED: (runs.Requested("*", "tired"), "is to be handed over: tired"),
    Kind.AGENT_HANDOFF: (
        runs.AgentHandoff("h", EFFECT, 2, "ann", "", "context", 0, "full"),
        "ann hands it over: full",
    ),
    Kind.HANDOFF_RECEIVED: (runs.HandoffReceived("h", 7), "its handoff was received"),
    Kind.HANDOFF_VERIFIED: (
        runs.Verified("h", EFFECT, 2, "sha256:0"),
        "its checkpoint 2 was verified",
    ),
    Kind.HANDOFF_SELECTED: (
        runs.Selected("h", "qa", "tester", "another phase"),
        "qa was selected: another phase",
    ),
    Kind.HANDOFF_ASSIGNED: (runs.Assigned("h", "qa"), "qa is to go on"),
    Kind.HANDOFF_ACKNOWLEDGED: (
        runs.Acknowledged("h", "qa", "w9"),
        "qa goes on with a fresh context",
    ),
    Kind.HANDOFF_REVERTED: (runs.Reverted("h", "ann", 1, "late"), "ann has it again: late"),
    Kind.RECOVERY_INITIATED: (
        runs.RecoveryInitiated(None, 2, "lost", 1, 0, "gone"),
        "is recovered from version 2 (lost): gone",
    ),
    Kind.RECOVERY_COMPLETED: (
        runs.RecoveryCompleted(None, 2, "a", "w9"),
        "goes on from version 2 after a failure",
    ),
    Kind.RECOVERY_FAILED: (
        runs.RecoveryFailed(None, 2, "lost", 3, "again"),
        "cannot be recovered (lost): again",
    ),
    Kind.BODIES_ERASED: (marks.Erased([(1, 9)], "old"), "what entries 1 to 9 held is erased: old"),
}


def entry(kind: Kind, facts: msgspec.Struct, body: bytes = b"") -> Entry:
    return journal.seal(ORIGIN, Draft(kind, facts, body), Origin("t", "r", "a", 0), bytes(16))


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_entry_has_words(kind: Kind) -> None:
    facts, words = LINES[kind]
    assert type(facts) is indexes.FACTS[kind]
    assert lines.line_of(entry(kind, facts, ENDED), NAMES) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model:think", "the model replied: think"),
        ("read:look", "read with: look"),
        ("read_failed:look", "could not read with: look"),
        ("compute", "step compute is done"),
    ],
)
def test_steps_are_told_by_what_they_did(name: str, words: str) -> None:
    assert lines.line_of(entry(Kind.STEP_RECORDED, checkpoints.Step(name))) == words


def test_what_a_newer_version_wrote_is_said_to_be_so() -> None:
    newer = msgspec.structs.replace(entry(Kind.RUN_COMPLETED, runs.RunFinished()), schema=99)
    assert lines.line_of(newer) == "cannot be read by this version of Holdfast"


class Heard:
    """What a call told meanwhile."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str | None]] = []
        self._more = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, message))
        self._more.set()

    @property
    def words(self) -> list[str | None]:
        return [message for _, message in self.told]

    async def until(self, words: str) -> None:
        async with asyncio.timeout(60):
            while words not in self.words:
                self._more.clear()
                await self._more.wait()


@pytest.mark.parametrize("wire", WIRES)
@async_test
async def test_a_call_that_waits_tells_of_every_entry_once(tmp_path: Path, wire: str) -> None:
    heard = Heard()
    async with served(tmp_path, works=False) as (hf, server), Client(server, mode=wire) as client:
        await hf.workflows.start(RELEASE, {"version": "1"}, run_id="r")
        waiting = asyncio.create_task(
            client.call_tool(
                "get_run", {"run_id": "r", "wait_seconds": 60}, progress_callback=heard
            )
        )
        await heard.until("begun: workflow release")
        await hf.workflows.run(RELEASE, {"version": "1"}, run_id="r")
        result = await waiting
        assert result.structured_content is not None
        assert result.structured_content["status"] == "waiting"
        await heard.until("sleeps until what it waits for is there")
        assert "waits for an answer: approve" in heard.words
        assert f"worker {hf.worker} took it" in heard.words
        assert [number for number, _ in heard.told] == list(range(1, len(heard.told) + 1))
        assert len(heard.told) == await hf.journal.head("r")


@async_test
async def test_a_run_that_waits_tells_of_those_below_it(tmp_path: Path) -> None:
    heard = Heard()
    async with served(tmp_path) as (_, server), Client(server) as client:
        await told(client, "execute_workflow", name="nested", run_id="r")
        given = {"run_id": "r", "wait_seconds": 1}
        await client.call_tool("get_run", given, progress_callback=heard)
        await heard.until("release: sleeps until what it waits for is there")
        assert heard.words[0] == "sleeps until what it waits for is there"
