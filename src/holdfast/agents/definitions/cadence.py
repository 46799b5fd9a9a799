"""Cadence: which ends of turns are stored, and what is put on record within a turn.

    turn       every `run.checkpoint()` is stored
    tool       the same, and what tools read is on record as soon as it is read
    every      a checkpoint is stored each so many turns, or so many seconds
    boundary   no checkpoint is stored by itself: only effects, waits and the end are

None of them can lose or repeat an effect: its intent and its outcome are stored at once. What a
longer cadence puts at stake is replies and steps since the last commit.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from holdfast import clock, names
from holdfast.errors import MisuseError


class Every(msgspec.Struct, frozen=True):
    """A checkpoint each so many turns, or once so many seconds have passed: what comes first."""

    turns: int | None = None
    seconds: float | None = None


Cadence = Literal["turn", "tool", "boundary"] | Every


def every(*, turns: int | None = None, seconds: float | None = None) -> Every:
    """Store a checkpoint each so many turns, or once so many seconds have passed since the last."""
    if turns is None and seconds is None:
        raise MisuseError("say how often: every(turns=10), every(seconds=5), or both")
    if turns is not None and names.check_count(turns, what="turns") < 1:
        raise MisuseError("every(turns=...) must be 1 or more")
    if seconds is not None and not clock.seconds(seconds):
        raise MisuseError("every(seconds=...) must be above 0")
    return Every(turns, seconds)


def check(cadence: Cadence) -> Cadence:
    """The cadence, if it is one."""
    given: Any = cadence
    if isinstance(given, Every) or given in ("turn", "tool", "boundary"):
        return given
    raise MisuseError(
        f"{given!r} is no cadence; it is 'turn', 'tool', 'boundary' or holdfast.every(turns=...)"
    )


class Pace:
    """Decides at each end of a turn whether it is stored.

    An end that was passed over is on record with what came after it. So a later pass passes over it
    again, whatever its cadence: what is on record would lie beyond the checkpoint otherwise.
    """

    def __init__(self, cadence: Cadence, now: Callable[[], int], *, on_record: int) -> None:
        """The run is entered; so many ends were passed over since its last version."""
        self._cadence = cadence
        self._now = now
        self.begin(on_record=on_record)

    @property
    def is_patient(self) -> bool:
        """Whether results wait for the next commit of the run, whatever that is."""
        return self._cadence not in ("turn", "tool")

    @property
    def keeps_reads(self) -> bool:
        """Whether what tools read is put on record.

        With turns that are passed over as well: a reply that comes back from the record must be
        beside what it was given to.
        """
        return self._cadence != "turn"

    def begin(self, *, on_record: int) -> None:
        """A version is stored; so many ends were passed over since then."""
        self._since = self._now()
        self._on_record = on_record
        self.passed = 0

    def end_turn(self, *, must: bool) -> bool:
        """Whether the end of a turn is to be stored; `must`, unless the record goes further."""
        is_due = self.passed >= self._on_record and (must or self._is_due())
        self.passed += not is_due
        return is_due

    def pass_over(self) -> None:
        """An end that was to be stored could not be."""
        self.passed += 1

    def _is_due(self) -> bool:
        cadence = self._cadence
        if not isinstance(cadence, Every):
            return cadence != "boundary"
        if cadence.turns is not None and self.passed + 1 >= cadence.turns:
            return True
        length = cadence.seconds
        return length is not None and self._now() - self._since >= clock.seconds(length)
