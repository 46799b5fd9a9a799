"""Digests in the journal that index rows are compared with.

An entry that changes a run's row carries the digest of that row, so a row is right if its digest is
that of the last such entry. An intent carries the digest of its idempotency key, and an entry about
a signal that of the signal's id: the journal is searched for these, so that a row that was removed,
or says that nothing happened, is noticed. An entry that opens a group of waits carries the digest
of what decides it; its counts are compared with the rows of its waits.
"""

import hashlib
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import msgspec

from holdfast.errors import IndexCorrupted
from holdfast.kernel import checkpoints, effects, signals, waits
from holdfast.kernel.journal import Kind
from holdfast.kernel.marks import Marked
from holdfast.kernel.runs import RunRow
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Group, GroupStatus

T = TypeVar("T")

_BYTES: Final = 16
_FIELDS: Final = sorted(msgspec.structs.fields(RunRow), key=attrgetter("name"))
_DEFAULTS: Final = [(field.name, field.default) for field in _FIELDS]
_values: Final = attrgetter(*(field.name for field in _FIELDS))
_encoder: Final = msgspec.msgpack.Encoder()
_received: Final = msgspec.msgpack.Decoder(signals.SignalReceived)
_created: Final = msgspec.msgpack.Decoder(checkpoints.CheckpointCreated)
_closed: Final = msgspec.msgpack.Decoder(waits.Closed)

OPEN_LIMIT: Final = 65
"""How many open waits of a group a store counts at most."""


PROVING: Final = frozenset(
    {Kind.EFFECT_ISSUED, Kind.SIGNAL_RECEIVED, Kind.SIGNAL_TAKEN, Kind.WAITS_OPENED}
)
"""The kinds of entries that have a proof although they do not change their run's row."""


def proof_of(run_id: str, facts: msgspec.Struct, changed_run: RunRow | None) -> bytes | None:
    """Return the proof of an entry; `changed_run` is the run if the entry changes its row."""
    if changed_run is not None:
        return run_digest(changed_run)
    match facts:
        case effects.Issued(key=key):
            return key_digest(key)
        case signals.SignalReceived(signal_id) | signals.SignalTaken(signal_id):
            return signal_digest(run_id, signal_id)
        case waits.WaitsOpened(group_id, need, opened):
            return group_digest(run_id, group_id, need, len(opened))
        case _:
            return None


def run_digest(run: RunRow) -> bytes:
    """Return the digest of a run's row.

    Fields with their default value are left out, so that a field can be added later.
    """
    changed = {
        name: value
        for (name, default), value in zip(_DEFAULTS, _values(run), strict=True)
        if value != default
    }
    return hashlib.sha256(_encoder.encode(changed)).digest()[:_BYTES]


def key_digest(key: str) -> bytes:
    """Return the digest of an idempotency key. Stores calculate the same in SQL."""
    return hashlib.sha256(key.encode()).digest()[:_BYTES]


def signal_digest(run_id: str, signal_id: str) -> bytes:
    """Return the digest of a signal's id in its run. Stores calculate the same in SQL."""
    return hashlib.sha256(f"{run_id}\n{signal_id}".encode()).digest()[:_BYTES]


def group_digest(run_id: str, group_id: str, need: int, total: int) -> bytes:
    """Return the digest of what decides when a group of waits closes."""
    return hashlib.sha256(_encoder.encode((run_id, group_id, need, total))).digest()[:_BYTES]


def is_proven(run: RunRow, proof: bytes | None) -> bool:
    """Return whether a row is the one that `proof` was made of.

    Entries of earlier versions have no proof: rows of such runs are not compared.
    """
    return proof is None or proof == run_digest(run)


def is_signal_proven(
    signal: Signal,
    kind: str | None,
    at: int | None,
    actor: str | None,
    facts: bytes | None,
    taken_seq: int | None,
    taken_at: int | None,
) -> bool:
    """Return whether a signal's row says what the entries do that received it and took it."""
    received = _decoded(_received, facts) if kind == Kind.SIGNAL_RECEIVED else None
    if received is None:
        return False
    expected = Signal(
        tenant=signal.tenant,
        run_id=signal.run_id,
        signal_id=received.signal_id,
        name=received.name,
        seq=signal.seq,
        received_at=at or 0,
        received_by=actor or "",
        taken_seq=taken_seq or 0,
        taken_at=taken_at or 0,
    )
    return expected == signal


