"""Paying for calls: what a model or a tool may cost is reserved before, what it did cost recorded.

A call that a budget has no room for is not made: the run is blocked until the budget is
raised. A reply on record costs nothing again.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast import clock, ids
from holdfast.agents.definitions.messages import usage_of
from holdfast.agents.exits.exit_reasons import BlockExit, DelayExit, ExitReason
from holdfast.agents.exits.interruptions import finish_first
from holdfast.agents.turn.calls import TurnCall, describe
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.views import Value
from holdfast.engine.budgets.costs import Cost, micros
from holdfast.engine.budgets.purse import Purchase, Refusal, Ticket
from holdfast.errors import HoldfastError, MisuseError
from holdfast.kernel import budgets
from holdfast.kernel.budgets import NOTHING, Account, Amounts, Recorded
from holdfast.kernel.runs import BlockedReason
from holdfast.telemetry import log

_COSTLIEST: Final = "holdfast.costliest"
_MOST: Final = 10**15
_PAUSE: Final = clock.MICROSECONDS
_ADDED: Final = {"turns": "10turns", "time": "1h"}


class CallBudget:
    """What one pass over a run pays for."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._held = turn.held
        self._costliest = Value(turn.held, _COSTLIEST, list[int], list[int]())
        self._most = NOTHING
        self._is_counting = False
        """Whether a call that counts the turn is under way."""
        for cost in turn.memo.paid.values():
            if cost.what.startswith("model:"):
                self._most = self._most.most(msgspec.structs.replace(cost.amounts, turns=0))

    async def begin_model(self, what: str) -> Ticket:
        """Reserve what a call of a model may cost; leaves the run if there is no room for it.

        It is counted under the model's name if the agent declares one.
        """
        rules, what = self._turn.rules, self._name_of(what)
        amounts = self._expected() if rules.reserve is None else rules.reserve.amounts
        is_first = self._is_uncounted
        wanted = Purchase(what, amounts + Amounts(turns=int(is_first)), is_estimate=True)
        self._is_counting |= is_first
        ticket: Ticket | None = None
        try:
            (answer,) = await finish_first(self._held.purse.reserve([wanted]), undo=self._give_back)
            if isinstance(answer, Ticket):
                ticket = answer
                return ticket
        except HoldfastError as error:
            self._turn.gate.leave(error)
        finally:
            if is_first and ticket is None:
                self._is_counting = False
        self._turn.gate.suspend(exit_without_room(answer, wanted))

    def _name_of(self, step: str) -> str:
        model = self._turn.rules.versions.model
        return f"model:{model}" if model else step

    @property
    def _is_uncounted(self) -> bool:
        """Whether the next call of a model is the one that counts the turn."""
        return not (self._turn.memo.has_turn or self._is_counting)

    def _end(self, ticket: Ticket) -> None:
        """Let another call count the turn if this one was to do so, and has ended."""
        if ticket.amounts.turns:
            self._is_counting = False

    async def _give_back(self, answers: Sequence[Ticket | Refusal]) -> None:
        """Free what was reserved for a call that was cancelled before it was made."""
        for answer in answers:
            if isinstance(answer, Ticket):
                cost = self._cost(answer, NOTHING, note="it was not done")
                self._held.purse.charge(answer, cost)
                await self._held.purse.settle_others(answer, cost)

    def charge_model(self, ticket: Ticket, reply: object) -> Recorded | None:
        """Stage what a reply cost: what it reports, else what was reserved for it."""
        self._end(ticket)
        reported = _reported_cost(reply)
        if reported is None and not ticket.is_drawn:
            return None
        turns = int(self._is_uncounted)
        used = ticket.amounts if reported is None else reported
        cost = self._cost(ticket, msgspec.structs.replace(used, turns=turns))
        self._held.purse.charge(ticket, cost)
        self._turn.memo.has_turn |= turns > 0
        if reported is not None and ticket.is_drawn:
            self._most = self._expected().most(reported)
            self._costliest.set(list(msgspec.structs.astuple(self._most)))
        return cost

    def record_model(self, what: str, reply: object) -> None:
        """Stage what a reply that no budget paid for says it cost."""
        ticket = Ticket(str(ids.uuid7()), self._name_of(what), NOTHING)
        self.charge_model(ticket, reply)

    async def tell_others(self, ticket: Ticket, cost: Recorded | None) -> None:
        """Report to the budgets of other runs what a call cost."""
        if cost is None or not ticket.others:
            return
        try:
            await self._held.purse.settle_others(ticket, cost)
        except HoldfastError as error:
            self._turn.gate.leave(error)

    async def fail_model(self, ticket: Ticket, error: Exception) -> None:
        """Charge a call that raised what its error reports: nothing, mostly."""
        self._end(ticket)
        if ticket.is_drawn:
            note = f"the call raised {describe(error)}"[:500]
            cost = self._cost(ticket, _reported_cost(error) or NOTHING, note=note)
            self._held.purse.charge(ticket, cost)
            await self.tell_others(ticket, cost)

    def lose_model(self, ticket: Ticket) -> None:
        """Charge what was reserved for a call that was cut off: nobody knows what it cost."""
        self._end(ticket)
        if ticket.is_drawn:
            cost = self._cost(ticket, ticket.amounts, note="it was cut off")
            self._held.purse.charge(ticket, msgspec.structs.replace(cost, is_lost=True))
            self._turn.memo.has_turn |= ticket.amounts.turns > 0

    def lose_call(self, call: TurnCall) -> None:
        """The same for a tool that only reads."""
        ticket, call.ticket = call.ticket, None
        if ticket is not None:
            self.lose_model(ticket)

    async def begin_calls(self, calls: Sequence[TurnCall]) -> None:
        """Reserve what calls of tools cost; those without room are refused, and not to be made."""
        paid = [call for call in calls if call.tool.policy.cost is not None and not call.ticket]
        if not paid:
            return
        wanted = [Purchase(f"tool:{call.tool.name}", price_of(call)) for call in paid]
        answers = await self._held.purse.reserve(wanted)
        for call, want, answer in zip(paid, wanted, answers, strict=True):
            if isinstance(answer, Ticket):
                call.ticket = answer
            else:
                call.refused = exit_without_room(answer, want)

    async def end_call(
        self, call: TurnCall, *, result: object = None, is_free: bool = False
    ) -> None:
        """Settle what a call cost: what its result reports, else its price, or nothing if free."""
        ticket, call.ticket = call.ticket, None
        if ticket is None:
            return
        price = NOTHING if is_free else _reported_cost(result) or ticket.amounts
        cost = self._cost(ticket, price, note="it was not done" if is_free else "")
        self._held.purse.charge(ticket, cost)
        await self._held.purse.settle_others(ticket, cost)

    def _expected(self) -> Amounts:
        """Return the most that a call of this run has cost so far."""
        return self._most.most(Amounts(*self._costliest.get()))

    def _cost(self, ticket: Ticket, amounts: Amounts, *, note: str = "") -> Recorded:
        run = self._held.run
        return Recorded(
            run.run_id,
            ticket.what,
            run.agent,
            self._held.version + 1,
            amounts,
            ticket.reservation_id,
            note=note,
        )


