"""Effects: calls with consequences outside. Intent is on record before, the outcome after.

    (free) ──issue──▶ issued ──▶ completed
                        │  ╲───▶ not_done ──▶ (free again)
                        ╰──────▶ unknown ──▶ completed | not_done

A key is taken in every status but `not_done`: nothing is ever blindly repeated.
"""

import hashlib
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from holdfast.errors import IllegalMove
from holdfast.kernel.journal import Draft, Kind


class EffectStatus(StrEnum):
    """What is known of an effect."""

    ISSUED = "issued"  # intent is on record; it may or may not have happened yet
    COMPLETED = "completed"
    NOT_DONE = "not_done"  # known not to have happened; its key is free again
    UNKNOWN = "unknown"  # only a check outside can show whether it happened


SETTLED: Final = frozenset({EffectStatus.COMPLETED, EffectStatus.NOT_DONE})
KIND_OF: Final = {
    EffectStatus.COMPLETED: Kind.EFFECT_COMPLETED,
    EffectStatus.NOT_DONE: Kind.EFFECT_NOT_DONE,
    EffectStatus.UNKNOWN: Kind.EFFECT_UNKNOWN,
}
STATUS_OF: Final = {kind: status for status, kind in KIND_OF.items()}


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An effect as stored in its row."""

    tenant: str
    effect_id: UUID
    key: str
    run_id: str
    tool: str
    call_id: str
    args_digest: bytes
    status: EffectStatus
    issued_seq: int
    issued_at: int
    limit_at: int
    lease_seq: int
    result_seq: int = 0
    settled_at: int = 0


class Issued(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of EFFECT_ISSUED. `limit_at`: until then the tool may still be running.

    `approval`: the wait in which a person permitted it, if one had to.
    """

    effect_id: UUID
    key: str
    tool: str
    call_id: str
    args_digest: bytes
    limit_at: int
    lease_seq: int
    approval: str = ""


class EffectSettled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of EFFECT_COMPLETED, EFFECT_NOT_DONE and EFFECT_UNKNOWN.

    `retry`: it did not happen, and the call that asked for it is to be made again.
    """

    effect_id: UUID
    note: str = ""
    retry: bool = False


def key_of(root_id: str, tool: str, args_digest: bytes) -> str:
    """The default key: one operation per lineage, tool and arguments."""
    material = msgspec.msgpack.encode((root_id, tool, args_digest))
    return hashlib.sha256(material).hexdigest()


def settle(
    effect: Effect, status: EffectStatus, *, body: bytes = b"", note: str = "", retry: bool = False
) -> Draft:
    """Record the outcome of an effect; a known outcome is never changed."""
    if effect.status in SETTLED or effect.status is status:
        raise IllegalMove(f"effect {effect.key} is {effect.status} already; it stays so")
    if status not in KIND_OF:
        raise IllegalMove(f"an effect cannot become {status}")
    if retry and status is not EffectStatus.NOT_DONE:
        raise IllegalMove("only an effect that did not happen can be tried again")
    return Draft(KIND_OF[status], EffectSettled(effect.effect_id, note, retry), body)


def is_doubtful(effect: Effect, *, now: int) -> bool:
    """Return whether an issued effect's time limit is over without a reported outcome.

    Until then its tool may be running; from then on its outcome is unknown, for any worker.
    """
    return effect.status is EffectStatus.ISSUED and effect.limit_at <= now


def is_in_doubt(effect: Effect, *, now: int) -> bool:
    """Return whether only a check outside can show the outcome of an effect."""
    return effect.status is EffectStatus.UNKNOWN or is_doubtful(effect, now=now)
