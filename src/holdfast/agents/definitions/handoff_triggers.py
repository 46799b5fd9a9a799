"""Triggers: when a context should end, judged at the boundary between two turns. Pure.

The context hands over while the next turn still has room: if it is no larger than the largest so
far, use stays below the limit. A turn that was larger than any before may pass it; that is the hard
trigger.
"""

from typing import Literal

import msgspec

TriggerKind = Literal["context", "context_hard", "phase_complete", "errors", "explicit"]


class Trigger(msgspec.Struct, frozen=True):
    """Why a context should end; `text` is for people. `to` is the agent to continue, if named."""

    kind: TriggerKind
    text: str
    to: str = ""


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a handoff: to an agent, or to the one that the selector finds."""

    to: str = ""
    note: str = ""
    is_asked: bool = False


class ContextNumbers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a context has used, in tokens. `turn_began_at` is `used` at the end of the last turn.

    `largest_turn` is the most that a turn has added: a reply, and what its tools answered.
    `turn_replies` are those of the turn that is not over yet.
    """

    used: int = 0
    largest_turn: int = 0
    turn_began_at: int = 0
    turns: int = 0
    replies: int = 0
    turn_replies: int = 0
    errors: int = 0
    max_utilization: float = 0.0


def asked_for(wish: Wish) -> Trigger:
    """The trigger that needs no policy: somebody asks for it."""
    return Trigger("explicit", wish.note or "a handoff was asked for", wish.to)


class ContextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy allows: `context` is the share of `window` that may be used."""

    window: int = 200_000
    context: float = 0.7
    errors: int | None = 3
    phase_complete: bool = True

    @property
    def tokens(self) -> int:
        """How many tokens may be used."""
        return int(self.window * self.context)


def evaluate(
    numbers: ContextNumbers,
    limits: ContextLimits,
    *,
    finished_phase: str = "",
    wish: Wish | None = None,
) -> Trigger | None:
    """Return why a context should end before another turn, if so. A request always wins."""
    if wish is not None:
        return asked_for(wish)
    share = f"{numbers.used:,} of {limits.window:,} tokens ({numbers.used / limits.window:.0%})"
    if numbers.used > limits.tokens:
        return Trigger(
            "context_hard", f"the context uses {share}, more than {limits.context:.0%} of them"
        )
    if limits.phase_complete and finished_phase:
        return Trigger("phase_complete", f"the phase {finished_phase} is finished")
    if limits.errors is not None and numbers.errors > limits.errors:
        return Trigger("errors", f"{numbers.errors} calls of tools have failed in this context")
    if numbers.replies and numbers.used + numbers.largest_turn >= limits.tokens:
        return Trigger(
            "context",
            f"the context uses {share}, and another turn of {numbers.largest_turn:,} tokens could "
            f"pass {limits.context:.0%}",
        )
    return None