def price_of(call: TurnCall) -> Amounts:
    """Return what a call of a tool costs, as its tool declares."""
    cost = call.tool.policy.cost
    if callable(cost):
        cost = cost(**call.arguments.values)
    if not isinstance(cost, Cost):
        raise MisuseError(
            f"cost of {call.tool.name} must be a holdfast.Cost, or a function of its arguments "
            f"that returns one, not {cost!r}"
        )
    return cost.amounts


def exit_without_room(refusal: Refusal, wanted: Purchase) -> ExitReason:
    """Return how to leave a run that cannot pay for a call."""
    account, owner, what = refusal.account, refusal.account.run_id, wanted.what
    if refusal.is_passing:
        note = f"the budget of run {owner} has no room for {what} until other calls have ended"
        return DelayExit(refusal.at + _PAUSE, note)
    used = ", ".join(budgets.usage_text(account, limit, at=refusal.at) for limit in refusal.lacks)
    needs = budgets.priced(wanted.amounts, refusal.lacks)
    more = " ".join(f"--add {_enough(account, wanted.amounts, limit)}" for limit in refusal.lacks)
    note = (
        f"the budget of run {owner} has no room for {what}"
        f"{f', which needs {needs}' if needs else ''}: {used} is spent. Raise it and the run "
        f"goes on, without paying for the past again: `holdfast runs budget {owner} {more}`"
    )
    return BlockExit(BlockedReason.BUDGET, note, budgets=((owner, account.set_seq),))


def _enough(account: Account, needed: Amounts, limit: str) -> str:
    """Return an amount to add to a limit that is enough for a call, and for some more."""
    if limit == "usd":
        short = account.spent_usd + account.reserved_usd + needed.usd_micros
        return f"{max(5, -((account.usd_limit or 0) - short) // budgets.MICRO + 1)}usd"
    if limit == "tokens":
        short = account.spent.tokens + account.reserved.tokens + needed.tokens
        return f"{max(20_000, short - (account.tokens_limit or 0))}tokens"
    return _ADDED[limit]


def _reported_cost(result: object) -> Amounts | None:
    """Return the cost that a reply or result reports, if it can be counted."""
    used = usage_of(result)
    if used is None:
        return None
    try:
        return Amounts(
            usd_micros=min(_MOST, micros(used.usd, what="usd of a reply")),
            input_tokens=min(_MOST, max(0, used.input_tokens)),
            output_tokens=min(_MOST, max(0, used.output_tokens)),
        )
    except MisuseError as error:
        log.warning("a reply tells what it cost in a way that cannot be counted: %s", error)
        return None
