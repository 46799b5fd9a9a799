"""`holdfast checkpoints create|update|finalize|link|record|search`, as people use them."""

import getpass
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import sync
from holdfast.kernel import indexes
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, keys_of, run
from tests.forked_cli import MAIN

UNKNOWN = "019be000-0000-7000-8000-000000000001"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with sync.open(str(path)):
        return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"execution_state": {"phase": "testing"}}))
    return file


def made(store: Path, state: Path, task: str = "task", *more: str) -> dict[str, Any]:
    return ask("checkpoints", "create", task, str(state), "--agent", "ann", *more, store=store)


def test_checkpoint_goes_from_creation_to_its_end(store: Path, state: Path, tmp_path: Path) -> None:
    found = made(store, state, "task", "--summary", "the words", "--type", "qa", "--label", "x")
    assert set(found) == keys_of("checkpoints", "A record in JSON")
    assert found["metadata"]["agent_type"] == "qa"
    checkpoint = found["checkpoint_id"]
    partial = tmp_path / "partial.json"
    partial.write_text('{"metrics": {"tools_invoked": 7}}')
    updated = ask("checkpoints", "update", checkpoint, str(partial), store=store)
    assert (updated["revision"], updated["metrics"]["tools_invoked"]) == (2, 7)
    assert ask("checkpoints", "record", checkpoint, store=store) == updated
    assert ask("checkpoints", "record", checkpoint, "--revision", "1", store=store) == found
    final = ask("checkpoints", "finalize", checkpoint, "--status", "complete", store=store)
    assert (final["is_final"], final["status"]) == (True, "complete")
    refused = run("checkpoints", "update", checkpoint, str(partial), store=store)
    assert refused.returncode == Exit.CONFLICT
    assert "final" in refused.stderr
    with sync.open(str(store)) as hf:
        entries = hf.journal.read("task")
    assert [entry.actor for entry in entries[1:]] == ["ann", *[getpass.getuser()] * 2]


def test_listing_tells_the_status_of_records_and_which_are_final(store: Path, state: Path) -> None:
    for status in ("complete", "handoff"):
        checkpoint = made(store, state)["checkpoint_id"]
        ask("checkpoints", "finalize", checkpoint, "--status", status, store=store)
    made(store, state)
    found = ask("checkpoints", "list", "task", store=store)
    assert [(each["version"], each["status"], each["is_final"]) for each in found] == [
        (3, "", False),
        (2, "handoff", True),
        (1, "complete", True),
    ]
    assert {each["phase"] for each in found} == {"testing"}
    assert ask("checkpoints", "list", "task", "--before", "2", store=store) == found[2:]
    table = run("checkpoints", "list", "task", store=store).stdout.split()
    assert "FINAL" in table
    assert table[table.index("handoff") + 1] == "true"
    shown = ask("checkpoints", "show", "task", "2", store=store)
    assert shown.items() >= found[1].items()


def test_state_may_come_from_stdin(store: Path) -> None:
    words = ("checkpoints", "create", "task", "-", "--agent", "ann", "-o", "ids")
    program = [sys.executable, "-c", MAIN, *words, "--store", str(store)]
    given = '{"metrics": {"tokens_consumed": 5}}'
    done = subprocess.run(program, input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = ask("checkpoints", "record", done.stdout.strip(), store=store)
    assert found["metrics"]["tokens_consumed"] == 5


def test_checkpoints_are_linked_and_found(store: Path, state: Path) -> None:
    one = made(store, state, "one", "--summary", "refunds are next")["checkpoint_id"]
    two = made(store, state, "two", "--summary", "refunds are done")["checkpoint_id"]
    linked = ask("checkpoints", "link", one, two, store=store)
    assert linked == {"parent_id": one, "child_id": two, "linked": True}
    assert ask("checkpoints", "record", two, store=store)["parent_id"] == one
    found = ask("checkpoints", "search", "--text", "Refunds", "--agent", "ann", store=store)
    assert [each["checkpoint_id"] for each in found] == [two, one]
    keys = keys_of("checkpoints", "A record in JSON") | keys_of("checkpoints", "A search adds")
    assert set(found[0]) == keys
    page = run("checkpoints", "search", "--limit", "1", store=store)
    assert f"--before {two}" in page.stderr
    rest = run("checkpoints", "search", "--before", two, "-o", "ids", store=store)
    assert rest.stdout == f"{one}\n"
    since = ("--since", "2020-01-01T00:00:00+00:00", "--until", "2020-01-02T00:00:00Z")
    assert ask("checkpoints", "search", *since, store=store) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["record", UNKNOWN], Exit.NOT_FOUND),
        (["record", "nonsense"], Exit.NOT_FOUND),
        (["finalize", UNKNOWN, "--status", "x"], Exit.NOT_FOUND),
        (["finalize", UNKNOWN], Exit.USAGE),
        (["link", UNKNOWN, UNKNOWN], Exit.NOT_FOUND),
        (["create", "task", "BAD", "--agent", "a"], Exit.USAGE),
        (["create", "task", "STATE"], Exit.USAGE),
        (["create", "task", "STATE", "--agent", "a", "--after", UNKNOWN], Exit.CONFLICT),
        (["create", "task", "/no/such/file", "--agent", "a"], Exit.FAILED),
        (["search", "--since", "yesterday"], Exit.USAGE),
        (["search", "--since", "2026-01-01T00:00:00"], Exit.USAGE),
        (["search", "--before", "x"], Exit.USAGE),
        (["search", "--limit", "0"], Exit.USAGE),
    ],
)
def test_what_cannot_be_done_has_an_exit_code(
    store: Path, state: Path, tmp_path: Path, words: list[str], code: Exit
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"execution_state": {"phase": "asleep"}}')
    files = {"BAD": str(bad), "STATE": str(state)}
    done = run("checkpoints", *(files.get(word, word) for word in words), store=store)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    if "BAD" in words:
        assert "$.execution_state.phase" in done.stderr


def test_kinds_on_the_journal_tell_what_was_done(store: Path, state: Path) -> None:
    checkpoint = made(store, state)["checkpoint_id"]
    ask("checkpoints", "finalize", checkpoint, "--status", "handoff", "--by", "bob", store=store)
    with sync.open(str(store)) as hf:
        entry = hf.journal.read("task")[-1]
    assert (entry.kind, entry.actor) == ("CHECKPOINT_FINALIZED", "bob")
    assert indexes.facts_of(entry).status == "handoff"
