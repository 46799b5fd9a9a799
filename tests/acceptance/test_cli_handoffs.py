"""`holdfast runs handoff`, `handoffs` and `recover`, as an operator types them."""

import re
import shlex
from pathlib import Path

import apsw
import pytest

from holdfast import sync
from holdfast.sync.records import CheckpointService
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ask, run

RUNBOOK = Path(__file__).parents[2] / "docs" / "how-to" / "recovery.md"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run with two versions that wants a worker, and one that has ended."""
    path = tmp_path / "store.db"
    with sync.open(str(path)) as hf:
        held = hf.runs.open("build-7", agent="builder", input={"what": "house"})
        for part in ("walls", "roof"):
            held.append("talk", part)
            held.checkpoint()
        held.release()
        hf.runs.open("done").complete(1)
    return path


@pytest.mark.mission("S3-135")
def test_handoff_is_asked_for_and_listed(store: Path) -> None:
    record = ask("runs", "handoff", "build-7", "--to", "qa", "--by", "ops", store=store)
    assert record["wish"] == "qa"
    assert ask("runs", "handoffs", "build-7", store=store) == []
    told = run("runs", "handoff", "build-7", store=store)
    assert "is to be handed over to a fresh context" in told.stdout


def test_handoff_that_no_living_worker_can_take_is_warned_of(store: Path) -> None:
    told = run("runs", "handoff", "build-7", "--to", "nobody", store=store)
    assert told.returncode == 0
    assert "no worker is alive" in told.stderr


def test_table_tells_why_handoffs_were_given_and_reverted(store: Path) -> None:
    with sync.open(str(store)) as hf:
        service = CheckpointService(hf)
        for note in ("tired", "late"):
            made = service.create_checkpoint("task", "ann", {})
            given = service.initiate_handoff(made.checkpoint_id, note=note)
            if note == "tired":
                hf.handoffs.refuse("task", given.handoff_id, "bob is away")
    first, second = ask("runs", "handoffs", "task", store=store)
    assert (first["status"], first["reason"], first["note"]) == ("reverted", "bob is away", "tired")
    assert (second["status"], second["reason"], second["note"]) == ("given", "", "late")
    heading, *rows = run("runs", "handoffs", "task", store=store).stdout.splitlines()
    assert heading.split()[-1] == "WHY"
    assert rows[0].rstrip().endswith("  bob is away")
    assert rows[1].rstrip().endswith("  late")


def test_run_that_has_ended_cannot_be_handed_over(store: Path) -> None:
    told = run("runs", "handoff", "done", store=store)
    assert told.returncode == Exit.CONFLICT
    assert "fork it" in told.stderr
    missing = run("runs", "handoffs", "nobody", store=store)
    assert missing.returncode == Exit.NOT_FOUND


def _damage_newest(store: Path) -> None:
    connection = apsw.Connection(str(store))
    connection.execute(
        "UPDATE journal SET nonce = zeroblob(16) WHERE run_id = 'build-7' AND seq ="
        " (SELECT max(seq) FROM checkpoints WHERE run_id = 'build-7')"
    )
    connection.close()


def _commands_for_damage() -> list[list[str]]:
    """What the runbook tells to type, with the run of these tests in the place of its own."""
    found = re.search(r"## Damage\n\n```sh\n(.*?)```", RUNBOOK.read_text(encoding="utf-8"), re.S)
    assert found is not None
    own = {"RUN": "build-7", "7": "1"}
    lines = [shlex.split(line, comments=True)[1:] for line in found[1].splitlines()]
    return [[own.get(word, word) for word in line] for line in lines]


@pytest.mark.mission("S3-002", "S3-169", "S3-201")
def test_damaged_run_is_recovered_by_its_runbook(store: Path) -> None:
    _damage_newest(store)
    verify, look, recover, to_an_older_one, in_spite_of_a_gap = _commands_for_damage()
    assert run(*verify, store=store).returncode == Exit.INTEGRITY
    plan = ask(*look, store=store)
    assert (plan["version"], len(plan["skipped"]), plan["why_not"]) == (1, 1, "")
    assert [problem["seq"] for problem in plan["problems"]]
    record = ask(*recover, "--by", "ops", store=store)
    assert (record["status"], record["version"]) == ("ready", 3)
    with sync.open(str(store)) as hf:
        assert hf.checkpoints.load("build-7")["talk"] == ["walls"]
    told = run("runs", "recover", "build-7", "--to", "99", store=store)
    assert told.returncode == Exit.NOT_FOUND
    assert ask(*to_an_older_one, store=store)["status"] == "ready"
    assert ask(*in_spite_of_a_gap, store=store)["status"] == "ready"


def test_hole_in_the_chain_needs_a_person_who_says_so(store: Path) -> None:
    connection = apsw.Connection(str(store))
    connection.execute("DELETE FROM journal WHERE run_id = 'build-7' AND seq = 3")
    connection.close()
    refused = run("runs", "recover", "build-7", store=store)
    assert refused.returncode == Exit.CONFLICT
    assert "--accept-gap" in refused.stderr
