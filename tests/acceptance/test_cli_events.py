"""`holdfast events` and `holdfast webhooks`, as people use them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import sync
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import HOLDFAST, LIMIT_SECONDS, ask, environment, keys_of, run
from tests.forked import PIPE, Forked


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with sync.open(str(path)) as hf:
        hf.runs.create("a", agent="coder")
        hf.runs.create("b", agent="tester")
    return path


def follow(store: Path, *words: str) -> list[dict[str, Any]]:
    done = run("events", "follow", "--after", "start", *words, "-o", "json", store=store)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_events_are_followed_from_any_place_on(store: Path) -> None:
    first, second = follow(store, "--limit", "2")
    assert (first["id"], second["id"]) == ("a/1", "b/1")
    assert set(first) == keys_of("events", "With `-o json` each line is a CloudEvent")
    rest = run(
        "events", "follow", "--after", first["position"], "--limit", "1", "-o", "ids", store=store
    )
    assert rest.stdout == f"{second['position']}\n"
    assert [each["id"] for each in follow(store, "--agent", "tester", "--limit", "1")] == ["b/1"]
    assert [each["id"] for each in follow(store, "--run", "b", "--limit", "1")] == ["b/1"]


def test_following_ends_at_ctrl_c_and_tells_where_to_go_on(store: Path) -> None:
    words = [*HOLDFAST, "events", "follow", "--after", "start", "--store", str(store)]
    process = Forked(words, stdout=PIPE, stderr=PIPE, text=True, env=environment())
    try:
        assert "a/1" in process.stdout.readline()
        assert "RUN_CREATED" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == Exit.INTERRUPTED
    assert told.startswith("go on with --after 1:")


def test_position_that_is_none_is_a_mistake_of_the_caller(store: Path) -> None:
    done = run("events", "follow", "--after", "yesterday", store=store)
    assert done.returncode == Exit.USAGE
    assert "is no position" in done.stderr


def test_mistyped_kind_is_refused_and_the_nearest_one_is_named(store: Path) -> None:
    followed = run("events", "follow", "--kind", "RUN_FAILD", store=store)
    words = ("webhooks", "add", "transport:events", "--name", "a", "--kind", "RUN_FAILD")
    for done in (followed, run(*words, store=store)):
        assert done.returncode == Exit.USAGE
        assert "did you mean RUN_FAILED" in done.stderr
        assert "docs/reference/entries.md" in done.stderr
    assert ask("webhooks", "list", store=store) == []


def test_webhooks_are_added_listed_and_removed(store: Path) -> None:
    words = ("webhooks", "add", "https://example.org/hook", "--name", "audit")
    added = ask(*words, "--secret", "secret://HOOK", "--kind", "RUN_FAILED", store=store)
    assert set(added) == keys_of("webhooks", "A webhook in JSON")
    assert (added["name"], added["status"], added["delivered"]) == ("audit", "ready", 0)
    assert ask("webhooks", "list", store=store) == [added]
    assert "https://example.org/hook" in run("webhooks", "list", store=store).stdout
    assert run("webhooks", "resume", "audit", store=store).returncode == Exit.CONFLICT
    differs = run(*words, "--secret", "secret://OTHER", store=store)
    assert differs.returncode == Exit.CONFLICT
    done = run("webhooks", "remove", "audit", store=store)
    assert (done.returncode, done.stdout) == (0, "")
    assert "delivers nothing more" in done.stderr
    assert run("webhooks", "remove", "audit", store=store).returncode == Exit.NOT_FOUND


def test_secret_itself_is_refused_and_not_repeated(store: Path) -> None:
    words = ("webhooks", "add", "https://example.org/hook", "--name", "audit")
    done = run(*words, "--secret", "hunter2hunter2", store=store)
    assert done.returncode == Exit.USAGE
    assert "hunter2" not in done.stdout + done.stderr


def test_webhook_without_a_secret_is_told_how_to_name_one_and_when_none_is_needed(
    store: Path,
) -> None:
    done = run("webhooks", "add", "https://example.org/hook", "--name", "audit", store=store)
    assert done.returncode == Exit.USAGE
    assert "--secret secret://HOOK" in done.stderr
    assert "transport:QUEUE needs none" in done.stderr
    shown = " ".join(run("webhooks", "add", "--help").stdout.split())
    assert "needed for http and https, not for transport:QUEUE" in shown
    ask("webhooks", "add", "transport:audit", "--name", "audit", store=store)
