"""Budgets of a held run: reserve before a call is paid for, settle after it.

A run draws on its own budget, in its own commits, and on those of the runs it descends from, by
late-bound writes to their journals. What one of them has no room for is given back to the others.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast import faults, ids, names
from holdfast.engine.context import Context
from holdfast.engine.reading.proved_budgets import (
    accounts_over,
    check_settled,
    get_account,
    reservations_by,
    reservations_on,
    wrong_budget,
)
from holdfast.engine.writing.outages import retry_while_unavailable, waits_for_store
from holdfast.engine.writing.run_writer import ConditionFailed, RunWriter
from holdfast.engine.writing.stage import Stage
from holdfast.errors import UnavailableError
from holdfast.kernel import budgets, runs
from holdfast.kernel.budgets import Account, Amounts, Limits, Recorded, Reservation, Reserved
from holdfast.kernel.journal import Draft, Entry, Kind
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.telemetry import log


class Purchase(msgspec.Struct, frozen=True):
    """A call that is to be paid for; `is_estimate`: what it will cost is not known before."""

    what: str
    amounts: Amounts
    is_estimate: bool = False


class Ticket(msgspec.Struct, frozen=True):
    """What was reserved for a call, and on whose budgets."""

    reservation_id: str
    what: str
    amounts: Amounts
    is_own: bool = False
    others: tuple[str, ...] = ()

    @property
    def is_drawn(self) -> bool:
        return self.is_own or bool(self.others)


class Refusal(msgspec.Struct, frozen=True):
    """A budget that has no room for a call. `is_passing`: others have reserved what is missing."""

    account: Account
    lacks: tuple[str, ...]
    is_passing: bool
    at: int


class Purse:
    """The budgets that one run draws on, for its holder."""

    def __init__(
        self, context: Context, writer: RunWriter, stage: Stage, *, is_new: bool = False
    ) -> None:
        """A run that `is_new` has no budget, as far as its journal is known here."""
        self._context = context
        self._writer = writer
        self._stage = stage
        self._own: Account | None = None
        self._free_at: int | None = 0 if is_new else None
        """The writer's `budget_seq` when the store had no budget; None if it had one, or was not
        asked."""
        self._may_have_lost = True
        """Whether calls of the run may have reserved something that is not settled."""
        self._warned: set[tuple[str, int]] = set()

    def know_journal(self, entries: Sequence[Entry]) -> None:
        """Use what a run's entries say, if they are all there: without a budget none is read."""
        if not entries or entries[0].seq != 1:
            return
        kinds = [entry.kind for entry in entries]
        if Kind.BUDGET_SET not in kinds:
            self._know_free(self._writer.budget_seq)
        self._may_have_lost = kinds.count(Kind.RUN_LEASED) > 1

    async def set_first(self, limits: Limits, *, note: str) -> bool:
        """Give the run a budget unless it has one; False if it has."""
        self._know_free(None)
        if await get_account(self._context, self._writer.run.run_id) is not None:
            return False
        try:
            await self._writer.append(Draft(Kind.BUDGET_SET, budgets.Set(limits, True, note)))
        except ConditionFailed:
            return False  # somebody has set one meanwhile
        return True

    async def reserve(self, wanted: Sequence[Purchase]) -> list[Ticket | Refusal]:
        """Reserve what each call may cost, before any of them begins. Returns an answer for each.

        Nothing is reserved for a call that is refused by one of the budgets. A first budget that
        somebody gives the run meanwhile counts from the next commit of the run on.
        """
        accounts = [] if self._writer.is_unbudgeted else await self._accounts()
        if not accounts:
            return [Ticket(str(ids.uuid7()), each.what, each.amounts) for each in wanted]
        run_id = self._writer.run.run_id
        asked = [
            Reserved(str(ids.uuid7()), run_id, each.what, each.amounts, each.is_estimate)
            for each in wanted
        ]
        reserving = _Reserving(asked)
        for account in accounts:
            if account.run_id == run_id:
                await self._reserve_own(account, reserving)
            else:
                await self._reserve_at(account.run_id, reserving)
        for owner in reserving.waits_for:
            await settle_ended(self._context, owner)
        for refused in reserving.given_back:
            await self.settle(refused, agent="", version=0, note="another budget has no room")
        if reserving.open:
            faults.point("budget.after_reserve")
        return reserving.answers()

    def _know_free(self, at: int | None) -> None:
        """Note that the store had no budget when the writer was at a `budget_seq`; None: it had."""
        self._free_at, run = at, self._writer.run
        descends = bool(run.parent_id or run.forked_from)
        self._writer.is_unbudgeted = at == self._writer.budget_seq and not descends

    async def _accounts(self) -> list[Account]:
        """Return the budgets to draw on; none while the store is away, if there was none before.

        A budget that is set meanwhile is appended to the journal, which supersedes the spool.
        """
        spool = self._context.spool
        if self._free_at is not None and spool is not None and spool.is_away:
            return []
        return await retry_while_unavailable(self._context, self._look_up_accounts)

    async def _look_up_accounts(self) -> list[Account]:
        asked_at = self._writer.budget_seq
        try:
            found = await accounts_over(self._context, self._writer.run)
        except UnavailableError:
            if self._free_at is not None and waits_for_store(self._context):
                return []
            raise
        self._know_free(None if found else asked_at)
        return found

    async def settle(
        self,
        ticket: Ticket,
        amounts: Amounts = budgets.NOTHING,
        *,
        agent: str,
        version: int,
        is_lost: bool = False,
        note: str = "",
    ) -> None:
        """Settle the cost of a call on every budget it was reserved on."""
        cost = Recorded(
            self._writer.run.run_id,
            ticket.what,
            agent,
            version,
            amounts,
            ticket.reservation_id,
            is_lost=is_lost,
            note=note[: names.MAX_TEXT],
        )
        self.charge(ticket, cost)
        await self.settle_others(ticket, cost)

    def charge(self, ticket: Ticket, cost: Recorded) -> None:
        """Stage the cost of a call for the run's own journal."""
        faults.point("budget.before_settle")
        if not ticket.is_own:
            self._stage.add(Draft(Kind.COST_RECORDED, cost))
            return
        freed = ticket.amounts
        self._stage.add(Draft(Kind.COST_RECORDED, msgspec.structs.replace(cost, freed=freed)))
        if self._own is not None:
            change = budgets.DrawBudget(spent=cost.amounts, freed=freed)
            self._own = budgets.drawn(self._own, change)
            self._warn(self._own)

    async def settle_others(self, ticket: Ticket, cost: Recorded) -> None:
        """Settle the cost of a call on the budgets of the runs that this one descends from."""
        for owner in ticket.others:
            await settle_at(self._context, owner, cost, reserved=ticket.amounts)

    async def settle_lost(self, paid: Mapping[str, Recorded], *, agent: str, version: int) -> bool:
        """Settle what earlier leases of this run have left open: nobody saw those calls end.

        `paid` are costs recorded in this turn: those calls are still to be settled on the other
        budgets only. Returns whether a turn was counted.
        """
        run_id = self._writer.run.run_id
        lost: list[tuple[Reservation, Recorded]] = []
        recorded = dict(paid)
        run = self._writer.run
        has_left = self._may_have_lost and not self._writer.is_unbudgeted
        self._may_have_lost = True
        for left in await reservations_by(self._context, run) if has_left else ():
            cost = recorded.get(left.reservation_id)
            if cost is None or left.run_id == run_id:
                cost = self._lose(left, agent=agent, version=version)
                recorded[left.reservation_id] = cost
            if left.run_id != run_id:
                lost.append((left, cost))
        if len(recorded) > len(paid):
            await self._stage.flush()
        for left, cost in lost:
            await settle_at(self._context, left.run_id, cost, reserved=left.amounts)
        return any(cost.amounts.turns for cost in recorded.values())

    def _lose(self, left: Reservation, *, agent: str, version: int) -> Recorded:
        log.warning(
            "run %s: nobody saw %s end, so what was reserved for it counts as spent: %s USD and "
            "%d tokens",
            left.spender,
            left.what,
            budgets.usd_text(left.usd_micros),
            left.amounts.tokens,
        )
        note = "nobody saw it end: what was reserved counts as spent"
        cost = Recorded(
            left.spender,
            left.what,
            agent,
            version,
            left.amounts,
            left.reservation_id,
            is_lost=True,
            note=note,
        )
        is_own = left.run_id == self._writer.run.run_id
        ticket = Ticket(left.reservation_id, left.what, left.amounts, is_own)
        self.charge(ticket, cost)
        return cost

    async def _reserve_own(self, account: Account, reserving: "_Reserving") -> None:
        while True:
            now = self._context.now()
            fitting = budgets.chosen(account, reserving.open, at=now)
            if fitting:
                try:
                    await self._writer.append(
                        *(Draft(Kind.BUDGET_RESERVED, each) for each in fitting)
                    )
                except ConditionFailed:
                    # Staged entries come first, and the row does not include them yet.
                    await self._stage.flush()
                    found = await get_account(self._context, account.run_id)
                    account = found or account
                    continue
            reserving.keep(fitting, account, at=now, is_own=True)
            self._own = account
            self._warn(account)
            return

    async def _reserve_at(self, owner: str, reserving: "_Reserving") -> None:
        def decide(snapshot: Snapshot) -> LateDecision:
            account = snapshot.indexes.books.account
            if account is None:
                return LateDecision((None, reserving.open, snapshot.now))
            fitting = budgets.chosen(account, reserving.open, at=snapshot.now)
            drafts = tuple(Draft(Kind.BUDGET_RESERVED, each) for each in fitting)
            return LateDecision((account, fitting, snapshot.now), drafts)

        if reserving.open:
            account, fitting, now = await self._context.decide_late(owner, decide, has_budget=True)
            if account is not None:
                reserving.keep(fitting, account, at=now, is_own=False)

    def _warn(self, account: Account) -> None:
        for draft in budgets.warnings(account, at=self._context.now()):
            facts = draft.facts
            assert isinstance(facts, budgets.Warned), "a warning warns"
            if (facts.limit, account.set_seq) not in self._warned:
                self._warned.add((facts.limit, account.set_seq))
                self._stage.add(draft)
                log.warning("the budget of run %s is nearly spent: %s", account.run_id, facts.note)


