"""`holdfast workflows`: what is told about mistakes, and to whoever is in the wrong place."""

import json
from pathlib import Path

import pytest

from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli_workflows import Place, started

MANY = """\
name: many
blocks:
  - {id: a, type: Shel, inputs: {command: "true"}}
  - {id: b, type: Shell, inputs: {comand: "true"}}
  - {id: c, type: Prompt, depends_on: [d], inputs: {prompt: 3}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path, str(tmp_path / "flows.db"))
    made.write("many.yaml", MANY)
    return made


def test_run_tells_all_that_validate_tells_and_makes_no_store(place: Place) -> None:
    told = place.ask("validate", "many.yaml", code=Exit.USAGE)["problems"]
    for command in ("run", "start"):
        refused = place.run(command, "many.yaml", "-o", "json", code=Exit.USAGE)
        error = json.loads(refused.stderr)
        assert error["error"] == "WorkflowInvalid"
        assert error["problems"] == told
        assert len(told) == 5
    wrong = place.run("run", "release.yaml", "--input", "nobody=1", "-o", "json", code=Exit.USAGE)
    assert all(each["reason"] for each in json.loads(wrong.stderr)["problems"])
    assert not list(place.folder.glob("*.db*"))


def test_picture_is_no_file_of_another_kind(place: Place) -> None:
    refused = place.run("graph", "release.yaml", "-f", "g.png", code=Exit.USAGE)
    assert ".svg, .mmd, .mermaid" in refused.stderr
    assert not (place.folder / "g.png").exists()
    place.run("graph", "release.yaml", "-f", "g.txt", "--format", "mermaid")
    assert "flowchart" in (place.folder / "g.txt").read_text()
    invalid = place.run("graph", "many.yaml", code=Exit.USAGE)
    assert "started" not in invalid.stderr


def test_advice_is_for_whoever_means_a_workflow(place: Place) -> None:
    nowhere = place.run("resume", "r", code=Exit.NOT_FOUND)
    assert "migrate" not in nowhere.stderr
    assert "--store" in nowhere.stderr
    started(place)
    for command in ("show", "resume", "cancel", "graph"):
        unknown = place.run(command, "nobody", code=Exit.NOT_FOUND)
        assert "holdfast workflows list" in unknown.stderr
        assert "runs list" not in unknown.stderr
    words = ("run", "release.yaml", "--input", "version=2", "--run-id", "r")
    other = place.run(*words, code=Exit.CONFLICT)
    assert "another input" in other.stderr
    assert "session" not in other.stderr


def test_end_of_input_at_a_question_says_how_to_go_on(place: Place) -> None:
    started(place)
    left = place.run("resume", "r", "--interactive", code=Exit.INTERRUPTED)
    assert "\n" in left.stderr.partition("answer:")[2]
    assert "`holdfast workflows resume r --interactive" in left.stderr
    assert [each["block"] for each in place.ask("show", "r")["waiting"]] == ["approve", "size"]


STATES = """\
name: states
blocks:
  - {id: nap, type: Wait, inputs: {seconds: 0.01}}
  - {id: work, type: Shell, depends_on: [nap], inputs: {command: "true"}}
  - {id: ok, type: Prompt, depends_on: [work], inputs: {prompt: "ok?"}}
  - {id: last, type: Shell, depends_on: [ok], inputs: {command: "true"}}
outputs:
  empty: ""
  answer: "{{ blocks.ok.outputs.response }}"
"""


def test_show_tells_the_state_of_every_block(place: Place) -> None:
    place.write("states.yaml", STATES)
    place.run("run", "states.yaml", "--run-id", "s", code=Exit.NEEDS_PERSON)
    states = place.ask("show", "s")["states"]
    assert states == {"nap": "completed", "work": "completed", "ok": "waiting", "last": "not yet"}
    rows = place.run("show", "s").stdout.splitlines()
    nap, work, ok, last = (
        next(row for row in rows if f" {name} " in row) for name in ("nap", "work", "ok", "last")
    )
    assert " s " not in nap
    assert " s " in work
    assert "asks" in ok
    assert "not yet" in last
    done = place.run("resume", "s", "--answer", "ok=fine")
    assert 'empty   ""\nanswer  fine' in done.stdout


def test_what_ended_long_ago_is_erased_on_demand(place: Place) -> None:
    place.write("states.yaml", STATES)
    place.run("run", "states.yaml", "--run-id", "s", code=Exit.NEEDS_PERSON)
    assert place.ask("cleanup", "--older-than", "0") == {"removed": 0}
    place.run("resume", "s", "--answer", "ok=fine")
    assert place.ask("cleanup") == {"removed": 0}
    assert place.run("cleanup", "--older-than", "0").stdout == "1 workflow erased\n"
    for command in ("show", "resume", "graph"):
        gone = place.run(command, "s", code=Exit.NOT_FOUND)
        assert "expired" in gone.stderr
        assert "holdfast runs show s" in gone.stderr
