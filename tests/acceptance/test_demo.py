"""The demo: a real SIGKILL, one charge in a ledger of somebody else, and failures that are told."""

import ast
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import sync
from holdfast.cli import demo
from holdfast.demos import bank as demo_bank
from holdfast.demos import process as demo_process
from holdfast.demos import show as demo_show
from holdfast.demos.process import Child
from holdfast.demos.show import CrashDemo, CrashDemoPlan
from holdfast.demos.stage import Timeline
from holdfast.errors import HoldfastError
from holdfast.kernel.runs import RunStatus
from tests import forked
from tests.forked import PIPE, Forked

ROOT = Path(__file__).parents[2]
HOLDFAST = [sys.executable, "-c", "from holdfast.cli import main; main()"]
CRASH = [*HOLDFAST, "demo", "crash"]
LIMIT_SECONDS = 240
CALLS = 4  # of the model, in a run that nobody disturbs


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(folder), "PYTHONWARNINGS": "error"}


def run(*command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return forked.run(command, cwd=folder, env=environment(folder))


def shown(*options: str, folder: Path) -> dict[str, Any]:
    """What the demo says it has shown. Nothing of it is left over."""
    done = run(*CRASH, "--json", *options, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    check_left_over(record)
    return record


def check_left_over(record: dict[str, Any]) -> None:
    assert not is_alive(record["killed_pid"])
    assert not is_alive(record["resumed_pid"])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def started(*options: str, folder: Path) -> "Generator[Forked]":
    """The demo while it runs; killed if the test does not end it."""
    with Forked(
        [*CRASH, *options],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        env=environment(folder),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: "Forked", text: str) -> list[str]:
    """The lines of the timeline until one has this text."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} was never told: {lines}")


def worker_in(lines: list[str]) -> int:
    found = re.search(r"worker (\d+)", "".join(lines))
    assert found is not None
    return int(found[1])


# One charge.


@pytest.mark.parametrize("at", demo.MOMENTS)
def test_agent_that_is_killed_charges_once(at: str, tmp_path: Path) -> None:
    record = shown("--at", at, folder=tmp_path)
    assert (record["charges"], record["at"], record["run_status"]) == (1, at, "completed")
    assert len(record["ledger"]) == 1
    assert record["model_calls"] == CALLS
    assert list(tmp_path.iterdir()) == [], "the store and the ledger are gone"
    told = [line["what"] for line in record["timeline"]]
    verdicts = [what.rpartition(": ")[2] for what in told if "asks the bank whether" in what]
    if at == "before":
        verdicts = sorted(set(verdicts))  # "no" before the call's time is over is asked again after
    assert verdicts == {"before": ["no"], "during": ["yes, ch-1"], "after": []}[at]


def test_agent_that_is_killed_charges_once_on_a_server(postgres_url: str, tmp_path: Path) -> None:
    record = shown("--store", postgres_url, folder=tmp_path)
    assert (record["charges"], record["at"]) == (1, "during")
    with sync.open(postgres_url) as hf:
        assert hf.runs.get(record["run_id"]).status is RunStatus.COMPLETED
        assert hf.journal.verify(record["run_id"]) == []
        kinds = [entry.kind for entry in hf.journal.read(record["run_id"])]
    assert (kinds.count("RUN_LEASED"), kinds.count("LEASE_EXPIRED")) == (2, 1)
    assert (kinds.count("EFFECT_ISSUED"), kinds.count("EFFECT_COMPLETED")) == (2, 2)


@pytest.mark.parametrize(("at", "charges"), [("before", 1), ("during", 2), ("after", 2)])
def test_agent_without_holdfast_charges_again(at: str, charges: int, tmp_path: Path) -> None:
    record = shown("--without", "--at", at, folder=tmp_path)
    assert (record["charges"], record["at"], record["without"]) == (charges, at, True)
    assert (record["run_id"], record["run_status"], record["resumed_by"]) == (None, None, None)
    assert record["model_calls"] == CALLS + 2
    assert list(tmp_path.iterdir()) == []


# What is told.


def test_demo_alone_is_crash_and_tells_its_steps_and_what_to_look_at(tmp_path: Path) -> None:
    path = tmp_path / "demo.db"
    done = run(*HOLDFAST, "demo", "--store", str(path), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    steps = [
        "opens with an empty ledger",
        "the model asks for charge",
        "charge ch-1 of 19.99 is in the ledger",
        "is gone, by kill -9",
        "EFFECT_ISSUED charge, no result",
        "goes on from checkpoint 1",
        "whether the charge is there: yes",
        "EFFECT_ISSUED charge, EFFECT_COMPLETED (verified)",
        "the chain is whole",
        "\nbank ledger: 1 charge\n",
        "Shown:",
    ]
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    look = re.search(r"holdfast (journal show \S+ --store \S+)", done.stdout)
    assert look is not None
    record = run(*HOLDFAST, *look[1].split(), folder=tmp_path)
    assert (record.returncode, record.stderr) == (0, "")
    assert "EFFECT_COMPLETED" in record.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["demo.db"]


def test_keys_of_the_object_are_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.split("## demo\n")[1].split("\n## ")[0].split("In JSON:")[1]
    record = shown("--without", folder=tmp_path)
    (first, *_) = record["timeline"]
    keys = {*record, *first, *record["ledger"][0]}
    documented = set(re.findall(r"`(\w+)`", section.split("With `--without` there")[0]))
    assert keys == documented - {"null"}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--store", "memory://"], 2),
        (["--store", "no/folder/demo.db"], 4),
        (["--at", "never"], 2),
        (["--without", "--store", "demo.db"], 2),
        (["--without", "-o", "ids"], 2),
        (["now"], 2),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_demo_refuses_what_it_cannot_show(options: list[str], code: int, tmp_path: Path) -> None:
    done = run(*CRASH, *options, folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert done.stderr
    assert list(tmp_path.iterdir()) == []


def test_demo_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = run(*HOLDFAST, "demo", "flood", folder=tmp_path)
    assert done.returncode == 2
    assert "flood" in done.stderr


# By hand.


@pytest.mark.parametrize(
    ("when", "how", "shows"),
    [
        ("starts", signal.SIGKILL, "nothing of the charge was on record"),
        ("the model asks for look_up_order", signal.SIGTERM, "nothing of the charge was on record"),
        ("is about to call the bank", signal.SIGKILL, "the bank had not been called"),
    ],
    ids=["at once", "between two turns", "where it stands still"],
)
def test_worker_killed_by_hand_at_any_moment_charges_once(
    when: str, how: signal.Signals, shows: str, tmp_path: Path
) -> None:
    with started("--manual", "--at", "before", folder=tmp_path) as process:
        os.kill(worker_in(wait_for(process, when)), how)
        told, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert "bank ledger: 1 charge\n" in told
    assert shows in told
    assert list(tmp_path.iterdir()) == []


def test_pid_to_kill_is_told_beside_json(tmp_path: Path) -> None:
    with started("--manual", "-o", "json", folder=tmp_path) as process:
        assert process.stderr is not None
        found = re.search(r"kill -9 (\d+)$", process.stderr.readline())
        assert found is not None
        os.kill(int(found[1]), signal.SIGKILL)
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
    record = json.loads(out)
    assert (record["charges"], record["manual"], record["at"]) == (1, True, None)
    assert record["killed_pid"] == int(found[1])
    check_left_over(record)


def test_enter_kills_the_worker(tmp_path: Path) -> None:
    with started("--manual", "--at", "after", folder=tmp_path) as process:
        wait_for(process, "asks the model what comes next")
        told, said = process.communicate("\n", timeout=LIMIT_SECONDS)
    assert process.returncode == 0
    assert "is gone, by kill -9" in told
    assert "bank ledger: 1 charge\n" in told
    assert "Enter" in said


# However it ends, nothing is left over.


def test_ctrl_c_ends_the_demo_and_all_its_processes(tmp_path: Path) -> None:
    with started("--manual", folder=tmp_path) as process:
        pid = worker_in(wait_for(process, "begins the run"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert not is_alive(pid)
    assert list(tmp_path.iterdir()) == []


def test_processes_of_a_demo_that_is_killed_end_by_themselves(tmp_path: Path) -> None:
    with started("--manual", folder=tmp_path) as process:
        lines = wait_for(process, "begins the run")
        process.kill()
    bank = re.search(r"127\.0\.0\.1:(\d+)", lines[0])
    assert bank is not None
    until(lambda: not is_alive(worker_in(lines)))
    until(lambda: not is_open(int(bank[1])))


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# The bank, and failures.


def test_bank_shares_no_code_with_holdfast() -> None:
    tree = ast.parse(Path(demo_bank.__file__).read_text(encoding="utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else names_of(node))
    }
    assert imported
    assert imported <= sys.stdlib_module_names


def names_of(node: ast.Import) -> list[str]:
    return [alias.name for alias in node.names]


def test_bank_records_every_charge_and_finds_them_by_key(tmp_path: Path) -> None:
    ledger = demo_bank.ChargeLedger(tmp_path / "ledger.jsonl")
    assert ledger.find("a") == []
    ids = [ledger.add(key, "ada", 1)["id"] for key in ("a", "a", "b")]
    assert ids == ["ch-1", "ch-2", "ch-3"]
    assert [charge["id"] for charge in ledger.find("a")] == ["ch-1", "ch-2"]
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3


def showing(folder: Path, *, at: str = "during") -> CrashDemo:
    plan = CrashDemoPlan(
        store=str(folder / "demo.db"), tenant="default", at=at, by_hand=None, folder=folder
    )
    return CrashDemo(plan, Timeline(lambda seconds, who, what: None))


def test_demo_fails_if_its_claims_do_not_hold(tmp_path: Path) -> None:
    it = showing(tmp_path)
    assert it.play()["charges"] == 1
    ledger = tmp_path / "ledger.jsonl"
    charge = ledger.read_text()
    with sync.open(str(tmp_path / "demo.db")) as hf:
        it._judge(hf)
        with pytest.raises(HoldfastError, match="killed during the charge, not after"):
            it._judge_moment(hf)
        ledger.write_text(charge * 2)
        with pytest.raises(HoldfastError, match="the bank has 2 charges, not one"):
            it._judge(hf)
        ledger.write_text(charge.replace("ch-1", "ch-9"))
        with pytest.raises(HoldfastError, match="the run is completed, and its answer is"):
            it._judge(hf)


def test_worker_that_fails_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ["-c", "import sys; sys.exit('it is broken')"]
    real = demo_show.WorkerProcess
    monkeypatch.setattr(
        demo_show, "WorkerProcess", lambda _, wire, **rest: real(broken, wire, **rest)
    )
    with pytest.raises(HoldfastError, match=r"ended before it paused \(it is broken\)"):
        showing(tmp_path).play()


def test_process_that_says_nothing_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = demo_process.ChildPipe()
    command = ["-c", "import time; time.sleep(600)"]
    with contextlib.closing(wire), Child(command, wire, log=tmp_path / "log") as silent:
        monkeypatch.setattr(demo_process, "PATIENCE_SECONDS", 0.1)
        with pytest.raises(HoldfastError, match="said nothing"):
            silent.hear()
        monkeypatch.undo()
    assert not is_alive(silent.pid)
