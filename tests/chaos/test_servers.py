"""The faults are no good unless the server really is away: no session of it serves."""

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import psycopg
import pytest

from holdfast.testing.postgres import PostgresServer
from tests.chaos import servers
from tests.chaos.servers import children_of, freeze, kill_all, state_of, thaw
from tests.conftest import OwnPostgres


@pytest.mark.parametrize("go", [freeze, kill_all])
def test_session_that_begins_while_the_server_goes_away_does_not_serve(
    own_postgres: OwnPostgres,
    monkeypatch: pytest.MonkeyPatch,
    go: Callable[[PostgresServer], None],
) -> None:
    server = own_postgres()
    before = set(children_of(server.pid))
    begun: set[int] = set()
    with ExitStack() as sessions:

        def list_and_begin(parent: int) -> list[int]:
            """A session begins just after the processes were listed."""
            found = children_of(parent)
            with suppress(psycopg.OperationalError):
                session = psycopg.connect(server.url(), connect_timeout=2)
                sessions.enter_context(closing(session))
            begun.update(children_of(parent))
            return found

        monkeypatch.setattr(servers, "children_of", list_and_begin)
        go(server)
        assert {state_of(pid) for pid in before | begun} <= set("TZX")
    monkeypatch.undo()
    if go is freeze:
        thaw(server)


def test_server_that_was_frozen_goes_on(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    with psycopg.connect(server.url()) as session:
        freeze(server)
        assert {state_of(pid) for pid in (server.pid, *children_of(server.pid))} == {"T"}
        thaw(server)
        assert session.execute("SELECT 1").fetchone() == (1,)
