"""Which rows PostgreSQL locks: what one sweep finds, no other sweep is given or waits for.

The statements of the store are executed in sessions of the test, beside one that holds a lock.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

import holdfast
from holdfast.engine.messages.queues import Queues
from holdfast.kernel import journal
from holdfast.stores.postgres.queries import SQL
from tests.backends import PostgresRaw

NOW = 2**60
SUBJECTS = ("ready", "due", "lost")
RUNS = [f"{subject}-{which}" for subject in SUBJECTS for which in ("free", "locked")]


class Statement(NamedTuple):
    """A statement, its parameters, and the rows it is about: two, if it is one that finds rows."""

    name: str
    parameters: Sequence[Any]
    rows: str
    subject: str = ""


FINDING = [
    Statement("find_ready_runs", ("default", NOW, 9, journal.SCHEMA, [], True), "runs", "ready"),
    Statement(
        "find_ready_runs_of_agents",
        ("default", NOW, 9, journal.SCHEMA, [], True, ["ready"]),
        "runs",
        "ready",
    ),
    Statement("find_due_waits", ("default", NOW, 9, journal.SCHEMA, []), "runs", "due"),
    Statement(
        "find_due_waits_of_agents",
        ("default", NOW, 9, journal.SCHEMA, [], ["due"]),
        "runs",
        "due",
    ),
    Statement("find_lost_runs", ("default", 9, journal.SCHEMA, [], [], []), "runs", "lost"),
]
LOCKING = [
    Statement("lock_runs", ("default", ["ready-locked"], []), "runs"),
    Statement("lock_runs", ("default", [], ["wait-ready-locked"]), "runs"),
    Statement("lock_before_commit", ("100ms", "default", ["ready-locked"]), "runs"),
    Statement("lock_unmoved_workers", ("default", ["ready-locked"], [7]), "workers"),
]
LOCK = {
    "runs": "SELECT 1 FROM runs WHERE run_id = $1 FOR NO KEY UPDATE",
    "workers": "SELECT 1 FROM workers WHERE worker = $1 FOR NO KEY UPDATE",
    "messages": "SELECT 1 FROM messages WHERE message_id = $1 FOR NO KEY UPDATE",
}


class Session:
    """A session of the test's, in one transaction. It waits for locks a tenth of a second."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, cursor_factory=psycopg.RawCursor)
        self.rows("SET LOCAL lock_timeout = '100ms'")

    def rows(self, sql: str, *values: Any) -> list[Any]:
        cursor = self._connection.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    def locks(self, table: str, key: str) -> None:
        assert self.rows(LOCK[table], key) == [(1,)]

    def execute(self, statement: Statement) -> list[str]:
        """The first column of what a statement of the store's finds."""
        numbers = {name: f"${at}" for at, name in enumerate(_NAMED, 1)}
        sql = re.sub(r"(?<!:):(\w+)", lambda found: numbers[found[1]], SQL[statement.name])
        return sorted(row[0] for row in self.rows(sql, *statement.parameters))

    def close(self) -> None:
        self._connection.close()


_NAMED = ("lock_timeout", "tenant", "locked_run_id")


@contextlib.contextmanager
def sessions(url: str) -> Iterator[tuple[Session, Session]]:
    with contextlib.closing(Session(url)) as one, contextlib.closing(Session(url)) as other:
        yield one, other


@pytest.fixture
def rows(postgres_url: str) -> str:
    """Runs that are ready, due and lost, two of each, each with a wait; and workers' rows."""

    async def create() -> None:
        async with holdfast.open(postgres_url) as hf:
            for run_id in RUNS:
                run = await hf.runs.open(run_id, agent=run_id.partition("-")[0])
                await run.open_waits([holdfast.WaitSpec(wait_id=f"wait-{run_id}")])
                await run.release()

    asyncio.run(create())
    with PostgresRaw(postgres_url) as raw:
        raw.execute("UPDATE waits SET deadline = 1, kind = 'peer' WHERE run_id LIKE 'due-%'")
        raw.execute("UPDATE runs SET status = 'waiting' WHERE run_id LIKE 'due-%'")
        raw.execute(
            "UPDATE runs SET status = 'running', worker = 'gone' WHERE run_id LIKE 'lost-%'"
        )
        raw.execute(
            "INSERT INTO workers (tenant, worker, started_at, expires_at, beats)"
            " VALUES ('default', 'ready-locked', 1, 1, 7)"
        )
    return postgres_url


@pytest.mark.parametrize("statement", FINDING, ids=lambda each: each.name)
def test_run_that_another_session_holds_is_neither_found_nor_waited_for(
    rows: str, statement: Statement
) -> None:
    with sessions(rows) as (holder, finder):
        holder.locks("runs", f"{statement.subject}-locked")
        assert finder.execute(statement) == [f"{statement.subject}-free"]


@pytest.mark.parametrize("statement", FINDING, ids=lambda each: each.name)
def test_run_that_was_found_is_locked_until_the_transaction_ends(
    rows: str, statement: Statement
) -> None:
    with sessions(rows) as (finder, other):
        found = finder.execute(statement)
        assert found == [f"{statement.subject}-free", f"{statement.subject}-locked"]
        with pytest.raises(LockNotAvailable):
            other.locks("runs", found[0])


@pytest.mark.parametrize("statement", LOCKING, ids=lambda each: each.name)
def test_row_is_locked_and_waited_for(rows: str, statement: Statement) -> None:
    with sessions(rows) as (holder, other):
        assert holder.execute(statement) == ["ready-locked"]
        with pytest.raises(LockNotAvailable):
            other.locks(statement.rows, "ready-locked")
    with sessions(rows) as (holder, other):
        holder.locks(statement.rows, "ready-locked")
        with pytest.raises(LockNotAvailable):
            other.execute(statement)


@pytest.fixture
def queue(postgres_url: str) -> str:
    """Two messages in a queue."""

    async def publish() -> None:
        async with holdfast.open(postgres_url) as hf:
            for key in ("free", "locked"):
                await Queues(hf._context).publish("q", b"body", key=key)

    asyncio.run(publish())
    return postgres_url


def test_message_that_another_session_takes_is_neither_delivered_nor_waited_for(queue: str) -> None:
    with sessions(queue) as (holder, taker):
        holder.locks("messages", "locked")
        taken = taker.rows(SQL["take_messages"], "default", "q", NOW, 9, NOW + 5, "worker")
    assert [(row[3], row[8], row[9], row[10]) for row in taken] == [("free", NOW + 5, 1, "worker")]


def test_old_message_that_another_session_holds_is_purged_by_a_later_move(queue: str) -> None:
    with PostgresRaw(queue) as raw:
        raw.execute("UPDATE messages SET status = 'done', due_at = 1")
        with sessions(queue) as (holder, mover):
            holder.locks("messages", "locked")
            nothing: list[Any] = [[]] * 10
            mover.rows(SQL["move_message"], "default", ["q"], *nothing, NOW, 9, "100ms", [0])
            mover.rows("COMMIT")
        assert raw.rows("SELECT message_id FROM messages") == [("locked",)]
