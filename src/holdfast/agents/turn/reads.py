"""What tools have read: put on record by the cadences that keep it, and whenever the run is left.

What was paid for is always kept. So a turn that waits for a person does not read again what it has
read; after a crash, with cadence `turn`, it does.
"""

from typing import Final

from holdfast import codec, names
from holdfast.agents.definitions.tools import text_of
from holdfast.agents.turn.calls import CallOutcome, TurnCall
from holdfast.agents.turn.turn import Turn

_READ: Final = "read:"
_FAILED: Final = "read_failed:"


class Reads:
    """The calls of one pass that only read."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def place(self, call: TurnCall) -> None:
        """Give a call its place, and its outcome if that is in the journal."""
        name, digest = call.tool.name, call.arguments.digest
        call.place = self._turn.places.of("read", name, digest)
        found = self._turn.memo.step(_named(_READ, name), call.place)
        if found is not None:
            call.seen = CallOutcome(codec.decode(found.body))
            return
        failed = self._turn.memo.step(_named(_FAILED, name), call.place)
        if failed is not None:
            call.seen = CallOutcome(error=text_of(codec.decode(failed.body)))

    def keep(self, call: TurnCall, outcome: CallOutcome) -> CallOutcome:
        """Stage the outcome of a call, now or when the run is left."""
        kind = _READ if outcome.error is None else _FAILED
        value = outcome.value if outcome.error is None else outcome.error
        self._turn.keep_read(
            _named(kind, call.tool.name),
            value,
            args_digest=call.place,
            at_once=self._turn.pace.keeps_reads or call.tool.policy.cost is not None,
        )
        return outcome


def _named(kind: str, tool: str) -> str:
    return f"{kind}{tool}"[: names.MAX_LENGTH]
