"""The rules of budgets, against a model that is as simple as can be."""

import random
from dataclasses import dataclass, field

import pytest

from holdfast.kernel import budgets
from holdfast.kernel.budgets import Amounts, Books, Limits, Recorded, Reserved, Set
from holdfast.stores.postgres import budget_draws


@dataclass
class Model:
    """A purse as a child would keep it: piles of coins, and what lies aside for each errand."""

    limit: int
    spent: int = 0
    aside: dict[str, int] = field(default_factory=dict)

    def has_room(self, coins: int, is_estimate: bool) -> bool:
        taken = self.spent + sum(self.aside.values())
        if coins == 0:
            return not is_estimate or taken < self.limit
        return taken + coins <= self.limit


@pytest.mark.parametrize("seed", range(20))
def test_account_is_what_the_simple_model_says(seed: int) -> None:
    chance = random.Random(seed)
    books, model = Books(), Model(limit=100)
    apply(books, 1, Set(Limits(usd_micros=100), True))
    for seq in range(2, 200):
        if model.aside and chance.random() < 0.5:
            name = chance.choice(sorted(model.aside))
            freed, cost = model.aside.pop(name), chance.randint(0, 12)
            model.spent += cost
            apply(books, seq, recorded(name, cost, freed))
        elif chance.random() < 0.05:
            model.limit += 20
            apply(books, seq, Set(Limits(usd_micros=model.limit), False))
        else:
            coins, is_estimate = chance.randint(0, 9), chance.random() < 0.5
            wanted = Reserved(f"x{seq}", "r", "model", Amounts(coins), is_estimate)
            assert books.account is not None
            fits = not budgets.lacking(books.account, wanted, at=0)
            assert fits is model.has_room(coins, is_estimate)
            if fits:
                model.aside[f"x{seq}"] = coins
                apply(books, seq, wanted)
        assert books.account is not None
        assert books.account.spent_usd == model.spent
        assert books.account.reserved_usd == sum(model.aside.values())
        assert books.reservations.keys() == model.aside.keys()


def recorded(name: str, cost: int, freed: int) -> Recorded:
    return Recorded("r", "model", "a", 1, Amounts(cost), name, Amounts(freed))


def apply(books: Books, seq: int, facts: budgets.Facts) -> None:
    for change in budgets.changes_of("t", "r", seq, 0, facts):
        books.apply(change)


@pytest.mark.parametrize("seed", range(20))
def test_folded_commit_asks_for_what_its_changes_ask_for_one_by_one(seed: int) -> None:
    """PostgreSQL changes a row once in a commit, SQLite once for each change: it is the same."""
    chance = random.Random(seed)
    account = budgets.opened("t", "r", Limits(usd_micros=50), seq=1, at=0)
    settled = [recorded(f"s{n}", chance.randint(0, 9), 3) for n in range(chance.randint(0, 3))]
    start = budgets.drawn(account, budgets.DrawBudget(reserved=Amounts(3 * len(settled))))
    start = budgets.drawn(start, budgets.DrawBudget(spent=Amounts(chance.randint(20, 40))))
    wanted = [
        Reserved(f"w{n}", "r", "m", Amounts(chance.randint(0, 6)), chance.random() < 0.5)
        for n in range(chance.randint(1, 4))
    ]
    record, stepwise, fits = budget_draws.untouched(), start, True
    for facts in [*settled, *wanted]:
        if isinstance(facts, Reserved):
            fits = fits and not budgets.lacking(stepwise, facts, at=0)
        for change in budgets.changes_of("t", "r", 2, 0, facts):
            if isinstance(change, budgets.DrawBudget):
                stepwise = budgets.drawn(stepwise, change)
                budget_draws.fold(record, change)
    assert start.spent_usd + record["spent_usd"] == stepwise.spent_usd
    assert start.reserved_usd + record["reserved_usd"] == stepwise.reserved_usd
    needs = record["needs_usd"]
    folded = needs is None or start.spent_usd + start.reserved_usd + needs <= 50
    assert folded is fits


def test_turns_and_tokens_that_a_call_does_not_take_are_not_in_its_way() -> None:
    account = budgets.opened("t", "r", Limits(tokens=10, turns=1, usd_micros=9), seq=1, at=0)
    spent = budgets.DrawBudget(spent=Amounts(0, 5, 5, 1))
    account = budgets.drawn(account, spent)
    tool = Reserved("a", "r", "tool:t", Amounts(9))
    assert budgets.lacking(account, tool, at=0) == []
    model = Reserved("b", "r", "model:m", Amounts(turns=1), True)
    assert budgets.lacking(account, model, at=0) == ["tokens", "turns"]


def test_folded_commit_asks_for_no_room_in_what_its_calls_do_not_take() -> None:
    """Where a limit is exceeded, there would be no room for nothing either."""
    record = budget_draws.untouched()
    tool = Reserved("a", "r", "tool:t", Amounts(9))
    for change in budgets.changes_of("t", "r", 2, 0, tool):
        if isinstance(change, budgets.DrawBudget):
            budget_draws.fold(record, change)
    asked = {name: record[name] for name in ("needs_usd", "needs_tokens", "needs_turns")}
    assert asked == {"needs_usd": 9, "needs_tokens": None, "needs_turns": None}


def test_time_is_over_at_its_limit() -> None:
    account = budgets.opened("t", "r", Limits(microseconds=100), seq=1, at=50)
    call = Reserved("a", "r", "tool:t", Amounts())
    assert budgets.lacking(account, call, at=149) == []
    assert budgets.lacking(account, call, at=150) == ["time"]


def test_those_that_fit_are_chosen_in_order() -> None:
    account = budgets.opened("t", "r", Limits(usd_micros=10), seq=1, at=0)
    wanted = [Reserved(str(n), "r", "t", Amounts(cost)) for n, cost in enumerate([4, 7, 5, 1])]
    chosen = budgets.chosen(account, wanted, at=0)
    assert [each.reservation_id for each in chosen] == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "0.00"), (1, "0.000001"), (1_500_000, "1.50"), (-20_000, "-0.02")]
)
def test_money_is_told_exactly(micros: int, text: str) -> None:
    assert budgets.usd_text(micros) == text
