"""Fan-in as the text of seed 000 has it, to measure beside ours: its three tables, its two steps.

An answer is *claimed* in one transaction (SELECT FOR UPDATE, DELETE the row of the sub-task), and
*recorded* in another (SELECT FOR UPDATE, parse the JSON array of results, append, write it back,
add one to the counter): K answers cost K squared. On SQLite there is no FOR UPDATE, and Python's
drivers begin a transaction with the first change, so nothing guards what was read.
"""

import asyncio
import json
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import AsyncConnection

from benchmarks import sqlite

_TABLES = """
CREATE TABLE agent_paused_tasks (
    logical_task_id TEXT PRIMARY KEY, agent_name TEXT, a2a_context TEXT, effective_session_id TEXT,
    user_id TEXT, current_invocation_id TEXT, produced_artifacts TEXT,
    artifact_signals_to_return TEXT, response_buffer TEXT, flags TEXT, security_context TEXT,
    token_usage TEXT, checkpointed_at DOUBLE PRECISION
);
CREATE INDEX paused_by_agent ON agent_paused_tasks (agent_name);
CREATE TABLE agent_peer_sub_tasks (
    sub_task_id TEXT PRIMARY KEY,
    logical_task_id TEXT REFERENCES agent_paused_tasks ON DELETE CASCADE,
    invocation_id TEXT, correlation_data TEXT, timeout_deadline DOUBLE PRECISION,
    created_at DOUBLE PRECISION
);
CREATE INDEX sub_tasks_by_invocation ON agent_peer_sub_tasks (invocation_id);
CREATE INDEX sub_tasks_by_deadline ON agent_peer_sub_tasks (timeout_deadline);
CREATE TABLE agent_parallel_invocations (
    logical_task_id TEXT REFERENCES agent_paused_tasks ON DELETE CASCADE, invocation_id TEXT,
    total_expected INTEGER, completed_count INTEGER, results TEXT,
    PRIMARY KEY (logical_task_id, invocation_id)
);
"""
_PAUSE = "INSERT INTO agent_paused_tasks (logical_task_id, agent_name) VALUES (%s, 'support')"
_CALL = "INSERT INTO agent_peer_sub_tasks VALUES (%s, %s, 'i', '{\"tool\": \"peer_x\"}', 0, 0)"
_EXPECT = "INSERT INTO agent_parallel_invocations VALUES (%s, 'i', %s, %s, %s)"
_FIND = "SELECT logical_task_id FROM agent_peer_sub_tasks WHERE sub_task_id = %s"
_DELETE = "DELETE FROM agent_peer_sub_tasks WHERE sub_task_id = %s"
_READ = """
SELECT results, completed_count FROM agent_parallel_invocations
WHERE logical_task_id = %s AND invocation_id = 'i'
"""
_WRITE = """
UPDATE agent_parallel_invocations SET results = %s, completed_count = %s
WHERE logical_task_id = %s AND invocation_id = 'i'
"""
_LEFT = "SELECT count(*) FROM agent_peer_sub_tasks"
_RESULTS = "SELECT results FROM agent_parallel_invocations"


class Counted(NamedTuple):
    """What a store of the seed's holds: calls that nobody has claimed, and recorded answers."""

    unclaimed: int
    recorded: int


class Answers(Protocol):
    """Takes answers of peers, one at a time."""

    async def deliver(self, sub_task_id: str, result: Any) -> bool:
        """Whether this one was the first: claimed, then recorded."""
        ...

    async def close(self) -> None: ...


def prepare(url: str, size: int, groups: int, *, done: int, result: Any) -> None:
    """Pause tasks that each wait for `size` peers, of which the first `done` have answered."""
    calls = [
        (f"wait-{group}-{number}", f"task-{group}")
        for group in range(groups)
        for number in range(done, size)
    ]
    tasks = [(f"task-{group}",) for group in range(groups)]
    expected = [(task, size, done, json.dumps([result] * done)) for (task,) in tasks]
    rows = ((_PAUSE, tasks), (_CALL, calls), (_EXPECT, expected))
    if _is_postgres(url):
        with psycopg.connect(url) as connection:
            connection.execute(_TABLES)
            for sql, values in rows:
                connection.cursor().executemany(sql, values)
        return
    with closing(sqlite.connect(url)) as connection, connection:
        connection.execute(_TABLES.replace("DOUBLE PRECISION", "REAL"))
        for sql, values in rows:
            connection.executemany(_marked(sql), values)


def count(url: str) -> Counted:
    if _is_postgres(url):
        with psycopg.connect(url) as connection:
            ((unclaimed,),) = connection.execute(_LEFT).fetchall()
            results = connection.execute(_RESULTS).fetchall()
    else:
        with closing(sqlite.connect(url)) as connection:
            ((unclaimed,),) = connection.execute(_LEFT).fetchall()
            results = connection.execute(_RESULTS).fetchall()
    return Counted(unclaimed, sum(len(json.loads(array)) for (array,) in results))


async def connect(url: str) -> Answers:
    if _is_postgres(url):
        return PostgresAnswers(await AsyncConnection.connect(url, prepare_threshold=0))
    return SQLiteAnswers(sqlite.connect(url))


class PostgresAnswers:
    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    async def deliver(self, sub_task_id: str, result: Any) -> bool:
        async with self._turn:
            task = await self._claim(sub_task_id)
            if task is not None:
                await self._record(task, result)
            return task is not None

    async def _claim(self, sub_task_id: str) -> str | None:
        async with self._connection.transaction():
            found = await self._connection.execute(f"{_FIND} FOR UPDATE", (sub_task_id,))
            row = await found.fetchone()
            if row is None:
                return None
            await self._connection.execute(_DELETE, (sub_task_id,))
            return row[0]

    async def _record(self, task: str, result: Any) -> None:
        async with self._connection.transaction():
            found = await self._connection.execute(f"{_READ} FOR UPDATE", (task,))
            ((results, completed),) = await found.fetchall()
            grown = json.dumps([*json.loads(results), result])
            await self._connection.execute(_WRITE, (grown, completed + 1, task))

    async def close(self) -> None:
        await self._connection.close()


class SQLiteAnswers:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def deliver(self, sub_task_id: str, result: Any) -> bool:
        found = self._connection.execute(_marked(_FIND), (sub_task_id,)).fetchall()
        if not found:
            return False
        ((task,),) = found
        self._connection.execute(_marked(_DELETE), (sub_task_id,))
        ((results, completed),) = self._connection.execute(_marked(_READ), (task,)).fetchall()
        grown = json.dumps([*json.loads(results), result])
        self._connection.execute(_marked(_WRITE), (grown, completed + 1, task))
        return True

    async def close(self) -> None:
        self._connection.close()


def _is_postgres(url: str) -> bool:
    return url.startswith("postgresql://")


def _marked(sql: str) -> str:
    return sql.replace("%s", "?")