class _Reserving:
    """The calls that no budget has refused yet, and the refusals of the others."""

    def __init__(self, asked: Sequence[Reserved]) -> None:
        self._asked = asked
        self._refused: dict[str, Refusal] = {}
        self._is_own = False
        self._others: tuple[str, ...] = ()
        self.open = list(asked)
        self.given_back: list[Ticket] = []

    def keep(self, fitting: Sequence[Reserved], account: Account, *, at: int, is_own: bool) -> None:
        """Keep the calls that one more budget has room for, and refuse the others."""
        kept = {each.reservation_id for each in fitting}
        together = budgets.total(each.amounts for each in fitting)
        account = budgets.drawn(account, budgets.DrawBudget(spent=together))
        for each in self.open:
            if each.reservation_id in kept:
                continue
            lacks = tuple(budgets.lacking(account, each, at=at))
            is_passing = budgets.will_have_room(account, each, at=at)
            self._refused[each.reservation_id] = Refusal(account, lacks, is_passing, at)
            if self._is_own or self._others:
                self.given_back.append(self._ticket(each))
        self.open = list(fitting)
        self._is_own = self._is_own or is_own
        self._others = self._others if is_own else (*self._others, account.run_id)

    @property
    def waits_for(self) -> set[str]:
        """The owners of budgets that have room once others settle their reservations there."""
        return {each.account.run_id for each in self._refused.values() if each.is_passing}

    def answers(self) -> list[Ticket | Refusal]:
        return [
            self._refused.get(each.reservation_id) or self._ticket(each) for each in self._asked
        ]

    def _ticket(self, each: Reserved) -> Ticket:
        return Ticket(each.reservation_id, each.what, each.amounts, self._is_own, self._others)


