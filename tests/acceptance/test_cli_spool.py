"""`holdfast spool`: what a machine keeps for a store, seen and drained from the command line."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, keys_of, run
from tests.backends import SQLiteBackend
from tests.integration.test_spool import left_behind, taken_over, versions


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store, and a spool with two checkpoints that somebody left."""
    path = tmp_path / "store.db"
    asyncio.run(left_behind(str(path), tmp_path / "spool"))
    return path


def listed(what: str, store: Path, *more: str) -> list[dict[str, Any]]:
    return ask("spool", what, "--folder", str(store.parent / "spool"), *more, store=store)


@pytest.mark.mission("S3-084")
def test_spool_is_listed_shown_and_drained(store: Path) -> None:
    (found,) = listed("list", store)
    assert set(found) == keys_of("spool", "A spool in JSON") - {"in", "use", "torn", "damaged"} - {
        "whole"
    }
    assert (found["commits"], found["runs"], found["state"]) == (2, 1, "whole")
    entries = ask("spool", "show", found["file"], store=store)
    assert [each["kind"] for each in entries] == ["CHECKPOINT_CREATED"] * 2
    assert [each["seq"] for each in entries] == [3, 4]
    folder = str(store.parent / "spool")
    done = ask("spool", "drain", "--folder", folder, store=store)
    assert done == {"folder": folder, "drained": [found["file"]], "left": [], "evidence": []}
    assert versions(SQLiteBackend(store)) == [1, 2]
    assert listed("list", store) == listed("evidence", store) == []


def test_what_cannot_be_stored_is_told_and_listed(store: Path) -> None:
    asyncio.run(taken_over(str(store)))
    folder = str(store.parent / "spool")
    done = run("spool", "drain", "--folder", folder, "-o", "json", store=store)
    assert done.returncode == Exit.CONFLICT
    assert "holdfast spool evidence" in done.stderr
    (kept,) = listed("evidence", store)
    assert json.loads(done.stdout)["evidence"] == [kept["file"]]
    assert (kept["run_id"], kept["commits"]) == ("r", 2)
    assert "RUN_LEASED" in kept["why"]


def test_damaged_spool_is_shown_up_to_the_damage(store: Path) -> None:
    (found,) = listed("list", store)
    path = Path(found["file"])
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    done = run("spool", "show", found["file"], "-o", "json", store=store)
    assert done.returncode == Exit.INTEGRITY
    assert len(json.loads(done.stdout)) == 1
    assert listed("list", store)[0]["state"] == "damaged"


def test_spool_that_is_not_there_is_told(store: Path) -> None:
    done = run("spool", "show", str(store.parent / "none.spool"), store=store)
    assert done.returncode == Exit.NOT_FOUND


@pytest.mark.parametrize("what", ["list", "evidence"])
def test_folder_in_which_nothing_was_found_is_named(store: Path, what: str) -> None:
    empty = store.parent / "empty"
    done = run("spool", what, "--folder", str(empty), store=store)
    assert (done.returncode, done.stdout) == (0, "")
    assert str(empty) in done.stderr
    assert "--folder" in done.stderr
    done = run("spool", what, "--folder", str(empty), "-o", "json", store=store)
    assert (done.stdout, done.stderr.count(str(empty))) == ("[]\n", 1)
    done = run("spool", what, store=store, XDG_STATE_HOME=str(empty))
    assert str(empty / "holdfast" / "spool") in done.stderr


def test_folder_of_the_environment_counts_unless_one_is_named(store: Path) -> None:
    spool = str(store.parent / "spool")
    done = run("spool", "list", "-o", "ids", store=store, HOLDFAST_SPOOL_FOLDER=spool)
    assert done.stdout.startswith(spool)
    words = ("spool", "list", "--folder", "other", "-o", "ids")
    done = run(*words, store=store, cwd=store.parent, HOLDFAST_SPOOL_FOLDER=spool)
    assert str(store.parent / "other") in done.stderr
    done = run("spool", "list", store=store, HOLDFAST_SPOOL_FOLDER="spool")
    assert done.returncode == Exit.USAGE
    assert "HOLDFAST_SPOOL_FOLDER must be" in done.stderr
    done = run("spool", "drain", store=store, HOLDFAST_SPOOL_FOLDER=spool)
    assert done.returncode == 0, done.stderr
    assert versions(SQLiteBackend(store)) == [1, 2]
