"""PostgreSQL from below: the bare driver, psycopg, on a server of the benchmarks' own."""

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import AsyncConnection

from benchmarks.contract import Rows
from holdfast.stores.postgres.queries import PARTS, SQL, change_statement
from holdfast.testing.postgres import PostgresServer, find_programs

# But for indexes that hold only what is looked for.
_WHOLE = re.compile(
    r"Seq Scan|using (?!runs_r|waits_due)\w+ on .*\n +Index Cond: \(tenant = [^=]*\)$", re.M
)
_OPTIONS = {"shared_buffers": "256MB"}
_TABLES = """
CREATE TABLE rows (id bigserial PRIMARY KEY, body bytea);
CREATE TABLE results (key text COLLATE "C" PRIMARY KEY, body bytea);
"""
_INSERTS = {
    "rows": "INSERT INTO rows (body) VALUES (%s)",
    "results": "INSERT INTO results (key, body) VALUES (%s, %s) ON CONFLICT DO NOTHING",
}
_SIZE = """
SELECT sum(pg_total_relation_size(format('%I.%I', schemaname, tablename)::regclass))::bigint
FROM pg_tables WHERE schemaname = 'public'
"""
_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def version() -> str:
    """PostgreSQL and its version."""
    told = find_programs().run("postgres", "--version")
    return told.strip().replace("postgres (PostgreSQL)", "PostgreSQL")


class PostgresPlace:
    """Databases of one server."""

    name = "postgres"
    queries = SQL
    whole = _WHOLE

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._made: list[str] = []
        self._numbers = count(1)

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Generator[Self]:
        """A place whose server is stopped afterwards."""
        with PostgresServer.start(folder, options=_OPTIONS) as server:
            yield cls(server)

    def new_store(self) -> str:
        name = f"bench_{next(self._numbers)}"
        with _connect(self._server.url()) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        self._made.append(name)
        return self._server.url(name)

    def new_floor(self) -> str:
        url = self.new_store()
        with _connect(url) as connection:
            connection.execute(_TABLES)
        return url

    def break_down(self) -> bool:
        self._server.kill()
        self._server.restart()
        return True

    def clear(self) -> None:
        with _connect(self._server.url()) as connection:
            while self._made:
                connection.execute(f"DROP DATABASE {self._made.pop()} WITH (FORCE)")

    def stored_bytes(self, url: str) -> int:
        """All tables with their indexes, out-of-line values and maps of free room."""
        self.settle(url)
        with _connect(url) as connection:
            return connection.execute(_SIZE).fetchall()[0][0]

    def rows_of(self, url: str, table: str, run_id: str) -> Rows:
        with _connect(url) as connection:
            found = connection.execute(f"SELECT * FROM {table} WHERE run_id = %s", (run_id,))
            columns = [column.name for column in found.description or ()]
            return Rows(columns, found.fetchall())

    def load(self, url: str, table: str, rows: Rows) -> None:
        copied = f"COPY {table} ({', '.join(rows.columns)}) FROM STDIN"
        with _connect(url) as connection, connection.cursor().copy(copied) as copy:
            for row in rows.rows:
                copy.write_row(row)

    def settle(self, url: str) -> None:
        with _connect(url) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def plan(self, url: str, query: str) -> str:
        """The plan for any values, under the settings of Holdfast's own sessions."""
        with _connect(url) as connection:
            raw = psycopg.RawCursor(connection)
            raw.execute(SQL["set_limits"], ("10s", "5s", False))
            raw.execute(f"EXPLAIN (GENERIC_PLAN) {_statement(query)}")
            return "\n".join(line for (line,) in raw)

    def connections(self, url: str, pid: int) -> int:
        with _connect(url) as connection:
            return connection.execute(_CONNECTIONS).fetchall()[0][0]


class PostgresFloor:
    """One connection; every statement is prepared, and a transaction of its own."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, url: str) -> Self:
        return cls(await AsyncConnection.connect(url, autocommit=True, prepare_threshold=0))

    async def commit(self, body: bytes) -> None:
        await self._connection.execute(_INSERTS["rows"], (body,))

    async def commit_once(self, key: str, body: bytes) -> None:
        await self._connection.execute(_INSERTS["results"], (key, body))

    async def bodies(self) -> list[bytes]:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute("SELECT body FROM rows ORDER BY id")
        return [body for (body,) in await cursor.fetchall()]

    def group(self, table: str) -> "PostgresGroup":
        return PostgresGroup(self._connection, _INSERTS[table])

    async def close(self) -> None:
        await self._connection.close()


class _Queued(NamedTuple):
    row: tuple[Any, ...]
    stored: asyncio.Future[None]


class PostgresGroup:
    """One task takes all there are: BEGIN, one pipeline of INSERTs, COMMIT."""

    def __init__(self, connection: AsyncConnection[Any], sql: str) -> None:
        self._connection = connection
        self._sql = sql
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Queued] = []
        self._word = asyncio.Event()
        self._task = self._loop.create_task(self._work())

    async def store(self, *row: Any) -> None:
        stored: asyncio.Future[None] = self._loop.create_future()
        self._gathered.append(_Queued(row, stored))
        self._word.set()
        await stored

    async def close(self) -> None:
        """Every row is stored: whoever queued one has waited for it."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work(self) -> None:
        cursor = self._connection.cursor()
        while await self._word.wait():
            self._word.clear()
            batch, self._gathered = self._gathered, []
            await cursor.execute("BEGIN")
            await cursor.executemany(self._sql, [queued.row for queued in batch])
            await cursor.execute("COMMIT")
            for queued in batch:
                queued.stored.set_result(None)


def _statement(query: str) -> str:
    """A named statement; a part of commits is made a statement, with the type of its parameter."""
    if query not in PARTS:
        return SQL[query]
    return change_statement(frozenset({query})).sql.replace("unnest($1)", "unnest($1::text[])")


def _connect(url: str) -> "psycopg.Connection[Any]":
    return psycopg.connect(url, autocommit=True)