async def settle_ended(context: Context, owner: str) -> None:
    """Settle reservations on a budget that ended runs left open: they will not settle them."""
    for left in await reservations_on(context, owner):
        spender = await context.store.runs.get(left.spender)
        if spender is None or spender.status in runs.ENDED:
            note = "its run has ended: what was reserved counts as spent"
            agent = "" if spender is None else spender.agent
            cost = Recorded(
                left.spender,
                left.what,
                agent,
                0,
                left.amounts,
                left.reservation_id,
                is_lost=True,
                note=note,
            )
            await settle_at(context, owner, cost, reserved=left.amounts)


async def settle_at(context: Context, owner: str, cost: Recorded, *, reserved: Amounts) -> None:
    """Settle a call on the budget of a run that is not held here; once, however often it is called.

    `reserved` is what was reserved for it there. If another process settled it as lost, that
    stays. Raises IndexCorrupted if the row of the reservation was changed or removed.
    """

    def decide(snapshot: Snapshot) -> LateDecision:
        books = snapshot.indexes.books
        left = books.reservations.get(cost.reservation_id)
        if left is None or books.account is None:
            return LateDecision(None)
        if left.amounts != reserved:
            raise wrong_budget(owner, "reservation")
        freed = reserved
        settled = Draft(Kind.COST_RECORDED, msgspec.structs.replace(cost, freed=freed))
        change = budgets.DrawBudget(spent=cost.amounts, freed=freed)
        warnings = budgets.warnings(budgets.drawn(books.account, change), at=snapshot.now)
        return LateDecision(warnings, (settled, *warnings))

    warnings = await context.decide_late(
        owner, decide, has_budget=True, reservation_ids=(cost.reservation_id,)
    )
    if warnings is None:
        await check_settled(context, owner, cost.reservation_id)
        return
    for draft in warnings:
        log.warning("the budget of run %s is nearly spent: %s", owner, draft.facts.note)
