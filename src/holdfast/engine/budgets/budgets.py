"""Budgets: what runs may cost and have cost, and raising what is spent."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast import names
from holdfast.engine.budgets.costs import Budget, Costs
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import read_after
from holdfast.engine.reading.proved_budgets import accounts_over, get_account, reservations_on
from holdfast.errors import RunNotFound
from holdfast.kernel import budgets, indexes, runs, segments
from holdfast.kernel.budgets import Account, Amounts, Limits, Recorded, Reservation
from holdfast.kernel.journal import ORIGIN, Draft, Entry, Kind
from holdfast.kernel.runs import BlockedReason, RunRow, RunStatus
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.stores.reads import RunFilter

_PAGE = 100
K = TypeVar("K")


class Budgets:
    """The budgets of all runs, and what they have cost."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def get(self, run_id: str) -> Account | None:
        """Return a run's own budget and what was drawn on it; None without a budget."""
        await self._run(run_id)
        return await get_account(self._context, run_id)

    async def over(self, run_id: str) -> list[Account]:
        """Return every budget a run draws on: its own, then those of runs it descends from."""
        return await accounts_over(self._context, await self._run(run_id))

    async def reservations(self, run_id: str) -> list[Reservation]:
        """Return what pending calls have reserved on a run's budget."""
        await self._run(run_id)
        return await reservations_on(self._context, run_id)

    async def set(self, run_id: str, budget: Budget, *, by: str = "", note: str = "") -> Account:
        """Give a run these limits in place of those it has; what is spent stays spent.

        Runs that are blocked because of this budget resume, and block again if it is too small.
        """
        limits = budget.limits
        return await self._change(run_id, lambda _: limits, by=by, note=note)

    async def add(self, run_id: str, budget: Budget, *, by: str = "", note: str = "") -> Account:
        """Raise the limits that `budget` names by its amounts; the soft part does not change."""
        more = budget.limits

        def raised(known: Limits | None) -> Limits:
            return more if known is None else budgets.added(known, more)

        return await self._change(run_id, raised, by=by, note=note)

    async def replace(
        self, run_id: str, budget: Budget, *, by: str = "", note: str = ""
    ) -> Account:
        """Set the limits that `budget` names, and keep the others."""
        wanted = budget.limits

        def replaced(known: Limits | None) -> Limits:
            return wanted if known is None else budgets.replaced(known, wanted)

        return await self._change(run_id, replaced, by=by, note=note)

    async def costs(self, run_id: str) -> Costs:
        """Return a run's recorded costs: its own, and what descendants drew on its budget."""
        await self._run(run_id)
        entries = await read_after(self._context, run_id, ORIGIN)
        return costs_of(run_id, [(entry, indexes.facts_of(entry)) for entry in entries])

    async def _run(self, run_id: str) -> RunRow:
        names.check(run_id, what="run id")
        run = await self._context.store.runs.get(run_id)
        if run is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        return run

    async def _change(
        self, run_id: str, change: Callable[[Limits | None], Limits], *, by: str, note: str
    ) -> Account:
        names.check(run_id, what="run id")
        actor = by and names.check(by, what="by")
        note = names.check_text(note, what="note")

        def decide(snapshot: Snapshot) -> LateDecision:
            run, account = snapshot.run, snapshot.indexes.books.account
            if run is None:
                raise RunNotFound(f"there is no run {run_id!r}")
            limits = change(None if account is None else account.limits)
            drafts = [Draft(Kind.BUDGET_SET, budgets.Set(limits, account is None, note))]
            if is_blocked_by_budget(run):
                drafts.append(_unblocked("its budget was raised"))
            return LateDecision(None, tuple(drafts))

        await get_account(self._context, run_id)
        await self._context.decide_late(run_id, decide, by=actor, has_budget=True)
        await _unblock_descendants(self._context, run_id, by=actor)
        found = await get_account(self._context, run_id)
        assert found is not None, "it was set just now"
        return found


def costs_of(run_id: str, entries: Sequence[tuple[Entry, Any]]) -> Costs:
    """Add up the costs in a run's journal, by turn, call, run, agent and phase."""
    found = [facts for _, facts in entries if isinstance(facts, Recorded)]
    by_turn: dict[int, Amounts] = {}
    by_call: dict[str, Amounts] = {}
    by_run: dict[str, Amounts] = {}
    for cost in found:
        if not cost.amounts:
            continue
        _add(by_call, cost.what, cost.amounts)
        _add(by_run, cost.spender, cost.amounts)
        if cost.spender == run_id:
            _add(by_turn, cost.version, cost.amounts)
    attribution = segments.attribute(entries)
    return Costs(
        total=budgets.total(cost.amounts for cost in found),
        lost=budgets.total(cost.amounts for cost in found if cost.is_lost),
        effort=segments.total(segment.effort for segment in attribution.segments),
        by_turn=dict(sorted(by_turn.items())),
        by_call=by_call,
        by_run=by_run,
        by_agent=attribution.by_agent,
        by_phase=attribution.by_phase,
        segments=attribution.segments,
    )


def _add(amounts: dict[K, Amounts], key: K, more: Amounts) -> None:
    amounts[key] = amounts.get(key, budgets.NOTHING) + more


def first_budget(budget: Budget) -> Draft:
    """Return the entry that gives a new run its budget."""
    return Draft(Kind.BUDGET_SET, budgets.Set(budget.limits, True, ""))


def is_blocked_by_budget(run: RunRow) -> bool:
    """Return whether a run is blocked because a budget is spent."""
    return run.status is RunStatus.BLOCKED and run.blocked_reason == BlockedReason.BUDGET


async def unblock(context: Context, run_id: str, *, by: str = "") -> None:
    """Unblock a run that is blocked by a spent budget, after it was raised."""

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or not is_blocked_by_budget(run):
            return LateDecision(None)
        return LateDecision(None, (_unblocked("a budget it draws on was raised"),))

    await context.decide_late(run_id, decide, by=by)


def _unblocked(note: str) -> Draft:
    return Draft(Kind.RUN_UNBLOCKED, runs.Released(note=note))


async def _unblock_descendants(context: Context, owner: str, *, by: str) -> None:
    before: tuple[int, str] | None = None
    while True:
        wanted = RunFilter(status=RunStatus.BLOCKED, limit=_PAGE, before=before)
        page = await context.store.runs.page(wanted)
        for run in page:
            if is_blocked_by_budget(run):
                over = await accounts_over(context, run)
                if any(account.run_id == owner for account in over):
                    await unblock(context, run.run_id, by=by)
        if len(page) < _PAGE:
            return
        before = (page[-1].created_at, page[-1].run_id)
