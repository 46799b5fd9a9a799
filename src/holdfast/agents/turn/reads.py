"""What tools have read: put on record by the cadences that keep it, and whenever the run is left.

What was paid for is always kept. So a turn that waits for a person does not read again what it has
read; after a crash, with cadence `turn`, it does.
"""

from typing import Final

from holdfast import codec, names
from holdfast.agents.definitions.tools import text_of
from holdfast.agents.turn.calls import Call, Outcome
from holdfast.agents.turn.memo import Memo
from holdfast.agents.turn.places import Places
from holdfast.agents.turn.record import Record

_READ: Final = "read:"
_FAILED: Final = "read_failed:"


class Reads:
    """The calls of one pass that only read."""

    def __init__(self, record: Record, places: Places) -> None:
        self._record = record
        self._places = places
        self._memo = Memo()
        self._unkept: list[tuple[Call, Outcome]] = []

    def begin_turn(self, memo: Memo) -> None:
        self._memo = memo
        self._unkept.clear()

    def place(self, call: Call) -> None:
        """Give a call its place, and what it came to if that is on record."""
        name, digest = call.tool.name, call.arguments.digest
        call.place = self._places.of("read", name, digest)
        found = self._memo.step(_named(_READ, name), call.place)
        if found is not None:
            call.seen = Outcome(codec.decode(found.body))
            return
        failed = self._memo.step(_named(_FAILED, name), call.place)
        if failed is not None:
            call.seen = Outcome(error=text_of(codec.decode(failed.body)))

    def keep(self, call: Call, outcome: Outcome) -> Outcome:
        """Put on record what a call came to, now or when the run is left."""
        if self._record.pace.keeps_reads or call.tool.policy.cost is not None:
            self._put(call, outcome)
        else:
            self._unkept.append((call, outcome))
        return outcome

    def keep_all(self) -> None:
        """Put on record what the turn has read so far: it is left, and entered again."""
        for call, outcome in self._unkept:
            self._put(call, outcome)
        self._unkept.clear()

    def _put(self, call: Call, outcome: Outcome) -> None:
        kind = _READ if outcome.error is None else _FAILED
        value = outcome.value if outcome.error is None else outcome.error
        self._record.step(_named(kind, call.tool.name), value, args_digest=call.place)


def _named(kind: str, tool: str) -> str:
    return f"{kind}{tool}"[: names.MAX_LENGTH]
