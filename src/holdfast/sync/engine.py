"""The services of a store, for code that blocks."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.engine import checkpoints, effects, handoffs, runs, signals, sweeper, waits
from holdfast.engine.budgets import budgets
from holdfast.engine.budgets.costs import Budget, Costs
from holdfast.engine.checkpoints import State, ToldCheckpoint
from holdfast.engine.effects import Begun
from holdfast.engine.handoffs import HandoffView
from holdfast.engine.maintenance import recoveries
from holdfast.engine.maintenance.recoveries import RecoveryPoint
from holdfast.engine.maintenance.travel import TravelPlan, Unclaimed
from holdfast.engine.messages import owed
from holdfast.engine.messages.owed import Owed
from holdfast.engine.reading import journal
from holdfast.kernel.budgets import Account, Reservation
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.effects import Status as EffectStatus
from holdfast.kernel.handoffs import Findings
from holdfast.kernel.journal import Entry, Problem
from holdfast.kernel.runs import BlockedReason, Run
from holdfast.kernel.runs import Status as RunStatus
from holdfast.kernel.signals import Receipt, Signal
from holdfast.kernel.state import StateDiff
from holdfast.kernel.waits import Answer, Result, Wait
from holdfast.sync.leases import LeasedRun
from holdfast.sync.loop import Face, blocking


@blocking(runs.Runs)
class Runs(Face[runs.Runs]):
    """Every run of the tenant."""

    def create(
        self,
        run_id: str | None = None,
        *,
        agent: str = "",
        input: object = None,
        parent_id: str = "",
        subject: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Run:
        return self._call(
            self._inner.create,
            run_id,
            agent=agent,
            input=input,
            parent_id=parent_id,
            subject=subject,
            owner=owner,
            budget=budget,
        )

    def open(
        self, run_id: str, *, agent: str = "", input: object = None, takeover: bool = False
    ) -> LeasedRun:
        held = self._call(self._inner.open, run_id, agent=agent, input=input, takeover=takeover)
        return LeasedRun(self._loop, held)

    def get(self, run_id: str) -> Run:
        return self._call(self._inner.get, run_id)

    def input(self, run_id: str) -> Any:
        return self._call(self._inner.input, run_id)

    def result(self, run_id: str) -> Any:
        return self._call(self._inner.result, run_id)

    def watch(self, run_id: str) -> Iterator[Run]:
        return self._loop.each(self._inner.watch(run_id))

    def changed(self, known: Run, *, timeout: float) -> Run:
        return self._call(self._inner.changed, known, timeout=timeout)

    def note(self, run_id: str) -> str:
        return self._call(self._inner.note, run_id)

    def cancel(self, run_id: str, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.cancel, run_id, by=by, note=note)

    def block(
        self, run_id: str, reason: BlockedReason | str, *, by: str = "", note: str = ""
    ) -> None:
        return self._call(self._inner.block, run_id, reason, by=by, note=note)

    def unblock(self, run_id: str, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.unblock, run_id, by=by, note=note)

    def fork(
        self,
        run_id: str,
        version: int,
        *,
        new_run_id: str | None = None,
        by: str = "",
        note: str = "",
        edits: Mapping[str, object] | None = None,
        resend: Collection[UUID | str] = (),
    ) -> Run:
        return self._call(
            self._inner.fork,
            run_id,
            version,
            new_run_id=new_run_id,
            by=by,
            note=note,
            edits=edits,
            resend=resend,
        )

    def rewind(
        self,
        run_id: str,
        version: int,
        *,
        by: str = "",
        note: str = "",
        edits: Mapping[str, object] | None = None,
        resend: Collection[UUID | str] = (),
        takeover: bool = False,
    ) -> Run:
        return self._call(
            self._inner.rewind,
            run_id,
            version,
            by=by,
            note=note,
            edits=edits,
            resend=resend,
            takeover=takeover,
        )

    def plan(self, run_id: str, version: int) -> TravelPlan:
        return self._call(self._inner.plan, run_id, version)

    def unclaimed(self, run_id: str) -> "list[Unclaimed]":
        return self._call(self._inner.unclaimed, run_id)

    def list(
        self,
        *,
        status: RunStatus | str | None = None,
        agent: str | None = None,
        subject: str | None = None,
        parent_id: str | None = None,
        owner: str | None = None,
        limit: int = 100,
        before: Run | None = None,
    ) -> list[Run]:
        return self._call(
            self._inner.list,
            status=status,
            agent=agent,
            subject=subject,
            parent_id=parent_id,
            owner=owner,
            limit=limit,
            before=before,
        )


@blocking(journal.Journal)
class Journal(Face[journal.Journal]):
    """Reading the record of runs."""

    def read(
        self, run_id: str, *, after: int = 0, limit: int = 1000, checked: bool = True
    ) -> list[Entry]:
        return self._call(self._inner.read, run_id, after=after, limit=limit, checked=checked)

    def head(self, run_id: str) -> int:
        return self._call(self._inner.head, run_id)

    def tail(self, run_id: str, *, after: int = 0, checked: bool = True) -> Iterator[Entry]:
        return self._loop.each(self._inner.tail(run_id, after=after, checked=checked))

    def erased(self, run_id: str) -> list[tuple[int, int]]:
        return self._call(self._inner.erased, run_id)

    def verify(self, run_id: str) -> list[Problem]:
        return self._call(self._inner.verify, run_id)

    def run_ids(self) -> Iterator[str]:
        return self._loop.each(self._inner.run_ids())


@blocking(checkpoints.Checkpoints)
class Checkpoints(Face[checkpoints.Checkpoints]):
    """Reading what was saved."""

    def load(self, run_id: str, version: int | None = None) -> State:
        return self._call(self._inner.load, run_id, version)

    def load_newest_intact(self, run_id: str) -> State:
        return self._call(self._inner.load_newest_intact, run_id)

    def get(self, checkpoint_id: UUID | str) -> Checkpoint:
        return self._call(self._inner.get, checkpoint_id)

    def history(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[Checkpoint]:
        return self._call(self._inner.history, run_id, limit=limit, before=before)

    def told(
        self, run_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[ToldCheckpoint]:
        return self._call(self._inner.told, run_id, limit=limit, before=before)

    def search(
        self,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        phase: str | None = None,
        status: str | None = None,
        label: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        before: UUID | None = None,
    ) -> list[Checkpoint]:
        return self._call(
            self._inner.search,
            run_id=run_id,
            agent=agent,
            phase=phase,
            status=status,
            label=label,
            since=since,
            until=until,
            limit=limit,
            before=before,
        )

    def delete(self, run_id: str, version: int, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.delete, run_id, version, by=by, note=note)

    def diff(self, run_id: str, before: int, after: int) -> StateDiff:
        return self._call(self._inner.diff, run_id, before, after)


@blocking(handoffs.Handoffs)
class Handoffs(Face[handoffs.Handoffs]):
    """Handoffs of any run, for those who do not hold it."""

    def request(self, run_id: str, *, to: str = "", by: str = "", note: str = "") -> None:
        return self._call(self._inner.request, run_id, to=to, by=by, note=note)

    def assign(
        self,
        run_id: str,
        handoff_id: str,
        to: str,
        *,
        by: str = "",
        findings: Findings | None = None,
    ) -> bool:
        return self._call(self._inner.assign, run_id, handoff_id, to, by=by, findings=findings)

    def acknowledge(
        self,
        run_id: str,
        handoff_id: str,
        agent: str,
        *,
        by: str = "",
        findings: Findings | None = None,
    ) -> None:
        return self._call(
            self._inner.acknowledge, run_id, handoff_id, agent, by=by, findings=findings
        )

    def refuse(
        self,
        run_id: str,
        handoff_id: str,
        reason: str,
        *,
        by: str = "",
        findings: Findings | None = None,
    ) -> None:
        return self._call(self._inner.refuse, run_id, handoff_id, reason, by=by, findings=findings)

    def of_run(self, run_id: str) -> list[HandoffView]:
        return self._call(self._inner.of_run, run_id)


@blocking(recoveries.Recoveries)
class Recoveries(Face[recoveries.Recoveries]):
    """Recovering runs, for people and programs."""

    def find_point(self, run_id: str) -> RecoveryPoint:
        return self._call(self._inner.find_point, run_id)

    def execute(
        self,
        run_id: str,
        *,
        version: int | None = None,
        accept_gap: bool = False,
        by: str = "",
        note: str = "",
    ) -> Run:
        return self._call(
            self._inner.execute,
            run_id,
            version=version,
            accept_gap=accept_gap,
            by=by,
            note=note,
        )


@blocking(effects.Effects)
class Effects(Face[effects.Effects]):
    """Looking at effects, and settling those whose worker is gone."""

    def get(self, effect_id: UUID | str) -> Effect:
        return self._call(self._inner.get, effect_id)

    def find(self, key: str) -> Begun | None:
        return self._call(self._inner.find, key)

    def of_run(self, run_id: str) -> list[Effect]:
        return self._call(self._inner.of_run, run_id)

    def unsettled(
        self, *, status: EffectStatus | str = EffectStatus.UNKNOWN, limit: int = 100
    ) -> list[Effect]:
        return self._call(self._inner.unsettled, status=status, limit=limit)

    def in_doubt(
        self, *, run_id: str | None = None, owner: str | None = None, limit: int = 100
    ) -> list[Effect]:
        return self._call(self._inner.in_doubt, run_id=run_id, owner=owner, limit=limit)

    def resolve(
        self,
        effect_id: UUID | str,
        outcome: effects.Outcome | str,
        *,
        result: object = None,
        by: str = "",
        note: str = "",
        force: bool = False,
    ) -> Effect:
        return self._call(
            self._inner.resolve, effect_id, outcome, result=result, by=by, note=note, force=force
        )

    def settle(
        self,
        effect_id: UUID | str,
        status: EffectStatus | str,
        *,
        result: object = None,
        retry: bool = False,
        by: str = "",
        note: str = "",
    ) -> Effect:
        return self._call(
            self._inner.settle, effect_id, status, result=result, retry=retry, by=by, note=note
        )


@blocking(waits.Waits)
class Waits(Face[waits.Waits]):
    """What comes from outside: answers, timeouts, signs of life."""

    def get(self, wait_id: str) -> Wait:
        return self._call(self._inner.get, wait_id)

    def of_run(self, run_id: str) -> list[Wait]:
        return self._call(self._inner.of_run, run_id)

    def results(self, run_id: str, group_id: str) -> list[Result]:
        return self._call(self._inner.results, run_id, group_id)

    def resolve(self, wait_id: str, value: object = None, *, by: str = "") -> Answer:
        return self._call(self._inner.resolve, wait_id, value, by=by)

    def cancel(self, wait_id: str, *, by: str = "") -> Answer:
        return self._call(self._inner.cancel, wait_id, by=by)

    def extend(
        self,
        wait_id: str,
        *,
        timeout_seconds: float | None = None,
        deadline: datetime | None = None,
    ) -> bool:
        return self._call(
            self._inner.extend, wait_id, timeout_seconds=timeout_seconds, deadline=deadline
        )

    def claim(
        self, wait_id: str, *, seconds: float = waits.CLAIM_SECONDS, by: str = ""
    ) -> Wait | None:
        return self._call(self._inner.claim, wait_id, seconds=seconds, by=by)

    def expire_due(self, *, limit: int = sweeper.BATCH) -> int:
        return self._call(self._inner.expire_due, limit=limit)


@blocking(owed.Messages)
class Messages(Face[owed.Messages]):
    """What is under way between runs and their peers."""

    def list(self, *, dead: bool = False, limit: int = 100) -> list[Owed]:
        return self._call(self._inner.list, dead=dead, limit=limit)

    def requeue(self, message_id: str) -> bool:
        return self._call(self._inner.requeue, message_id)


@blocking(signals.Signals)
class Signals(Face[signals.Signals]):
    """What is sent to runs, in the order it came."""

    def send(
        self, run_id: str, name: str, value: object = None, *, id: str | None = None, by: str = ""
    ) -> Receipt:
        return self._call(self._inner.send, run_id, name, value, id=id, by=by)

    def get(self, run_id: str, signal_id: str) -> Signal:
        return self._call(self._inner.get, run_id, signal_id)

    def of_run(self, run_id: str) -> list[Signal]:
        return self._call(self._inner.of_run, run_id)

    def untaken(self, run_id: str, name: str, limit: int = 100) -> list[Signal]:
        return self._call(self._inner.untaken, run_id, name, limit)

    def value(self, run_id: str, signal_id: str) -> Any:
        return self._call(self._inner.value, run_id, signal_id)

    def answer(self, run_id: str, signal_id: str) -> Any:
        return self._call(self._inner.answer, run_id, signal_id)


@blocking(budgets.Budgets)
class Budgets(Face[budgets.Budgets]):
    """The budgets of all runs, and what they have cost."""

    def get(self, run_id: str) -> Account | None:
        return self._call(self._inner.get, run_id)

    def over(self, run_id: str) -> list[Account]:
        return self._call(self._inner.over, run_id)

    def reservations(self, run_id: str) -> list[Reservation]:
        return self._call(self._inner.reservations, run_id)

    def set(self, run_id: str, budget: Budget, *, by: str = "", note: str = "") -> Account:
        return self._call(self._inner.set, run_id, budget, by=by, note=note)

    def add(self, run_id: str, budget: Budget, *, by: str = "", note: str = "") -> Account:
        return self._call(self._inner.add, run_id, budget, by=by, note=note)

    def replace(self, run_id: str, budget: Budget, *, by: str = "", note: str = "") -> Account:
        return self._call(self._inner.replace, run_id, budget, by=by, note=note)

    def costs(self, run_id: str) -> Costs:
        return self._call(self._inner.costs, run_id)
