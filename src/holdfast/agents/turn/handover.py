"""Where a pass gives its run away, or takes one over. `handoff/` does what is promised here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

import msgspec

from holdfast.agents.conversion import shapes
from holdfast.agents.definitions.handoff_rules import HandoffRules, Trigger, Wish, asked_for
from holdfast.agents.definitions.rules import Rules
from holdfast.agents.definitions.tools import Tool
from holdfast.agents.exits.leaving import Block, Gate, HandedOver, Suspend
from holdfast.agents.turn.memo import Memo
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import ContextTooSmall, HoldfastError
from holdfast.kernel.runs import ANYBODY, BlockedReason

if TYPE_CHECKING:
    from holdfast.agents.run import Run

PART: Final = "holdfast.agents.handoff"
TAKEN: Final = "holdfast.taken"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What the context before left: who it was, why it ended, and what it says of the work.

    `prompt` is that as a message of the user, `context_parts` are the parts of the state that were
    its own, `context` counts the one that is told.
    """

    giver: str
    trigger: str
    note: str = ""
    context_parts: tuple[str, ...] = ()
    prompt: str = ""
    context: int = 0


class Giving(NamedTuple):
    """A context that is to end: its run, and why."""

    run: "Run"
    held: LeasedRun
    rules: HandoffRules | None
    tools: Mapping[str, Tool[..., Any]]
    trigger: Trigger
    label: str = ""
    model: str = ""


class Handover(Protocol):
    """Gives runs away and takes them over."""

    async def give(self, giving: Giving) -> None:
        """Store the last checkpoint of a context, and let somebody go on; one commit."""
        ...

    async def take(self, held: LeasedRun) -> None:
        """Acknowledge the handoff that a run is in, and begin a fresh context; one commit."""
        ...


def asked_from_outside(held: LeasedRun) -> Trigger | None:
    """What somebody who does not hold the run has asked for, as far as is known here."""
    wish = held.run.wish
    if not wish:
        return None
    to = "" if wish == ANYBODY else wish
    return asked_for(Wish(to, "it was asked for from outside", is_asked=True))


def left_in(held: LeasedRun) -> Taken | None:
    """What the context before left in a run's state, if this one has taken it over."""
    left = held.part(PART)
    if left is None:
        return None
    taken = shapes.convert(left, Taken, what=PART)
    # A fork counts its contexts anew; one that was acknowledged from outside has no mark.
    is_taken = held.part(TAKEN) or held.run.contexts >= taken.context
    return taken if is_taken else None


class Departing:
    """Ends the context of a pass between two turns, when there is a reason."""

    def __init__(
        self,
        run: "Run",
        held: LeasedRun,
        gate: Gate,
        *,
        rules: Rules,
        handover: Handover | None,
        memo: Memo,
    ) -> None:
        self._run = run
        self._held = held
        self._gate = gate
        self._rules = rules
        self._handover = handover
        self._is_clean = memo.is_untouched
        self.is_between_turns = memo.is_untouched
        """Whether the agent's code has done nothing yet in its turn."""

    def why(self) -> Trigger | None:
        """Why a fresh context should go on; None if it should not."""
        if self._handover is None:
            return None
        return asked_from_outside(self._held) or self._run.handing_over.due()

    async def give_if_due(self) -> None:
        """Leave the run to a fresh context before another turn begins, if there is a reason."""
        trigger = self.why() if self.is_between_turns else None
        self.is_between_turns = False
        if trigger is not None:
            await self._give_or_leave(trigger)

    def begin_turn(self) -> None:
        """A turn was stored, and the next has not begun."""
        self.is_between_turns = self._is_clean = True

    async def make_room(self, talk: object) -> None:
        """Leave the run to a fresh context if a model that is given `talk` would see too much.

        For loops, which call a model first thing in a turn. A fresh context that is too full itself
        cannot be helped by another: its run is blocked.
        """
        counts = self._run.handing_over
        if counts.rules is None or self._handover is None or not self._is_clean:
            return
        self._is_clean = False
        limit, window = counts.rules.limit_tokens, counts.rules.window_tokens
        seen = counts.projected(talk)
        share = f"{seen:,} of {window:,} tokens ({seen / window:.0%})"
        if counts.numbers.replies and seen > limit:
            await self._give_or_leave(Trigger("context", f"the next call would have {share}"))
        if counts.fixed >= limit or seen > window:
            note = (
                f"the model of a fresh context would be given {share}, {counts.fixed:,} of them "
                f"system prompt and tools, and may use {limit:,}: shorten them, or use a model "
                "with a larger window"
            )
            self._gate.leave(Suspend(Block(BlockedReason.BREAKER, note)))

    async def _give_or_leave(self, trigger: Trigger) -> None:
        try:
            await self.give(trigger)
        except HoldfastError as error:
            self._gate.leave(error)

    async def give(self, trigger: Trigger, label: str = "") -> NoReturn:
        """Give the run away, with what changed in this turn, and leave the agent's code."""
        assert self._handover is not None, "it was found to be due"
        rules, model = self._rules, self._rules.versions.model
        why = await self._told(trigger)
        giving = Giving(self._run, self._held, rules.handoff, rules.tools, why, label, model)
        try:
            await self._handover.give(giving)
        except ContextTooSmall as error:
            self._gate.leave(Suspend(Block(BlockedReason.BREAKER, str(error))))
        self._gate.leave(Suspend(HandedOver()))

    async def _told(self, trigger: Trigger) -> Trigger:
        """A trigger with the note of whoever asked for it from outside, if there is one."""
        if trigger != asked_from_outside(self._held):
            return trigger
        note = await self._held.handoffs.asked()
        text = f"{trigger.text}: {note}" if note else trigger.text
        return msgspec.structs.replace(trigger, text=text)
