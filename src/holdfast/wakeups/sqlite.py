"""Wake-ups across the processes that share a SQLite file.

`PRAGMA data_version` changes when another connection has committed. Reading it touches shared
memory only, so a thread asks every few milliseconds, and only while somebody waits. The commits of
this store have notified their waiters already: only those of others wake all. If none of this store
was under way, the change is of others. Else the store is asked, when its own commits pause.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, cast

import apsw

from holdfast.wakeups.contract import LookForForeign
from holdfast.wakeups.local import LocalWakeups

_INTERVAL_SECONDS = 0.005
_MOST_UNSURE = 3
"""How many looks a change is left open that may be of this store, while it commits on."""


class SQLiteWakeups(LocalWakeups):
    """Local wake-ups, and a watcher for commits of other processes."""

    def __init__(self, path: str, look_for_foreign: LookForForeign | None = None) -> None:
        super().__init__()
        self._path = os.path.abspath(path)
        self._look_for_foreign = look_for_foreign
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped.clear()
        self._wanted.clear()
        self._thread = threading.Thread(target=self._watch, name="holdfast-wakeups", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        await super().close()
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def wait(self, topic: str, ticket: int, *, timeout: float) -> bool:
        self._wanted.set()
        try:
            return await super().wait(topic, ticket, timeout=timeout)
        finally:
            if not self.has_waiters:
                self._wanted.clear()

    def _watch(self) -> None:
        # apsw's annotations name a type that Python 3.11 lacks.
        connection = cast(Any, apsw.Connection(self._path, flags=apsw.SQLITE_OPEN_READONLY))
        own, seen, ended, unsure_for = self._look_for_foreign, None, 0, 0
        while not self._stopped.wait(_INTERVAL_SECONDS):
            self._wanted.wait()
            ended_by_now = 0 if own is None else own.ended
            try:
                version = connection.execute("PRAGMA data_version").fetchall()[0][0]
            except apsw.Error:
                # Polling underneath continues; this was only a hint.
                continue
            # What was begun by now, and had not ended at the last look, may be what has changed.
            may_be_own = own is not None and (seen is None or own.begun > ended)
            if version != seen and not may_be_own:
                unsure_for = 0
                self._call_in_loop(self.notify_all)
            elif version != seen or unsure_for:
                unsure_for += 1
            if unsure_for > _MOST_UNSURE or (unsure_for and not may_be_own):
                unsure_for = 0
                self._call_in_loop(self._look)
            seen, ended = version, ended_by_now
        connection.close()

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        assert self._loop is not None, "set in open"
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            self._stopped.set()

    def _look(self) -> None:
        assert self._look_for_foreign is not None, "else nobody is unsure"
        self._look_for_foreign(self._wake_all_if)

    def _wake_all_if(self, is_foreign: bool) -> None:
        if is_foreign:
            self.notify_all()
