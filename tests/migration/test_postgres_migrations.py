"""Migrations of a database that many share: under a lock, and only by those who may."""

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import holdfast
from holdfast.errors import SchemaMismatch, StoreNotPermitted
from holdfast.kernel.signals import Signal
from holdfast.settings import Settings
from holdfast.stores import pending_migrations
from holdfast.stores.postgres import schema
from holdfast.testing.store_suite import async_test
from tests.conftest import DATABASE, new_database

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
    last = schema.MIGRATIONS[-1]
    number = last.number + 1
    more = last._replace(number=number, name="more", sql="CREATE TABLE more (n int)")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, more])
    with pytest.raises(
        SchemaMismatch, match=rf"lacks {number:04} more, .*`holdfast store migrate`"
    ):
        async with holdfast.open(limited):
            pass
    async with holdfast.open(empty_database) as hf:
        assert (await hf.info()).schema == number
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
    assert [migration.name for migration in pending] == [m.name for m in schema.MIGRATIONS]
    with psycopg.connect(empty_database) as connection:
        tables = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []


@async_test
async def test_table_that_a_migration_adds_counts_as_new_and_not_as_empty(
    empty_database: str,
) -> None:
    """Plans that are made before it has rows are made for rows to come."""
    async with holdfast.open(empty_database):
        pass
    with psycopg.connect(empty_database) as connection:
        count = connection.execute("SELECT count(*) FROM signals").fetchone()
        size = connection.execute("SELECT reltuples FROM pg_class WHERE relname = 'signals'")
        known = connection.execute("SELECT count(*) FROM pg_stats WHERE tablename = 'signals'")
        assert (count, size.fetchone()) == ((0,), (-1,))
        assert known.fetchone() == (len(Signal.__struct_fields__),)
