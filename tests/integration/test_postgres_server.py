"""The PostgreSQL that tests start, the databases they get, and the proxy that cuts them off."""

import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.testing import postgres
from holdfast.testing.postgres import PostgresServer, Programs, find_programs, programs_of_nobody
from tests import conftest
from tests.conftest import OwnPostgres
from tests.processes import ROOT
from tests.proxy import Proxy, writes

LIMIT_SECONDS = 240.0

ExitReason = Callable[[], Programs]
WAYS = [
    find_programs,
    pytest.param(
        programs_of_nobody,
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user"),
    ),
]

PARENT = """
import sys, time
from pathlib import Path
from holdfast.testing import postgres

way = getattr(postgres, sys.argv[1])
server = postgres.PostgresServer.start(Path(sys.argv[2]), programs=way())
print("started", flush=True)
time.sleep(60)
"""


def ask(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        found = connection.execute(question)
        return found.fetchall() if found.description else []


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


# The server.


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> ExitReason:
    """How the programs are run: as they are best run here, and as they always can be by root."""
    return request.param


@pytest.fixture(scope="module")
def used_folder(way: ExitReason, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a server has been, and has left a table."""
    folder = tmp_path_factory.mktemp("used")
    with conftest.without_clusters(folder):
        with PostgresServer.start(folder, programs=way()) as server:
            ask(server.url(), "CREATE TABLE kept AS SELECT 1 AS n")
        yield folder


@pytest.fixture
def server(way: ExitReason, used_folder: Path) -> Iterator[PostgresServer]:
    with PostgresServer.start(used_folder, programs=way()) as server:
        yield server


def test_server_is_safe_and_private_unless_told_otherwise(server: PostgresServer) -> None:
    settings = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "max_prepared_transactions": "0",
        "port": str(server.port),
    }
    told = ask(server.url(), "SELECT name, setting FROM pg_settings")
    assert {name: value for name, value in told if name in settings} == settings
    assert ask(server.url(), "SELECT 'häß'::text") == [("häß",)]


def test_stopped_server_leaves_a_cluster_that_the_next_one_uses(
    way: ExitReason, used_folder: Path
) -> None:
    assert not (used_folder / "cluster" / "postmaster.pid").exists()
    with PostgresServer.start(used_folder, programs=way()) as server:
        assert ask(server.url(), "SELECT n FROM kept") == [(1,)]
    server.stop()


def test_killed_server_comes_back_on_its_port_with_what_was_committed(
    server: PostgresServer, used_folder: Path
) -> None:
    url, killed = server.url(), server.pid
    ask(url, "CREATE TABLE committed AS SELECT 1 AS n")
    with psycopg.connect(url) as session:
        session.execute("INSERT INTO committed VALUES (2)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        ask(url, "SELECT 1")
    server.restart()
    assert server.pid != killed
    assert ask(url, "SELECT n FROM committed") == [(1,)]
    log = (used_folder / "postgres.log").read_text(encoding="utf-8")
    assert log.count("database system was interrupted") == 1


def test_server_killed_by_others_is_restarted_when_its_rest_has_left(
    server: PostgresServer,
) -> None:
    with psycopg.connect(server.url()):
        os.kill(server.pid, signal.SIGKILL)
        server.restart()
    assert ask(server.url(), "SELECT 1") == [(1,)]


def test_server_ends_with_the_process_that_started_it(way: ExitReason, used_folder: Path) -> None:
    lock = used_folder / "cluster" / "postmaster.pid"
    with tempfile.TemporaryDirectory() as copies:
        os.chmod(copies, 0o755)
        with subprocess.Popen(
            [sys.executable, "-c", PARENT, way.__name__, str(used_folder)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": copies},
            stdout=subprocess.PIPE,
        ) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"started\n"
            assert lock.exists()
            parent.kill()
        wait_until(lambda: not lock.exists())


def test_server_outlives_the_thread_that_started_it(way: ExitReason, used_folder: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        starter = executor.submit(threading.get_native_id).result()
        starting = executor.submit(PostgresServer.start, used_folder, programs=way())
    with starting.result() as server:
        wait_until(lambda: not Path(f"/proc/self/task/{starter}").exists())
        assert ask(server.url(), "SELECT 1") == [(1,)]


def test_port_that_is_taken_is_left_for_another(
    way: ExitReason, used_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = postgres.free_port()
        ports = iter([other.getsockname()[1], free])
        monkeypatch.setattr(postgres, "free_port", lambda: next(ports))
        with PostgresServer.start(used_folder, programs=way()) as server:
            assert server.port == free


def test_failed_start_shows_what_the_server_said(way: ExitReason, used_folder: Path) -> None:
    with pytest.raises(StoreUnavailable, match='unrecognized configuration parameter "nonsense"'):
        PostgresServer.start(used_folder, options={"nonsense": "1"}, programs=way())


def test_role_with_a_password_is_refused_without_it(server: PostgresServer) -> None:
    server.add_role('Böse"r', "ge'heim@/")
    server.add_role("other", "word")
    url = server.url(user='Böse"r', password="ge'heim@/")
    assert ask(url, "SELECT current_user") == [('Böse"r',)]
    for password in ("word", ""):
        with pytest.raises(psycopg.OperationalError, match="password"):
            ask(server.url(user='Böse"r', password=password), "SELECT 1")


def test_missing_wheel_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreUnavailable, match=r"pip install 'holdfast\[dev\]'"):
        find_programs.__wrapped__()


def test_standby_follows_can_only_be_read_and_takes_over(
    own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    server = own_postgres(options={"max_connections": "120"})  # a standby needs as many
    with server.standby(tmp_path / "standby", synchronous=True) as standby:
        assert ask(standby.url(), "SHOW max_connections") == [("120",)]
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = remote_apply")
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        assert ask(standby.url(), "SELECT n FROM kept") == [(1,)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            ask(standby.url(), "INSERT INTO kept VALUES (2)")
        server.kill()
        standby.promote()
        ask(standby.url(), "INSERT INTO kept VALUES (2)")
        assert ask(standby.url(), "SELECT n FROM kept") == [(1,), (2,)]


# The databases.


def test_database_is_a_clone_and_is_emptied_but_for_its_migrations(postgres_server: str) -> None:
    template, clone = f"{conftest.DATABASE}_template", f"{conftest.DATABASE}_clone"
    with conftest.new_database(postgres_server, template) as source:
        ask(source, 'CREATE TABLE "the table" (n serial, parent int)')
        ask(source, "CREATE TABLE migrations AS SELECT 1 AS n")
        with conftest.new_database(postgres_server, clone, template=template) as url:
            ask(url, 'INSERT INTO "the table" VALUES (DEFAULT, 1)')
            conftest.empty_tables(url)
            assert ask(url, "SELECT n FROM migrations") == [(1,)]
            assert ask(url, 'SELECT n FROM "the table"') == []
            assert ask(url, 'INSERT INTO "the table" VALUES (DEFAULT, 1) RETURNING n') == [(1,)]


def test_database_that_is_left_over_is_dropped_even_if_it_is_in_use(postgres_server: str) -> None:
    name = f"{conftest.DATABASE}_again"
    with (
        conftest.new_database(postgres_server, name) as url,
        psycopg.connect(url),
        conftest.new_database(postgres_server, name) as again,
    ):
        assert ask(again, "SELECT current_database()") == [(name,)]


def test_url_is_that_of_a_database_with_the_schema_and_no_rows(postgres_url: str) -> None:
    found = ask(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    counts = {name: ask(postgres_url, f'SELECT count(*) FROM "{name}"') for (name,) in found}
    assert counts.pop("migrations") != [(0,)]
    assert counts.pop("identity") == [(1,)]
    assert len(counts) > 0
    assert set(map(str, counts.values())) == {"[(0,)]"}


# The proxy.


@pytest.fixture(scope="module")
def one_database(postgres_server: str) -> Iterator[str]:
    with conftest.new_database(postgres_server, f"{conftest.DATABASE}_proxy") as url:
        ask(url, "CREATE TABLE rows (n int PRIMARY KEY)")
        yield url


@pytest.fixture
def database(one_database: str) -> str:
    conftest.empty_tables(one_database)
    return one_database


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    with Proxy(database) as proxy:
        yield proxy


def rows(url: str) -> list[object]:
    return [n for (n,) in ask(url, "SELECT n FROM rows ORDER BY n")]


INSERT = "INSERT INTO rows VALUES (%s)"


def statement(connection: psycopg.Connection, n: int) -> None:
    connection.execute(INSERT, [n])


def simple_query(connection: psycopg.Connection, n: int) -> None:
    connection.execute(f"/* one; */ BEGIN; INSERT INTO rows VALUES ({n}); COMMIT")


def transaction(connection: psycopg.Connection, n: int) -> None:
    with connection.transaction():
        connection.execute(INSERT, [n])


def pipeline(connection: psycopg.Connection, n: int) -> None:
    with connection.pipeline():
        for number in range(n, n + 3):
            connection.execute(INSERT, [number])


def pipeline_that_fetches(connection: psycopg.Connection, n: int) -> None:
    """Its first answer is read (after a Flush) before the whole is committed (by a Sync)."""
    with connection.pipeline():
        told = connection.execute(f"{INSERT} RETURNING n", [n])
        assert told.fetchone() == (n,)
        connection.execute("SELECT 1")


def pipelined_transaction(connection: psycopg.Connection, n: int) -> None:
    with connection.pipeline(), connection.transaction():
        connection.execute(INSERT, [n])


def common_table_expression(connection: psycopg.Connection, n: int) -> None:
    connection.execute("WITH a AS (SELECT %s::int AS n) INSERT INTO rows SELECT n FROM a", [n])


def several_commits_in_a_pipeline(connection: psycopg.Connection, n: int) -> None:
    with connection.pipeline() as several:
        for number in range(n, n + 3):
            connection.execute(INSERT, [number])
            several.sync()


def failing_pipeline(connection: psycopg.Connection, n: int) -> None:
    with connection.pipeline():
        connection.execute(INSERT, [n])
        connection.execute("SELECT 1 / 0")


def part_of_a_select(connection: psycopg.Connection, n: int) -> None:
    """Its reply says SELECT, and does not tell that rows were written."""
    connection.execute(f"WITH a AS ({INSERT} RETURNING n) SELECT n FROM a", [n])


COMMITS = [
    statement,
    simple_query,
    transaction,
    pipeline,
    pipeline_that_fetches,
    pipelined_transaction,
    common_table_expression,
    part_of_a_select,
]
Work = Callable[[psycopg.Connection, int], None]


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True, connect_timeout=10)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("update rows SET n = 1", True),
        ("WITH a AS (UPDATE rows SET n = 1 RETURNING n) SELECT n FROM a", True),
        ("WITH a AS (SELECT 1) UPDATE rows SET n = 1", True),
        ("WITH a AS (DELETE\n FROM rows RETURNING n) SELECT n FROM a", True),
        ("WITH a AS (SELECT n FROM rows FOR UPDATE) SELECT n FROM a", False),
        ("SELECT n FROM rows FOR NO KEY UPDATE", False),
        ("", False),
    ],
)
def test_proxy_knows_what_writes(statement: str, expected: bool) -> None:
    assert writes(statement) is expected


@pytest.mark.parametrize("work", COMMITS)
@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_cut_at_commit_loses_the_answer_and_not_the_rows(
    work: Work, reset: bool, proxy: Proxy, database: str
) -> None:
    with connect(proxy.url(database)) as connection:
        work(connection, 1)
        before = rows(database)
        assert proxy.commits_seen == 1
        proxy.cut_at_commit(reset=reset)
        with pytest.raises(psycopg.OperationalError):
            work(connection, 10)
    assert 10 in rows(database)
    assert len(rows(database)) == 2 * len(before)
    assert (proxy.cuts, proxy.commits_seen) == (1, 2)


@pytest.mark.parametrize("work", COMMITS)
@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_cut_before_commit_loses_the_rows(
    work: Work, reset: bool, proxy: Proxy, database: str
) -> None:
    with connect(proxy.url(database)) as connection:
        work(connection, 1)
        before = rows(database)
        proxy.cut_before_commit(reset=reset)
        with pytest.raises(psycopg.OperationalError):
            work(connection, 10)
    assert rows(database) == before
    assert (proxy.cuts, proxy.commits_seen) == (1, 1)


def test_what_does_not_commit_is_not_cut(proxy: Proxy, database: str) -> None:
    proxy.cut_at_commit()
    proxy.cut_before_commit(2)  # the pipeline that fails counts: who asks cannot know that
    with connect(proxy.url(database)) as connection:
        connection.execute("SELECT n FROM rows FOR UPDATE")
        connection.execute("WITH a AS (SELECT n FROM rows FOR UPDATE) SELECT n FROM a")
        connection.execute("BEGIN; INSERT INTO rows VALUES (1); ROLLBACK")
        with connection.transaction(force_rollback=True):
            connection.execute(INSERT, [1])
        with pytest.raises(psycopg.errors.DivisionByZero):
            failing_pipeline(connection, 1)
        assert (proxy.cuts, proxy.commits_seen) == (0, 0)
        with pytest.raises(psycopg.OperationalError):
            connection.execute(INSERT, [1])
    assert rows(database) == []


def test_commits_are_counted_over_all_connections(proxy: Proxy, database: str) -> None:
    proxy.cut_at_commit(3)
    with connect(proxy.url(database)) as one, connect(proxy.url(database)) as other:
        statement(one, 1)
        statement(other, 2)
        with pytest.raises(psycopg.OperationalError):
            statement(one, 3)
        statement(other, 4)
    assert rows(database) == [1, 2, 3, 4]


def test_requests_are_cut_by_what_they_say(proxy: Proxy, database: str) -> None:
    """A prepared statement says the same when only its name is sent."""
    commented = f"-- insert; one row\n{INSERT} /* and no more */"
    with connect(proxy.url(database)) as connection:
        for n in range(5):
            connection.execute(commented, [n], prepare=True)
        proxy.cut_requests(lambda request: request.words == ("INSERT INTO rows VALUES ($1)",))
        with pytest.raises(psycopg.OperationalError):
            connection.execute(commented, [5], prepare=True)
    assert rows(database) == [0, 1, 2, 3, 4]


def test_replies_are_cut_by_what_they_say(proxy: Proxy, database: str) -> None:
    proxy.cut_replies(lambda reply: "DELETE 0" in reply.words)
    with connect(proxy.url(database)) as connection:
        statement(connection, 1)
        connection.execute("DELETE FROM rows")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("DELETE FROM rows")


def wait_for_any_result(connection: psycopg.Connection) -> None:
    while connection.pgconn.is_busy():
        select.select([connection.pgconn.socket], [], [], LIMIT_SECONDS)
        connection.pgconn.consume_input()


def test_nothing_of_a_lost_reply_is_passed_on(proxy: Proxy, database: str) -> None:
    proxy.cut_at_commit()
    with connect(proxy.url(database)) as connection:
        connection.pgconn.send_query(b"SELECT 1; INSERT INTO rows VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            wait_for_any_result(connection)
    assert rows(database) == [1]


def test_second_of_several_requests_in_flight_is_cut(proxy: Proxy, database: str) -> None:
    proxy.cut_at_commit(2)
    with connect(proxy.url(database)) as connection, pytest.raises(psycopg.OperationalError):
        several_commits_in_a_pipeline(connection, 1)
    assert rows(database)[:2] == [1, 2]


def test_other_traffic_passes_unchanged(proxy: Proxy, database: str) -> None:
    with connect(proxy.url(database)) as connection, connect(database) as direct:
        many = connection.execute("SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n")
        assert many.fetchall()[-1] == (20000, "x" * 100)
        text = "y" * 3_000_000
        assert connection.execute("SELECT length(%s)", [text]).fetchone() == (3_000_000,)
        connection.execute("LISTEN bell")
        direct.execute("NOTIFY bell, 'rung'")
        (told,) = connection.notifies(timeout=LIMIT_SECONDS, stop_after=1)
        assert told.payload == "rung"
        with connection.transaction(), connection.cursor("named") as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT generate_series(1, 5)")
            assert [n for (n,) in cursor] == [1, 2, 3, 4, 5]


def test_end_of_the_server_reaches_the_client_with_its_reason(proxy: Proxy, database: str) -> None:
    with connect(proxy.url(database)) as connection:
        pid = connection.info.backend_pid
        with ThreadPoolExecutor(1) as thread:
            sleeping = thread.submit(connection.execute, "SELECT pg_sleep(60)")
            asleep = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}"
            wait_until(lambda: ask(database, asleep) == [("PgSleep",)])
            ask(database, f"SELECT pg_terminate_backend({pid})")
            with pytest.raises(psycopg.errors.AdminShutdown):
                sleeping.result(LIMIT_SECONDS)


def test_stalled_proxy_passes_nothing_on_until_it_is_resumed(proxy: Proxy, database: str) -> None:
    with connect(proxy.url(database)) as connection, ThreadPoolExecutor(1) as thread:
        proxy.stall()
        waiting = thread.submit(statement, connection, 1)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        assert rows(database) == []
        proxy.resume()
        waiting.result(LIMIT_SECONDS)
        assert rows(database) == [1]


def test_proxy_refuses_new_connections_and_takes_them_again(proxy: Proxy, database: str) -> None:
    url = proxy.url(database)
    with connect(url) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(url)
        statement(connection, 1)
        proxy.accept()
        assert rows(url) == [1]


def test_open_connections_are_cut_now_even_while_stalled(proxy: Proxy, database: str) -> None:
    with connect(proxy.url(database)) as connection, ThreadPoolExecutor(1) as thread:
        proxy.stall()
        waiting = thread.submit(statement, connection, 1)
        proxy.cut_now(reset=True)
        with pytest.raises(psycopg.OperationalError):
            waiting.result(LIMIT_SECONDS)
        proxy.resume()
    assert rows(database) == []
    assert proxy.cuts == 1
