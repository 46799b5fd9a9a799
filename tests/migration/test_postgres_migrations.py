"""Migrations of a database that many share: under a lock, and only by those who may."""

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import holdfast
from holdfast.errors import IntegrityError, SchemaMismatch, StoreNotPermitted
from holdfast.settings import Settings
from holdfast.stores import pending_migrations
from holdfast.testing.store_suite import async_test
from tests.conftest import DATABASE, new_database
from tests.processes import Child

WORKER, PASSWORD = "holdfast_test_worker", "secret-password"


@pytest.fixture
def empty_database(postgres_server: str) -> Iterator[str]:
    with new_database(postgres_server, f"{DATABASE}_migrations") as url:
        yield url


@pytest.fixture
def limited(empty_database: str) -> Iterator[str]:
    """The same database for a role that may not make tables."""
    with psycopg.connect(empty_database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {WORKER} LOGIN PASSWORD '{PASSWORD}'")
        parts = urlsplit(empty_database)
        host = parts.netloc.rpartition("@")[2]
        yield urlunsplit(parts._replace(netloc=f"{WORKER}:{PASSWORD}@{host}"))
        owner.execute(f"DROP OWNED BY {WORKER}")
        owner.execute(f"DROP ROLE {WORKER}")


def test_processes_that_open_a_new_database_at_once_all_succeed(empty_database: str) -> None:
    children = [Child("tests.child", empty_database) for _ in range(6)]
    try:
        assert len({child.ask(["hello"]) for child in children}) == 6
    finally:
        for child in children:
            child.close()
    with psycopg.connect(empty_database) as connection:
        rows = connection.execute("SELECT number, name FROM migrations").fetchall()
    assert rows == [(1, "initial")]


@async_test
async def test_role_that_may_not_migrate_checks_and_works(
    empty_database: str, limited: str
) -> None:
    with pytest.raises(StoreNotPermitted, match="has no Holdfast schema yet") as refused:
        async with holdfast.open(limited):
            pass
    assert PASSWORD not in str(refused.value)
    async with holdfast.open(empty_database):
        pass
    with psycopg.connect(empty_database) as owner:
        owner.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {WORKER}"
        )
    async with holdfast.open(limited) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        await run.checkpoint()
        await run.complete("done")
        assert await hf.journal.verify("a") == []


@async_test
async def test_role_that_may_not_migrate_says_what_is_missing(
    empty_database: str, limited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open(empty_database):
        pass
    with psycopg.connect(empty_database) as owner:
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {WORKER}")
    from holdfast.stores.postgres import schema

    more = schema.MIGRATIONS[-1]._replace(number=2, name="more", sql="CREATE TABLE more (n int)")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, more])
    with pytest.raises(SchemaMismatch, match=r"lacks 0002 more, .*`holdfast store migrate`"):
        async with holdfast.open(limited):
            pass
    async with holdfast.open(empty_database) as hf:
        assert (await hf.info()).schema == 2
    with psycopg.connect(empty_database) as owner:
        assert owner.execute("SELECT count(*) FROM more").fetchone() == (0,)


@async_test
async def test_auditor_needs_to_read_only(empty_database: str, limited: str) -> None:
    async with holdfast.open(empty_database) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        await run.checkpoint()
    with psycopg.connect(empty_database) as owner:
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {WORKER}")
    async with holdfast.open(limited) as hf:
        assert await hf.journal.verify("a") == []
        assert (await hf.checkpoints.load("a"))["log"] == [1]
        with pytest.raises(StoreNotPermitted, match="this role may not do that"):
            await hf.runs.create("b")


@async_test
async def test_newer_schema_is_used_if_it_only_adds_and_refused_if_not(empty_database: str) -> None:
    async with holdfast.open(empty_database) as hf:
        await hf.runs.create("a")
    with psycopg.connect(empty_database, autocommit=True) as newer:
        newer.execute("INSERT INTO migrations VALUES (98, 'that_only_adds', false, 0)")
        async with holdfast.open(empty_database) as hf:
            assert (await hf.runs.get("a")).run_id == "a"
        newer.execute("INSERT INTO migrations VALUES (99, 'from_the_future', true, 0)")
    with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here, or restore a copy"):
        async with holdfast.open(empty_database):
            pass


@async_test
async def test_tables_of_another_program_are_left_alone(empty_database: str) -> None:
    with psycopg.connect(empty_database) as other:
        other.execute("CREATE TABLE runs (distance int)")
    with pytest.raises(IntegrityError, match="another program's tables"):
        async with holdfast.open(empty_database):
            pass
    with psycopg.connect(empty_database) as other:
        tables = other.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == [("runs",)]


@async_test
async def test_schema_of_its_own_holds_the_tables(empty_database: str) -> None:
    with psycopg.connect(empty_database) as owner:
        owner.execute("CREATE SCHEMA holdfast")
        owner.execute("CREATE TABLE runs (distance int)")
    url = f"{empty_database}?options=-csearch_path%3Dholdfast"
    async with holdfast.open(url) as hf:
        await hf.runs.create("a")
    with psycopg.connect(empty_database) as owner:
        assert owner.execute("SELECT run_id FROM holdfast.runs").fetchall() == [("a",)]
        assert owner.execute("SELECT count(*) FROM public.runs").fetchone() == (0,)


def test_pending_migrations_are_told_without_making_anything(empty_database: str) -> None:
    pending = pending_migrations(empty_database, settings=Settings())
    assert [migration.name for migration in pending] == ["initial"]
    with psycopg.connect(empty_database) as connection:
        tables = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []
