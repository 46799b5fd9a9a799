"""The demo of peers: instances are killed, every answer comes twice, and the store counts once."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import sync
from holdfast.cli import demo
from holdfast.demos import peers_count
from holdfast.demos.peers_instance import answer_of
from holdfast.testing.nats import nats_server
from tests.acceptance.test_demo import (
    HOLDFAST,
    LIMIT_SECONDS,
    ROOT,
    environment,
    is_alive,
    run,
    until,
    wait_for,
)
from tests.forked import PIPE, Forked

PEERS = [*HOLDFAST, "demo", "peers"]
SMALL = ("--tasks", "3", "--peers", "2", "--kills", "2")


def shown(*options: str, folder: Path) -> dict[str, Any]:
    """What the demo says it has shown. Nothing of it is left over."""
    done = run(*PEERS, "-o", "json", *SMALL, *options, folder=folder)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert not any(map(is_alive, record["killed_pids"]))
    return record


def check_counts(record: dict[str, Any]) -> None:
    counts = {name: record[name] for name in ("final_answers", "peer_results", "instances_killed")}
    assert counts == {"final_answers": 3, "peer_results": 6, "instances_killed": 2}
    assert record["duplicates"] >= 6
    assert (record["late"], record["problems"]) == (0, [])


@pytest.mark.mission("S0-003", "S0-019")
def test_every_task_has_one_answer_though_instances_are_killed(tmp_path: Path) -> None:
    record = shown(folder=tmp_path)
    check_counts(record)
    assert record["workers"] > 0
    assert list(tmp_path.iterdir()) == [], "the store is gone"
    told = [line["what"] for line in record["timeline"]]
    assert len([what for what in told if "is gone, by signal 9" in what]) == 2


def test_peers_behind_nats_answer_once_though_instances_are_killed(tmp_path: Path) -> None:
    with nats_server(tmp_path / "nats") as server:
        folder = tmp_path / "demo"
        folder.mkdir()
        check_counts(shown("--nats", server.url, folder=folder))


def test_store_that_was_named_keeps_the_runs_and_the_end_tells_how_to_look(tmp_path: Path) -> None:
    done = run(*PEERS, *SMALL, "--kills", "0", "--store", "demo.db", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"final_answers +3\npeer_results +6\nduplicates +6\nlate +0\n", done.stdout)
    look = re.search(r"holdfast (journal show \S+ --store \S+)", done.stdout)
    assert look is not None
    record = run(*HOLDFAST, *look[1].split(), folder=tmp_path)
    assert "RUN_COMPLETED" in record.stdout
    audit = run(*HOLDFAST, "audit", "verify", "--store", "demo.db", folder=tmp_path)
    assert audit.returncode == 0, audit.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--store", "memory://"], 2),
        (["--store", "no/folder/demo.db"], 4),
        (["--tasks", "0"], 2),
        (["--nats", "http://here"], 2),
        (["--nats", "nats://127.0.0.1:1"], 8),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value),
)
def test_demo_refuses_what_it_cannot_show(options: list[str], code: int, tmp_path: Path) -> None:
    done = run(*PEERS, *options, folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_and_all_its_instances(tmp_path: Path) -> None:
    with Forked(
        [*PEERS, "--tasks", "50", "--kills", "0"],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        env=environment(tmp_path),
    ) as process:
        found = re.search(r"instance (\d+)", wait_for(process, "is worker")[-1])
        assert found is not None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    until(lambda: not is_alive(int(found[1])))
    assert list(tmp_path.iterdir()) == []


def test_demo_fails_if_an_answer_is_not_the_one_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_count, "answer_of", lambda task, number: f"{task}.{number}")
    options = ["peers", "--tasks", "1", "--peers", "1", "--kills", "0", "-o", "json"]
    done = CliRunner().invoke(demo.command, options, standalone_mode=False)
    assert done.return_value == 1
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem == "task 1: its answer is ['answer 1 to task 1']"


def test_answers_that_are_missing_or_twice_are_found_in_the_store(tmp_path: Path) -> None:
    @holdfast.agent
    async def peer(run: holdfast.Run, number: int) -> str:
        return answer_of(1, number)

    @holdfast.agent
    async def twice(run: holdfast.Run) -> list[str]:
        return [*await run.gather(*(run.peer(peer, number) for number in (1, 2, 2)))]

    with sync.open(str(tmp_path / "s.db"), agents=[peer, twice]) as hf:
        hf.run(twice, run_id="r", timeout=LIMIT_SECONDS)
        hf.start(twice, run_id="open")
        counted = peers_count.count(hf, hf, {"r": 1, "open": 2}, peers=2)
        assert (counted["final_answers"], counted["peer_results"]) == (1, 3)
        assert [problem.partition(",")[0] for problem in counted["problems"]] == [
            f"task 1: its answer is {[answer_of(1, 1)]}".removesuffix("]"),
            "task 1: 3 results of 3 calls are on record",
            "task 2: it is ready",
        ]


def test_keys_of_the_object_are_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    section = page.split("### demo peers\n")[1].split("\n## ")[0].split("In JSON:")[1]
    record = shown("--kills", "0", folder=tmp_path)
    keys = {*record, *record["timeline"][0]}
    assert keys == set(re.findall(r"`(\w+)`", section)) - {"null"}
