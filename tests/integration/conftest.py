"""Servers for the tests that stop, kill and restart them: each process of tests has its own."""

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.testing.postgres import PostgresServer
from tests.conftest import new_database, without_clusters
from tests.postgres import Replicated, Spare
from tests.suite.guardian import keep_server

DATABASE = "spare"
# Few connections, so that all of them can be taken; and what is not on disk stays so for long.
OPTIONS = {"max_connections": "20", "wal_writer_delay": "10s"}


@pytest.fixture(scope="session")
def spare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    folder = tmp_path_factory.mktemp("spare")
    with without_clusters(folder), PostgresServer.start(folder, options=OPTIONS) as server:
        keep_server(lambda: server.pid)
        yield server


@pytest.fixture
def spare(spare_server: PostgresServer) -> Iterator[Spare]:
    ensure_running(spare_server)
    with new_database(spare_server.url(), DATABASE):
        yield Spare(spare_server, DATABASE)
        ensure_running(spare_server)


@pytest.fixture(scope="session")
def replicated_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    folder = tmp_path_factory.mktemp("replicated")
    with (
        without_clusters(folder),
        PostgresServer.start(folder / "server") as server,
        server.standby(folder / "standby", synchronous=True) as standby,
    ):
        keep_server(lambda: server.pid)
        keep_server(lambda: standby.pid)
        yield server, standby


@pytest.fixture
def replicated(
    replicated_servers: tuple[PostgresServer, PostgresServer],
) -> Iterator[Replicated]:
    server, standby = replicated_servers
    with new_database(server.url(), DATABASE):
        yield Replicated(server, DATABASE, standby)


def ensure_running(server: PostgresServer) -> None:
    """Start what a test before has stopped, or could not start again because it failed."""
    try:
        psycopg.connect(server.url(), connect_timeout=5).close()
    except psycopg.OperationalError:
        server.restart()
