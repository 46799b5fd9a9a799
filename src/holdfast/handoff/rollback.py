"""How to undo what was done outside since a checkpoint: instructions, for people. Pure.

Nothing is undone by itself: going back in the journal leaves the world as it is.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.agents.tools import Tool
from holdfast.clock import to_datetime
from holdfast.kernel.effects import Effect, Status

CANNOT: Final = "cannot be undone"
NOTHING: Final = "Nothing was done outside since then: there is nothing to undo."
_MAX_HINT: Final = 1000


class Consequence(msgspec.Struct, frozen=True):
    """An effect, and how to undo it as its tool says; empty if nobody can."""

    effect: Effect
    undo: str = ""


def consequence(
    effect: Effect, tool: Tool[..., Any] | None, arguments: Any = None, result: Any = None
) -> Consequence:
    """An effect with the hint of its tool, which may not be known here any more."""
    return Consequence(effect, tool.undo_of(arguments, result) if tool is not None else "")


def rollback_instructions(consequences: Iterable[Consequence]) -> str:
    """What to do to undo effects, the newest first; what did not happen needs nothing."""
    there = [each for each in consequences if each.effect.status is not Status.NOT_DONE]
    if not there:
        return NOTHING
    there.sort(key=lambda each: each.effect.issued_seq, reverse=True)
    lines = [f"{at}. {_told(each)}" for at, each in enumerate(there, 1)]
    return "\n".join(["Undo in this order, the newest first:", *lines])


def _told(each: Consequence) -> str:
    effect = each.effect
    hint = " ".join(each.undo.split())[:_MAX_HINT] or CANNOT
    at = to_datetime(effect.issued_at).isoformat(timespec="seconds")
    told = f"{effect.tool} at {at} (effect {effect.effect_id})"
    if effect.status is Status.COMPLETED:
        return f"{told}: {hint}"
    return (
        f"{told}: nobody knows whether it happened. Find out, and `holdfast effects resolve "
        f"{effect.effect_id}`; if it did: {hint}"
    )
