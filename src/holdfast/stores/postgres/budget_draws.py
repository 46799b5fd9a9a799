"""All that one commit does to a budget, folded into one record."""

from typing import Any

import msgspec

from holdfast.kernel.budgets import Amounts, DrawBudget

Record = dict[str, Any]
_SPENT = ("spent_usd", "spent_input_tokens", "spent_output_tokens", "spent_turns")
_RESERVED = ("reserved_usd", "reserved_input_tokens", "reserved_output_tokens", "reserved_turns")
_NEEDS = ("needs_usd", "needs_tokens", "needs_turns", "needs_at")
_LIMITS = ("usd_limit", "tokens_limit", "turns_limit", "time_limit", "soft_percent", "set_seq")


def untouched() -> Record:
    amounts = dict.fromkeys((*_SPENT, *_RESERVED), 0)
    return amounts | dict.fromkeys((*_NEEDS, *_LIMITS)) | {"is_set": False, "warned": 0}


def fold(record: Record, change: DrawBudget) -> None:
    """Add a change to what is done before it."""
    if change.needs is not None:
        _need(record, change.needs, change.at)
    _add(record, _SPENT, change.spent, 1)
    _add(record, _RESERVED, change.reserved, 1)
    _add(record, _RESERVED, change.freed, -1)
    record["warned"] |= change.warned
    if change.limits is not None:
        limits = (*msgspec.structs.astuple(change.limits), change.set_seq)
        record.update(zip(_LIMITS, limits, strict=True))
        record.update(is_set=True, warned=0)
    if record["is_set"]:
        # Limits are set from outside, and such writes are judged before, on the rows: here they
        # would be measured by limits that came after them.
        record.update(dict.fromkeys(_NEEDS))


def _need(record: Record, needs: Amounts, at: int) -> None:
    """What must fit in the end, beside what the rows say before."""
    drawn = {
        "needs_usd": ("spent_usd", "reserved_usd"),
        "needs_tokens": (*_SPENT[1:3], *_RESERVED[1:3]),
        "needs_turns": ("spent_turns", "reserved_turns"),
    }
    asked = (needs.usd_micros, needs.tokens, needs.turns)
    for (name, before), need in zip(drawn.items(), asked, strict=True):
        if need > 0:
            whole = need + sum(record[column] for column in before)
            known = record[name]
            record[name] = whole if known is None else max(known, whole)
    record["needs_at"] = max(record["needs_at"] or 0, at)


def _add(record: Record, names: tuple[str, ...], amounts: Amounts, sign: int) -> None:
    for name, amount in zip(names, msgspec.structs.astuple(amounts), strict=True):
        record[name] += sign * amount
