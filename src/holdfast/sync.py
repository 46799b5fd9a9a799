"""Holdfast for code that blocks: `with holdfast.sync.open("agents.db") as hf:`.

The same names, parameters and errors as the async face, over one event loop in a background thread.
Nothing is decided here: every method hands its call over and waits. Ctrl-C ends the waiting; a
write that was handed over may still be stored, as after any crash.
"""

import contextlib
import functools
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar, cast
from uuid import UUID

import anyio
from anyio.from_thread import BlockingPortal

from holdfast import app
from holdfast.clock import Clock
from holdfast.codec import Ref
from holdfast.engine import (
    checkpoints,
    effects,
    journal,
    leased_run,
    leases,
    runs,
    signals,
    sweeper,
    waits,
)
from holdfast.engine.checkpoints import State
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.waits import WaitSpec
from holdfast.errors import StoreClosed, WrongProcess
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.effects import Effect
from holdfast.kernel.effects import Status as EffectStatus
from holdfast.kernel.journal import Entry, Problem
from holdfast.kernel.leases import Worker
from holdfast.kernel.runs import BlockedReason, Run
from holdfast.kernel.runs import Status as RunStatus
from holdfast.kernel.signals import Receipt, Signal
from holdfast.kernel.state import StateDiff
from holdfast.kernel.waits import Answer, Result, Wait
from holdfast.settings import Settings
from holdfast.stores.contract import StoreInfo
from holdfast.telemetry import Sink

P = ParamSpec("P")
T = TypeVar("T")
_END: Final = object()


class _Loop:
    """The background event loop; no thread runs until it is opened."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one whose thread runs the loop."""
        return self._portal is not None and self._pid != os.getpid()

    def open(self) -> None:
        # Not anyio's start_blocking_portal: as a generator it is closed when a fork of this
        # process ends, and waits there for a thread that does not exist.
        started: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(
            target=anyio.run, args=(_serve, started), name="holdfast-loop", daemon=True
        )
        self._thread.start()
        self._portal, self._pid = started.result(), os.getpid()

    def close(self) -> None:
        assert self._portal is not None, "closed after it was opened"
        assert self._thread is not None, "closed after it was opened"
        portal, self._portal = self._portal, None
        portal.call(portal.stop, True)
        self._thread.join()

    def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._portal is None:
            raise StoreClosed("the store is not open; use it inside `with holdfast.sync.open(...)`")
        if self.is_inherited:
            raise WrongProcess("the store was opened before fork(); open another one here")
        future = self._portal.start_task_soon(functools.partial(method, *args, **kwargs))
        try:
            return future.result()
        finally:
            # After Ctrl-C nobody waits for it any more; a call that has ended is not touched.
            future.cancel()

    def each(self, source: AsyncIterator[T]) -> Iterator[T]:
        try:
            while (item := self.call(_next, source)) is not _END:
                yield item
        finally:
            with contextlib.suppress(StoreClosed, WrongProcess):
                self.call(_close, source)


async def _serve(started: "Future[BlockingPortal]") -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()


async def _next(source: AsyncIterator[T]) -> T | Any:
    return await anext(source, _END)


async def _close(source: AsyncIterator[Any]) -> None:
    # Refused while a step that Ctrl-C has cancelled is unwinding, which closes it as well.
    with contextlib.suppress(RuntimeError):
        await cast("AsyncGenerator[Any]", source).aclose()


class _Face(Generic[T]):
    """What blocks for an object of the async face."""

    def __init__(self, loop: _Loop, inner: T) -> None:
        self._loop = loop
        self._inner = inner
        self._call = loop.call


def _blocking(source: type) -> Callable[[type[T]], type[T]]:
    """Give a class's public members the docstrings of what they stand for."""

    def document(face: type[T]) -> type[T]:
        for name, member in vars(face).items():
            if not name.startswith("_"):
                member.__doc__ = getattr(source, name).__doc__
        return face

    return document


