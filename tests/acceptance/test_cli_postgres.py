"""The commands on PostgreSQL: the same output as on a file, and never a password in it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import holdfast
from holdfast import sync
from holdfast.errors import InvalidSetting
from holdfast.testing.store_suite import async_test
from tests import forked_cli
from tests.conftest import DATABASE, OwnPostgres, new_database

HOLDFAST = [sys.executable, "-P", "-c", "from holdfast.cli import main; main()"]
PASSWORD = "hunter2-secret"
LIMIT_SECONDS = 300


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked_cli.run(*arguments, env=dict(os.environ, COLUMNS="200"))
    assert done.returncode == code, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    return done


def with_password(url: str) -> str:
    """The same URL with a password, which the test server does not ask for."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{PASSWORD}@{host}"))


@pytest.fixture
def store(postgres_url: str) -> str:
    if "HOLDFAST_TEST_POSTGRES" in os.environ:
        return postgres_url
    return with_password(postgres_url)


@pytest.fixture
def seeded(store: str) -> str:
    seed(store)
    return store


def seed(url: str) -> None:
    with sync.open(url) as hf:
        work = hf.runs.open("refund-7", agent="support", input={"order": 7})
        for turn in range(3):
            work.append("transcript", {"turn": turn})
            work.checkpoint()
        work.complete("refunded")


COMMANDS = [
    ["runs", "list"],
    ["runs", "show", "refund-7"],
    ["checkpoints", "list", "refund-7"],
    ["checkpoints", "show", "refund-7"],
    ["checkpoints", "diff", "refund-7", "1", "2"],
    ["journal", "show", "refund-7"],
    ["journal", "tail", "refund-7"],
    ["audit", "verify"],
    ["store", "info"],
    ["store", "reindex"],
    ["store", "migrate"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("form", ["table", "json"])
def test_command_shows_the_same_fields_as_on_a_file(
    command: list[str], form: str, seeded: str, tmp_path: Path
) -> None:
    path = tmp_path / "same.db"
    seed(str(path))
    ours = run(*command, "--store", seeded, "-o", form).stdout
    theirs = run(*command, "--store", str(path), "-o", form).stdout
    assert bool(ours) == bool(theirs)
    if form == "json":
        assert list(map(shape_of, documents(ours))) == list(map(shape_of, documents(theirs)))


def documents(text: str) -> list[Any]:
    """The JSON documents in a text, one after another."""
    found: list[Any] = []
    decoder = json.JSONDecoder()
    while text.strip():
        document, end = decoder.raw_decode(text.strip())
        found.append(document)
        text = text.strip()[end:]
    return found


def shape_of(document: Any) -> Any:
    """The names in a document, without what they hold."""
    if isinstance(document, dict):
        return {name: shape_of(value) for name, value in document.items()}
    return [shape_of(item) for item in document] if isinstance(document, list) else None


def test_audit_names_a_changed_entry(seeded: str) -> None:
    with psycopg.connect(seeded) as vandal:
        vandal.execute("UPDATE journal SET body = body || '!' WHERE seq = 3")
    done = run("audit", "verify", "--store", seeded, code=7)
    assert "DAMAGED" in done.stdout
    assert "entry 3" in done.stdout


def test_database_without_a_schema_is_told_how_to_get_one(postgres_server: str) -> None:
    with new_database(postgres_server, f"{DATABASE}_cli") as url:
        refused = run("runs", "list", "--store", url, code=2)
        assert re.search(r"`holdfast store migrate( --store \S+)?` applies them", refused.stderr)
        printed = run("store", "migrate", "--print", "--store", url)
        assert "CREATE TABLE journal" in printed.stdout
        run("runs", "list", "--store", url, code=2)
        assert "applied 0001 initial" in run("store", "migrate", "--store", url).stdout
        run("runs", "list", "--store", url)


def test_server_that_is_away_is_an_error_that_says_what_to_do() -> None:
    url = f"postgresql://me:{PASSWORD}@127.0.0.1:1/agents"
    done = run("runs", "list", "--store", url, "-o", "json", code=8)
    error = json.loads(done.stdout or done.stderr)
    assert error["error"] == "StoreUnavailable"
    assert "postgresql://me@127.0.0.1:1/agents cannot be reached" in error["message"]


@pytest.mark.parametrize("form", ["table", "json"])
def test_wrong_password_is_an_error_of_its_own_and_never_shown(
    form: str, own_postgres: OwnPostgres
) -> None:
    server = own_postgres()
    server.add_role("app", "another-secret")
    url = server.url(user="app", password=PASSWORD)
    for command in (["runs", "list"], ["store", "migrate"], ["demo"]):
        done = run(*command, "--store", url, "-o", form, code=4)
        assert f"postgresql://app@127.0.0.1:{server.port}/postgres" in done.stderr
        assert "refuses this user or password" in done.stderr


def test_lost_index_is_found_and_rebuilt(seeded: str) -> None:
    with psycopg.connect(seeded) as vandal:
        vandal.execute("DELETE FROM runs")
    assert "DAMAGED" in run("audit", "verify", "--store", seeded, code=7).stdout
    assert run("store", "reindex", "-o", "ids", "--store", seeded).stdout == "refund-7\n"
    run("audit", "verify", "--store", seeded)


def test_database_of_another_program_is_refused_and_left_alone(postgres_server: str) -> None:
    with new_database(postgres_server, f"{DATABASE}_cli") as url:
        with psycopg.connect(url) as other:
            other.execute("CREATE TABLE migrations (id bigint, migration text)")
        for command in (["runs", "list"], ["store", "migrate"]):
            refused = run(*command, "--store", url, code=7)
            assert "another program's tables" in refused.stderr
        with psycopg.connect(url) as other:
            found = other.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            assert found.fetchall() == [("migrations",)]


def test_tail_follows_a_run_of_another_process_until_it_ends(store: str) -> None:
    with sync.open(store) as hf:
        live = hf.runs.open("live")
        with subprocess.Popen(
            [*HOLDFAST, "journal", "tail", "live", "--store", store, "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as tail:
            timer = threading.Timer(LIMIT_SECONDS, tail.kill)
            timer.start()
            assert tail.stdout is not None
            kinds = [json.loads(tail.stdout.readline())["kind"] for _ in range(2)]
            live.append("log", 1)
            live.checkpoint()
            kinds.append(json.loads(tail.stdout.readline())["kind"])
            live.complete()
            rest, told = tail.communicate(timeout=LIMIT_SECONDS)
            timer.cancel()
    assert kinds == ["RUN_CREATED", "RUN_LEASED", "CHECKPOINT_CREATED"]
    assert json.loads(rest)["kind"] == "RUN_COMPLETED"
    assert (tail.returncode, told) == (0, "")


@async_test
async def test_missing_driver_is_said_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidSetting, match=r"pip install 'holdfast\[postgres\]'"):
        async with holdfast.open("postgresql://host/db"):
            pass
