"""What the numbers are compared with: the bare driver, doing no more than it must.

A floor has the page size, WAL and `synchronous=FULL` of a Holdfast store, and a database of its own
in the same folder. It stores JSON, checks nothing and keeps no index but its key.
"""

import asyncio
import random
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import apsw

PAGE_SIZE = 8192
INSERT = "INSERT INTO rows (body) VALUES (?)"
INSERT_ONCE = "INSERT INTO results (key, body) VALUES (?, ?) ON CONFLICT DO NOTHING"
_BATCH = 1024


def connect(path: Path) -> Any:
    """A database with one table of bodies, and one of results by key."""
    # apsw's annotations name a type that Python 3.11 lacks.
    connection = cast(Any, apsw.Connection(str(path)))
    connection.set_busy_handler(_take_turns)
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body BLOB)")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID"
    )
    return connection


def _take_turns(tries: int) -> bool:
    """Wait for the write lock in short random steps; SQLite's own steps grow to 100 ms."""
    time.sleep(random.uniform(0.0002, 0.002))
    return tries < 10_000


def insert_and_commit(connection: Any, body: bytes) -> None:
    """The floor of every durable save: one row, one commit."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT, (body,))
    connection.execute("COMMIT")


class _Queued(NamedTuple):
    row: tuple[Any, ...]
    stored: asyncio.Future[None]


class GroupCommit:
    """The raw group-commit loop: tasks queue rows, one thread inserts all there are and commits."""

    def __init__(self, path: Path, sql: str) -> None:
        self._path = path
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="floor", daemon=True)
        self._thread.start()

    async def store(self, *row: Any) -> None:
        """Return when the row is on disk."""
        stored: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Queued(row, stored))
        await stored

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        connection = connect(self._path)
        while batch := self._next_batch():
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(self._sql, [queued.row for queued in batch])
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_wake, batch)
        connection.close()

    def _next_batch(self) -> list[_Queued]:
        """Everything that has gathered; nothing when the loop is to end."""
        first = self._queue.get()
        batch: list[_Queued] = []
        while first is not None:
            batch.append(first)
            if self._queue.empty() or len(batch) == _BATCH:
                break
            first = self._queue.get()
        return batch


def _wake(batch: list[_Queued]) -> None:
    for queued in batch:
        queued.stored.set_result(None)
