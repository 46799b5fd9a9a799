"""`holdfast config`, `worker --config` and the page about them, as people use them."""

import json
import re
import signal
from pathlib import Path

import pytest

from holdfast import Settings, config, sync
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import ROOT, keys_of, run
from tests.acceptance.test_cli_agents import Place, Worker, poll

PAGE = (ROOT / "docs" / "how-to" / "configuration.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SECRET = "hunter2"
TWO = """\
stateless_checkpointing: true
session_service: sql
session_db_url: postgresql://me:${DB_PASSWORD}@db.example/agents
agents:
  support:
    peer_timeout_seconds: 60
  research:
    transport: nats://token@127.0.0.1:4222
"""
WRONG = "stateless_checkpointing: true\nlease_second: 5\ntenant: 7\n"
PROGRAM = """
from holdfast import Holdfast
from program import AGENTS

def make(config=None):
    return Holdfast.from_config(config, agents=AGENTS)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agents.yaml"
    path.write_text(TWO, encoding="utf-8")
    return path


def test_good_file_passes_the_check(file: Path) -> None:
    done = run("config", "check", str(file), DB_PASSWORD=SECRET)
    assert (done.returncode, done.stdout) == (Exit.OK, "")
    assert done.stderr.endswith("agents.yaml: 0 problems, 0 warnings; it can be used\n")
    found = json.loads(run("config", "check", str(file), "-o", "json", DB_PASSWORD="x").stdout)
    assert set(found) == keys_of("config", "A report in JSON")
    assert (found["ok"], found["agents"]) == (True, ["support", "research"])
    assert run("config", "check", str(file), "-o", "ids", DB_PASSWORD="x").stdout == (
        "support\nresearch\n"
    )


@pytest.mark.mission("S0-009")
def test_check_lists_every_problem_and_fails(file: Path) -> None:
    file.write_text(WRONG, encoding="utf-8")
    done = run("config", "check", str(file))
    assert done.returncode == Exit.USAGE
    told = [line.replace(str(file), "") for line in done.stdout.splitlines()]
    assert [line.split(" ")[1] for line in told] == [":1:", ":1:", ":2:", ":3:"]
    assert "needs session_service: sql" in told[0]
    assert "needs session_db_url" in told[1]
    assert "did you mean lease_seconds?" in told[2]
    done = run("config", "check", str(file), "--json")
    assert done.returncode == Exit.USAGE
    problems = json.loads(done.stdout)["problems"]
    assert set(problems[0]) == keys_of("config", "A problem")
    assert [each["line"] for each in problems] == [1, 1, 2, 3]


def test_check_warns_of_what_is_legal_and_surprising(file: Path) -> None:
    file.write_text("agent:\n  name: support\n", encoding="utf-8")
    done = run("config", "check", str(file), HOLDFAST_LEASE_SECOND="5")
    assert done.returncode == Exit.OK
    assert "warning: default: stateless_checkpointing is off" in done.stdout
    assert "did you mean HOLDFAST_LEASE_SECONDS?" in done.stdout


def test_show_tells_what_counts_and_why(file: Path) -> None:
    asked = ["config", "show", str(file), "--agent", "support", "--origin"]
    environ = {"DB_PASSWORD": SECRET, "TIMEOUT_SWEEP_INTERVAL_SECONDS": "2"}
    rows = json.loads(run(*asked, "-o", "json", **environ).stdout)
    assert {frozenset(row) for row in rows} == {frozenset(keys_of("config", "A value in JSON"))}
    by_key = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert by_key["agent"] == ("support", "argument")
    assert by_key["peer_timeout_seconds"] == (60.0, f"{file}:6")
    assert by_key["sweep_seconds"] == (2.0, "environment: TIMEOUT_SWEEP_INTERVAL_SECONDS")
    assert by_key["store"] == ("postgresql://me@db.example/agents", f"{file}:3")
    assert by_key["lease_seconds"] == (15.0, "default")
    table = run(*asked, **environ)
    assert re.search(r"^KEY +VALUE +ORIGIN", table.stdout)
    assert re.search(r"^stateless_checkpointing +true +\S+:1 *$", table.stdout, re.MULTILINE)
    assert "ORIGIN" not in run(*asked[:-1], **environ).stdout


@pytest.mark.mission("S0-071")
def test_show_without_a_file_says_that_runs_are_in_memory() -> None:
    done = run("config", "show", PEER_TIMEOUT_SECONDS="5")
    assert re.search(r"^store +memory:// *$", done.stdout, re.MULTILINE)
    assert re.search(r"^stateless_checkpointing +false *$", done.stdout, re.MULTILINE)
    assert re.search(r"^peer_timeout_seconds +5\.0 *$", done.stdout, re.MULTILINE)
    assert "runs are in memory" in done.stderr


def test_wrong_use_has_its_exit_code(file: Path, tmp_path: Path) -> None:
    missing = run("config", "check", str(tmp_path / "nothing.yaml"))
    assert missing.returncode == Exit.NOT_FOUND
    assert "there is no configuration at " in missing.stderr
    nobody = run("config", "show", str(file), "--agent", "suport", DB_PASSWORD="x")
    assert nobody.returncode == Exit.NOT_FOUND
    assert "did you mean support?" in nobody.stderr
    unsaid = run("config", "show", str(file), "-o", "json", DB_PASSWORD="x")
    assert unsaid.returncode == Exit.USAGE
    assert json.loads(unsaid.stderr)["error"] == "InvalidConfig"
    unset = run("config", "show", str(file), "--agent", "support")
    assert unset.returncode == Exit.USAGE
    assert "agents.yaml:3: the environment variable DB_PASSWORD is not set" in unset.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["check", "--json"],
        ["show", "--agent", "research"],
        ["show", "--agent", "research", "--origin", "--json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("transport", ["nats", "http"])
def test_no_command_prints_a_secret(file: Path, command: list[str], transport: str) -> None:
    text = TWO.replace("nats://token@", f"{transport}://{SECRET}@")
    file.write_text(text, encoding="utf-8")
    verb, *options = command
    done = run("config", verb, str(file), *options, DB_PASSWORD=SECRET)
    assert done.returncode == (Exit.OK if transport == "nats" else Exit.USAGE)
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.mission("S0-073")
def test_worker_is_given_the_configuration_of_its_agent(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "agents.db"))
    (tmp_path / "configured.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "agents.yaml").write_text(
        "stateless_checkpointing: true\nsession_service: sql\nsession_db_url: agents.db\n"
        "agents: {hello: {tenant: acme}, other: {tenant: nobody}}\n",
        encoding="utf-8",
    )
    options = ("--config", "agents.yaml", "--agent", "hello")
    with sync.open(place.store, settings=Settings(tenant="acme")) as hf:
        hf.runs.create("r", agent="hello", input={"name": "Ann"})
        with Worker(place, *options, target="configured:make") as worker:
            poll(lambda: hf.runs.get("r").status == "completed", what=lambda: worker.said)
            assert hf.runs.result("r") == "hello Ann"
            assert worker.end(signal.SIGTERM) == 0


def test_worker_refuses_a_configuration_it_cannot_use(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "agents.db"))
    (tmp_path / "configured.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "good.yaml").write_text("agents: {hello: {}}\n", encoding="utf-8")
    (tmp_path / "wrong.yaml").write_text(WRONG, encoding="utf-8")

    def refused(*arguments: str) -> str:
        return place.run("worker", *arguments, code=Exit.USAGE).stderr

    assert "--config comes too late" in refused("program:hf", "--config", "good.yaml")
    assert "cannot be called with a configuration" in refused(
        "program:make", "--config", "good.yaml"
    )
    assert "has 3 problems: wrong.yaml:1: " in refused("configured:make", "--config", "wrong.yaml")
    assert "give --config FILE too" in refused("configured:make", "--agent", "hello")
    assert "a store in memory" in refused("configured:make", "--config", "good.yaml")


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_of_the_page_can_be_used(number: int, tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(EXAMPLES[number], encoding="utf-8")
    report = config.check(path, environ={"DB_PASSWORD": SECRET})
    assert report.problems == ()


def test_page_shows_every_key_of_the_seed() -> None:
    shown = "".join(EXAMPLES)
    for key in (
        "stateless_checkpointing",
        "session_service",
        "session_db_url",
        "peer_timeout_seconds",
        "timeout_sweep_interval_seconds",
        "transport",
        "on_store_failure",
    ):
        assert f"{key}:" in shown
