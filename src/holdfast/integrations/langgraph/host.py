"""The host of a saver: its store, opened at first use, and the event loop that the store uses.

Any OS thread or event loop may call a saver; the store belongs to one loop in a separate thread.
A forked process opens the store again. It raises WrongProcess for a store in memory, and for an
SQLite file that was open before the fork.
"""

import asyncio
import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from holdfast import names
from holdfast.engine.context import Context
from holdfast.engine.leases.leases import Leases
from holdfast.engine.marked.marked_run import MarkedRun, Stale
from holdfast.engine.marked.marks import Marks
from holdfast.engine.waits import Waits
from holdfast.errors import HoldfastError, StoreClosed, WrongProcess
from holdfast.integrations.langgraph.layout import run_id_of
from holdfast.settings import Settings, locate_store, store_url
from holdfast.stores import open_store
from holdfast.sync.loop import Loop
from holdfast.telemetry import Telemetry, log
from holdfast.wakeups import open_wakeups

P = ParamSpec("P")
T = TypeVar("T")

AGENT: Final = "langgraph"
_KEPT: Final = 64
_NOTES: Final = 10_000


class Host:
    """A store, and a cache of the runs that this process uses: one for each LangGraph thread."""

    def __init__(self, url: str | None, settings: Settings | None) -> None:
        self._where = store_url(url)
        self._settings = settings or Settings()
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._is_closed = False
        self._context: Context | None = None
        self._notes: dict[str, str] = {}
        self._runs: OrderedDict[str, MarkedRun] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._on_open: list[Callable[[], Awaitable[None]]] = []
        self._background: set[asyncio.Task[None]] = set()
        self._unfinished: set[asyncio.Task[None]] = set()

    def in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Register `work` to start on the loop when the store opens; `close` cancels it."""
        self._on_open.append(work)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Start `work` as a task. Call this on the store's loop; `close` waits for the task."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `method` on the store's loop, block until it ends, and return its result."""
        return self._opened().call(method, *args, **kwargs)

    def send(self, method: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `method` on the store's loop without waiting for it; `close` waits for it."""

        async def begin() -> None:
            self.later(method())

        self._opened().submit(begin)

    async def acall(
        self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `method` on the store's loop, and await its result in the caller's event loop."""
        loop = self._loop
        if loop is None or loop.is_inherited:
            loop = await asyncio.to_thread(self._opened)
        return await asyncio.wrap_future(loop.submit(method, *args, **kwargs))

    def close(self) -> None:
        """Close the store; the next call raises StoreClosed."""
        with self._lock:
            loop, self._loop, self._is_closed = self._loop, None, True
        if loop is not None and not loop.is_inherited:
            loop.call(self._close)
            loop.close()

    @property
    def context(self) -> Context:
        assert self._context is not None, "used on the loop, after it was opened"
        return self._context

    @property
    def marks(self) -> Marks:
        return self._marks

    @property
    def waits(self) -> Waits:
        return self._waits

    def lock(self, run_id: str) -> asyncio.Lock:
        """Return the lock of a thread's run: one task at a time changes it in this process."""
        lock = self._locks.get(run_id)
        if lock is None:
            lock = self._locks[run_id] = asyncio.Lock()
        return lock

    def known(self, run_id: str) -> MarkedRun | None:
        """Return a cached run; None if it is not cached, or is out of date."""
        run = self._runs.get(run_id)
        return None if run is None or run.is_stale else run

    async def run(self, run_id: str) -> MarkedRun:
        """Return a run to write to; create it if it does not exist."""
        run = self.known(run_id)
        if run is None:
            note = self._notes.get(run_id, "")
            run = self._runs[run_id] = await self._marks.open(run_id, note=note)
            while len(self._runs) > _KEPT:
                self._runs.popitem(last=False)
        self._runs.move_to_end(run_id)
        return run

    def run_of(self, thread_id: str) -> str:
        """Return the id of a thread's run; remember the thread id if the two differ."""
        run_id = run_id_of(thread_id)
        if run_id != thread_id and len(self._notes) < _NOTES:
            self._notes[run_id] = json.dumps(thread_id)[: names.MAX_TEXT]
        return run_id

    async def thread_of(self, run_id: str) -> str:
        """Return the id of a run's thread."""
        note = self._notes.get(run_id) or await self._marks.note(run_id)
        return json.loads(note) if note.startswith('"') and note.endswith('"') else run_id

    def forget(self, run_id: str) -> None:
        self._runs.pop(run_id, None)

    async def advance(self, run_id: str, work: Callable[[MarkedRun], Awaitable[T]]) -> T:
        """Call `work` with a run; call it again if the cached run was out of date."""
        async with self.lock(run_id):
            while True:
                run = await self.run(run_id)
                try:
                    return await work(run)
                except Stale:
                    self.forget(run_id)
                except HoldfastError:
                    if run.is_stale:
                        self.forget(run_id)
                    raise

    def _opened(self) -> Loop:
        with self._lock:
            if self._is_closed:
                raise StoreClosed("this saver was closed; make another one")
            loop = self._loop
            if loop is not None and loop.is_inherited:
                if locate_store(self._where) == ("sqlite", ""):
                    raise WrongProcess("a store in memory ends with its process; use a file")
                loop = self._loop = None
                self._runs.clear()
                self._locks.clear()
                self._background.clear()
                self._unfinished.clear()
            if loop is None:
                loop = Loop()
                loop.open()
                try:
                    loop.call(self._open)
                except BaseException:
                    loop.close()
                    raise
                self._loop = loop
            return loop

    async def _open(self) -> None:
        counts = Telemetry()
        store = open_store(self._where, settings=self._settings, telemetry=counts)
        context = Context(
            store, open_wakeups(self._where, store.look_for_foreign_commits), self._settings, counts
        )
        store.on_applied = context.wakeups.notify
        await store.open()
        try:
            await context.wakeups.open()
        except BaseException:
            await store.close()
            raise
        self._context = context
        self._leases = Leases(context)
        self._marks = Marks(context, self._leases, AGENT)
        self._waits = Waits(context)
        for work in self._on_open:
            task = asyncio.create_task(_quietly(work))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _close(self) -> None:
        if self._unfinished:
            await asyncio.wait(self._unfinished)
        for task in list(self._background):
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        self._runs.clear()
        context = self.context
        try:
            await self._leases.close()
        finally:
            await context.wakeups.close()
            await context.store.close()


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await work()
        except HoldfastError as error:
            log.warning("a saver's background work ended: %s", error)
