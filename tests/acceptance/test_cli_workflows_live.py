"""Workflows in a terminal, interrupted, killed, and run by two at once: real processes."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from holdfast import sync
from holdfast.terminal.exits import Exit
from tests.acceptance.terminal import Terminal
from tests.acceptance.test_cli import HOLDFAST, LIMIT_SECONDS, environment, run
from tests.acceptance.test_cli_agents import poll
from tests.acceptance.test_cli_workflows import Place
from tests.acceptance.workflow_files import GATED
from tests.forked import PIPE, Forked

APP = ("--app", "program:hf")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path, str(tmp_path / "flows.db"))
    made.write("looking.yaml", GATED.replace("TOOL", "look"))
    made.write("changing.yaml", GATED.replace("TOOL", "change"))
    return made


@contextmanager
def command(place: Place, *words: str) -> "Iterator[Forked]":
    """A command that goes on, with its output in pipes."""
    process = Forked(
        [*HOLDFAST, "workflows", *words],
        cwd=place.folder,
        env=environment(HOLDFAST_STORE=place.store),
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_SECONDS)


def terminal(place: Place, *words: str) -> Terminal:
    return Terminal(
        [*HOLDFAST, "workflows", *words],
        cwd=place.folder,
        env=environment(HOLDFAST_STORE=place.store),
    )


def await_file(place: Place, name: str) -> None:
    poll((place.folder / name).exists, what=lambda: f"{name} is written")


def read_to(stream: IO[str] | None, text: str) -> str:
    assert stream is not None
    said = ""
    for line in stream:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} was not said: {said}")


# In a terminal.


def test_terminal_shows_waves_blocks_marks_and_durations(place: Place) -> None:
    with terminal(place, "run", "shown.yaml", *APP, "--run-id", "s") as seen:
        assert seen.end() == Exit.NEEDS_PERSON
    text = seen.screen.text
    assert [int(n) for n in re.findall(r"^wave (\d) of 3$", text, re.MULTILINE)] == [1, 2, 3]
    for row in (
        r"✓ build +\d\.\d s",
        r"- skipped +its condition does not hold",
        r"✗ spoilt +\d\.\d s .*no ink",
        r"✓ fan +\d\.\d s 3/3 rounds",
        r"\? inner +\d\.\d s waits",
        r"\?   sure +\d\.\d s waits",
        r"inner/sure asks: Sure\?",
    ):
        assert len(re.findall(f"^{row}", text, re.MULTILINE)) == 1, (row, text)
    assert "workflows resume s --answer inner/sure=VALUE --app program:hf" in text.replace("\n", "")
    assert seen.raw.count("\x1b[?25l") == seen.raw.count("\x1b[?25h") == 1
    with terminal(place, "resume", "s", *APP, "--answer", "inner/sure=") as seen:
        assert seen.end() == Exit.OK
    assert re.search(r"^✓ inner +\d\.\d s", seen.screen.text, re.MULTILINE)
    assert "said  hello you" in seen.screen.text


def test_block_that_runs_has_a_row_that_moves(place: Place) -> None:
    with terminal(place, "run", "looking.yaml", *APP) as seen:
        seen.read_until(r"(?s)([⠁-⣿]).* gate .*(?!\1)[⠁-⣿].* gate ")
        (place.folder / "go-gate").touch()
        assert seen.end() == Exit.OK
    assert re.search(r"^✓ gate +\d\.\d s", seen.screen.text, re.MULTILINE)
    assert not re.search("[⠁-⣿]", seen.screen.text)


def test_whoever_is_there_is_asked_until_the_end(place: Place) -> None:
    words = ("release.yaml", "--input", "version=1", "--run-id", "r")
    place.run("run", *words, code=Exit.NEEDS_PERSON)
    with terminal(place, "resume", "r") as seen:
        seen.read_until(r"Answer here\?")
        seen.type("\n")
        seen.read_until(r"1\) yes\r\n.*2\) no\r\nNumber or answer")
        seen.type("maybe\n")
        seen.read_until("maybe.*not one of the choices")
        seen.type("2\n")
        seen.read_until(r"fits \{\"type\": \"integer\"\}\)\r\nAnswer")
        seen.type("12\n")
        seen.read_until(r"reason asks: Why\?\r\nAnswer")
        seen.type("\n")
        assert seen.end() == Exit.OK
    assert "run r: completed" in seen.screen.text
    with sync.open(place.store) as hf:
        outputs = hf.workflows.status("r").outputs
    assert outputs == {"answer": "no", "size": 12, "reason": "", "count": 1}


# Interrupted, killed, and followed.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_handed_back_and_goes_on(place: Place, number: signal.Signals) -> None:
    with command(place, "run", "looking.yaml", *APP, "--run-id", "i") as process:
        await_file(place, "began-gate")
        process.send_signal(number)
        said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert process.returncode == Exit.INTERRUPTED
    assert "`holdfast workflows resume i --app program:hf` goes on with it" in said
    assert "Traceback" not in said
    with sync.open(place.store) as hf:
        assert hf.runs.get("i").status == "ready"
    (place.folder / "go-gate").touch()
    assert place.ask("resume", "i", *APP)["outputs"] == {"said": "open"}


def test_interrupted_nested_call_is_reported_and_an_operator_is_needed(place: Place) -> None:
    with command(place, "run", "nested.yaml", *APP, "--run-id", "n") as process:
        await_file(place, "began-deep")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert process.returncode == Exit.INTERRUPTED
    assert "1 effect may have happened all the same" in said
    found = place.ask("resume", "n", *APP, code=Exit.NEEDS_PERSON)
    (blocked,) = found["blocked"]
    assert blocked["reason"] == "unknown_effect"
    told = place.run("resume", "n", *APP, code=Exit.NEEDS_PERSON)
    (effect_id,) = re.findall(r"`holdfast effects resolve (\S+?)`", told.stderr)
    resolve = ("effects", "resolve", effect_id, "--happened", '"open"')
    assert run(*resolve, cwd=place.folder, HOLDFAST_STORE=place.store).returncode == 0
    assert place.ask("resume", "n", *APP)["status"] == "completed"
    assert (place.folder / "began-deep").read_text() == "once\n"


def test_killed_run_is_resumed_by_another_process(place: Place) -> None:
    with command(place, "run", "looking.yaml", *APP, "--run-id", "k") as process:
        await_file(place, "began-gate")
        process.kill()
        assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL
    (place.folder / "go-gate").touch()
    assert place.ask("resume", "k", *APP)["status"] == "completed"


def test_second_process_follows_the_first(place: Place) -> None:
    words = ("run", "changing.yaml", *APP, "--run-id", "f")
    with command(place, *words, "-o", "json") as first:
        await_file(place, "began-gate")
        with command(place, *words) as second:
            read_to(second.stderr, " works on it; ")
            (place.folder / "go-gate").touch()
            out, said = second.communicate(timeout=LIMIT_SECONDS)
        told = json.loads(first.communicate(timeout=LIMIT_SECONDS)[0])
    assert (first.returncode, second.returncode) == (0, 0)
    assert "said  open" in out
    assert "gate: completed" in said
    assert told["outputs"] == {"said": "open"}
    assert (place.folder / "began-gate").read_text() == "once\n"
