"""The demo: a real SIGKILL, nothing lost, and failures that are told."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import sync
from holdfast.cli import demo, demo_process
from holdfast.errors import HoldfastError
from holdfast.kernel.runs import Status

DEMO = [sys.executable, "-c", "from holdfast.cli import main; main()", "demo"]
LIMIT_SECONDS = 60


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder), "PYTHONWARNINGS": "error"}


def run(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=LIMIT_SECONDS,
        check=False,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_demo_shows_that_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    done = run("--json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert shown["acknowledged"] >= demo.KILL_AT_TURN
    assert shown["resumed_at"] >= shown["acknowledged"]
    assert shown["final_version"] == shown["resumed_at"] + demo.MORE_TURNS
    assert shown["chain_whole"] is True
    assert shown["nothing_lost"] is True
    assert not is_alive(shown["killed_pid"])
    assert list(tmp_path.iterdir()) == [], "the temporary store is gone"


def test_demo_tells_its_steps_and_leaves_the_run_in_a_store_that_was_named(tmp_path: Path) -> None:
    path = tmp_path / "demo.db"
    done = run("--store", str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for step in ("turn 5 is saved", "kill -9", "takes the run over", "chain is whole", "Shown:"):
        assert step in done.stdout
    with sync.open(str(path)) as hf:
        (kept,) = hf.runs.list()
        assert kept.run_id in done.stdout
        assert kept.status is Status.COMPLETED
        assert hf.journal.verify(kept.run_id) == []
        assert [entry.kind for entry in hf.journal.read(kept.run_id)].count("RUN_LEASED") == 2


@pytest.mark.parametrize(("store", "code"), [("memory://", 2), ("no/folder/demo.db", 4)])
def test_demo_refuses_a_store_it_cannot_use(store: str, code: int, tmp_path: Path) -> None:
    done = run("--store", store, folder=tmp_path)
    assert (done.returncode, done.stdout.count("\n") <= 1) == (code, True)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_ctrl_c_ends_the_demo_and_its_worker(tmp_path: Path) -> None:
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)
    ) as process:
        timer = threading.Timer(LIMIT_SECONDS, process.kill)
        timer.start()
        assert process.stdout is not None
        begun = next(line for line in process.stdout if "begins the run" in line)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_SECONDS)
        timer.cancel()
    assert process.returncode == 130
    assert told.strip() == ""
    found = re.search(r"worker (\d+)", begun)
    assert found is not None
    assert not is_alive(int(found[1]))
    assert list(tmp_path.iterdir()) == []


class FakeWorker:
    """Says what a test wants to be said, in place of a process."""

    def __init__(self, said: list[dict[str, Any]], code: int) -> None:
        self.pid = 4711
        self._said = said
        self._code = code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def hear(self) -> dict[str, Any] | None:
        return self._said.pop(0) if self._said else None

    def expect(self, event: str) -> dict[str, Any]:
        heard = self.hear()
        assert heard is not None
        assert event in heard
        return heard

    def kill(self) -> int:
        return self._code


SAVED = [{"opened": 0, "turns": []}, *({"saved": turn} for turn in range(1, 8))]


@pytest.mark.parametrize(
    ("code", "found", "message"),
    [
        (-9, {"opened": 6, "turns": [1, 2, 3, 4, 5, 6]}, "turn 7 was acknowledged"),
        (-9, {"opened": 7, "turns": [1, 2, 3, 5, 6, 7]}, "not whole"),
        (0, {}, "before it was killed"),
    ],
    ids=["turn lost", "hole in the turns", "not killed"],
)
def test_demo_fails_when_a_check_does(
    code: int,
    found: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = iter([FakeWorker(list(SAVED), code), FakeWorker([found], 0)])
    monkeypatch.setattr(demo, "WorkerProcess", lambda *_: next(workers))
    with pytest.raises(HoldfastError, match=message):
        demo._Demo(str(tmp_path / "demo.db"), "default", is_told=False).play()


def test_worker_that_says_nothing_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = demo_process.WorkerProcess(str(tmp_path / "demo.db"), "default", "silent", "1")
    with worker:
        # No interpreter starts in no time: the worker has said nothing yet.
        monkeypatch.setattr(demo_process, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(HoldfastError, match="said nothing"):
            worker.hear()
        monkeypatch.undo()
    assert not is_alive(worker.pid)


def test_worker_that_fails_is_not_taken_for_one_that_works(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no" / "demo.db")
    with (
        demo_process.WorkerProcess(nowhere, "default", "failing", "1") as worker,
        pytest.raises(HoldfastError, match="should have opened now"),
    ):
        worker.expect("opened")
