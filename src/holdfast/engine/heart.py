"""The heartbeat of a worker, from a thread of its own with a store of its own.

Code that keeps the event loop busy for a while does not make the worker look dead; a loop that
stands still for most of a lease does: nobody is there to go on with what it holds.
"""

import asyncio
import threading
import time
from collections.abc import Callable

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.stores.contract import Beat, Store
from holdfast.telemetry import log


class Heart:
    """Beats every third of a lease while the loop that started it ticks."""

    def __init__(self, context: Context, open_store: Callable[[], Store]) -> None:
        self._context = context
        self._open_store = open_store
        self._lease_seconds = context.settings.lease_seconds
        self._ticked_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticking: asyncio.Task[None] | None = None
        self.beats = 0
        self.alive_until = 0

    def start_once(self, *, started_at: int) -> None:
        """Begin to beat for the loop that is running."""
        if self._thread is not None:
            return
        self._ticked_at = time.monotonic()
        self._ticking = asyncio.create_task(self._tick())
        self._thread = threading.Thread(
            target=self._run, args=(started_at,), name="holdfast-heart", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        """Beat no more; from then on nothing of it writes."""
        self._stopped.set()
        if self._ticking is not None:
            self._ticking.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def _tick(self) -> None:
        while True:
            self._ticked_at = time.monotonic()
            await asyncio.sleep(self._lease_seconds / 12)

    def _run(self, started_at: int) -> None:
        try:
            asyncio.run(self._beat_until_stopped(started_at))
        except Exception:
            log.exception("the heart of worker %s stopped", self._context.worker)

    async def _beat_until_stopped(self, started_at: int) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                store = self._open_store()
                await store.open()
                try:
                    while not self._stopped.wait(self._lease_seconds / 3):
                        await self._beat(store, started_at)
                finally:
                    await store.close()
            except HoldfastError as error:
                log.warning("worker %s could not beat: %s", self._context.worker, error)
                pause = self._lease_seconds / 12

    async def _beat(self, store: Store, started_at: int) -> None:
        still = time.monotonic() - self._ticked_at
        if still > self._lease_seconds / 2:
            log.warning(
                "the event loop of worker %s stands still for %.1f s: its runs will be taken over. "
                "Do not block in async code",
                self._context.worker,
                still,
            )
            return
        expires_at = store.clock.now() + clock.seconds(self._lease_seconds)
        beat = Beat(self._context.tenant, self._context.worker, started_at, expires_at)
        await store.submit(beat)
        self.alive_until = expires_at
        self.beats += 1
