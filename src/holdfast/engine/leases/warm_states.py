"""A few states of waiting runs, kept in memory: a run that resumes here need not read its state.

It is only a cache. The store decides whether a run may resume, and with which answers; a state is
used only if its version is still the newest, and the turn only if the chain continues it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.kernel import journal
from holdfast.kernel.journal import Entry, Position
from holdfast.kernel.state import Parts

_RUNS: Final = 32
_BYTES: Final = 1024 * 1024


class WarmState(NamedTuple):
    """The state of a run, the entries since then if they are known, and where they end."""

    parts: Parts
    turn: Sequence[Entry] | None
    end: Position

    def continued_by(self, entries: Sequence[Entry]) -> list[Entry] | None:
        """Return the turn with these entries at its end; None if others may lie in between."""
        is_next = entries[0].seq == self.end.seq + 1 and journal.is_intact(
            entries[0], self.end.link
        )
        return None if self.turn is None or not is_next else [*self.turn, *entries]


class WarmStates:
    """The states of the runs that were released last."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, WarmState] = OrderedDict()

    def keep(self, run_id: str, state: WarmState) -> None:
        """Keep the state of a released run; its holder does not use it any more."""
        size = state.parts.live_bytes + sum(len(entry.body or b"") for entry in state.turn or ())
        if size <= _BYTES:
            state.parts.recorded.clear()
            self._states[run_id] = state
            self._states.move_to_end(run_id)
            while len(self._states) > _RUNS:
                self._states.popitem(last=False)

    def take(self, run_id: str, version: int) -> WarmState | None:
        """Return the state of a run, once, if it has this version."""
        state = self._states.pop(run_id, None)
        return state if state is not None and state.parts.version == version else None
