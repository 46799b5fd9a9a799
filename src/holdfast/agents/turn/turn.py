"""The turn of a pass: what every call that the agent's code makes works with.

One object for a whole pass. `begin` starts the next turn with what is in the journal of it: then
nothing of the turn before is left.
"""

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from holdfast.agents.definitions.cadence import Pace
from holdfast.agents.definitions.recovery_policy import TurnClock
from holdfast.agents.definitions.rules import Rules
from holdfast.agents.definitions.versions import PART
from holdfast.agents.exits.exit_reasons import Gate, HandBackExit, Suspend
from holdfast.agents.exits.unawaited import UnawaitedCalls
from holdfast.agents.turn.call_positions import CallPositions
from holdfast.agents.turn.context_usage import WISH, ContextUsage
from holdfast.agents.turn.memo import Memo
from holdfast.agents.turn.progress import PART as PROGRESS
from holdfast.agents.turn.progress import Progress
from holdfast.agents.turn.replayed_calls import ReplayedCalls
from holdfast.agents.turn.views import Log, Value
from holdfast.codec import Ref
from holdfast.engine.context import Context
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.maintenance.replayed_effects import PreparedPast
from holdfast.kernel.versions import Versions

if TYPE_CHECKING:
    from holdfast.agents.handoff.protocol import HandoffProtocol

_TURN: Final = "holdfast.turn"
_COUNTED_PARTS: Final = frozenset({WISH, PROGRESS})


