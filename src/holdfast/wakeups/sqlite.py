"""Wake-ups across the processes that share a SQLite file.

`PRAGMA data_version` changes when another connection has committed. Reading it touches shared
memory only, so a thread asks every few milliseconds, and only while somebody waits. The commits of
this store have notified their waiters already: only those of others wake all.
"""

import asyncio
import os
import threading
from typing import Any, cast

import apsw

from holdfast.wakeups.contract import LookForForeign
from holdfast.wakeups.local import LocalWakeups

_INTERVAL_SECONDS = 0.005


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
        seen = None
        while not self._stopped.wait(_INTERVAL_SECONDS):
            self._wanted.wait()
            try:
                version = connection.execute("PRAGMA data_version").fetchall()[0][0]
            except apsw.Error:
                # Polling underneath continues; this was only a hint.
                continue
            if version != seen:
                seen = version
                self._call_in_loop()
        connection.close()

    def _call_in_loop(self) -> None:
        assert self._loop is not None, "set in open"
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            self._stopped.set()

    def _look(self) -> None:
        if self._look_for_foreign is None:
            self.notify_all()
        else:
            self._look_for_foreign(lambda is_foreign: self.notify_all() if is_foreign else None)
