"""SQLite from below: the bare driver, apsw, with the page size and durability of a store."""

import asyncio
import random
import re
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, cast

import apsw

from benchmarks.contract import Rows
from holdfast.stores.sqlite.queries import SQL

_PAGE_SIZE = 8192
_PARAMETER = re.compile(r"\?\d+")
# But for indexes that hold only what is looked for.
_WHOLE = re.compile(
    r"SCAN \w+$|USING (PRIMARY KEY|(COVERING )?INDEX (?!runs_r|waits_due)\w+) \(tenant=\?\)", re.M
)
_TABLES = """
CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB);
CREATE TABLE results (key TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
"""
_INSERTS = {
    "rows": "INSERT INTO rows (body) VALUES (?)",
    "results": "INSERT INTO results (key, body) VALUES (?, ?) ON CONFLICT DO NOTHING",
}


def version() -> str:
    return f"SQLite {apsw.sqlite_lib_version()}"


class SQLitePlace:
    """Files in a folder; the URL is the path."""

    name = "sqlite"
    queries = SQL
    whole = _WHOLE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    def new_store(self) -> str:
        return str(self._folder / f"{next(self._numbers)}.db")

    def new_floor(self) -> str:
        path = self.new_store()
        with closing(connect(path)) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(_TABLES)
        return path

    def break_down(self) -> bool:
        return False

    def clear(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()

    def stored_bytes(self, url: str) -> int:
        """The whole file."""
        self.settle(url)
        return Path(url).stat().st_size

    def rows_of(self, url: str, table: str, run_id: str) -> Rows:
        with closing(connect(url)) as connection:
            told = connection.execute(f"PRAGMA table_info({table})").fetchall()
            columns = [name for _, name, *_ in told if name != "id"]
            asked = f"SELECT {', '.join(columns)} FROM {table} WHERE run_id = ?"
            return Rows(columns, connection.execute(asked, (run_id,)).fetchall())

    def load(self, url: str, table: str, rows: Rows) -> None:
        values = ", ".join("?" * len(rows.columns))
        insert = f"INSERT INTO {table} ({', '.join(rows.columns)}) VALUES ({values})"
        with closing(connect(url)) as connection:
            connection.execute("PRAGMA cache_size = -1000000")
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, rows.rows)
            connection.execute("COMMIT")

    def settle(self, url: str) -> None:
        with closing(connect(url)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def plan(self, url: str, query: str) -> str:
        nothing = [None] * len(set(_PARAMETER.findall(SQL[query])))
        with closing(connect(url)) as connection:
            told = connection.execute(f"EXPLAIN QUERY PLAN {SQL[query]}", nothing).fetchall()
        return "\n".join(line for *_, line in told)

    def connections(self, url: str, pid: int) -> int:
        """Each has the file open once."""
        opened = Path(f"/proc/{pid}/fd").iterdir()
        return sum(str(file.readlink()) == url for file in opened)


class SQLiteFloor:
    """One connection."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = connect(path)

    async def commit(self, body: bytes) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(_INSERTS["rows"], (body,))
        self._connection.execute("COMMIT")

    async def commit_once(self, key: str, body: bytes) -> None:
        self._connection.execute(_INSERTS["results"], (key, body))

    async def bodies(self) -> list[bytes]:
        found = self._connection.execute("SELECT body FROM rows ORDER BY id")
        return [body for (body,) in found]

    def group(self, table: str) -> "SQLiteGroup":
        return SQLiteGroup(self._path, _INSERTS[table])

    async def close(self) -> None:
        self._connection.close()


class _Queued(NamedTuple):
    row: tuple[Any, ...]
    stored: asyncio.Future[None]


class SQLiteGroup:
    """One thread with a connection of its own inserts all there are and commits."""

    def __init__(self, path: str, sql: str) -> None:
        self._path = path
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="floor", daemon=True)
        self._thread.start()

    async def store(self, *row: Any) -> None:
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
        queued = self._queue.get()
        batch: list[_Queued] = []
        while queued is not None:
            batch.append(queued)
            if self._queue.empty():
                break
            queued = self._queue.get()
        return batch


def _wake(batch: list[_Queued]) -> None:
    for queued in batch:
        queued.stored.set_result(None)


def connect(path: str) -> Any:
    # apsw's annotations name a type that Python 3.11 lacks.
    connection = cast(Any, apsw.Connection(path))
    connection.set_busy_handler(_take_turns)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _take_turns(tries: int) -> bool:
    """Wait for the write lock in short random steps; SQLite's own steps grow to 100 ms."""
    time.sleep(random.uniform(0.0002, 0.002))
    return tries < 10_000
