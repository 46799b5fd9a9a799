"""Ends the context of a pass between two turns, when there is a reason: another context continues.

`handoff/` stores what the context leaves and finds the next one; here it is decided when, and the
agent's code is left.
"""

from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.handoff_triggers import Trigger, Wish, asked_for
from holdfast.agents.exits.exit_reasons import BlockExit, HandedOverExit, Suspend
from holdfast.agents.turn.turn import Turn
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.errors import ContextTooSmall, HoldfastError
from holdfast.kernel.runs import ANYBODY, BlockedReason

if TYPE_CHECKING:
    from holdfast.agents.run import Run

PART: Final = "holdfast.agents.handoff"
TAKEN: Final = "holdfast.taken"


class PreviousContext(msgspec.Struct, frozen=True, kw_only=True):
    """The previous context's handoff: its agent, the trigger, and its summary of the work.

    `prompt` is the summary as a message of the user, `context_parts` are the parts of the state
    that were its own, `context` is the number of the context that it is for.
    """

    giver: str
    trigger: str
    note: str = ""
    context_parts: tuple[str, ...] = ()
    prompt: str = ""
    context: int = 0


def previous_context(held: LeasedRun) -> PreviousContext | None:
    """Return what the previous context left in a run's state, if this one has taken it over."""
    stored = held.part(PART)
    if stored is None:
        return None
    left = type_conversion.convert(stored, PreviousContext, what=PART)
    # A fork counts its contexts anew; one that was acknowledged from outside has no mark.
    is_taken = held.part(TAKEN) or held.run.contexts >= left.context
    return left if is_taken else None


def asked_from_outside(held: LeasedRun) -> Trigger | None:
    """Return the request of somebody who does not hold the run, as far as is known here."""
    wish = held.run.wish
    if not wish:
        return None
    to = "" if wish == ANYBODY else wish
    return asked_for(Wish(to, "it was asked for from outside", is_asked=True))


class HandoffExit:
    """Decides at the boundary of a turn whether a fresh context continues, and hands over."""

    def __init__(self, turn: Turn, run: "Run") -> None:
        self._turn = turn
        self._run = run
        self.is_clean = turn.memo.is_untouched
        """Whether the agent's code has done nothing yet in this turn, as far as is known."""

    def due(self) -> Trigger | None:
        """Return why a fresh context should continue; None if it should not."""
        if self._turn.handoffs is None:
            return None
        asked, counted = asked_from_outside(self._turn.held), self._turn.counted_usage
        return asked if asked is not None or counted is None else counted.due()

    async def leave_if_due(self) -> None:
        """Leave the run to a fresh context before its first turn begins, if there is a reason."""
        if self.is_clean:
            await self.leave_between_turns()

    async def leave_between_turns(self) -> None:
        """The same when a turn was stored, and the next has not begun."""
        trigger = self.due()
        if trigger is not None:
            await self._leave_or_fail(trigger)

    async def make_room(self, talk: object) -> None:
        """Leave the run to a fresh context if a model that is given `talk` would see too much.

        For loops, which call a model first thing in a turn. A fresh context that is too full itself
        cannot be helped by another: its run is blocked.
        """
        usage = self._turn.counted_usage
        is_judged = self._turn.handoffs is not None and self.is_clean
        if usage is None or usage.rules is None or not is_judged:
            return
        self.is_clean = False
        limit, window = usage.rules.limit_tokens, usage.rules.window_tokens
        seen = usage.projected(talk)
        share = f"{seen:,} of {window:,} tokens ({seen / window:.0%})"
        if usage.numbers.replies and seen > limit:
            await self._leave_or_fail(Trigger("context", f"the next call would have {share}"))
        if usage.fixed >= limit or seen > window:
            note = (
                f"the model of a fresh context would be given {share}, {usage.fixed:,} of them "
                f"system prompt and tools, and may use {limit:,}: shorten them, or use a model "
                "with a larger window"
            )
            self._turn.gate.leave(Suspend(BlockExit(BlockedReason.BREAKER, note)))

    async def leave(self, trigger: Trigger, label: str = "") -> NoReturn:
        """Hand the run over, with what changed in this turn, and leave the agent's code."""
        gate, handoffs = self._turn.gate, self._turn.handoffs
        assert handoffs is not None, "it was found to be due"
        why = await self._with_note(trigger)
        try:
            await handoffs.give(self._run, why, label=label)
        except ContextTooSmall as error:
            gate.leave(Suspend(BlockExit(BlockedReason.BREAKER, str(error))))
        gate.leave(Suspend(HandedOverExit()))

    async def _leave_or_fail(self, trigger: Trigger) -> None:
        try:
            await self.leave(trigger)
        except HoldfastError as error:
            self._turn.gate.leave(error)

    async def _with_note(self, trigger: Trigger) -> Trigger:
        """Add the note of a request from outside to the trigger, if there is one."""
        if trigger != asked_from_outside(self._turn.held):
            return trigger
        note = await self._turn.held.handoffs.asked()
        text = f"{trigger.text}: {note}" if note else trigger.text
        return msgspec.structs.replace(trigger, text=text)
