"""The heartbeat of a worker, from a separate thread with a separate store.

Code that keeps the event loop busy for a while does not make the worker look dead. A loop that is
blocked for half a lease does: it cannot work on the runs it holds. The worker's row then names the
run whose code blocks the loop, so that the loss counts against that run alone.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Final

from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.kernel.leases import WorkerRow
from holdfast.stores.contract import Beat, NoteBlockedLoop, Store
from holdfast.telemetry import log

CURRENT_RUN: Final[ContextVar[str]] = ContextVar("holdfast_current_run", default="")
"""The run that the current task, and every task it starts, works for."""

_LOOKS: Final = 12
"""How often in a lease the loop ticks and is checked."""
_BEAT_EVERY: Final = 4
_BLOCKED_AFTER: Final = 6
_RUN_HANDLE: Final = asyncio.Handle._run.__code__


class Heartbeat:
    """Beats every third of a lease while the loop that started it ticks."""

    def __init__(self, context: Context, open_store: Callable[[], Store]) -> None:
        self._context = context
        self._open_store = open_store
        self._interval = context.settings.lease_seconds / _LOOKS
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._loop: LoopWatch | None = None
        self.beats = 0

    def start_once(self, worker: Callable[[], WorkerRow]) -> None:
        """Begin to beat for the running loop, with the row that `worker` returns."""
        if self._thread is not None:
            return
        self._loop = LoopWatch(threading.get_ident())
        self._ticking = asyncio.create_task(self._tick(self._loop))
        self._thread = threading.Thread(
            target=self._run, args=(worker, self._loop), name="holdfast-heart", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Stop beating; from then on it writes nothing."""
        self._stopped.set()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def _tick(self, loop: "LoopWatch") -> None:
        while True:
            loop.ticks += 1
            await asyncio.sleep(self._interval)

    def _run(self, worker: Callable[[], WorkerRow], loop: "LoopWatch") -> None:
        try:
            asyncio.run(self._beat_until_stopped(worker, loop))
        except Exception:
            log.exception("the heart of worker %s stopped", self._context.worker)

    async def _beat_until_stopped(self, worker: Callable[[], WorkerRow], loop: "LoopWatch") -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                store = self._open_store()
                await store.open()
                try:
                    await self._beat_with(store, worker, loop)
                finally:
                    await store.close()
            except Exception as error:  # any error: without beats a living worker is lost
                is_known = isinstance(error, HoldfastError)
                log.warning(
                    "worker %s could not beat: %s",
                    self._context.worker,
                    error,
                    exc_info=None if is_known else error,
                )
                pause = self._interval

    async def _beat_with(
        self, store: Store, worker: Callable[[], WorkerRow], loop: "LoopWatch"
    ) -> None:
        looks, is_noted = 0, False
        while True:
            if loop.still_for < _BLOCKED_AFTER:
                is_noted = False
                if looks % _BEAT_EVERY == 0:
                    await store.submit(Beat(worker()))
                    self.beats += 1
            elif not is_noted:
                await self._note_blocked(store, loop.holder())
                is_noted = True
            if self._stopped.wait(self._interval):
                return
            looks += 1
            loop.look()

    async def _note_blocked(self, store: Store, run_id: str) -> None:
        """Report that the loop is blocked: beats stop, and the worker's row names the reason."""
        log.warning(
            "the event loop of worker %s stands still%s: its runs will be taken over. "
            "Do not block in async code; use asyncio.to_thread",
            self._context.worker,
            f", held by run {run_id}" if run_id else "",
        )
        self._context.store.abort_connections()
        if run_id:
            noted = NoteBlockedLoop(self._context.tenant, self._context.worker, run_id)
            await store.submit(noted)


class LoopWatch:
    """An event loop, seen from another thread: whether it ticks, and which run blocks it.

    Time is counted in looks, not in seconds: if this process gets no processor time, the looks are
    late too, and no run is blamed.
    """

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._seen: int = 0
        self._holders: Counter[str] = Counter()
        self.ticks: int = 0
        self.still_for: int = 0

    def look(self) -> None:
        if self.ticks != self._seen:
            self._seen, self.still_for = self.ticks, 0
            self._holders.clear()
            return
        self.still_for += 1
        self._holders[self._run_on_loop()] += 1

    def holder(self) -> str:
        """Return the run whose code was on the loop in most looks; empty if it was no run's."""
        return self._holders.most_common(1)[0][0] if self._holders else ""

    def _run_on_loop(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._thread_id)  # pyright: ignore[reportPrivateUsage] - there is no other way to see what a thread does
        while frame is not None:
            if frame.f_code is _RUN_HANDLE:
                handle = frame.f_locals.get("self")
                context = getattr(handle, "_context", None)
                return "" if context is None else context.get(CURRENT_RUN, "")
            frame = frame.f_back
        return ""
