"""`holdfast workflows`: what is printed, the exit codes, and answers, each command a process."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import sync
from holdfast.terminal.exits import Exit
from tests.acceptance import workflow_files
from tests.acceptance.test_cli import keys_of, run


class Place:
    """A folder with workflows and a program of tools, and a store for their runs."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        for name in ("RELEASE", "BROKEN", "GATED", "SHOWN", "NESTED", "ROUNDS", "PATIENT"):
            self.write(f"{name.lower()}.yaml", getattr(workflow_files, name))
        self.write("program.py", workflow_files.PROGRAM)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = run("workflows", *words, cwd=self.folder, HOLDFAST_STORE=self.store)
        assert done.returncode == code, done.stderr or done.stdout
        return done

    def ask(self, *words: str, code: int = 0) -> Any:
        done = self.run(*words, "-o", "json", code=code)
        return json.loads(done.stdout)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, str(tmp_path / "flows.db"))


def started(place: Place, run_id: str = "r") -> Any:
    words = ("run", "release.yaml", "--input", "version=1.2", "--run-id", run_id)
    return place.ask(*words, code=Exit.NEEDS_PERSON)


def test_run_stops_at_its_questions_and_goes_on_elsewhere(store: str, tmp_path: Path) -> None:
    place = Place(tmp_path, store)
    found = started(place)
    assert set(found) == keys_of("workflows", "An outcome in JSON")
    assert list(found)[:4] == ["run_id", "status", "waiting", "outputs"]
    assert (found["run_id"], found["status"], found["outputs"]) == ("r", "waiting", None)
    assert [each["block"] for each in found["waiting"]] == ["approve", "size"]
    first, second = found["waiting"]
    assert set(first) == keys_of("workflows", "A question in JSON")
    assert (first["prompt"], first["choices"]) == ("Ship 1.2?", ["yes", "no"])
    assert first["deadline"].endswith("Z")
    assert second["schema"] == {"type": "integer"}
    (place.folder / "release.yaml").unlink()
    both = ("--answer", "size=3", "--answer", "approve=yes", "--by", "ada")
    asked_again = place.ask("resume", "r", *both, code=Exit.NEEDS_PERSON)
    assert [each["block"] for each in asked_again["waiting"]] == ["reason"]
    assert set(asked_again["blocks"]["size"]) == keys_of("workflows", "A block that has ended")
    done = place.ask("resume", "r", "--answer", "reason=")
    assert (done["status"], done["waiting"]) == ("completed", [])
    assert done["outputs"] == {"answer": "yes", "size": 3, "reason": "", "count": 1}
    with sync.open(store) as hf:
        assert hf.workflows.asked("r", "size").answered_by == "ada"


def test_people_are_told_what_to_type_next(place: Place) -> None:
    words = ("--input", "version=1.2", "--store", "named.db")
    done = place.run("run", "release.yaml", *words, code=Exit.NEEDS_PERSON)
    assert "approve asks: Ship 1.2?\n  choices: yes, no\n  until 20" in done.stdout
    assert 'size asks: How many?\n  answer: JSON that fits {"type": "integer"}' in done.stdout
    assert "wave 1 of 2: approve, size" in done.stderr
    (command,) = re.findall(r"`holdfast (workflows resume [^`]+)`", done.stderr)
    typed = command.replace("approve=VALUE", "approve=no").replace("size=VALUE", "size=1")
    again = run(*shlex.split(typed), cwd=place.folder)
    assert again.returncode == Exit.NEEDS_PERSON
    assert "reason asks: Why?" in again.stdout


def test_outputs_are_shown_to_people_and_ids_to_programs(place: Place) -> None:
    started(place)
    answers = ("--answer", "approve=no", "--answer", "size=4")
    place.run("resume", "r", *answers, code=Exit.NEEDS_PERSON)
    done = place.run("resume", "r", "--answer", "reason=because")
    assert done.stdout.startswith("run r: completed\n\nanswer  no\nsize    4\n")
    ids = place.run("resume", "r", "-o", "ids")
    assert (ids.stdout, ids.stderr) == ("r\n", "")


