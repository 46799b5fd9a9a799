"""Digests in the journal that index rows are compared with.

An entry that changes a run's row carries the digest of that row, so a row is right if its digest is
that of the last such entry. An intent carries the digest of its idempotency key, and an entry about
a signal that of the signal's id: the journal is searched for these, so that a row that was removed,
or says that nothing happened, is noticed.
"""

import hashlib
from operator import attrgetter
from typing import Final, TypeVar

import msgspec

from holdfast.errors import IndexCorrupted
from holdfast.kernel import checkpoints, effects, signals
from holdfast.kernel.journal import Kind
from holdfast.kernel.marks import Marked
from holdfast.kernel.runs import Run
from holdfast.kernel.signals import Signal

T = TypeVar("T")

_BYTES: Final = 16
_FIELDS: Final = sorted(msgspec.structs.fields(Run), key=attrgetter("name"))
_DEFAULTS: Final = [(field.name, field.default) for field in _FIELDS]
_values: Final = attrgetter(*(field.name for field in _FIELDS))
_encoder: Final = msgspec.msgpack.Encoder()
_received: Final = msgspec.msgpack.Decoder(signals.Received)
_created: Final = msgspec.msgpack.Decoder(checkpoints.Created)


def proof_of(run_id: str, facts: msgspec.Struct, changed_run: Run | None) -> bytes | None:
    """Return the proof of an entry; `changed_run` is the run if the entry changes its row."""
    if changed_run is not None:
        return run_digest(changed_run)
    match facts:
        case effects.Issued(key=key):
            return key_digest(key)
        case signals.Received(signal_id) | signals.Taken(signal_id):
            return signal_digest(run_id, signal_id)
        case _:
            return None


def run_digest(run: Run) -> bytes:
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


def is_proven(run: Run, proof: bytes | None) -> bool:
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
    told = Signal(
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
    return told == signal


def is_mark_proven(mark: Marked, at: int | None, facts: bytes | None) -> bool:
    """Return whether a mark's row says what the entry of its checkpoint does."""
    created = _decoded(_created, facts)
    told = None if created is None else created.mark
    if created is None or told is None:
        return False
    return (told.space, told.name, told.parent, told.tags, created.version, at) == (
        mark.space,
        mark.name,
        mark.parent,
        mark.tags,
        mark.version,
        mark.created_at,
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
