"""Checkpoints: numbered saves of a run's state, each stored as what changed since the one before.

State is named parts: a *log* is a list that mostly grows, a *value* is anything. The body of a
checkpoint is a `Delta`; `kernel.state` folds deltas, `kernel.edits` makes them.
"""

from typing import Final
from uuid import UUID

import msgspec

from holdfast.kernel.journal import Header
from holdfast.kernel.marks import Mark
from holdfast.kernel.records import RecordSummary

END: Final = -1
COPIES: Final = ("forked", "rewound", "edited")
"""The labels of versions that were copied from others; nobody else may use them."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A checkpoint as stored in its row. `parent` is the version it continues; 0 means none."""

    tenant: str
    run_id: str
    version: int
    seq: int
    checkpoint_id: UUID
    parent: int
    base_seq: int
    created_at: int
    phase: str = ""
    agent: str = ""
    status: str = ""
    label: str = ""

    @property
    def is_spooled(self) -> bool:
        """Whether it is in the local spool only: the store has not taken it yet."""
        return False


class SpooledCheckpoint(Checkpoint, frozen=True, kw_only=True, gc=False):
    """A checkpoint that is on this machine's disk, and not in the store yet."""

    @property
    def is_spooled(self) -> bool:
        return True


class CheckpointCreated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_CREATED. `base_seq`: the STATE_BASE to begin loading at; 0 means none."""

    checkpoint_id: UUID
    version: int
    parent: int
    base_seq: int
    phase: str = ""
    agent: str = ""
    status: str = ""
    label: str = ""
    mark: Mark | None = None
    record: RecordSummary | None = None


class Corrupted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_CORRUPTED: the version a read found damaged, and what it went back to."""

    checkpoint_id: UUID
    version: int
    error: str
    fell_back_to: int


class Deleted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of CHECKPOINT_DELETED: the tombstone of a version. Later versions still build on it."""

    checkpoint_id: UUID
    version: int
    note: str = ""


class BaseFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of STATE_BASE: the version whose state it holds."""

    version: int


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of STEP_RECORDED."""

    name: str
    args_digest: bytes = b""
    passed: int = 0  # ends of turns since the last checkpoint that were not stored


class Splice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Replace `delete` items of a log from `start` on by `items`; `start` END appends."""

    start: int
    delete: int
    items: list[msgspec.Raw]


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a checkpoint changes: parts dropped, then logs spliced in order, then values set."""

    logs: dict[str, list[Splice]]
    values: dict[str, msgspec.Raw]
    dropped: list[str]


class LogSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Items of a log that lie in entry `seq`: `start` to `stop` of that log's n-th splice there."""

    seq: int
    splice: int
    start: int
    stop: int


class Base(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A whole state: its values, and for its logs only where their items lie."""

    logs: dict[str, list[LogSegment]]
    values: dict[str, msgspec.Raw]


encode_body: Final = msgspec.msgpack.Encoder().encode
decode_delta: Final = msgspec.msgpack.Decoder(Delta).decode
decode_base: Final = msgspec.msgpack.Decoder(Base).decode
decode_values: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


def as_spooled(row: Checkpoint) -> SpooledCheckpoint:
    """Return the same row in the form that the caller who saved it gets."""
    return SpooledCheckpoint(**msgspec.structs.asdict(row))


def row_of(entry: Header, facts: CheckpointCreated) -> Checkpoint:
    return Checkpoint(
        tenant=entry.tenant,
        run_id=entry.run_id,
        version=facts.version,
        seq=entry.seq,
        checkpoint_id=facts.checkpoint_id,
        parent=facts.parent,
        base_seq=facts.base_seq,
        created_at=entry.at,
        phase=facts.phase,
        agent=facts.agent,
        status=facts.status,
        label=facts.label,
    )