def test_every_block_that_failed_is_told(place: Place) -> None:
    words = ("run", "broken.yaml", "--app", "program:hf", "--run-id", "b")
    done = place.run(*words, code=Exit.FAILED)
    assert done.stdout.startswith("run b: failed\n")
    for told in (r"first: .*out of paper", r"second: .*out of ink", r"each\[b\]: .*no good"):
        assert re.search(told, done.stdout), done.stdout
    assert "  after: skipped: first failed" in done.stderr
    assert "fine: completed in" in done.stderr
    found = place.ask(*words, code=Exit.FAILED)
    assert (found["status"], found["outputs"]) == ("failed", None)
    assert "out of ink" in found["error"]


def test_inputs_are_read_as_what_they_are(place: Place) -> None:
    place.write("inputs.json", '{"version": "1.2", "sites": ["a"]}')
    words = ("--inputs", "inputs.json", "--input", "count=3", "--input", "loud=yes")
    place.run("run", "release.yaml", *words, "--run-id", "r", code=Exit.NEEDS_PERSON)
    shown = place.ask("show", "r")
    assert shown["inputs"] == {"version": "1.2", "count": 3, "loud": True, "sites": ["a"]}
    twice = ("--inputs", "inputs.json", "--input", "version=2")
    assert "given twice" in place.run("run", "release.yaml", *twice, code=Exit.USAGE).stderr
    other = place.run(
        "run", "release.yaml", "--input", "version=9", "--run-id", "r", code=Exit.CONFLICT
    )
    assert "another input" in other.stderr


def test_all_wrong_inputs_are_told_at_once_and_nothing_is_started(place: Place) -> None:
    words = ("--input", "count=many", "--input", "loud=maybe", "--input", "siets=[]")
    done = place.run("run", "release.yaml", *words, code=Exit.USAGE)
    for told in (
        "input 'count' must be of type int, not 'many'",
        "input 'loud' must be of type bool, not 'maybe'",
        "there is no input 'siets'; did you mean 'sites'?",
        "input 'version' must be given (str)",
    ):
        assert f"\n  {told}\n" in done.stderr
    assert not Path(place.store).exists()
    told = place.run("run", "release.yaml", *words, "-o", "json", code=Exit.USAGE)
    assert json.loads(told.stderr)["error"] == "WorkflowInvalid"


def test_file_that_is_no_workflow_is_refused(place: Place) -> None:
    place.write("odd.yaml", "name: [")
    assert "odd.yaml" in place.run("run", "odd.yaml", code=Exit.USAGE).stderr
    place.run("run", "absent.yaml", code=Exit.USAGE)


def test_answers_are_given_together_or_not_at_all(place: Place) -> None:
    started(place)
    refused = place.run(
        "resume", "r", "--answer", "approve=yes", "--answer", "size=big", code=Exit.USAGE
    )
    assert '"big" is not' in refused.stderr
    assert len(place.ask("show", "r")["waiting"]) == 2
    unknown = place.run("resume", "r", "--answer", "nobody=1", code=Exit.NOT_FOUND)
    assert "these ask: approve, size" in unknown.stderr
    place.write("answers.json", '{"size": 5}')
    files = ("--answers", "answers.json", "--answer", "approve=yes")
    place.run("resume", "r", *files, code=Exit.NEEDS_PERSON)
    twice = ("--answers", "answers.json", "--answer", "size=6")
    assert "answered twice" in place.run("resume", "r", *twice, code=Exit.USAGE).stderr
    assert "is not BLOCK=VALUE" in place.run("resume", "r", "--answer", "x", code=2).stderr


def test_same_answer_again_is_harmless_and_another_is_a_conflict(place: Place) -> None:
    started(place)
    place.run("resume", "r", "--answer", "size=2", code=Exit.NEEDS_PERSON)
    place.run("resume", "r", "--answer", "size=2", code=Exit.NEEDS_PERSON)
    other = place.run("resume", "r", "--answer", "size=3", code=Exit.CONFLICT)
    assert "was first" in other.stderr
    both = place.ask("resume", "r", "--answer", "approve=yes", code=Exit.NEEDS_PERSON)
    assert both["blocks"]["size"]["outputs"] == {"response": 2}