@_blocking(leased_run.LeasedRun)
class LeasedRun(_Face[leased_run.LeasedRun]):
    """A run and the lease on it. Use it from one thread at a time."""

    @property
    def run(self) -> Run:
        return self._inner.run

    @property
    def run_id(self) -> str:
        return self._inner.run_id

    @property
    def version(self) -> int:
        return self._inner.version

    def state(self) -> dict[str, Any]:
        return self._inner.state()

    def append(self, log: str, *items: object) -> None:
        return self._inner.append(log, *items)

    def splice(self, log: str, start: int, delete: int, items: Iterable[object] = ()) -> None:
        return self._inner.splice(log, start, delete, items)

    def set(self, name: str, value: object) -> None:
        return self._inner.set(name, value)

    def drop(self, name: str) -> None:
        return self._inner.drop(name)

    def discard(self) -> None:
        return self._inner.discard()

    def save(
        self,
        state: Mapping[str, object],
        *,
        phase: str = "",
        agent: str = "",
        status: str = "",
        label: str = "",
    ) -> Checkpoint:
        return self._call(
            self._inner.save, state, phase=phase, agent=agent, status=status, label=label
        )

    def checkpoint(
        self, *, phase: str = "", agent: str = "", status: str = "", label: str = ""
    ) -> Checkpoint:
        return self._call(
            self._inner.checkpoint, phase=phase, agent=agent, status=status, label=label
        )

    def record(self, name: str, value: object, *, args: object = None) -> Ref:
        return self._call(self._inner.record, name, value, args=args)

    def begin_effects(self, requests: Sequence[EffectRequest]) -> list[Begun]:
        return self._call(self._inner.begin_effects, requests)

    def finish_effect(self, begun: Begun, result: object = None) -> None:
        return self._call(self._inner.finish_effect, begun, result)

    def abandon_effect(self, begun: Begun, *, note: str = "") -> None:
        return self._call(self._inner.abandon_effect, begun, note=note)

    def doubt_effect(self, begun: Begun, *, note: str = "") -> None:
        return self._call(self._inner.doubt_effect, begun, note=note)

    def open_waits(
        self, specs: Sequence[WaitSpec], *, mode: str | int = "all", suspend: bool = False
    ) -> str:
        return self._call(self._inner.open_waits, specs, mode=mode, suspend=suspend)

    def suspend(self, group_id: str) -> bool:
        return self._call(self._inner.suspend, group_id)

    def results(self, group_id: str) -> list[Result]:
        return self._call(self._inner.results, group_id)

    def release(self, *, delay_seconds: float = 0.0, note: str = "") -> None:
        return self._call(self._inner.release, delay_seconds=delay_seconds, note=note)

    def complete(self, result: object = None) -> None:
        return self._call(self._inner.complete, result)

    def fail(self, error: str, *, details: object = None) -> None:
        return self._call(self._inner.fail, error, details=details)

    def block(self, reason: BlockedReason | str, *, note: str = "") -> None:
        return self._call(self._inner.block, reason, note=note)


@_blocking(leases.Leases)
class Leases(_Face[leases.Leases]):
    """The runs this worker holds."""

    def take(self, run_id: str, *, takeover: bool = False) -> LeasedRun:
        return LeasedRun(self._loop, self._call(self._inner.take, run_id, takeover=takeover))

    def next(self, *, agents: Sequence[str] = (), timeout_seconds: float = 0.0) -> LeasedRun | None:
        found = self._call(self._inner.next, agents=agents, timeout_seconds=timeout_seconds)
        return None if found is None else LeasedRun(self._loop, found)

    def renew(self) -> None:
        return self._call(self._inner.renew)

    def expire_lost(self, *, limit: int = sweeper.BATCH) -> int:
        return self._call(self._inner.expire_lost, limit=limit)

    def workers(self) -> list[Worker]:
        return self._call(self._inner.workers)

    def close(self) -> None:
        return self._call(self._inner.close)


