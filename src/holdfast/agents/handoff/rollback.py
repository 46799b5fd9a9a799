"""How to undo what was done outside since a checkpoint: instructions, for people. Pure.

Nothing is undone automatically: going back in the journal does not change the world outside.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import codec
from holdfast.agents.definitions.tools import Tool
from holdfast.clock import to_datetime
from holdfast.errors import BodyErased
from holdfast.kernel import effects, indexes, journal
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.kernel.journal import Entry

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


def consequences(
    entries: Iterable[Entry], tools: Mapping[str, Tool[..., Any]]
) -> list[Consequence]:
    """Return the effects in entries of a journal, such as those since a checkpoint.

    An effect whose intent is not among them belongs to an earlier checkpoint.
    """
    found: dict[UUID, tuple[Effect, Any, Any]] = {}
    for entry in entries:
        facts = indexes.facts_of(entry)
        if isinstance(facts, effects.Issued):
            (change,) = indexes.changes_of(entry, facts)
            assert isinstance(change, indexes.AddEffect), "an intent makes an effect"
            found[facts.effect_id] = (change.effect, _body_of(entry), None)
        elif isinstance(facts, effects.EffectSettled) and facts.effect_id in found:
            effect, arguments, _ = found[facts.effect_id]
            status = effects.STATUS_OF[journal.Kind(entry.kind)]
            settled = msgspec.structs.replace(effect, status=status)
            found[facts.effect_id] = (settled, arguments, _body_of(entry))
    return [
        consequence(effect, tools.get(effect.tool), arguments, result)
        for effect, arguments, result in found.values()
    ]


def rollback_instructions(consequences: Iterable[Consequence]) -> str:
    """Return how to undo effects, the newest first; what did not happen needs nothing."""
    there = [each for each in consequences if each.effect.status is not EffectStatus.NOT_DONE]
    if not there:
        return NOTHING
    there.sort(key=lambda each: each.effect.issued_seq, reverse=True)
    lines = [f"{at}. {_undo_step(each)}" for at, each in enumerate(there, 1)]
    return "\n".join(["Undo in this order, the newest first:", *lines])


def _body_of(entry: Entry) -> Any:
    """What an entry says; nothing if that was erased."""
    try:
        body = journal.body_of(entry)
    except BodyErased:
        return None
    return codec.decode(body) if body else None


def _undo_step(each: Consequence) -> str:
    effect = each.effect
    hint = " ".join(each.undo.split())[:_MAX_HINT] or CANNOT
    at = to_datetime(effect.issued_at).isoformat(timespec="seconds")
    call = f"{effect.tool} at {at} (effect {effect.effect_id})"
    if effect.status is EffectStatus.COMPLETED:
        return f"{call}: {hint}"
    return (
        f"{call}: nobody knows whether it happened. Find out, and `holdfast effects resolve "
        f"{effect.effect_id}`; if it did: {hint}"
    )
