"""Threads that own SQLite connections: one that writes, some that read.

A connection is made, used and closed in its own thread. Work is a function of the connection;
results come back to the event loop that asked.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from holdfast.errors import StoreClosed
from holdfast.stores.sqlite.connection import SqliteConnection, translation

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]


class _Job(NamedTuple):
    work: Callable[[SqliteConnection], Any]
    done: Done
    loop: asyncio.AbstractEventLoop


class Lane:
    """One or more threads, each with its own connection to a path, that take jobs from one queue.

    Errors of SQLite arrive as ours.
    """

    def __init__(
        self, name: str, path: str, connect: Callable[[], SqliteConnection], threads: int = 1
    ) -> None:
        self._path = path
        self._connect = connect
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"holdfast-{name}-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, work: Callable[[SqliteConnection], Any], done: Done) -> None:
        """Do `work` in a thread, then call `done(result, error)` in this event loop."""
        if self._is_closed:
            raise StoreClosed()
        self._jobs.put(_Job(work, done, asyncio.get_running_loop()))

    def run(self, work: Callable[[SqliteConnection], T]) -> "asyncio.Future[T]":
        """The result of `work`, which is done even if the caller is cancelled meanwhile."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def deliver(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(work, deliver)
        return future

    async def close(self) -> None:
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        connection: SqliteConnection | None = None
        while (job := self._jobs.get()) is not None:
            try:
                if connection is None:
                    connection = self._connect()
                result, error = job.work(connection), None
            except (apsw.Error, UnicodeDecodeError) as raised:
                result, error = None, translation(raised, self._path)
                error.__cause__ = raised
            except BaseException as raised:
                result, error = None, raised
            try:
                job.loop.call_soon_threadsafe(job.done, result, error)
            except RuntimeError:
                # The loop that asked is closed: there is no caller to report to.
                continue
        if connection is not None:
            connection.close()
