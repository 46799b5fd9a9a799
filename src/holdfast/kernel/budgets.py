"""Budgets: what a run may cost, reserved before each paid call and settled after it.

    (room) ──reserve──▶ reserved ──settle──▶ spent     (what was lost on the way counts as spent)

A run draws on its own budget and on those of the runs it descends from. A budget's owner is the one
place where it is judged: every change to it is an entry of the owner's journal. Money is counted in
millionths of a dollar, time in microseconds, never in floats.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast.kernel.journal import Draft, Kind

MICRO: Final = 1_000_000


class Amounts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What something costs."""

    usd_micros: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    turns: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.usd_micros + other.usd_micros,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.turns + other.turns,
        )

    def __bool__(self) -> bool:
        return self != NOTHING

    def most(self, other: "Amounts") -> "Amounts":
        """The larger of each of the two."""
        return Amounts(
            max(self.usd_micros, other.usd_micros),
            max(self.input_tokens, other.input_tokens),
            max(self.output_tokens, other.output_tokens),
            max(self.turns, other.turns),
        )


NOTHING: Final = Amounts()


class Limits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much may be spent; None is no limit. From `soft_percent` of a limit on, it warns."""

    usd_micros: int | None = None
    tokens: int | None = None
    turns: int | None = None
    microseconds: int | None = None
    soft_percent: int = 80


class Account(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run's budget and what was drawn on it, as stored in its row.

    `began_at`: since then its time runs. `set_seq`: the entry that set the limits. `warned`: the
    limits that were reported as nearly reached, as a sum of their bits.
    """

    tenant: str
    run_id: str
    usd_limit: int | None = None
    tokens_limit: int | None = None
    turns_limit: int | None = None
    time_limit: int | None = None
    soft_percent: int = 80
    began_at: int = 0
    set_seq: int = 0
    spent_usd: int = 0
    spent_input_tokens: int = 0
    spent_output_tokens: int = 0
    spent_turns: int = 0
    reserved_usd: int = 0
    reserved_input_tokens: int = 0
    reserved_output_tokens: int = 0
    reserved_turns: int = 0
    warned: int = 0

    @property
    def limits(self) -> Limits:
        return Limits(
            self.usd_limit,
            self.tokens_limit,
            self.turns_limit,
            self.time_limit,
            self.soft_percent,
        )

    @property
    def spent(self) -> Amounts:
        return Amounts(
            self.spent_usd,
            self.spent_input_tokens,
            self.spent_output_tokens,
            self.spent_turns,
        )

    @property
    def reserved(self) -> Amounts:
        return Amounts(
            self.reserved_usd,
            self.reserved_input_tokens,
            self.reserved_output_tokens,
            self.reserved_turns,
        )


class Reservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an open call may cost, on the budget of `run_id`; `spender` is the run that calls."""

    tenant: str
    run_id: str
    reservation_id: str
    spender: str
    what: str
    usd_micros: int
    input_tokens: int
    output_tokens: int
    turns: int
    seq: int
    reserved_at: int

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.usd_micros, self.input_tokens, self.output_tokens, self.turns)


class Set(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of BUDGET_SET: all limits from now on. `is_first`: the run had no budget before."""

    limits: Limits
    is_first: bool
    note: str = ""


class Reserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of BUDGET_RESERVED. `is_estimate`: nobody knows beforehand what the call costs."""

    reservation_id: str
    spender: str
    what: str
    amounts: Amounts
    is_estimate: bool = False


class Recorded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of COST_RECORDED. `freed` is what was reserved for it on this run's own budget.

    `is_lost`: nobody saw the end of the call, so what was reserved for it counts as spent.
    """

    spender: str
    what: str
    agent: str
    version: int
    amounts: Amounts
    reservation_id: str = ""
    freed: Amounts | None = None
    is_lost: bool = False
    note: str = ""


