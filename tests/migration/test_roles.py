"""Who may do what in a PostgreSQL database: the roles that the documentation tells to make."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import holdfast
from holdfast.engine.maintenance.erasure import erase_run
from holdfast.errors import IntegrityError, StoreNotPermitted
from holdfast.records import CheckpointService
from holdfast.testing.store_suite import async_test
from tests.backends import PostgresRaw
from tests.conftest import DATABASE, new_database

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md").read_text(encoding="utf-8")
OWNER, AGENTS, STRANGER = (f"{DATABASE}_{name}" for name in ("owner", "agents", "stranger"))
ROLES = (OWNER, AGENTS, STRANGER)
REFUSED = (psycopg.errors.RestrictViolation, psycopg.errors.InsufficientPrivilege)


@dataclass(frozen=True)
class Database:
    """An empty database, made as the documentation says, and the URLs of its roles."""

    url: str

    def of(self, role: str) -> str:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{role}:secret@{host}"))


@pytest.fixture
def database(postgres_server: str) -> Iterator[Database]:
    with new_database(postgres_server, f"{DATABASE}_roles") as url:
        with PostgresRaw(url) as raw:
            for role in ROLES:
                raw.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
            raw.execute(f"ALTER DATABASE {DATABASE}_roles OWNER TO {OWNER}")
        grant(Database(url).of(OWNER))
        yield Database(url)
        with PostgresRaw(url) as raw:
            for role in ROLES:
                raw.execute(f"DROP OWNED BY {role} CASCADE")
    with PostgresRaw(postgres_server) as raw:
        for role in ROLES:
            raw.execute(f"DROP ROLE {role}")


def grant(url: str) -> None:
    """What the documentation tells the owner to grant."""
    (block,) = re.findall(r"^\\c agents holdfast_owner\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    with PostgresRaw(url) as raw:
        for statement in block.strip().split(";\n"):
            raw.execute(re.sub(r"\bagents\b", AGENTS, statement))


async def work(hf: holdfast.Holdfast) -> None:
    """A bit of everything an agent does."""
    run = await hf.runs.open("a")
    run.append("log", 1)
    await run.checkpoint()
    (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="t")])
    await run.finish_effect(begun, "result")
    await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
    await hf.waits.resolve("w", 1)
    await (await hf.runs.open("a")).complete("done")
    assert await hf.journal.verify("a") == []


@async_test
async def test_role_that_may_not_migrate_asks_for_one_that_may(database: Database) -> None:
    with pytest.raises(StoreNotPermitted, match=r"no Holdfast schema yet.*holdfast store migrate"):
        async with holdfast.open(database.of(AGENTS)):
            pass
    with PostgresRaw(database.url) as raw:
        assert raw.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
    async with holdfast.open(database.of(OWNER)):
        pass
    async with holdfast.open(database.of(AGENTS)) as hf:
        await work(hf)


@async_test
async def test_journal_can_be_made_safe_from_agents(database: Database) -> None:
    async with holdfast.open(database.of(OWNER)):
        pass
    with PostgresRaw(database.of(OWNER)) as raw:
        assert "`REVOKE UPDATE,\n  DELETE ON journal FROM agents`" in PAGE
        raw.execute(f"REVOKE UPDATE, DELETE ON journal FROM {AGENTS}")
    async with holdfast.open(database.of(AGENTS)) as hf:
        await work(hf)
    with (
        PostgresRaw(database.of(AGENTS)) as raw,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        raw.execute("UPDATE journal SET actor = 'mallory'")


@pytest.mark.mission("S3-090", "S3-108")
@async_test
async def test_agents_cannot_change_what_is_final(database: Database) -> None:
    async with holdfast.open(database.of(OWNER)):
        pass
    async with holdfast.open(database.of(AGENTS)) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", {})
        await service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 1}})
        await service.finalize_checkpoint(made.checkpoint_id, "complete")
        before = await service.get_checkpoint(made.checkpoint_id)
        with PostgresRaw(database.of(AGENTS)) as raw:
            raw.execute("SET holdfast.removing = 'on'")
            for statement in (
                "TRUNCATE records",
                "DELETE FROM records",
                "DELETE FROM revisions",
                "DELETE FROM checkpoints",
                "UPDATE records SET final_seq = 0",
                "UPDATE checkpoints SET label = 'x'",
                "DELETE FROM journal WHERE kind = 'CHECKPOINT_FINALIZED'",
                "UPDATE journal SET body = NULL WHERE kind = 'CHECKPOINT_CREATED'",
                "SELECT holdfast_forget_rows('default', 'task')",
            ):
                with pytest.raises(REFUSED):
                    raw.execute(statement)
        with PostgresRaw(database.of(OWNER)) as raw, pytest.raises(REFUSED, match="emptied"):
            raw.execute("TRUNCATE records")
        assert await service.get_checkpoint(made.checkpoint_id) == before
        # What agents do on the record still goes: an erasure takes final ones as well.
        await hf.runs.cancel("task")
        assert await erase_run(hf._context, "task", note="the time is over")
        assert await hf.journal.verify("task") == []
    async with holdfast.open(database.of(OWNER)) as hf:
        await hf.reindex("task")


@async_test
async def test_role_without_any_grant_is_told(database: Database) -> None:
    async with holdfast.open(database.of(OWNER)):
        pass
    with pytest.raises(StoreNotPermitted, match=r"may not do that.*docs/how-to/postgres"):
        async with holdfast.open(database.of(STRANGER)) as hf:
            await hf.runs.list()


@pytest.mark.parametrize(
    "table",
    [
        "runs (id bigint)",
        "workers (id bigint)",
        "wait_groups (id bigint)",
        "signals (id bigint)",
        "migrations (id bigint, migration text)",
    ],
)
@async_test
async def test_another_programs_tables_are_left_alone(table: str, database: Database) -> None:
    with PostgresRaw(database.of(OWNER)) as raw:
        raw.execute(f"CREATE TABLE {table}")
        raw.execute("CREATE TABLE customers (id bigint)")
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        before = raw.rows(sql)
        with pytest.raises(IntegrityError, match="another program's tables"):
            async with holdfast.open(database.of(OWNER)):
                pass
        assert raw.rows(sql) == before


@async_test
async def test_schema_that_is_not_there_is_said(database: Database) -> None:
    url = database.of(OWNER) + "?options=-csearch_path%3Dno_such_schema"
    with pytest.raises(StoreNotPermitted):
        async with holdfast.open(url):
            pass
