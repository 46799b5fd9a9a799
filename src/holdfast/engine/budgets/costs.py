"""Budgets and costs as people write them, and how they are counted."""

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

import msgspec

from holdfast import names
from holdfast.errors import MisuseError
from holdfast.kernel.budgets import MICRO, Amounts, Limits
from holdfast.kernel.segments import Effort, Segment

_NOISE: Final = Decimal("0.000000001")
_MOST: Final = 2**62


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may cost, with all that descend from it. What is None has no limit.

    `seconds` run from the moment it is set. When the part `soft` of a limit is spent, a warning is
    recorded.
    """

    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None
    soft: float = 0.8

    def __post_init__(self) -> None:
        for name, given in (("usd", self.usd), ("seconds", self.seconds), ("soft", self.soft)):
            _check_number(given, f"{name} of a budget")
        if not 0 < self.soft <= 1:
            raise MisuseError(f"soft of a budget is a part of its limits, 0 to 1, not {self.soft}")
        if (self.usd, self.tokens, self.turns, self.seconds) == (None,) * 4:
            raise MisuseError("a budget needs a limit: usd, tokens, turns or seconds")
        _ = self.limits

    @property
    def limits(self) -> Limits:
        return Limits(
            None if self.usd is None else micros(self.usd, what="usd of a budget"),
            None if self.tokens is None else _count(self.tokens, "tokens of a budget"),
            None if self.turns is None else _count(self.turns, "turns of a budget"),
            None if self.seconds is None else micros(self.seconds, what="seconds of a budget"),
            round(self.soft * 100),
        )


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a call costs, or may cost at most. `tokens` are counted as those of the output."""

    usd: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        _check_number(self.usd, "usd of a cost")
        _ = self.amounts

    @property
    def amounts(self) -> Amounts:
        return Amounts(
            usd_micros=micros(self.usd, what="usd of a cost"),
            output_tokens=_count(self.tokens, "tokens of a cost"),
        )


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has cost, with what its descendants drew on its budget.

    `lost` is the part of the total that counts as spent because nobody saw the end of the call.
    `segments` are what each context of the run took, the first one first; they add up to `effort`,
    as do agents and phases. What descendants drew counts where the run's journal records it.
    """

    total: Amounts
    lost: Amounts
    effort: Effort
    by_turn: dict[int, Amounts]
    by_call: dict[str, Amounts]
    by_run: dict[str, Amounts]
    by_agent: dict[str, Effort]
    by_phase: dict[str, Effort]
    segments: tuple[Segment, ...]


def _check_number(given: object, what: str) -> None:
    """Raise MisuseError for a text: it would be counted as a number, and compared as a text."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
        raise MisuseError(f"{what} must be a number, not {given!r}")


def micros(amount: float | Decimal, *, what: str) -> int:
    """Convert to millionths, rounded up: costs are never understated."""
    try:
        exact = Decimal(str(amount)).quantize(_NOISE) * MICRO
        found = int(exact.to_integral_value(rounding=ROUND_CEILING))
    except (InvalidOperation, OverflowError, ValueError):
        raise MisuseError(f"{what} must be a number, not {amount!r}") from None
    if not 0 <= found < _MOST:
        raise MisuseError(f"{what} must be 0 or more, not {amount}")
    return found


def _count(number: int, what: str) -> int:
    return number and names.check_count(number, what=what)