class Warned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts of BUDGET_WARNED: which limit is nearly reached, in words in the note."""

    limit: str
    note: str = ""


Facts = Set | Reserved | Recorded | Warned


class AddBudget(msgspec.Struct, frozen=True, gc=False):
    """Refused when the run has a budget already."""

    account: Account


class DrawBudget(msgspec.Struct, frozen=True, gc=False):
    """Change a budget. Refused when the run has no budget, or no room in it for what is needed.

    `needs` is what must fit between what is drawn and the limits, 0 for what is not asked for;
    `at`, if there are needs, is the moment that must be within its time.
    """

    limits: Limits | None = None
    set_seq: int = 0
    spent: Amounts = NOTHING
    freed: Amounts = NOTHING
    reserved: Amounts = NOTHING
    needs: Amounts | None = None
    at: int = 0
    warned: int = 0


class AddReservation(msgspec.Struct, frozen=True, gc=False):
    """Refused when the id was used before and is open."""

    reservation: Reservation


class DropReservation(msgspec.Struct, frozen=True, gc=False):
    """Refused unless the reservation is open."""

    reservation_id: str


Change = AddBudget | DrawBudget | AddReservation | DropReservation

LIMITS: Final = ("usd", "tokens", "turns", "time")


def bit_of(limit: str) -> int:
    return 1 << LIMITS.index(limit)


def changes_of(tenant: str, run_id: str, seq: int, at: int, facts: Facts) -> list[Change]:
    """Return the changes that an entry about a budget makes to the rows."""
    match facts:
        case Set(limits, is_first):
            if is_first:
                return [AddBudget(opened(tenant, run_id, limits, seq=seq, at=at))]
            return [DrawBudget(limits=limits, set_seq=seq)]
        case Reserved(reservation_id, spender, what, amounts):
            row = Reservation(
                tenant=tenant,
                run_id=run_id,
                reservation_id=reservation_id,
                spender=spender,
                what=what,
                usd_micros=amounts.usd_micros,
                input_tokens=amounts.input_tokens,
                output_tokens=amounts.output_tokens,
                turns=amounts.turns,
                seq=seq,
                reserved_at=at,
            )
            draw = DrawBudget(reserved=amounts, needs=needs_of(facts), at=at)
            return [AddReservation(row), draw]
        case Recorded(freed=freed) if freed is not None:
            drop = DropReservation(facts.reservation_id)
            return [drop, DrawBudget(spent=facts.amounts, freed=freed)]
        case Warned(limit):
            return [DrawBudget(warned=bit_of(limit))]
        case _:
            return []  # a cost of a run without a budget


def opened(tenant: str, run_id: str, limits: Limits, *, seq: int, at: int) -> Account:
    """The account of a run that gets its first budget."""
    account = Account(tenant=tenant, run_id=run_id, began_at=at)
    return _limited(account, limits, seq)


def _limited(account: Account, limits: Limits, seq: int) -> Account:
    return msgspec.structs.replace(
        account,
        usd_limit=limits.usd_micros,
        tokens_limit=limits.tokens,
        turns_limit=limits.turns,
        time_limit=limits.microseconds,
        soft_percent=limits.soft_percent,
        set_seq=seq,
        warned=0,
    )


def needs_of(wanted: Reserved) -> Amounts:
    """What must fit. Of an estimate at least the smallest amount: so that something is left.

    The tokens are in one field: their sum is what is limited.
    """
    least = 1 if wanted.is_estimate else 0
    amounts = wanted.amounts
    return Amounts(
        max(amounts.usd_micros, least), max(amounts.tokens, least), 0, max(amounts.turns, 0)
    )


def drawn(account: Account, change: DrawBudget) -> Account:
    """The account after a change, whether it has room or not."""
    spent = account.spent + change.spent
    reserved = account.reserved + change.reserved
    freed = change.freed
    account = msgspec.structs.replace(
        account,
        spent_usd=spent.usd_micros,
        spent_input_tokens=spent.input_tokens,
        spent_output_tokens=spent.output_tokens,
        spent_turns=spent.turns,
        reserved_usd=reserved.usd_micros - freed.usd_micros,
        reserved_input_tokens=reserved.input_tokens - freed.input_tokens,
        reserved_output_tokens=reserved.output_tokens - freed.output_tokens,
        reserved_turns=reserved.turns - freed.turns,
        warned=account.warned | change.warned,
    )
    return account if change.limits is None else _limited(account, change.limits, change.set_seq)


def lacking(account: Account, wanted: Reserved, *, at: int) -> list[str]:
    """The limits that leave no room for a call; those of `LIMITS`."""
    return _lacking(account, needs_of(wanted), account.spent + account.reserved, at)


def will_have_room(account: Account, wanted: Reserved, *, at: int) -> bool:
    """Whether only what other calls have reserved, and may not need, is in the way."""
    return not _lacking(account, needs_of(wanted), account.spent, at)


def _lacking(account: Account, needs: Amounts, taken: Amounts, at: int) -> list[str]:
    asked = {
        "usd": (needs.usd_micros, taken.usd_micros, account.usd_limit),
        "tokens": (needs.tokens, taken.tokens, account.tokens_limit),
        "turns": (needs.turns, taken.turns, account.turns_limit),
    }
    found = [
        name
        for name, (need, drawn, limit) in asked.items()
        if need > 0 and limit is not None and drawn + need > limit
    ]
    is_over = account.time_limit is not None and at - account.began_at >= account.time_limit
    return [*found, "time"] if is_over else found


def chosen(account: Account, wanted: Sequence[Reserved], *, at: int) -> list[Reserved]:
    """Return those that there is room for, the first ones first."""
    found: list[Reserved] = []
    for each in wanted:
        if not lacking(account, each, at=at):
            account = drawn(account, DrawBudget(reserved=each.amounts))
            found.append(each)
    return found


def nearly_reached(account: Account, *, at: int) -> list[str]:
    """Return the limits that have passed the soft one and have no warning yet."""
    used = {
        "usd": (account.spent_usd, account.usd_limit),
        "tokens": (account.spent.tokens, account.tokens_limit),
        "turns": (account.spent_turns, account.turns_limit),
        "time": (at - account.began_at, account.time_limit),
    }
    return [
        name
        for name, (amount, limit) in used.items()
        if limit is not None
        and amount * 100 >= limit * account.soft_percent
        and not account.warned & bit_of(name)
    ]


def warnings(account: Account, *, at: int) -> list[Draft]:
    """An entry for each limit that has passed the soft one."""
    return [
        Draft(Kind.BUDGET_WARNED, Warned(limit, f"{usage_text(account, limit, at=at)} is used"))
        for limit in nearly_reached(account, at=at)
    ]


def usage_text(account: Account, limit: str, *, at: int) -> str:
    """Return how much of a limit is used, in words."""
    if limit == "usd":
        return f"{usd_text(account.spent_usd)} of {usd_text(account.usd_limit or 0)} USD"
    if limit == "tokens":
        return f"{account.spent.tokens:,} of {account.tokens_limit or 0:,} tokens"
    if limit == "turns":
        return f"{account.spent_turns:,} of {account.turns_limit or 0:,} turns"
    passed, allowed = at - account.began_at, account.time_limit or 0
    return f"{passed / MICRO:,.0f} of {allowed / MICRO:,.0f} seconds"


def priced(amounts: Amounts, limits: Iterable[str]) -> str:
    """Return what a call takes of these limits, in words; empty if that is not known before."""
    parts: list[str] = []
    if "usd" in limits and amounts.usd_micros:
        parts.append(f"{usd_text(amounts.usd_micros)} USD")
    if "tokens" in limits and amounts.tokens:
        parts.append(f"{amounts.tokens:,} tokens")
    return " and ".join(parts)


def usd_text(micros: int) -> str:
    """An amount of money as people write it, exactly."""
    sign, micros = "-" if micros < 0 else "", abs(micros)
    whole, rest = divmod(micros, MICRO)
    digits = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole:,}.{digits}"


MOST: Final = 2**62


def added(limits: Limits, more: Limits) -> Limits:
    """Limits raised by others; one that was not there begins with what is added."""

    def plus(one: int | None, two: int | None) -> int | None:
        return one if two is None else min(MOST, (one or 0) + two)

    return Limits(
        plus(limits.usd_micros, more.usd_micros),
        plus(limits.tokens, more.tokens),
        plus(limits.turns, more.turns),
        plus(limits.microseconds, more.microseconds),
        limits.soft_percent,
    )


def replaced(limits: Limits, by: Limits) -> Limits:
    """Limits of which those that `by` names have its values."""

    def other(one: int | None, two: int | None) -> int | None:
        return one if two is None else two

    return Limits(
        other(limits.usd_micros, by.usd_micros),
        other(limits.tokens, by.tokens),
        other(limits.turns, by.turns),
        other(limits.microseconds, by.microseconds),
        by.soft_percent,
    )


class Books:
    """The budget of one run and its open reservations, in memory."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self.reservations: dict[str, Reservation] = {}

    def apply(self, change: Change) -> None:
        """Make a change; raises ValueError or LookupError where the rows do not fit it."""
        match change:
            case AddBudget(account):
                if self.account is not None:
                    raise ValueError("the run had a budget before")
                self.account = account
            case DrawBudget():
                if self.account is None:
                    raise ValueError("the run has no budget")
                self.account = drawn(self.account, change)
            case AddReservation(reservation):
                if reservation.reservation_id in self.reservations:
                    raise ValueError(f"reservation {reservation.reservation_id} is open already")
                self.reservations[reservation.reservation_id] = reservation
            case DropReservation(reservation_id):
                del self.reservations[reservation_id]


class Ledger:
    """A run's budget and open reservations according to its journal, up to an entry."""

    def __init__(self) -> None:
        self.seq = 0
        self.books = Books()

    def copy(self) -> "Ledger":
        made = Ledger()
        made.seq, made.books.account = self.seq, self.books.account
        made.books.reservations = dict(self.books.reservations)
        return made

    def add(self, tenant: str, run_id: str, seq: int, at: int, facts: Facts) -> None:
        """Add the next entry about the budget.

        Raises ValueError or LookupError where it does not follow from those before.
        """
        for change in changes_of(tenant, run_id, seq, at, facts):
            self.books.apply(change)
        self.seq = seq


def total(amounts: Iterable[Amounts]) -> Amounts:
    return sum(amounts, start=NOTHING)