@_blocking(runs.Runs)
class Runs(_Face[runs.Runs]):
    """Every run of the tenant."""

    def create(self, run_id: str | None = None, *, agent: str = "", input: object = None) -> Run:
        return self._call(self._inner.create, run_id, agent=agent, input=input)

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

    def cancel(self, run_id: str, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.cancel, run_id, by=by, note=note)

    def block(
        self, run_id: str, reason: BlockedReason | str, *, by: str = "", note: str = ""
    ) -> None:
        return self._call(self._inner.block, run_id, reason, by=by, note=note)

    def unblock(self, run_id: str, *, by: str = "", note: str = "") -> None:
        return self._call(self._inner.unblock, run_id, by=by, note=note)

    def fork(self, run_id: str, version: int, *, new_run_id: str | None = None) -> Run:
        return self._call(self._inner.fork, run_id, version, new_run_id=new_run_id)

    def list(
        self,
        *,
        status: RunStatus | str | None = None,
        agent: str | None = None,
        limit: int = 100,
        before: Run | None = None,
    ) -> list[Run]:
        return self._call(self._inner.list, status=status, agent=agent, limit=limit, before=before)


@_blocking(journal.Journal)
class Journal(_Face[journal.Journal]):
    """Reading the record of runs."""

    def read(
        self, run_id: str, *, after: int = 0, limit: int = 1000, checked: bool = True
    ) -> list[Entry]:
        return self._call(self._inner.read, run_id, after=after, limit=limit, checked=checked)

    def tail(self, run_id: str, *, after: int = 0, checked: bool = True) -> Iterator[Entry]:
        return self._loop.each(self._inner.tail(run_id, after=after, checked=checked))

    def verify(self, run_id: str) -> list[Problem]:
        return self._call(self._inner.verify, run_id)

    def run_ids(self) -> Iterator[str]:
        return self._loop.each(self._inner.run_ids())


@_blocking(checkpoints.Checkpoints)
class Checkpoints(_Face[checkpoints.Checkpoints]):
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

    def diff(self, run_id: str, before: int, after: int) -> StateDiff:
        return self._call(self._inner.diff, run_id, before, after)


@_blocking(effects.Effects)
class Effects(_Face[effects.Effects]):
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

    def settle(
        self,
        effect_id: UUID | str,
        status: EffectStatus | str,
        *,
        result: object = None,
        by: str = "",
        note: str = "",
    ) -> Effect:
        return self._call(self._inner.settle, effect_id, status, result=result, by=by, note=note)


@_blocking(waits.Waits)
class Waits(_Face[waits.Waits]):
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

    def expire_due(self, *, limit: int = sweeper.BATCH) -> int:
        return self._call(self._inner.expire_due, limit=limit)


@_blocking(signals.Signals)
class Signals(_Face[signals.Signals]):
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


@_blocking(app.Holdfast)
class Holdfast(_Face[app.Holdfast]):
    """An open store of agents' state: `with holdfast.sync.open("agents.db") as hf:`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        telemetry: Sink | None = None,
    ) -> None:
        super().__init__(
            _Loop(), app.Holdfast(url, settings=settings, clock=clock, telemetry=telemetry)
        )
        self._closing = contextlib.ExitStack()
        self._wire()

    def _wire(self) -> None:
        self.leases = Leases(self._loop, self._inner.leases)
        self.runs = Runs(self._loop, self._inner.runs)
        self.journal = Journal(self._loop, self._inner.journal)
        self.checkpoints = Checkpoints(self._loop, self._inner.checkpoints)
        self.effects = Effects(self._loop, self._inner.effects)
        self.waits = Waits(self._loop, self._inner.waits)
        self.signals = Signals(self._loop, self._inner.signals)

    @property
    def worker(self) -> str:
        return self._inner.worker

    def another_worker(self) -> "Holdfast":
        twin = object.__new__(Holdfast)
        super(Holdfast, twin).__init__(self._loop, self._inner.another_worker())
        twin._wire()
        return twin

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


def open(
    url: str | None = None,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    telemetry: Sink | None = None,
) -> Holdfast:
    """A Holdfast on a file's path, `memory://`, or what HOLDFAST_STORE names. Enter it to open."""
    return Holdfast(url, settings=settings, clock=clock, telemetry=telemetry)
