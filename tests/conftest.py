"""The backends for tests; for PostgreSQL one server and one database per test process.

A database is emptied before each use. `HOLDFAST_TEST_POSTGRES` names a server to use instead, by
the URL of a database in it whose user may create others.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import holdfast
from holdfast.testing.postgres import PostgresServer
from tests.backends import BACKENDS, Backend, PostgresBackend, SQLiteBackend

pytest_plugins = [f"tests.suite.{name}" for name in ("time_limits", "leftovers", "recording")]

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
TEMPLATE = f"holdfast_template_{WORKER}"
DATABASE = f"holdfast_test_{WORKER}"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it starts in the background ignore Ctrl-C, and so would every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if sys.dont_write_bytecode:
    # A thousand processes import Holdfast, and compiling it is more than half of a short life.
    # Whoever wants no bytecode beside the sources gets it elsewhere.
    BYTECODE = str(Path(__file__).parent.parent / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode, sys.pycache_prefix = False, BYTECODE
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE


class OwnPostgres(Protocol):
    """Starts a server of a test's own, which is stopped when the test ends."""

    def __call__(self, *, options: Mapping[str, str] | None = None) -> PostgresServer: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", action="store_true", help="run the faults many times (make chaos)")
    parser.addoption("--chaos-seed", type=int, help="make the same choices as a run that failed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--chaos` repeats: see the mark `chaos`."""
    if not config.getoption("--chaos"):
        items[:] = [item for item in items if not _is_repetition(item)]


def _is_repetition(item: pytest.Item) -> bool:
    played: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return any(
        all(played.get(name) in values for name, values in mark.kwargs.items())
        for mark in item.iter_markers("chaos")
    )


@pytest.fixture
def is_chaos(request: pytest.FixtureRequest) -> bool:
    """Whether many faults are wanted."""
    return request.config.getoption("--chaos")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """An empty store of each kind in turn."""
    if request.param == "postgres":
        return PostgresBackend(request.getfixturevalue("postgres_url"))
    path = tmp_path / "store.db"
    shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
    made = SQLiteBackend(path)
    with made.raw() as raw:
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("UPDATE identity SET store_id = hex(randomblob(8))")
    return made


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that holds the schema only: applying it takes longer than many a test."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    prepare_template(str(path))
    return path


@pytest.fixture
def store(backend: Backend) -> str:
    """The URL of an empty store, of each kind in turn."""
    return backend.url


@pytest.fixture(params=BACKENDS)
def unopened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """A store of each kind in turn that nobody has opened yet: it has no schema."""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        with new_database(server, f"{DATABASE}_unopened") as url:
            yield PostgresBackend(url)
    else:
        yield SQLiteBackend(tmp_path / "store.db")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server that all tests of this process share: do not stop it."""
    if given := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        yield given
        return
    folder = tmp_path_factory.mktemp("postgres")
    with without_clusters(folder), PostgresServer.start(folder) as server:
        yield server.url()


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """The URL of this process's own database, cloned from one that holds the schema only."""
    with new_database(postgres_server, TEMPLATE) as template:
        prepare_template(template)
        with new_database(postgres_server, DATABASE, template=TEMPLATE) as url:
            yield url


@pytest.fixture
def postgres_url(postgres_database: str) -> str:
    """The URL of a database with the schema, in which every table is empty."""
    empty_tables(postgres_database)
    return postgres_database


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[OwnPostgres]:
    """Starts servers which the test may kill and restart: `own_postgres(options={…})`."""
    numbers = count(1)
    with without_clusters(tmp_path), ExitStack() as servers:

        def start(*, options: Mapping[str, str] | None = None) -> PostgresServer:
            folder = tmp_path / f"postgres-{next(numbers)}"
            return servers.enter_context(PostgresServer.start(folder, options=options))

        yield start


@contextmanager
def without_clusters(folder: Path) -> Generator[None]:
    """Of the servers in this folder only the logs are kept: each has some 40 MB of data."""
    try:
        yield
    finally:
        for cluster in folder.rglob("cluster"):
            shutil.rmtree(cluster, ignore_errors=True)


@contextmanager
def new_database(server: str, name: str, *, template: str = "template0") -> Generator[str]:
    """The URL of a new database of that name; one that is left over is dropped."""
    drop = SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name))
    create = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(create)
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(drop)


def prepare_template(url: str) -> None:
    """Apply the schema, as everybody does: by opening the store."""

    async def open_once() -> None:
        async with holdfast.open(url):
            pass

    asyncio.run(open_once())


def empty_tables(url: str) -> None:
    """Make it a new store: every table but `migrations` is empty, and its identity another.

    Fails if a connection left over holds one of them. TRUNCATE makes new files for each table and
    index, which is slow: it is for tables that have grown.
    """
    with psycopg.connect(url) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SET holdfast.removing = 'on'")  # final checkpoints go too
        found = connection.execute(
            "SELECT tablename, pg_table_size(format('public.%I', tablename)::regclass) > 1000000"
            " FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'migrations'"
        ).fetchall()
        if not found:
            return
        tables = {name: (Identifier("public", name), has_grown) for name, has_grown in found}
        locked = SQL(", ").join(table for table, _ in tables.values())
        connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(locked))
        emptying = [
            SQL("TRUNCATE {}" if has_grown else "DELETE FROM {}").format(table)
            for table, has_grown in tables.values()
        ]
        connection.execute(SQL("; ").join(emptying))
        connection.execute(
            "SELECT setval(format('public.%I', sequencename)::regclass, start_value, false)"
            " FROM pg_sequences WHERE schemaname = 'public'"
        )
        if "identity" in tables:
            connection.execute("INSERT INTO identity SELECT substr(md5(random()::text), 1, 16)")
