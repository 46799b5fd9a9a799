"""What a pass puts on the record of its run, and what must be said there first.

In front of the first result of a turn stand the versions of the agent, if the record does not tell
them; and every result tells how many ends of turns were passed over before it.
"""

from typing import Final

from holdfast.agents.definitions.cadence import Pace
from holdfast.agents.turn.memo import Memo
from holdfast.codec import Ref
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.kernel.versions import Versions

_TURN: Final = "holdfast.turn"


class Record:
    """The record of one pass over a run. `known` is what it tells of versions so far."""

    def __init__(
        self, held: LeasedRun, pace: Pace, *, versions: Versions, known: Versions | None
    ) -> None:
        self._held = held
        self.pace = pace
        self._versions = versions
        self._known = known
        self._passed = 0
        held.stage.is_patient = pace.is_patient

    def begin_turn(self, memo: Memo) -> None:
        self._passed = memo.passed
        self.pace.begin(on_record=memo.passed)

    def step(self, name: str, value: object, *, args_digest: bytes) -> Ref:
        """Stage a result."""
        self._tell_versions()
        self._passed = max(self._passed, self.pace.passed)
        return self._held.stage.step(name, value, args_digest=args_digest, passed=self.pace.passed)

    def open(self) -> None:
        """Say what must be known before something other than a result is put on record."""
        self._tell_versions()
        if self.pace.passed > self._passed:
            self.step(_TURN, None, args_digest=b"")

    def _tell_versions(self) -> None:
        if self._known != self._versions:
            self._held.stage.versions(self._versions)
            self._known = self._versions
