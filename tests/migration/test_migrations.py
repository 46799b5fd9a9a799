"""Migrations: numbered, applied once, forward only; a newer store is refused with a way out."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID

import apsw
import pytest

import holdfast
from holdfast.errors import SchemaMismatch, StoreBusy
from holdfast.stores import migrate
from holdfast.stores.migrate import AppliedMigration
from holdfast.stores.postgres import schema as postgres_schema
from holdfast.stores.sqlfiles import Migration
from holdfast.stores.sqlite import connection
from holdfast.stores.sqlite import schema as sqlite_schema
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.processes import Child


@async_test
@pytest.mark.mission("S0-074")
async def test_opening_twice_applies_each_migration_once(unopened: Backend) -> None:
    for _ in range(2):
        async with holdfast.open(unopened.url) as hf:
            info = await hf.info()
            assert info.schema == info.newest_schema
    with unopened.raw() as raw:
        assert raw.rows("SELECT number, name FROM migrations") == [
            (1, "initial"),
            (2, "statistics"),
            (3, "signals"),
            (4, "questions"),
            (5, "budgets"),
            (6, "marks"),
            (7, "peers"),
            (8, "subjects"),
            (9, "owners"),
            (10, "handoffs"),
            (11, "feed"),
            (12, "records"),
            (13, "workers"),
            (14, "joined_calls"),
            (15, "integrity"),
            (16, "proofs"),
            (17, "groups"),
        ]


@async_test
async def test_store_of_a_newer_version_is_refused_with_what_to_do(unopened: Backend) -> None:
    async with holdfast.open(unopened.url) as hf:
        await hf.runs.create("a")
    with unopened.raw() as raw:
        add = "INSERT INTO migrations VALUES (?, ?, ?, 0)"
        raw.execute(add, 98, "that_only_adds", False)
        async with holdfast.open(unopened.url) as hf:
            assert (await hf.info()).schema == 98
        raw.execute(add, 99, "from_the_future", True)
        with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here, or restore a copy"):
            async with holdfast.open(unopened.url):
                pass
        raw.execute("DELETE FROM migrations WHERE number = 99")
    async with holdfast.open(unopened.url) as hf:
        assert (await hf.runs.get("a")).run_id == "a"


def test_pending_migrations_are_those_not_applied() -> None:
    known = [Migration(1, "one", "x"), Migration(2, "two", "y")]
    assert migrate.pending(known, []) == known
    first = AppliedMigration(1, "one", False)
    assert migrate.pending(known, [first]) == known[1:]
    with pytest.raises(SchemaMismatch, match="'uno' in the store and 'one' here"):
        migrate.pending(known, [first._replace(name="uno")])
    assert migrate.pending(known, [first, AppliedMigration(3, "adds", False)]) == known[1:]
    with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here"):
        migrate.pending(known, [first, AppliedMigration(3, "breaks", True)])


@async_test
async def test_file_that_others_read_while_it_is_made_is_opened_when_they_are_done(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "m.db")
    other = apsw.Connection(path)
    other.execute(f"PRAGMA application_id = {connection.APPLICATION_ID}")
    other.execute("BEGIN IMMEDIATE")
    hf = holdfast.open(path)
    opening = asyncio.create_task(hf.__aenter__())
    done, _ = await asyncio.wait([opening], timeout=0.1)
    assert not done
    other.execute("ROLLBACK")
    other.close()
    await opening
    assert (await hf.info()).journal_mode == "wal"
    await hf.__aexit__(None, None, None)


@async_test
async def test_file_that_others_use_for_too_long_while_it_is_made_is_reported_as_busy(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "m.db")
    other = apsw.Connection(path)
    other.execute(f"PRAGMA application_id = {connection.APPLICATION_ID}")
    other.execute("BEGIN IMMEDIATE")
    hf = holdfast.open(path, settings=holdfast.Settings(busy_timeout_seconds=0.05))
    opening = asyncio.create_task(hf.__aenter__())
    done, _ = await asyncio.wait([opening], timeout=10)
    other.execute("ROLLBACK")
    other.close()
    assert done, "it still tries"
    with pytest.raises(StoreBusy, match="too long"):
        await opening


def test_processes_that_open_a_new_store_at_once_all_succeed(unopened: Backend) -> None:
    children = [Child("tests.child", unopened.url) for _ in range(6)]
    try:
        names = [child.ask(["hello"]) for child in children]
        assert len(set(names)) == 6
    finally:
        for child in children:
            child.close()
    with unopened.raw() as raw:
        assert raw.rows("SELECT number, name FROM migrations") == [
            (1, "initial"),
            (2, "statistics"),
            (3, "signals"),
            (4, "questions"),
            (5, "budgets"),
            (6, "marks"),
            (7, "peers"),
            (8, "subjects"),
            (9, "owners"),
            (10, "handoffs"),
            (11, "feed"),
            (12, "records"),
            (13, "workers"),
            (14, "joined_calls"),
            (15, "integrity"),
            (16, "proofs"),
            (17, "groups"),
        ]


MODULES = {"sqlite": sqlite_schema, "postgres": postgres_schema}
OLD = Path(__file__).parent / "stores"


def value_for(backend: Backend, written: Any) -> Any:
    match written:
        case {"base64": text}:
            return base64.b64decode(text)
        case {"uuid": text}:
            return UUID(text) if backend.name == "postgres" else UUID(text).bytes
        case plain:
            return plain


async def make_old_store(
    backend: Backend, schema: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[dict[str, Any]]]:
    """Put what a program of that time wrote into a store of the schema it had then; its rows."""
    module = MODULES[backend.name]
    with monkeypatch.context() as before:
        before.setattr(module, "MIGRATIONS", module.MIGRATIONS[:schema])
        before.setattr(postgres_schema, "settle", AsyncMock())  # for what no old schema has
        async with holdfast.open(backend.url) as hf:
            assert (await hf.info()).schema == schema
    written = json.loads((OLD / f"schema_{schema}.json").read_text())["rows"]
    with backend.raw() as raw:
        for table, rows in written.items():
            for row in rows:
                columns, marks = ", ".join(row), ", ".join("?" * len(row))
                values = [value_for(backend, value) for value in row.values()]
                raw.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", *values)
    return written


@pytest.mark.mission("S0-074", "S1-059")
@pytest.mark.parametrize("schema", [2, 6], ids=["before signals", "before peers"])
@async_test
async def test_store_of_an_older_version_opens_verifies_and_goes_on(
    unopened: Backend, schema: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await make_old_store(unopened, schema, monkeypatch)
    async with holdfast.open(unopened.url) as hf:
        assert (await hf.info()).schema == (await hf.info()).newest_schema
        assert await hf.journal.verify("a") == []
        state = await hf.checkpoints.load("a")
        assert state["plan"] == {"steps": ["look", "wait"]}
        waiting = await hf.waits.get("w")
        await hf.reindex("a")
        assert await hf.waits.get("w") == waiting
        assert (await hf.signals.send("a", "go", id="one")).accepted
        assert (await hf.waits.get("w")).status == "resolved"
        run = await hf.runs.open("a")
        run.append("log", "new")
        await run.checkpoint()
        assert len((await hf.checkpoints.load("a"))["log"]) == 2
        await hf.reindex("a")
        assert await hf.journal.verify("a") == []
        events, end = hf.events("start"), await hf.journal.head("a")
        assert [(await anext(events)).seq for _ in range(end)] == list(range(1, end + 1))
    with unopened.raw() as raw:
        links = [entry[-1] for entry in raw.entries()]
    old = [base64.b64decode(row["link"]["base64"]) for row in written["journal"]]
    assert links[: len(old)] == old
    assert len(links) > len(old)
