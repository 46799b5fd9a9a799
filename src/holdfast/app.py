"""Holdfast: what `holdfast.open()` returns. Wires the layers below; no I/O until it is entered."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from holdfast import config, ids
from holdfast.agents.definitions.agent import Agent, Agents, Taking0, Taking1, Taking2, Taking3
from holdfast.agents.handoff.protocol import HandoffProtocol
from holdfast.agents.work.approvals import Approvals
from holdfast.agents.work.executor import Ending
from holdfast.agents.work.handles import Handle
from holdfast.agents.work.schedule_times import CatchUp, Overlap
from holdfast.agents.work.schedules import SCHEDULE, Schedule, Schedules
from holdfast.agents.work.sessions import Session
from holdfast.agents.work.work import Work
from holdfast.agents.work.worker import Worker
from holdfast.clock import Clock
from holdfast.engine.budgets.budgets import Budgets
from holdfast.engine.budgets.costs import Budget
from holdfast.engine.checkpoints import Checkpoints
from holdfast.engine.context import Context
from holdfast.engine.effects import Effects, report
from holdfast.engine.handoffs import Handoffs
from holdfast.engine.leases.heartbeat import Heartbeat
from holdfast.engine.leases.leases import Leases
from holdfast.engine.liveness import WorkerWatch
from holdfast.engine.maintenance.recoveries import Recoveries
from holdfast.engine.messages.outbox_messages import Messages
from holdfast.engine.reading.events import follow, wanted_of
from holdfast.engine.reading.journal import Journal
from holdfast.engine.runs import Runs
from holdfast.engine.signals import Signals
from holdfast.engine.spool import Spool
from holdfast.engine.waits import Waits
from holdfast.errors import MisuseError
from holdfast.kernel.events import Event
from holdfast.kernel.peers import STORE
from holdfast.kernel.signals import Receipt
from holdfast.peers.exchange import Exchange
from holdfast.peers.transports import open_transport
from holdfast.settings import Settings, locate_store, store_url
from holdfast.stores import open_store
from holdfast.stores.contract import StoreInfo
from holdfast.subscribers.deliverer import Deliverer
from holdfast.subscribers.event_queues import published_by
from holdfast.subscribers.webhooks import Webhooks
from holdfast.telemetry import Sink, Telemetry
from holdfast.wakeups import open_wakeups

if TYPE_CHECKING:
    from holdfast.workflows.execution.kit import Kit
    from holdfast.workflows.workflows import Workflows

R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class Holdfast:
    """An open store of agents' state: `async with holdfast.open("agents.db") as hf:`."""

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
        settings = settings or Settings()
        where = store_url(url)
        counts = Telemetry(telemetry)
        self._open_store = partial(
            open_store, where, settings=settings, clock=clock, telemetry=counts
        )
        self._is_shared = locate_store(where) != ("sqlite", "")
        store = self._open_store()
        self._agents = Agents(agents, built_in=[SCHEDULE])
        self._kit = workflows
        if workflows is not None:
            self._agents.add(workflows.agent)
        worker = ids.new_worker_id()
        is_spooling = settings.on_store_failure == "spool"
        self._context = Context(
            store,
            open_wakeups(where, store.look_for_foreign_commits),
            settings,
            counts,
            worker,
            address_of=self._address_of,
            spool=Spool(store, settings, counts, worker=worker) if is_spooling else None,
        )
        store.on_applied = self._context.wakeups.notify
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
        """Configure a Holdfast from a YAML file and the environment, which overrides it.

        With None, only the environment counts. `agent` names the block of a file that has several.
        Raises InvalidConfig with every problem.
        """
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
        self.leases = Leases(self._context)
        self.runs = Runs(self._context, self.leases)
        self.journal = Journal(self._context)
        self.checkpoints = Checkpoints(self._context)
        self.effects = Effects(self._context)
        self.waits = Waits(self._context)
        self.signals = Signals(self._context)
        self.messages = Messages(self._context)
        self.approvals = Approvals(self._context)
        self.budgets = Budgets(self._context)
        self.schedules = Schedules(self._context, self.runs, self._agents)
        protocol = HandoffProtocol(self._context, self._agents)
        self.leases.outbox.orchestrate = protocol.orchestrate
        self.handoffs = Handoffs(self._context)
        self.recoveries = Recoveries(self._context)
        self._work = Work(self._context, self.leases, self.runs, self._agents, protocol)
        self.webhooks = Webhooks(self._context, self.runs)
        self._twins: list[Holdfast] = []
        self._exchange: Exchange | None = None

    def _address_of(self, agent: str) -> str:
        """Return an agent's address: the store, if it is served here or there is no transport."""
        if self._exchange is None or agent in self._agents:
            return STORE
        return self._exchange.address_of(agent)

    def another_worker(self) -> "Holdfast":
        """The same open store under another identity, as if from another process.

        It lives as long as this one is open, and is not entered itself.
        """
        twin = object.__new__(Holdfast)
        twin._context = replace(self._context, worker=ids.new_worker_id(), watch=WorkerWatch())
        twin._agents = self._agents
        twin._kit = self._kit
        twin._open_store = self._open_store
        twin._is_shared = self._is_shared
        twin._wire()
        self._twins.append(twin)
        return twin

    @property
    def worker(self) -> str:
        """This process's identity in the journal: new at every start."""
        return self._context.worker

    @property
    def agents(self) -> list[str]:
        """The names of the agents that are known here."""
        return self._agents.names

    def agent(self, name: str) -> Agent[..., Any]:
        """An agent that is known here; raises AgentNotFound, which names those that are."""
        return self._agents.get(name)

    @functools.cached_property
    def workflows(self) -> "Workflows":
        """Workflows in this store, with what the Kit given to this Holdfast lets them use."""
        # Imported here, so that users without workflows do not need their dependencies.
        from holdfast.workflows.execution.kit import Kit
        from holdfast.workflows.workflows import Workflows

        return Workflows(self._context, self._work, self.runs, self._kit or Kit())

    @overload
    async def run(
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
    async def run(
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
    async def run(
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
    async def run(
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
    async def run(
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
        """Start a run, or resume it, or return the result it has: one task, by its `run_id`.

        It is advanced here unless another worker does so, and waited for while it waits. The same
        `run_id` with another input raises InputDiffers; see Handle.result for other errors.
        """
        is_attached = timeout is None or timeout > 0
        handle = await self._start(
            agent, args, run_id, parent, owner, budget, is_attached=is_attached
        )
        return await handle.result(timeout=timeout)

    @overload
    async def start(
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
    async def start(
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
    async def start(
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
    async def start(
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
    async def start(
        self,
        agent: Any,
        /,
        *args: Any,
        run_id: str | None = None,
        parent: str = "",
        owner: str = "",
        budget: Budget | None = None,
    ) -> Handle[Any]:
        """Start a run and leave it to the workers; its handle's result helps too.

        A new run gets `budget`, and draws on the budgets of its `parent` as well. It is `owner`'s,
        or its parent's owner's; a `run_id` that is another's is taken: raises InputDiffers.
        """
        return await self._start(agent, args, run_id, parent, owner, budget)

    async def start_named(
        self,
        agent: str,
        given: object = None,
        *,
        run_id: str | None = None,
        subject: str = "",
        owner: str = "",
    ) -> Handle[Any]:
        """Start a run of an agent that is known here, by its name and with an input as data.

        That is its arguments by name, or its one argument unchanged. `subject` is what the run is
        about, to list runs by. Raises AgentNotFound.
        """
        known = self._agents.get(agent)
        run = await self._work.create(
            known, known.named_input(given), run_id, subject=subject, owner=owner
        )
        return Handle(self._work, self.runs, self.journal, known, run)

    async def signal(
        self, run_id: str, name: str, value: object = None, *, id: str | None = None, by: str = ""
    ) -> Receipt:
        """Send a run a named value, for its `run.signal(name)`; kept if it is early.

        An id counts once in its run, so the sender may retry.
        """
        return await self.signals.send(run_id, name, value, id=id, by=by)

    def events(
        self,
        after: str | None = None,
        *,
        run_id: str | None = None,
        kinds: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the events of all runs from now on, each once, in order for each run; without end.

        `after` continues after the `position` of an event, or from the `"start"` of the journal.
        The other arguments select one run, kinds of entries, or agents.
        """
        return follow(self._context, after, wanted_of(run_id, kinds, agents))

    def session(
        self, agent: Agent[..., R], session_id: str, *, metadata: Mapping[str, Any] | None = None
    ) -> Session[R]:
        """A conversation with an agent. `metadata` is kept from the first message on."""
        return Session(self._work, self.runs, agent, session_id, metadata)

    async def schedule(
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
        """Start an agent again and again: `cron="0 9 * * 1-5"`, or `every_seconds=3600`.

        The same as `hf.schedules.add`.
        """
        return await self.schedules.add(
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
        """A worker in this process: `await worker.run()`, and `worker.stop()` to end it.

        With `agents=[]` it works on nobody's runs, and delivers messages and webhooks only: for a
        process that uses the checkpoint service and has no agents.
        """
        # A store in memory cannot be opened a second time, from the heartbeat thread.
        heart = Heartbeat(self._context, self._open_store) if self._is_shared else None
        worker = Worker(
            self._work, self.leases, concurrency=concurrency, agents=agents, heart=heart
        )
        publish = None if self._exchange is None else published_by(self._exchange)
        deliverer = Deliverer(self._context, self.leases, self.runs, publish)
        worker.beside.append(deliverer.keep_delivering)
        if self._exchange is not None:
            serve = partial(self._exchange.serve, worker.agents, concurrency=concurrency)
            worker.beside.append(serve)
        return worker

    async def _start(
        self,
        agent: Agent[..., R],
        args: tuple[Any, ...],
        run_id: str | None,
        parent: str,
        owner: str,
        budget: Budget | None,
        *,
        is_attached: bool = False,
    ) -> Handle[R]:
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"{agent!r} is not an agent; make it one with @holdfast.agent")
        given = agent.input_of(args, {})
        if self._exchange is not None:
            self._exchange.begin()
        task: asyncio.Task[Ending] | None = None
        if is_attached and not parent:
            run, task = await self._work.begin(agent, given, run_id, owner=owner, budget=budget)
        else:
            run = await self._work.create(
                agent, given, run_id, parent_id=parent, owner=owner, budget=budget
            )
        return Handle(
            self._work, self.runs, self.journal, agent, run, is_fresh=is_attached, task=task
        )

    async def info(self) -> StoreInfo:
        """What the store is: its backend, schema, size and runs."""
        return await self._context.store.info()

    async def reindex(self, run_id: str) -> None:
        """Rebuild the indexes of a run from its journal."""
        if await self._context.store.journal.head(run_id) is None:
            await self.runs.get(run_id)
        await self._context.store.reindex(run_id)

    async def __aenter__(self) -> Self:
        await self._context.store.open()
        await self._context.wakeups.open()
        if self._context.spool is not None:
            await self._open_spool(self._context.spool)
        if self._context.settings.transport:
            transport = open_transport(self._context.settings.transport, context=self._context)
            self._exchange = Exchange(self._context, transport, self._work)
        return self

    async def _open_spool(self, spool: Spool) -> None:
        try:
            await spool.open(partial(report, self._context))
        except BaseException:
            await self._context.wakeups.close()
            await self._context.store.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In a fork nothing runs that closing waits for: the parent closes the store.
        if self._context.store.home.is_inherited:
            return
        try:
            for worker in (*self._twins, self):
                await worker._work.close()
                await worker.leases.close()
            if self._exchange is not None:
                await self._exchange.close()
        finally:
            if self._context.spool is not None:
                await self._context.spool.close()
            await self._context.wakeups.close()
            await self._context.store.close()


async def break_off(hf: Holdfast) -> None:
    """Stop all work of this process where it is: a person at a terminal does not wait longer."""
    await hf._work.break_off()  # pyright: ignore[reportPrivateUsage] - its own module


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
