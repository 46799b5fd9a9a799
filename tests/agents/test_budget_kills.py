"""Workers killed at every fault point never spend more than the budgets say.

What was really spent is counted by a ledger that knows nothing of Holdfast. Every call reserves
what it costs: no limit is passed at any moment, and what is on record is never less than is real.
"""

import random
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import Budget
from holdfast.errors import ConflictError
from holdfast.testing.store_suite import async_test
from tests.agents.ledger import Ledger
from tests.agents.payers import MANY, make_payers, spent_cents
from tests.agents.sweeping import Sweep
from tests.processes import Child

CENT = 10_000
BUDGET_POINTS = ["budget.after_reserve", "budget.before_settle"]
POINTS = [
    *BUDGET_POINTS,
    "model.after_call",
    "tool.before_call",
    "tool.after_call",
    "batch.before_begin",
    "batch.before_commit",
    "batch.after_commit",
    "batch.before_acknowledge",
]


class PaidSweep(Sweep):
    """Runs under one boss, whose budget they all draw on beside their own."""

    def __init__(self, store: str, folder: Path, agent: str, *, raised_by: float) -> None:
        self.store = store
        self.ledger = Ledger(folder / "ledger")
        self.agents = {made.name: made for made in make_payers(self.ledger)}
        self.agent = self.agents[agent]
        self.chance = random.Random(0)
        self.kills = 0
        self.unblocked = 0
        self.raised = 0
        self.runs: dict[str, int] = {}
        self.overdrawn: list[str] = []
        self._raised_by = raised_by
        make = "tests.agents.payers:make_payers"
        self._child = Child("tests.agents.victims", store, str(folder / "ledger"), make)

    async def start_under_boss(self, many: int, *, turns: int, own: float, boss: float) -> None:
        await self.hf.runs.create("boss", agent="nobody", budget=Budget(usd=boss))
        await self.hf.runs.cancel("boss")
        for number in range(many):
            run_id = f"r{number}"
            await self.hf.start(
                self.agent, turns, run_id=run_id, parent="boss", budget=Budget(usd=own)
            )
            self.runs[run_id] = turns

    async def _open_runs(self) -> int:
        statuses = [(await self.hf.runs.get(run_id)).status for run_id in self.runs]
        return sum(status not in ("completed", "failed") for status in statuses)

    async def _unblock(self) -> None:
        """Do what an operator does: raise what is spent, and give back what lost its workers."""
        await self.look_at_budgets()
        for run in await self.hf.runs.list(status="blocked"):
            with suppress(ConflictError):
                if run.blocked_reason == "breaker":
                    await self.hf.runs.unblock(run.run_id)
                else:
                    assert run.blocked_reason == "budget", run
                    for owner in (run.run_id, "boss"):
                        await self.hf.budgets.add(owner, Budget(usd=self._raised_by))
                    self.raised += 1

    async def look_at_budgets(self) -> None:
        for account in [await self._account(owner) for owner in ("boss", *self.runs)]:
            drawn = account.spent_usd + account.reserved_usd
            assert account.usd_limit is not None
            if drawn > account.usd_limit:
                self.overdrawn.append(f"{account.run_id}: {drawn} of {account.usd_limit}")

    async def judge(self) -> list[str]:
        await self.look_at_budgets()
        found = list(self.overdrawn)
        for owner in ("boss", *self.runs):
            account = await self._account(owner)
            runs = self.runs if owner == "boss" else [owner]
            real = sum(spent_cents(self.ledger, run_id) for run_id in runs) * CENT
            if account.spent_usd < real:
                found.append(f"{owner} has spent {real}, and {account.spent_usd} is on record")
            if account.reserved_usd or await self.hf.budgets.reservations(owner):
                found.append(f"something is left reserved on the budget of {owner}")
            costs = await self.hf.budgets.costs(owner)
            if costs.total.usd_micros != account.spent_usd:
                found.append(f"the costs of {owner} are not what it has spent")
            if costs.total.usd_micros - costs.lost.usd_micros > real:
                found.append(f"{owner} was charged for more than it did, and nothing was lost")
            found += map(str, await self.hf.journal.verify(owner))
        for run_id, turns in self.runs.items():
            run = await self.hf.runs.get(run_id)
            if run.status != "completed" or await self.hf.runs.result(run_id) != turns:
                found.append(f"run {run_id} is {run.status}")
        return found

    async def _account(self, owner: str) -> holdfast.Account:
        found = await self.hf.budgets.get(owner)
        assert found is not None
        return found


@pytest.mark.chaos(
    backend=["postgres"], point={*POINTS} - {"batch.after_commit", "budget.after_reserve"}
)
@pytest.mark.parametrize("point", POINTS)
@async_test
async def test_payers_killed_at_a_fault_point_never_spend_more_than_is_on_record(
    store: str, tmp_path: Path, point: str
) -> None:
    async with PaidSweep(store, tmp_path, "payer", raised_by=0.06) as sweep:
        await sweep.start_under_boss(2, turns=3, own=0.10, boss=0.15)
        assert await sweep.kill_at(point, 0)
        assert await sweep.kill_at(point, 2)
        await sweep.kill_at(point, 5)
        await sweep.finish()
        assert await sweep.judge() == []
        assert sweep.raised > 0, "the budgets were too small on purpose"


@pytest.mark.chaos(backend=["postgres"], point=["budget.after_reserve", "tool.after_call"])
@pytest.mark.parametrize("point", ["budget.after_reserve", "tool.after_call", "batch.after_commit"])
@async_test
async def test_many_parallel_tools_never_exceed_a_budget_while_workers_are_killed(
    store: str, tmp_path: Path, point: str
) -> None:
    async with PaidSweep(store, tmp_path, "crowd", raised_by=0.25) as sweep:
        await sweep.start_under_boss(1, turns=1, own=0.20, boss=0.30)
        assert await sweep.kill_at(point, 0)
        await sweep.kill_at(point, 7)
        await sweep.kill_at(point, 20)
        await sweep.finish()
        assert await sweep.judge() == []
        assert {line.key for line in sweep.ledger.lines()} == {str(n) for n in range(MANY)}
