"""Recovery: a run whose worker was lost, or whose agent broke, resumes from a checkpoint, or is
blocked with a reason.

    lost | broke | timed out | damaged ──▶ judge ──▶ RECOVERY_INITIATED … RECOVERY_COMPLETED
                                             └─────▶ RECOVERY_FAILED, RUN_BLOCKED

A run that fails in the same way again and again without progress is not tried for ever.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from holdfast.kernel import runs
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.runs import BlockedReason, RecoveryFailed, RecoveryInitiated

TRIES: Final = 3
BACKOFF_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 60.0
_MICROSECONDS: Final = 1_000_000


class Cause(StrEnum):
    """How a run failed."""

    LOST = runs.LOST  # its worker did not beat in time
    ERROR = "error"  # its agent raised
    TIMEOUT = "timeout"  # a turn took too long
    CORRUPTION = "corruption"  # stored bytes are not what was written
    POISON = "poison"  # its code does not repeat what is on record
    NO_AGENT = "no_agent"  # no worker here knows its agent
    BUDGET = "budget"  # what it may cost is spent


_BLOCKS: Final = {
    Cause.CORRUPTION: BlockedReason.CORRUPTION,
    Cause.NO_AGENT: BlockedReason.NO_AGENT,
    Cause.BUDGET: BlockedReason.BUDGET,
}
_HOPELESS: Final = {
    Cause.POISON: "it would do the same again",
    Cause.NO_AGENT: "nobody who works here knows its agent",
    Cause.BUDGET: "what it may cost is spent",
}


class Point(NamedTuple):
    """The checkpoint to resume from; 0 and None: the beginning."""

    seq: int
    version: int
    checkpoint_id: UUID | None


class Failure(msgspec.Struct, frozen=True):
    """How a run failed, and how often in a row without progress, this time included."""

    cause: Cause
    note: str
    attempts: int = 1


class RecoveryVerdict(msgspec.Struct, frozen=True):
    """Whether a run can be recovered; after which delay, or why not."""

    is_recoverable: bool
    delay: int = 0
    why_not: str = ""
    blocked: BlockedReason = BlockedReason.BREAKER


def judge(
    failure: Failure, run_id: str, *, tries: int = TRIES, backoff_seconds: float = BACKOFF_SECONDS
) -> RecoveryVerdict:
    """Recoverable or not, by what happened and how often.

    What can be tried again is, after a pause that doubles. Lost workers are judged by
    `kernel.leases.judge`.
    """
    blocked = _BLOCKS.get(failure.cause, BlockedReason.BREAKER)
    if failure.cause in _HOPELESS:
        return RecoveryVerdict(False, why_not=_HOPELESS[failure.cause], blocked=blocked)
    if failure.attempts >= tries:
        why = f"{failure.attempts} tries failed without progress"
        return RecoveryVerdict(False, why_not=why, blocked=blocked)
    delay = backoff(run_id, failure.attempts, LONGEST_SECONDS, first=backoff_seconds)
    return RecoveryVerdict(True, delay=delay)


def backoff(run_id: str, times: int, longest_seconds: float, *, first: float = 1.0) -> int:
    """The pause after something failed `times` in a row, in microseconds: it doubles from `first`.

    A part of it differs from run to run.
    """
    if times <= 0:
        return 0
    seconds = min(longest_seconds, first * 2 ** min(times - 1, 40))
    jitter = 0.5 + _chance(run_id, times)
    return int(min(longest_seconds, seconds * jitter) * _MICROSECONDS)


def recover(
    point: Point,
    failure: Failure,
    verdict: RecoveryVerdict,
    *,
    now: int,
    gaps: tuple[tuple[int, int], ...] = (),
) -> tuple[Draft, ...]:
    """Return the entries for a failure: a recovery begins, or is not possible."""
    fields = (point.checkpoint_id, point.version, failure.cause.value, failure.attempts)
    if verdict.is_recoverable:
        initiated = RecoveryInitiated(*fields, now + verdict.delay, failure.note[:1000], gaps)
        return (Draft(Kind.RECOVERY_INITIATED, initiated),)
    note = f"{verdict.why_not}: {failure.note}"[:1000]
    return (
        Draft(Kind.RECOVERY_FAILED, RecoveryFailed(*fields, note)),
        Draft(Kind.RUN_BLOCKED, runs.Blocked(verdict.blocked, note)),
    )


def asked_in_a_row(entries: Iterable[tuple[str, object]]) -> int:
    """Return how often a recovery of a run was requested since its last progress.

    `entries` are the kinds and facts of those after its last checkpoint that is not a copy.
    Unblocking a run without a recovery resets the count.
    """
    asked, was_unblocked = 0, False
    for kind, facts in entries:
        is_asked = isinstance(facts, RecoveryInitiated) and facts.attempts == 0
        if was_unblocked and not is_asked:
            asked = 0
        asked += is_asked
        was_unblocked = kind == Kind.RUN_UNBLOCKED
    return 0 if was_unblocked else asked


def _chance(run_id: str, attempts: int) -> float:
    """A number from 0 to 1 by run and attempt: runs that failed together do not come together."""
    digest = hashlib.sha256(f"{attempts}/{run_id}".encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32
