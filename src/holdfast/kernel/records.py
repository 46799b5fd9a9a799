"""Checkpoint schema 1.0: what a checkpoint says of the work itself, as typed data (seed 003).

A `Record` is what the next context needs to know: how far the work is, what was decided, what it
cost, and how to resume or go back. It reads the same for a person, a program and a fresh context.
"""

import re
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.kernel.journal import Header

VERSION: Final = "1.0"

AGENT_TYPES: Final = ("architecture", "implementation", "qa", "documentation")
"""The types of agents that the schema names; a service may be given others."""


class Phase(StrEnum):
    """How far the work is."""

    PLANNING = "planning"
    IMPLEMENTING = "implementing"
    TESTING = "testing"
    REVIEWING = "reviewing"
    COMPLETE = "complete"
    HANDOFF = "handoff"  # the context ends here, and another continues


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of the work. `id` identifies it; `blocker` is the reason why it cannot continue."""

    id: str
    text: str = ""
    blocker: str = ""


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that was decided, and why."""

    text: str
    reason: str = ""


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose checkpoint it is, and when. `iteration` counts the contexts that worked on the task.

    `timestamp` is ISO 8601 with a time zone.
    """

    checkpoint_id: str = ""
    task_id: str = ""
    agent_id: str = ""
    agent_type: str = "implementation"
    iteration: int = 1
    timestamp: str = ""


class ExecutionState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the work is. `current_focus` is the id of the item that is worked on."""

    phase: Phase = Phase.PLANNING
    completed_items: tuple[Item, ...] = ()
    pending_items: tuple[Item, ...] = ()
    blocked_items: tuple[Item, ...] = ()
    current_focus: str = ""


class ContextSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the next context must know of the work so far."""

    key_decisions: tuple[Decision, ...] = ()
    assumptions: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    external_dependencies: tuple[str, ...] = ()


class TestsStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of the work's tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    coverage_percent: float = 0.0


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this iteration took, and touched."""

    tokens_consumed: int = 0
    tools_invoked: int = 0
    files_modified: tuple[str, ...] = ()
    tests_status: TestsStatus = TestsStatus()


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to go back, and how to resume. `last_successful_state` is the id of a checkpoint."""

    last_successful_state: str = ""
    rollback_instructions: str = ""
    continuation_prompt: str = ""


class Compliance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What proves the record. `hash` is the SHA-256 of the rest of it: see `record_proofs`."""

    event_log_ref: str = ""
    hash: str = ""
    signature: str = ""
    retention_policy: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as seed 003 has it. `extra` is what a newer version of the schema wrote."""

    version: str = VERSION
    metadata: Metadata = Metadata()
    execution_state: ExecutionState = ExecutionState()
    context_summary: ContextSummary = ContextSummary()
    metrics: Metrics = Metrics()
    recovery: Recovery = Recovery()
    compliance: Compliance = Compliance()
    extra: dict[str, Any] = {}


# How records lie in a store.

PART: Final = "holdfast.record"
"""The part of a state in which a checkpoint's record is kept."""
PROGRESS: Final = "holdfast.progress"
"""The part in which agents on Holdfast keep what a record says of their work."""
MAX_SUMMARY: Final = 2000


class RecordSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the facts of CHECKPOINT_CREATED say of a record, in the clear."""

    agent_type: str
    summary: str = ""


class Updated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_UPDATED: a new revision; `fields` are the paths that changed."""

    checkpoint_id: UUID
    version: int
    revision: int
    fields: list[str]
    phase: str
    agent_type: str
    summary: str = ""


class Finalized(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_FINALIZED: the revision that stays, and the hash of its record."""

    checkpoint_id: UUID
    version: int
    revision: int
    status: str
    hash: str


class LinkedTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_LINKED, in the journal of the child."""

    parent_id: UUID
    child_id: UUID
    version: int


class RecordRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record as stored in its row. An empty `phase` or `status` is that of the checkpoint."""

    tenant: str
    run_id: str
    version: int
    agent_type: str = ""
    phase: str = ""
    status: str = ""
    summary: str = ""
    words: str = ""
    revision: int = 1
    revised_seq: int = 0
    final_seq: int = 0
    linked: str = ""

    @property
    def is_final(self) -> bool:
        return self.final_seq > 0


class Revision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a revision after the first lies, as stored in its row."""

    tenant: str
    run_id: str
    version: int
    revision: int
    seq: int


class PutRecord(msgspec.Struct, frozen=True, gc=False):
    """Write the given fields of a version's record; None leaves a field unchanged."""

    tenant: str
    run_id: str
    version: int
    agent_type: str | None = None
    phase: str | None = None
    status: str | None = None
    summary: str | None = None
    words: str | None = None
    revision: int | None = None
    revised_seq: int | None = None
    final_seq: int | None = None
    linked: str | None = None

    @property
    def set_fields(self) -> dict[str, Any]:
        """The fields that are not None."""
        fields = msgspec.structs.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}


class AddRevision(msgspec.Struct, frozen=True, gc=False):
    revision: Revision


Facts = Updated | Finalized | LinkedTo
Change = PutRecord | AddRevision


def put_of(entry: Header, version: int, details: RecordSummary) -> PutRecord:
    """Return the change that a new checkpoint makes to the rows."""
    return PutRecord(
        entry.tenant,
        entry.run_id,
        version,
        agent_type=details.agent_type,
        summary=details.summary,
        words=words_of(details.summary),
    )


def changes_of(entry: Header, facts: Facts) -> list[Change]:
    """Return the changes that an entry about a record makes to the rows."""
    key = entry.tenant, entry.run_id, facts.version
    match facts:
        case Updated():
            revision = Revision(
                tenant=entry.tenant,
                run_id=entry.run_id,
                version=facts.version,
                revision=facts.revision,
                seq=entry.seq,
            )
            put = PutRecord(
                *key,
                agent_type=facts.agent_type,
                phase=facts.phase,
                revision=facts.revision,
                revised_seq=entry.seq,
                summary=facts.summary,
                words=words_of(facts.summary),
            )
            return [put, AddRevision(revision)]
        case Finalized(_, _, _, status):
            return [PutRecord(*key, status=status, final_seq=entry.seq)]
        case LinkedTo(parent_id):
            return [PutRecord(*key, linked=str(parent_id))]


def applied(row: RecordRow, change: PutRecord) -> RecordRow:
    """Return a row after a change to it."""
    return msgspec.structs.replace(row, **change.set_fields)


def words_of(text: str) -> str:
    """The words that a text is found by: letters and digits only, in lower case."""
    return " ".join(_WORD.findall(text.lower()))


_WORD: Final = re.compile(r"[^\W_]+")
