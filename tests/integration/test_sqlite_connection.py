"""What a connection to SQLite is set to, and when a batch locks out writers of other processes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import faults, sync
from holdfast.errors import OutcomeUnknown, RunCancelled
from holdfast.stores.sqlite.connection import connect
from holdfast.stores.sqlite.queries import SQL
from holdfast.testing.store_suite import async_test


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("synchronous", 3), ("trusted_schema", 0), ("secure_delete", 1)],
)
def test_connection_is_safe_by_its_settings(path: str, pragma: str, value: int) -> None:
    connection = connect(path, busy_timeout_seconds=1)
    assert connection.execute(f"PRAGMA {pragma}").fetchall() == [(value,)]


def plans_of(connection: Any, value: object) -> dict[str, list[str]]:
    """How SQLite executes each of our queries with a value bound to all of its parameters."""
    plans: dict[str, list[str]] = {}
    for name, sql in SQL.items():
        count = max(map(int, re.findall(r"\?(\d+)", sql)), default=0)
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (value,) * count)
        plans[name] = [str(row[3]) for row in rows]
    return plans


@pytest.mark.parametrize("value", ["x", 1, b"x"])
@async_test
async def test_no_plan_depends_on_what_is_bound(path: str, value: object) -> None:
    """A plan that did would be made anew at each execution, or not use a partial index."""
    async with holdfast.open(path):
        connection: Any = connect(path, busy_timeout_seconds=1)
        assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
        plans = plans_of(connection, value)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 0)
        assert plans_of(connection, value) == plans
        connection.close()


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.mark.usefixtures("disarmed")
@async_test
async def test_batch_reads_nothing_before_other_writers_are_locked_out(path: str) -> None:
    """Else what it decides by could change before it writes, and SQLite would refuse the write."""
    refused: list[str] = []

    def trigger(name: str) -> None:
        if name == "batch.after_begin":
            other = apsw.Connection(path)
            with pytest.raises(apsw.BusyError):
                other.execute("BEGIN IMMEDIATE")
            other.close()
            refused.append(name)

    async with holdfast.open(path) as hf:
        await hf.runs.create("r")
        faults.install(trigger)
        await hf.runs.cancel("r", by="ann")
        faults.install(None)
        assert (await hf.runs.get("r")).status == "cancelled"
    assert refused


@async_test
async def test_commit_that_failed_is_not_confused_with_an_entry_of_another_process(
    path: str,
) -> None:
    """That entry has the same number in the journal, and is stored right after the failure."""
    async with holdfast.open(path) as hf:
        run = await hf.runs.open("r")
        store: Any = hf._context.store
        execute = store._writer._execute

        def fail_at_commit(statement: str, *row: Any) -> Any:
            if statement != "COMMIT":
                return execute(statement, *row)
            store._writer._execute = execute
            execute("ROLLBACK")
            with sync.open(path) as other:
                other.runs.cancel("r", by="ann")
            raise apsw.IOError("disk I/O error")

        store._writer._execute = fail_at_commit
        with pytest.raises(OutcomeUnknown):
            await run.checkpoint()
        with pytest.raises(RunCancelled):
            await run.checkpoint()
        assert await hf.checkpoints.history("r") == []
        assert await hf.journal.verify("r") == []