def test_key_of_a_round_may_have_an_equals_sign(place: Place) -> None:
    place.run("run", "rounds.yaml", "--run-id", "r", code=Exit.NEEDS_PERSON)
    answers = ("--answer", "ask[a=b]=left=right", "--answer", "ask[a]=2")
    done = place.ask("resume", "r", *answers)
    rounds = done["blocks"]["ask"]
    assert rounds["keys"] == ["a=b", "a"]
    said = [each["outputs"]["response"] for each in rounds["rounds"]]
    assert said == ["left=right", "2"]


def test_runs_are_listed_shown_and_cancelled(place: Place) -> None:
    started(place, "one")
    started(place, "two")
    place.run("start", "patient.yaml", "--run-id", "three")
    listed = place.ask("list", "--workflow", "release")
    assert [each["run_id"] for each in listed] == ["two", "one"]
    assert set(listed[0]) == keys_of("runs", "A run in JSON")
    assert place.run("list", "--status", "ready", "-o", "ids").stdout == "three\n"
    few = place.run("list", "--limit", "1")
    assert re.search(r"^three +patient +ready", few.stdout, re.MULTILINE)
    assert "--limit" in few.stderr
    place.run("resume", "one", "--answer", "size=2", code=Exit.NEEDS_PERSON)
    place.run("resume", "one", "--answer", "approve=no", code=Exit.NEEDS_PERSON)
    shown = place.run("show", "one")
    assert re.search(r"^1 +size +Prompt +completed .*\"response\": 2", shown.stdout, re.MULTILINE)
    assert re.search(r"^2 +reason +Prompt +asks", shown.stdout, re.MULTILINE)
    assert "--answer reason=VALUE" in shown.stderr
    everything = place.ask("show", "one")
    assert set(everything) - keys_of("workflows", "An outcome in JSON") == keys_of(
        "workflows", "`show` adds"
    )
    ended = place.run("cancel", "one", "--by", "ada", "--note", "not now")
    assert ended.stdout == "run one: cancelled\n"
    again = place.run("cancel", "one", code=Exit.CONFLICT)
    assert "cancelled already" in again.stderr
    assert place.ask("resume", "one", code=Exit.FAILED)["status"] == "cancelled"


def test_definition_is_the_one_a_run_was_started_with(place: Place) -> None:
    started(place)
    place.write("release.yaml", "name: other")
    text = place.run("show", "r", "--definition").stdout
    assert text.startswith("name: release\nversion: '7'\n")
    plain = place.ask("show", "r", "--definition")
    assert [block["id"] for block in plain["blocks"]] == ["approve", "size", "reason"]
    place.write("again.yaml", text)
    place.run("run", "again.yaml", "--input", "version=1", code=Exit.NEEDS_PERSON)


def test_recorded_run_waits_for_somebody_to_carry_it_out(place: Place) -> None:
    words = ("release.yaml", "--input", "version=1", "--run-id")
    done = place.run("run", *words, "r", "--detach")
    assert done.stdout == "run r: ready\n"
    assert "no worker is alive" in done.stderr
    assert "`holdfast workflows resume r`" in done.stderr
    assert place.ask("start", *words, "s")["status"] == "ready"
    assert len(place.ask("resume", "r", code=Exit.NEEDS_PERSON)["waiting"]) == 2


def test_command_that_waited_long_enough_says_how_to_go_on(place: Place) -> None:
    words = ("run", "patient.yaml", "--run-id", "p", "--timeout", "0")
    done = place.run(*words, code=Exit.TIMED_OUT)
    assert "it has not ended: `holdfast workflows resume p` goes on" in done.stderr


def test_run_that_is_no_workflow_is_not_found(place: Place) -> None:
    with sync.open(place.store) as hf:
        hf.runs.create("other", agent="someone")
    for words in (["show", "other"], ["resume", "other"], ["cancel", "nobody"]):
        assert words[1] in place.run(*words, code=Exit.NOT_FOUND).stderr


def test_program_has_a_store_and_a_kit_of_its_own(place: Place) -> None:
    words = ("run", "gated.yaml", "--app", "program:hf")
    for extra in (["--root", "."], ["--secrets", "."], ["--store", "x.db"], ["--tenant", "t"]):
        assert "--app names a" in place.run(*words, *extra, code=Exit.USAGE).stderr
    assert "--root" in place.run("run", "patient.yaml", "--root", "nowhere", code=3).stderr