def is_mark_proven(mark: Marked, at: int | None, facts: bytes | None) -> bool:
    """Return whether a mark's row says what the entry of its checkpoint does."""
    created = _decoded(_created, facts)
    recorded = None if created is None else created.mark
    if created is None or recorded is None:
        return False
    return (recorded.space, recorded.name, recorded.parent, recorded.tags, created.version, at) == (
        mark.space,
        mark.name,
        mark.parent,
        mark.tags,
        mark.version,
        mark.created_at,
    )


class GroupEvidence(NamedTuple):
    """What a store finds beside the row of a group, in the same statement.

    `opening` is the proof of the entry that opened its waits. `open` counts its open waits, up to
    OPEN_LIMIT. `resolved` and `failed` count the others, and are None where the group is large and
    they decide nothing yet. `closing_kind` and `closing` are of the entry that closed it.
    """

    opening: bytes | None
    open: int
    resolved: int | None
    failed: int | None
    closing_kind: str | None
    closing: bytes | None


def check_group(group: Group, evidence: GroupEvidence) -> None:
    """Raise IndexCorrupted for a group's row that differs from the journal or from its waits.

    The row is used where the entry that opened the group is missing or has no proof.
    """
    expected = group_digest(group.run_id, group.group_id, group.need, group.total)
    if evidence.opening is not None and evidence.opening != expected:
        raise wrong_group(group, "differs from the entry that opened it")
    for counted, row in ((evidence.resolved, group.resolved), (evidence.failed, group.failed)):
        if counted is not None and counted != row:
            raise wrong_group(group, "has other counts than its waits")
    if group.status is GroupStatus.OPEN:
        left = group.total - group.resolved - group.failed
        if min(left, OPEN_LIMIT) != evidence.open or group.closed_seq:
            raise wrong_group(group, "has other counts than its waits")
    elif evidence.open:
        raise wrong_group(group, "says that it is closed, and it has open waits")
    elif not _is_closed_by(group, evidence):
        raise wrong_group(group, "differs from the entry that closed it")


def _is_closed_by(group: Group, evidence: GroupEvidence) -> bool:
    """Return whether the entry that a closed group's row leads to has closed it like that."""
    if evidence.closing_kind is None:
        return evidence.opening is None  # the journal is damaged there: the row is used
    if evidence.closing_kind != Kind.GROUP_CLOSED:
        is_end = evidence.closing_kind in _ENDS
        return is_end and group.status is GroupStatus.CANCELLED
    closed = _decoded(_closed, evidence.closing)
    return closed is not None and (closed.group_id, closed.status) == (
        group.group_id,
        group.status,
    )


_ENDS: Final = frozenset(
    {Kind.RUN_COMPLETED, Kind.RUN_FAILED, Kind.RUN_CANCELLED, Kind.RUN_REWOUND}
)


def wrong_group(group: Group, what: str) -> IndexCorrupted:
    """Return the error for a wait group's row that differs from the journal."""
    return IndexCorrupted(
        f"the index row of wait group {group.group_id} of run {group.run_id} {what}: it was "
        f"changed outside Holdfast. Nothing was done with it; `holdfast store reindex "
        f"{group.run_id}` rebuilds the row"
    )


def _decoded(decoder: msgspec.msgpack.Decoder[T], facts: bytes | None) -> T | None:
    try:
        return None if facts is None else decoder.decode(facts)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        return None


def wrong_row(run_id: str) -> IndexCorrupted:
    """Return the error for a run's row that differs from the journal."""
    return IndexCorrupted(
        f"the index row of run {run_id} differs from its journal: it was changed outside Holdfast. "
        f"Nothing was done with it; `holdfast store reindex {run_id}` rebuilds the row"
    )


def wrong_signal(run_id: str, signal_id: str, what: str) -> IndexCorrupted:
    """Return the error for a signal's row that differs from the journal, or is missing."""
    return IndexCorrupted(
        f"the index row of signal {signal_id} of run {run_id} {what}: it was changed outside "
        f"Holdfast. Nothing was done with it; `holdfast store reindex {run_id}` rebuilds the row"
    )


def wrong_mark(mark: Marked) -> IndexCorrupted:
    """Return the error for a mark's row that differs from the journal."""
    return IndexCorrupted(
        f"the index row that names version {mark.version} of run {mark.run_id} {mark.name!r} "
        "differs from the journal: it was changed outside Holdfast. Nothing was done with it; "
        f"`holdfast store reindex {mark.run_id}` rebuilds the row"
    )
