"""Rows of budgets and reservations are changed behind Holdfast's back: nobody spends more by it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast import Budget, Cost
from holdfast.engine.budgets import purse
from holdfast.engine.budgets.purse import Purchase, Ticket
from holdfast.errors import IntegrityError, RunBlocked
from holdfast.kernel.budgets import Amounts
from holdfast.testing.store_suite import async_test
from tests.agents.test_budgets import Paid
from tests.backends import Backend, Raw
from tests.recovery.test_index_attacks import columns


def forgeries(raw: Raw, backend: Backend, wanted: str) -> list[str]:
    """Return a statement for every column of a table, and one that removes its rows."""
    found: list[str] = []
    for table, column, is_number in columns(raw, backend):
        if table == wanted and is_number:
            found += [f"{column} = coalesce({column}, 0) + 7", f"{column} = 0"]
        elif table == wanted:
            found.append(f"{column} = 'forged'")
    return [f"UPDATE {wanted} SET {change}" for change in found] + [f"DELETE FROM {wanted}"]


class Forged:
    """Tries an operation under each forged row, and puts the rows back."""

    def __init__(self, backend: Backend, raw: Raw, table: str) -> None:
        self._raw, self._table = raw, table
        raw.execute(f"CREATE TEMP TABLE saved_{table} AS SELECT * FROM {table}")
        self._changes = forgeries(raw, backend, table)
        self._saved = raw.rows(f"SELECT * FROM saved_{table}")

    async def each(self, where: str, judge: Callable[[str], Awaitable[None]]) -> int:
        tried = 0
        for change in self._changes:
            self._raw.execute(f"{change} WHERE {where}")
            if self._raw.rows(f"SELECT * FROM {self._table}") != self._saved:
                await judge(change)
                tried += 1
            self._raw.execute(f"DELETE FROM {self._table}")
            self._raw.execute(f"INSERT INTO {self._table} SELECT * FROM saved_{self._table}")
        return tried


async def outcome(ask: Awaitable[Any]) -> Any:
    try:
        return await ask
    except IntegrityError:
        return "error"


@async_test
async def test_no_column_of_a_budget_is_believed(backend: Backend) -> None:
    paid = Paid(0.4)
    talker = paid.agent(5, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        with pytest.raises(RunBlocked):
            await hf.run(talker, "go", run_id="r", budget=Budget(usd=1.0))
        end = await hf.journal.head("r")

        async def judge(change: str) -> None:
            assert await outcome(hf.budgets.get("r")) == "error", change
            assert await outcome(hf.budgets.over("r")) == "error", change
            assert await outcome(hf.budgets.add("r", Budget(usd=9.0))) == "error", change
            assert await hf.journal.head("r") == end, change

        with backend.raw() as raw:
            assert await Forged(backend, raw, "budgets").each("true", judge) > 18
        assert await hf.journal.verify("r") == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE budgets SET spent_usd = 0",
        "UPDATE budgets SET usd_limit = 90000000",
        "UPDATE budgets SET usd_limit = NULL",
        "DELETE FROM budgets",
        "UPDATE budgets SET run_id = 'elsewhere'",
    ],
)
@pytest.mark.parametrize("whose", ["r", "boss"])
@async_test
async def test_forged_budget_buys_no_call(backend: Backend, change: str, whose: str) -> None:
    """Neither the run's own, nor that of a run above it."""
    paid = Paid(0.4)
    talker = paid.agent(5, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        parent = ""
        if whose == "boss":
            await hf.runs.create("boss")
            await hf.budgets.set("boss", Budget(usd=1.0))
            parent = "boss"
        own = Budget(usd=1.0) if whose == "r" else None
        with pytest.raises(RunBlocked):
            await hf.run(talker, "go", run_id="r", budget=own, parent=parent)
        assert paid.asked == [0, 1]
        with backend.raw() as raw:
            assert raw.execute(change) == 1
        await hf.runs.unblock("r")
        with pytest.raises((RunBlocked, IntegrityError)):
            await hf.run(talker, "go", run_id="r")
        assert paid.asked == [0, 1], "a call was paid for"


@async_test
async def test_budget_of_a_grandparent_is_found_whatever_the_row_between_says(
    backend: Backend,
) -> None:
    paid = Paid(0.4)
    talker = paid.agent(5, reserve=Cost(usd=0.4))
    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        await hf.runs.create("top")
        await hf.budgets.set("top", Budget(usd=0.1))
        await hf.runs.create("middle", parent_id="top")
        with backend.raw() as raw:
            assert raw.execute("UPDATE runs SET parent_id = '' WHERE run_id = 'middle'") == 1
        with pytest.raises((RunBlocked, IntegrityError)):
            await hf.run(talker, "go", run_id="r", parent="middle")
        assert paid.asked == []


@async_test
async def test_no_column_of_a_reservation_is_believed(backend: Backend) -> None:
    """What a lost call has reserved counts as spent: no less, and no more."""
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("boss")
        await hf.budgets.set("boss", Budget(usd=1.0))
        await hf.runs.create("r", parent_id="boss")
        held = await hf.runs.open("r")
        amounts = Amounts(usd_micros=300_000, input_tokens=5, output_tokens=6, turns=1)
        (ticket,) = await held.purse.reserve([Purchase("a call", amounts)])
        assert isinstance(ticket, Ticket)
        truth = await hf.budgets.reservations("boss")
        assert len(truth) == 1
        end, account = await hf.journal.head("boss"), await hf.budgets.get("boss")

        async def judge(change: str) -> None:
            assert await outcome(hf.budgets.reservations("boss")) == "error", change
            assert await outcome(purse.settle_ended(hf._context, "boss")) == "error", change
            lost = held.purse.settle_lost({}, agent="", version=0)
            assert await outcome(lost) == "error", change
            if any(name in change for name in ("usd", "tokens", "turns", "DELETE", "_id")):
                settled = held.purse.settle(ticket, amounts, agent="", version=0)
                assert await outcome(settled) == "error", change
            assert await hf.journal.head("boss") == end, change
            assert await hf.budgets.get("boss") == account, change

        with backend.raw() as raw:
            assert await Forged(backend, raw, "reservations").each("true", judge) > 12
        await held.purse.settle(ticket, amounts, agent="", version=0)
        found = await hf.budgets.get("boss")
        assert found is not None
        assert (found.spent, found.reserved) == (amounts, Amounts())


@async_test
async def test_two_processes_see_what_the_other_reserves(backend: Backend) -> None:
    """Each adds up the journal by itself, from where it was."""
    async with holdfast.open(backend.url) as one, holdfast.open(backend.url) as two:
        await one.runs.create("boss")
        await one.budgets.set("boss", Budget(usd=1.0))
        for number in range(3):
            hf = (one, two)[number % 2]
            await hf.runs.create(f"r{number}", parent_id="boss")
            held = await hf.runs.open(f"r{number}")
            amounts = Amounts(usd_micros=100_000)
            (ticket,) = await held.purse.reserve([Purchase("a call", amounts)])
            assert isinstance(ticket, Ticket)
            found = await one.budgets.get("boss")
            assert found == await two.budgets.get("boss")
            assert found is not None
            assert found.reserved_usd == 100_000 * (number + 1)
            assert await one.budgets.reservations("boss") == await two.budgets.reservations("boss")