class Turn:
    """Where a pass over a run is: the run it holds, its gate, its memo, its positions, its past.

    `known` are the agent's versions as the journal has them, `continued` is the past of a run that
    this one continues.
    """

    def __init__(
        self,
        context: Context,
        held: LeasedRun,
        rules: Rules,
        memo: Memo,
        *,
        known: Versions | None = None,
        continued: PreparedPast | None = None,
        handoffs: "HandoffProtocol | None" = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = context
        self.held = held
        self.rules = rules
        self.handoffs = handoffs
        self.gate = Gate()
        if continued is not None:
            self.past = ReplayedCalls(held, continued)
        limit = None if rules.recovery is None else rules.recovery.turn_seconds
        self.clock = None if limit is None else TurnClock(limit)
        """Limits the time of each turn, if the agent's policy does."""
        self.called_effects: set[UUID] = set()
        """Effects whose tools were called in this pass."""
        self.stop_note = ""
        """Why another worker is to continue after this turn; empty if this one may."""
        self.refs: dict[int, tuple[object, Ref]] = {}
        """Results given to the agent in this turn, by their id, and the entries they are in."""
        self.unawaited: UnawaitedCalls = {}
        """Calls of the run that its code has made and not awaited yet."""
        self.views: list[Log[Any] | Value[Any]] = []
        """State that the agent's code may change in place: compared at each checkpoint."""
        self._progress: Progress | None = None
        self._context_usage: ContextUsage | None = None
        self._unkept_reads: list[tuple[str, object, bytes]] = []
        self.keeps_in_memory = context.settings.on_store_failure == "memory"
        """Whether a turn that the store is away for continues without being stored."""
        parts = held.saver.parts.values.keys()
        self.is_counted = rules.handoff is not None or not parts.isdisjoint(_COUNTED_PARTS)
        """Whether what the context uses is counted, or a handoff was asked for."""
        self._known_versions = known
        self._was_blank = memo.is_blank
        self.memo = memo
        self._passed = memo.passed
        self.is_replayed = not memo.is_untouched
        """Whether the journal has something of this turn: else no call looks there."""
        self.is_due_always = rules.cadence in ("turn", "tool") and not memo.passed
        """Whether the end of this turn is stored, whatever its pace."""
        if rules.cadence != "turn":
            held.stage.is_patient = self.pace.is_patient
        held.saver.stamp[PART] = rules.versions_part
        held.saver.before_saving = self.store_changes
        if self.clock is not None:
            self.clock.begin_turn()

    @cached_property
    def places(self) -> CallPositions:
        """Where in the turn the next call is."""
        return CallPositions()

    @cached_property
    def past(self) -> ReplayedCalls:
        """What the run did before it went back."""
        return ReplayedCalls(self.held)

    @cached_property
    def pace(self) -> Pace:
        """Which ends of turns are stored. Made at once if it counts the time since then."""
        return Pace(self.rules.cadence, self.context.now, on_record=self._passed)

    def begin(self, memo: Memo) -> None:
        """Begin the next turn, of which `memo` is in the journal."""
        self.memo = memo
        self.is_replayed = not memo.is_untouched
        self.is_due_always = self.rules.cadence in ("turn", "tool") and not memo.passed
        self._begin()

    def begin_next(self) -> None:
        """Begin the turn after one that was stored: the journal has nothing of it."""
        memo = self.memo
        if self.is_replayed or memo.answered or memo.has_turn:
            self.begin(Memo())
        else:
            self._begin()

    def _begin(self) -> None:
        self._passed = self.memo.passed
        if self.pace.passed or not self.is_due_always:
            self.pace.begin(on_record=self.memo.passed)
        if self.clock is not None:
            self.clock.begin_turn()
        self.places.begin_turn()
        self.refs.clear()
        self._unkept_reads.clear()

    @property
    def progress(self) -> Progress:
        """How far the work is, for the context that continues it."""
        if self._progress is None:
            self._progress = Progress(self.held, counts=self.rules.handoff is not None)
            self.views.append(self._progress.value)
            self.is_counted = True
        return self._progress

    @property
    def context_usage(self) -> ContextUsage:
        """How much of its window the context has used."""
        if self._context_usage is None:
            windows = self.context.settings.windows
            self._context_usage = ContextUsage.of(self.rules, self.held, self.progress, windows)
        return self._context_usage

    @property
    def counted_usage(self) -> ContextUsage | None:
        """The same if anything is counted, or a handoff was asked for; else None."""
        return self.context_usage if self.is_counted else None

    @property
    def may_hand_over(self) -> bool:
        """Whether there may be a reason that a fresh context continues."""
        return self.handoffs is not None and (self.is_counted or bool(self.held.run.wish))

    def store_changes(self) -> None:
        """Make edits of what the agent's code changed in place in the state it was given."""
        for view in self.views:
            view.store_changes()

    def check_claimed(self) -> None:
        """Raise TurnDiverged if the journal has a call that the agent's code did not repeat."""
        if self.is_replayed:
            self.memo.check_claimed(run_id=self.held.run_id)

    @property
    def leaves_no_trace(self) -> bool:
        """Whether its cadence is `boundary`, and nothing is stored that its end belongs to."""
        if self.rules.cadence != "boundary" or not self._was_blank or self.held.version:
            return False
        return self.held.stage.is_first

    def leave_if_stopping(self) -> None:
        """Leave the agent's code if another worker is to continue."""
        if self.stop_note:
            self.gate.leave(Suspend(HandBackExit(self.stop_note)))

    def stage_step(self, name: str, value: object, *, args_digest: bytes) -> Ref:
        """Stage a result, with how many ends of turns were passed over before it."""
        passed = self.pace.passed
        if self._known_versions != self.rules.versions:
            self._stage_versions()
        self._passed = max(self._passed, passed)
        return self.held.stage.step(name, value, args_digest=args_digest, passed=passed)

    def stage_before_others(self) -> None:
        """Stage what must be in the journal before something other than a result of a step."""
        if self._known_versions != self.rules.versions:
            self._stage_versions()
        if self.pace.passed > self._passed:
            self.stage_step(_TURN, None, args_digest=b"")

    def keep_read(self, name: str, value: Any, *, args_digest: bytes, at_once: bool) -> None:
        """Stage what a tool has read, at once or when the run is left before its turn has ended."""
        if at_once:
            self.stage_step(name, value, args_digest=args_digest)
        else:
            self._unkept_reads.append((name, value, args_digest))

    def keep_reads(self) -> None:
        """Stage what tools have read in this turn: the run is left, and will be entered again."""
        for name, value, digest in self._unkept_reads:
            self.stage_step(name, value, args_digest=digest)
        self._unkept_reads.clear()

    def _stage_versions(self) -> None:
        self.held.stage.versions(self.rules.versions)
        self._known_versions = self.rules.versions
