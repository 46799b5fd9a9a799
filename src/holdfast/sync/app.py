"""What `holdfast.sync.open()` returns."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from holdfast import app, config
from holdfast.agents.definitions.agent import Agent, Taking0, Taking1, Taking2, Taking3
from holdfast.agents.work.schedules import Schedule
from holdfast.agents.work.ticks import CatchUp, Overlap
from holdfast.clock import Clock
from holdfast.engine.budgets.costs import Budget
from holdfast.kernel.events import Event
from holdfast.kernel.signals import Receipt
from holdfast.settings import Settings
from holdfast.stores.contract import StoreInfo
from holdfast.sync.agents import Approvals, Handle, Session, Worker
from holdfast.sync.engine import (
    Budgets,
    Checkpoints,
    Effects,
    Handoffs,
    Journal,
    Messages,
    Recoveries,
    Runs,
    Signals,
    Waits,
)
from holdfast.sync.leases import Leases
from holdfast.sync.loop import Face, Loop, blocking
from holdfast.sync.schedules import Schedules
from holdfast.sync.webhooks import Webhooks
from holdfast.telemetry import Sink

if TYPE_CHECKING:
    from holdfast.sync.workflows import Workflows
    from holdfast.workflows.execution.kit import Kit

R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


@blocking(app.Holdfast)
class Holdfast(Face[app.Holdfast]):
    """An open store of agents' state: `with holdfast.sync.open("agents.db") as hf:`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        agents: Iterable[Agent[..., Any]] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        telemetry: Sink | None = None,
        workflows: "Kit | None" = None,
    ) -> None:
        inner = app.Holdfast(
            url,
            agents=agents,
            settings=settings,
            clock=clock,
            telemetry=telemetry,
            workflows=workflows,
        )
        self._stand_for(inner)

    def _stand_for(self, inner: app.Holdfast) -> None:
        super().__init__(Loop(), inner)
        self._closing = contextlib.ExitStack()
        self._wire()

    @classmethod
    def from_config(
        cls,
        path: config.PathLike | config.Config | None,
        *,
        agents: Iterable[Agent[..., Any]] = (),
        agent: str | None = None,
        clock: Clock | None = None,
        telemetry: Sink | None = None,
        workflows: "Kit | None" = None,
    ) -> Self:
        found = config.of(path, agent=agent)
        return cls(
            found.store_url,
            agents=agents,
            settings=found.settings,
            clock=clock,
            telemetry=telemetry,
            workflows=workflows,
        )

    def _wire(self) -> None:
        self.leases = Leases(self._loop, self._inner.leases)
        self.runs = Runs(self._loop, self._inner.runs)
        self.journal = Journal(self._loop, self._inner.journal)
        self.checkpoints = Checkpoints(self._loop, self._inner.checkpoints)
        self.effects = Effects(self._loop, self._inner.effects)
        self.waits = Waits(self._loop, self._inner.waits)
        self.signals = Signals(self._loop, self._inner.signals)
        self.messages = Messages(self._loop, self._inner.messages)
        self.approvals = Approvals(self._loop, self._inner.approvals)
        self.budgets = Budgets(self._loop, self._inner.budgets)
        self.handoffs = Handoffs(self._loop, self._inner.handoffs)
        self.recoveries = Recoveries(self._loop, self._inner.recoveries)
        self.schedules = Schedules(self._loop, self._inner.schedules)
        self.webhooks = Webhooks(self._loop, self._inner.webhooks)

    @property
    def worker(self) -> str:
        return self._inner.worker

    def another_worker(self) -> "Holdfast":
        twin = object.__new__(Holdfast)
        super(Holdfast, twin).__init__(self._loop, self._inner.another_worker())
        twin._wire()
        return twin

    @property
    def agents(self) -> list[str]:
        return self._inner.agents

    def agent(self, name: str) -> Agent[..., Any]:
        return self._inner.agent(name)

    @functools.cached_property
    def workflows(self) -> "Workflows":
        from holdfast.sync.workflows import Workflows

        return Workflows(self._loop, self._inner.workflows)

    @overload
    def run(
        self,
        agent: Taking0[R],
        /,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> R: ...
    @overload
    def run(
        self,
        agent: Taking1[A, R],
        a: A,
        /,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> R: ...
    @overload
    def run(
        self,
        agent: Taking2[A, B, R],
        a: A,
        b: B,
        /,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> R: ...
    @overload
    def run(
        self,
        agent: Taking3[A, B, C, R],
        a: A,
        b: B,
        c: C,
        /,
        *,
        run_id: str | None = None,
        timeout: float | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> R: ...
    def run(
        self,
        agent: Any,
        /,
        *args: Any,
        run_id: str | None = None,
        timeout: float | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Any:
        handle = self.start(agent, *args, run_id=run_id, parent=parent, owner=owner, budget=budget)
        return handle.result(timeout=timeout)

    @overload
    def start(
        self,
        agent: Taking0[R],
        /,
        *,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: Taking1[A, R],
        a: A,
        /,
        *,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: Taking2[A, B, R],
        a: A,
        b: B,
        /,
        *,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[R]: ...
    @overload
    def start(
        self,
        agent: Taking3[A, B, C, R],
        a: A,
        b: B,
        c: C,
        /,
        *,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[R]: ...
    def start(
        self,
        agent: Any,
        /,
        *args: Any,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[Any]:
        started = self._call(
            self._inner.start,
            agent,
            *args,
            run_id=run_id,
            parent=parent,
            owner=owner,
            budget=budget,
        )
        return Handle(self._loop, started)

    def start_named(
        self,
        agent: str,
        given: object = None,
        *,
        run_id: str | None = None,
        subject: str = "",
        owner: str = "",
    ) -> Handle[Any]:
        started = self._call(
            self._inner.start_named, agent, given, run_id=run_id, subject=subject, owner=owner
        )
        return Handle(self._loop, started)

    def signal(
        self, run_id: str, name: str, value: object = None, *, id: str | None = None, by: str = ""
    ) -> Receipt:
        return self.signals.send(run_id, name, value, id=id, by=by)

    def events(
        self,
        after: str | None = None,
        *,
        run_id: str | None = None,
        kinds: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
    ) -> Iterator[Event]:
        return self._loop.each(self._inner.events(after, run_id=run_id, kinds=kinds, agents=agents))

    def session(
        self, agent: Agent[..., R], session_id: str, *, metadata: Mapping[str, Any] | None = None
    ) -> Session[R]:
        return Session(self._loop, self._inner.session(agent, session_id, metadata=metadata))

    def schedule(
        self,
        agent: Agent[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        cron: str = "",
        every_seconds: int = 0,
        tz: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: CatchUp = "one",
    ) -> Schedule:
        return self.schedules.add(
            agent,
            *args,
            name=name,
            cron=cron,
            every_seconds=every_seconds,
            tz=tz,
            overlap=overlap,
            catch_up=catch_up,
        )

    def new_worker(self, *, concurrency: int = 8, agents: Sequence[str] | None = None) -> Worker:
        return Worker(self._loop, self._inner.new_worker(concurrency=concurrency, agents=agents))

    def info(self) -> StoreInfo:
        return self._call(self._inner.info)

    def reindex(self, run_id: str) -> None:
        return self._call(self._inner.reindex, run_id)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._loop.open()
            stack.callback(self._loop.close)
            self._call(self._inner.__aenter__)
            stack.push(self._leave)
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In a fork the loop's thread does not exist: the store is its parent's to close.
        if not self._loop.is_inherited:
            self._closing.__exit__(kind, error, trace)

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._inner.__aexit__, kind, error, trace)


def around(inner: app.Holdfast) -> Holdfast:
    """The blocking face of a Holdfast that was made, but not entered."""
    return _Around(inner)


class _Around(Holdfast):
    def __init__(self, inner: app.Holdfast) -> None:
        self._stand_for(inner)


def open(
    url: str | None = None,
    *,
    agents: Iterable[Agent[..., Any]] = (),
    settings: Settings | None = None,
    clock: Clock | None = None,
    telemetry: Sink | None = None,
    workflows: "Kit | None" = None,
) -> Holdfast:
    """A Holdfast on a file's path, `memory://`, or what HOLDFAST_STORE names. Enter it to open."""
    return Holdfast(
        url,
        agents=agents,
        settings=settings,
        clock=clock,
        telemetry=telemetry,
        workflows=workflows,
    )
