"""Rows of budgets and reservations compared with the journal of the run whose budget it is.

Every entry that changes a budget is in that journal. Each process keeps what it has added up of it,
so a comparison reads what is new. Where that journal is damaged, the rows are used instead.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from holdfast.engine.context import Context
from holdfast.engine.reading.journal import read_after
from holdfast.errors import IndexCorrupted, IntegrityError
from holdfast.kernel import indexes
from holdfast.kernel.budgets import Account, Books, Ledger, Reservation
from holdfast.kernel.journal import ORIGIN
from holdfast.kernel.runs import RunRow
from holdfast.telemetry import log

_PAGE: Final = 1000
_KEPT: Final = 10_000
T = TypeVar("T")


async def get_account(context: Context, run_id: str) -> Account | None:
    """Return a run's own budget. Raises IndexCorrupted if its row differs from the journal."""
    found = await context.store.budgets.of_runs([run_id])
    return await _checked_account(context, run_id, found[run_id]) if run_id in found else None


async def accounts_over(context: Context, run: RunRow) -> list[Account]:
    """Return every budget a run draws on: its own first, then those of runs it descends from.

    Raises IndexCorrupted if a row differs from its journal, or is missing.
    """
    found = await context.store.budgets.of_runs(await _lineage(context, run))
    rows = [await _checked_account(context, run_id, row) for run_id, row in found.items()]
    accounts = [row for row in rows if row is not None]
    return sorted(accounts, key=lambda account: (account.run_id != run.run_id, account.run_id))


async def reservations_on(context: Context, run_id: str) -> list[Reservation]:
    """Return what is reserved on a run's budget, in order of its entries.

    Raises IndexCorrupted if a row differs from the journal, or is missing.
    """

    async def read() -> dict[str, Reservation]:
        rows = await context.store.budgets.reservations(run_id)
        return {each.reservation_id: each for each in rows}

    def expected(books: Books) -> dict[str, Reservation]:
        return books.reservations

    found = await _checked(context, run_id, await read(), expected, read, what="reservation")
    return list(found.values())


async def reservations_by(context: Context, run: RunRow) -> list[Reservation]:
    """Return what calls of a run have reserved on any budget, the own one first.

    Raises IndexCorrupted if a row differs from the journal, or is missing.
    """
    owners = {account.run_id for account in await accounts_over(context, run)}
    owners |= {each.run_id for each in await context.store.budgets.reserved_by(run.run_id)}
    return [
        each
        for owner in sorted(owners, key=lambda owner: (owner != run.run_id, owner))
        for each in await reservations_on(context, owner)
        if each.spender == run.run_id
    ]


async def check_settled(context: Context, run_id: str, reservation_id: str) -> None:
    """Raise IndexCorrupted if a reservation that has no row is open by the journal."""
    ledger = await _current(context, run_id)
    if reservation_id in ledger.books.reservations and await _is_whole(context, run_id):
        raise wrong_budget(run_id, "reservation")


async def _checked_account(context: Context, run_id: str, row: Account | None) -> Account | None:
    async def read() -> Account | None:
        return await context.store.budgets.get(run_id)

    def expected(books: Books) -> Account | None:
        return books.account

    return await _checked(context, run_id, row, expected, read, what="budget")


async def _checked(
    context: Context,
    run_id: str,
    row: T,
    expected: Callable[[Books], T],
    read: Callable[[], Awaitable[T]],
    *,
    what: str,
) -> T:
    """Return a row that agrees with the journal: as it was read, or the current one.

    Where others change it all the time, it is one of the states between two looks at the journal.
    """
    ledger = await _current(context, run_id)
    if expected(ledger.books) == row:
        return row
    row = await read()
    is_expected = expected(ledger.books) == row
    async for books in _continued(context, run_id, ledger):
        is_expected = is_expected or expected(books) == row
    if is_expected or not await _is_whole(context, run_id):
        return row
    raise wrong_budget(run_id, what)


async def _current(context: Context, run_id: str) -> Ledger:
    """Return a copy of what the journal says of a run's budget by now."""
    known = context.ledgers.get(run_id)
    ledger = Ledger() if known is None else known.copy()
    async for _ in _continued(context, run_id, ledger):
        pass
    known = context.ledgers.get(run_id)
    if known is None or known.seq < ledger.seq:
        if len(context.ledgers) >= _KEPT:
            context.ledgers.clear()
        context.ledgers[run_id] = ledger.copy()
    return ledger


async def _continued(context: Context, run_id: str, ledger: Ledger) -> AsyncIterator[Books]:
    """Add what is new in the journal to a ledger, and yield each state."""
    while page := await context.store.budgets.entries(run_id, after=ledger.seq, limit=_PAGE):
        for entry in page:
            try:
                ledger.add(entry.tenant, run_id, entry.seq, entry.at, indexes.facts_of(entry))
            except (LookupError, ValueError, IntegrityError):
                ledger.seq = entry.seq  # the journal is damaged, which `_is_whole` finds
            yield ledger.books
        if len(page) < _PAGE:
            break


async def _lineage(context: Context, run: RunRow) -> Sequence[str]:
    """Return the ids of a run and of those it descends from; they never change."""
    known = context.lineages.get(run.run_id)
    if known is not None:
        return known
    found = [run.run_id]
    above = {run.parent_id, run.forked_from} - {""}
    while above := above - set(found):
        run_id = above.pop()
        found.append(run_id)
        ancestor = await context.store.runs.get(run_id)
        if ancestor is not None:
            above |= {ancestor.parent_id, ancestor.forked_from} - {""}
    if len(context.lineages) >= _KEPT:
        context.lineages.clear()
    context.lineages[run.run_id] = tuple(found)
    return found


async def _is_whole(context: Context, run_id: str) -> bool:
    """Return whether a run's journal is what was written, so that it is a row that was changed."""
    context.ledgers.pop(run_id, None)
    try:
        await read_after(context, run_id, ORIGIN)
    except IntegrityError as damage:
        log.error("a budget of run %s cannot be compared with its journal: %s", run_id, damage)
        return False
    return True


def wrong_budget(run_id: str, what: str) -> IndexCorrupted:
    """Return the error for a row of a run's budget that differs from the journal."""
    return IndexCorrupted(
        f"the index row of a {what} of run {run_id} differs from its journal: it was changed "
        f"outside Holdfast. Nothing was done with it; `holdfast store reindex {run_id}` "
        "rebuilds the rows"
    )
