"""The examples as people run them: processes in a folder of their own, killed and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests import forked, forked_cli
from tests.forked import DEVNULL, PIPE, Forked

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_SECONDS = 240
MAIN = "from holdfast.cli import main; main()"
ENVIRONMENT = os.environ | {"PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": "1"}


def command(example: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / example / "main.py"), *arguments]


def run(
    folder: Path, example: str, *arguments: str, typed: str = ""
) -> "subprocess.CompletedProcess[str]":
    kind = example if example in forked.KINDS else "holdfast"
    words = command(example, *arguments)
    return forked.run(words, cwd=folder, env=ENVIRONMENT, typed=typed, kind=kind)


def told(output: str) -> list[str]:
    """The calls that a process of the research example told, in order."""
    return [line.strip() for line in output.splitlines() if line.startswith("  ")]


def kinds(store: Path) -> list[str]:
    """The entries of a store, read with nothing of Holdfast."""
    if not store.exists():
        return []
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(10_000)
    try:
        return [kind for (kind,) in connection.execute("SELECT kind FROM journal ORDER BY id")]
    except (apsw.SQLError, apsw.BusyError):
        return []  # its schema is not there yet, or is just being made
    finally:
        connection.close()


def kill_when(child: "Forked", is_reached: Any) -> None:
    """Kill a process with SIGKILL as soon as something has happened."""
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        while not is_reached():
            assert child.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it took too long"
            time.sleep(0.02)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == -signal.SIGKILL


def test_chat_goes_on_in_the_next_process(tmp_path: Path) -> None:
    first = run(tmp_path, "chat", "--session", "a", typed="add milk\nlist\n")
    assert (first.returncode, first.stderr) == (0, "")
    assert "agent: Done: added milk." in first.stdout
    assert "agent: Done: milk." in first.stdout
    second = run(tmp_path, "chat", "--session", "a", typed="add milk\nlist\nhello\n")
    assert second.returncode == 0, second.stderr
    assert "session a has 8 messages" in second.stdout
    assert "agent: Done: milk, milk." in second.stdout, "what is asked for twice is done twice"
    assert "That was your message 5" in second.stdout
    other = run(tmp_path, "chat", "--session", "b", typed="list\n")
    assert "agent: Done: nothing." in other.stdout


@pytest.mark.parametrize("moment", ["before the reply", "after the line was written"])
def test_chat_that_was_killed_answers_when_it_is_started_again(moment: str, tmp_path: Path) -> None:
    folder = tmp_path / "chat-data"
    items = folder / "a.txt"
    thinking = "30" if moment == "before the reply" else "3"
    child = Forked(
        command("chat", "--session", "a", "--think", thinking),
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write("add bread\n")
    child.stdin.flush()
    if moment == "before the reply":
        kill_when(child, lambda: "RUN_LEASED" in kinds(folder / "chat.db"))
        assert not items.exists()
    else:
        kill_when(child, lambda: items.exists() and "bread" in items.read_text())
    again = run(tmp_path, "chat", "--session", "a")
    assert again.returncode == 0, again.stderr
    assert "you: add bread\nagent: Done: added bread." in again.stdout
    assert items.read_text().count("bread") == 1


def test_chat_talks_to_a_model_of_pydantic_ai(tmp_path: Path) -> None:
    done = run(tmp_path, "chat", "--model", "test", typed="hello\n")
    assert done.returncode == 0, done.stderr
    assert 'agent: {"add_item":"added a"' in done.stdout


def test_research_writes_a_report_and_gives_back_the_stored_answer(tmp_path: Path) -> None:
    first = run(tmp_path, "research")
    assert (first.returncode, first.stderr) == (0, "")
    assert len([call for call in told(first.stdout) if call.startswith("model")]) == 4
    assert sorted(path.name for path in (tmp_path / "notes").iterdir()) == [
        "kelp.txt",
        "tide.txt",
        "urchins.txt",
    ]
    second = run(tmp_path, "research")
    assert told(second.stdout) == []
    assert "the report is in report.md" in second.stdout
    assert report_of(tmp_path).count("# Life on a rocky coast") == 1
    other = run(tmp_path, "research", "Something else")
    assert other.returncode == 1
    assert "another input" in other.stderr


def report_of(folder: Path) -> str:
    return (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("calls", "last", "repeated"),
    [
        (1, "model: a plan", True),
        (4, "read otters.txt", True),
        (6, "model: a summary about kelp", True),
        (7, "note kelp", True),
        (19, "publish report.md", False),
    ],
)
def test_research_that_was_killed_goes_on(
    calls: int, last: str, repeated: bool, tmp_path: Path
) -> None:
    first = run(tmp_path, "research", "--crash-after", str(calls))
    assert first.returncode == -signal.SIGKILL
    assert len(told(first.stdout)) == calls + 1, "and the kill"
    killed_after = told(first.stdout)[-2]
    # Files are read at the same time, in any order.
    assert killed_after == last or (last.startswith("read") and killed_after.startswith("read"))
    second = run(tmp_path, "research")
    assert second.returncode == 0, second.stderr
    assert (killed_after in told(second.stdout)) is repeated
    assert report_of(tmp_path).count("# Life on a rocky coast") == 1
    recorded = [call for call in told(first.stdout)[:-2] if call.startswith("model")]
    assert not set(recorded) & set(told(second.stdout)), "a reply on record is not paid for again"


def test_research_that_is_killed_again_and_again_publishes_once(tmp_path: Path) -> None:
    for calls in (7, 9, 12):
        assert run(tmp_path, "research", "--crash-after", str(calls)).returncode != 0
    last = run(tmp_path, "research")
    assert last.returncode == 0, last.stderr
    assert report_of(tmp_path).count("# Life on a rocky coast") == 1


def ticks_of(folder: Path) -> list[str]:
    file = folder / "schedule-data" / "ticks.txt"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def test_schedule_that_was_killed_rings_once_per_second(tmp_path: Path) -> None:
    child = Forked(
        command("schedule", "--times", "100"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=DEVNULL,
    )
    kill_when(child, lambda: ticks_of(tmp_path))
    before = len(ticks_of(tmp_path))
    again = run(tmp_path, "schedule", "--times", str(before + 3))
    assert again.returncode == 0, again.stderr
    assert "keeps bell" in again.stdout
    rung = sorted(ticks_of(tmp_path))
    moments = [datetime.fromisoformat(tick.partition("@")[2]) for tick in rung]
    assert len(rung) >= before + 3
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(seconds=1)}


def holdfast(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return forked_cli.run(*arguments, cwd=folder, env=os.environ)


def asked(folder: Path) -> str:
    """The one thing that the approval example asks people now."""
    listed = holdfast(folder, "approvals", "list", "--store", "approval.db", "-o", "ids")
    (wait_id,) = listed.stdout.split()
    return wait_id


def test_approval_is_paid_once_though_it_is_killed_in_the_worst_moment(tmp_path: Path) -> None:
    store = ("--store", "approval.db")
    first = run(tmp_path, "approval")
    assert first.returncode == 0, first.stderr
    question = asked(tmp_path)
    assert f"holdfast approvals show {question}" in first.stdout
    refused = holdfast(tmp_path, "approvals", "answer", question, '{"cents": "a lot"}', *store)
    assert refused.returncode == 2
    assert 'cents: "a lot" is not a whole number' in refused.stderr
    answer = ("approvals", "answer", question, '{"cents": 5000}', *store, "--by", "clerk")
    assert holdfast(tmp_path, *answer).returncode == 0
    assert "May pay(" in run(tmp_path, "approval", "--die-after-paying").stdout
    request = asked(tmp_path)
    assert (
        holdfast(tmp_path, "approvals", "approve", request, *store, "--by", "boss").returncode == 0
    )
    late = holdfast(tmp_path, "approvals", "reject", request, *store, "--by", "other")
    assert late.returncode == 5
    assert "boss was first" in late.stderr
    killed = run(tmp_path, "approval", "--die-after-paying")
    assert killed.returncode == -signal.SIGKILL
    last = run(tmp_path, "approval", "--wait", "50")
    assert last.stdout == "ann got 5000 cents back\n", last.stderr
    assert len((tmp_path / "payments.txt").read_text().splitlines()) == 1
    assert holdfast(tmp_path, "audit", "verify", *store).returncode == 0


def holdfast_command(folder: Path, *arguments: str) -> str:
    done = forked_cli.run(*arguments, "--store", "budget.db", cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_story_stops_at_its_budget_and_goes_on_when_it_is_raised(tmp_path: Path) -> None:
    first = run(tmp_path, "budget")
    assert "run story is blocked (budget)" in first.stdout, first.stderr
    assert "spent 0.80 of 1.00 USD" in first.stdout
    raised = holdfast_command(tmp_path, "runs", "budget", "story", "--add", "2usd")
    assert "run story: ready" in raised
    second = run(tmp_path, "budget")
    assert "2 chapters are on record" in second.stdout, second.stderr
    assert "6 chapters, ending with chapter 6 of story" in second.stdout
    invoices = (tmp_path / "invoices.txt").read_text().splitlines()
    assert invoices == [f"story chapter {n} 0.40" for n in range(1, 7)], "each was paid for once"
    costs = holdfast_command(tmp_path, "runs", "costs", "story")
    assert "2.40" in costs


def test_call_of_a_story_that_was_lost_counts_as_spent(tmp_path: Path) -> None:
    killed = run(tmp_path, "budget", "--run", "tale", "--crash-in", "2")
    assert killed.returncode == -signal.SIGKILL
    after = run(tmp_path, "budget", "--run", "tale")
    assert "counts as spent: 0.40 USD" in after.stderr
    assert "run tale is blocked (budget)" in after.stdout, after.stderr
    found = json.loads(holdfast_command(tmp_path, "runs", "costs", "tale", "-o", "json"))
    assert (found["total"]["usd"], found["lost"]["usd"]) == ("0.80", "0.40")
    assert len((tmp_path / "invoices.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_refund_of_a_graph_is_paid_once_though_it_is_killed(moment: str, tmp_path: Path) -> None:
    store = ("--store", "langgraph.db")
    first = run(tmp_path, "langgraph")
    assert first.returncode == 0, first.stderr
    assert "How many cents does ann get back?" in first.stdout
    listed = holdfast(tmp_path, "approvals", "list", *store, "-o", "json")
    (asked,) = json.loads(listed.stdout)
    assert (asked["run_id"], asked["prompt"]) == (
        "refund-ann",
        "How many cents does ann get back?",
    )
    answer = ("approvals", "answer", asked["wait_id"], "5000", *store, "--by", "boss")
    assert holdfast(tmp_path, *answer).returncode == 0
    killed = run(tmp_path, "langgraph", "--die", moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "payments.txt").exists() is (moment == "after")
    last = run(tmp_path, "langgraph")
    assert last.stdout.endswith("ann has the money back: paid 5000 cents\n"), last.stderr
    (payment,) = (tmp_path / "payments.txt").read_text().splitlines()
    assert payment.startswith("ann 5000 ")
    history = run(tmp_path, "langgraph", "--history")
    assert history.stdout.splitlines()[-1].endswith("6 messages, next -"), history.stdout
    assert holdfast(tmp_path, "audit", "verify", *store).returncode == 0


@pytest.mark.mission("S0-003", "S0-019")
@pytest.mark.parametrize("options", [(), ("--nats",)], ids=["one store", "nats"])
def test_trip_is_planned_though_an_instance_is_killed(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(tmp_path))
    done = run(tmp_path, "peers", *options)
    assert (done.returncode, done.stderr) == (0, "")
    before, _, timeline = done.stdout.partition("from the journals:\n")
    victim = before.splitlines()[-2].partition(": ")[2].removesuffix(" is gone")
    lines = timeline.splitlines()
    lost = [line.split()[2] for line in lines if line.endswith(f"{victim} is lost")]
    assert lost, "it had a run in hand"
    for run_of in lost:
        holders = [line.split(maxsplit=3)[3] for line in lines if f"s  {run_of} " in line]
        assert holders[0] == f"{victim} works on it"
        assert any("works on it" in line and not line.startswith(victim) for line in holders[1:]), (
            "another goes on"
        )
    assert sum("has the answer of" in line for line in lines) == 3
    assert lines[-1].startswith("final answer: Oslo: fly to Oslo at 9:40, stay in a room")
    assert list(tmp_path.iterdir()) == [], "nothing is left over"


def test_ctrl_c_ends_the_trip_and_its_instances(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    with Forked(command("peers"), env=environment, stdout=PIPE, text=True) as child:
        assert child.stdout is not None
        pids = child.stdout.readline().partition(": ")[2].split(", ")
        while "is gone" not in child.stdout.readline():
            assert child.poll() is None, "it ended by itself"
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == 130
    assert list(tmp_path.iterdir()) == [], "nothing is left over"
    assert len(pids) == 3
    for pid in map(int, pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_help_of_the_peers_tells_each_way_to_run_it_on_a_line_of_its_own(tmp_path: Path) -> None:
    lines = run(tmp_path, "peers", "--help").stdout.splitlines()
    assert (
        len([line for line in lines if line.startswith("    python examples/peers/main.py")]) == 2
    )


WORKFLOWS = EXAMPLES / "workflows"
SHORT_LEASES = """
from holdfast import Holdfast, Settings
from holdfast.workflows import Kit
hf = Holdfast("flows.db", settings=Settings(lease_seconds=1), workflows=Kit())
"""


def workflows(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return holdfast(folder, "workflows", *arguments)


def outcome_of(done: "subprocess.CompletedProcess[str]", code: int) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.mission("S1-001", "S1-006")
def test_workflows_are_played_and_played_again_does_nothing_twice(tmp_path: Path) -> None:
    first = run(tmp_path, "workflows", "--folder", "played")
    assert (first.returncode, first.stderr) == (0, "")
    assert "payment-7 is completed: {'paid': True, 'manager': 'yes'}" in first.stdout
    assert "release-1.4.0 is completed: {'announced': True" in first.stdout
    assert "'core': {'said': ['good', 'too long']}" in first.stdout
    assert "  team[core]/ask[1] asks: bob of core" in first.stdout
    second = run(tmp_path, "workflows", "--folder", "played")
    assert (second.returncode, second.stderr) == (0, "")
    assert "wave" not in second.stdout
    folder = tmp_path / "played"
    assert (folder / "payments.txt").read_text() == "paid ada 250000\n"
    assert (folder / "deployments.txt").read_text() == "eu-west 1.4.0\nus-east 1.4.0\n"


@pytest.mark.mission("S1-002", "S1-007", "S1-018", "S1-030", "S1-062")
def test_release_that_was_killed_after_it_shipped_ships_once_and_is_undone(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(SHORT_LEASES)
    app = ("--app", "flows:hf", "-o", "json")
    release = str(WORKFLOWS / "release.yaml")
    given = ("--input", "version=1.5.0", "--input", "linger=20", "--run-id", "r")
    asked = outcome_of(workflows(tmp_path, "run", release, *given, *app), 6)
    assert [each["block"] for each in asked["waiting"]] == ["approve"]
    deployed = tmp_path / "deployments.txt"
    yes = ("--answer", "approve=release")
    child = Forked(
        [sys.executable, "-c", MAIN, "workflows", "resume", "r", *yes, "--app", "flows:hf"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=PIPE,
        stderr=DEVNULL,
        text=True,
    )
    kill_when(child, lambda: deployed.exists() and "eu-west" in deployed.read_text())
    asked = outcome_of(workflows(tmp_path, "resume", "r", *app), 6)
    assert [each["block"] for each in asked["waiting"]] == ["deploy[eu]/healthy"]
    answer = ("--answer", "deploy[eu]/healthy=no")
    ended = outcome_of(workflows(tmp_path, "resume", "r", *answer, *app), 1)
    assert deployed.read_text() == "eu-west 1.5.0\nrolled back 1.5.0\n"
    assert (ended["status"], ended["blocks"]["announce"]["status"]) == ("failed", "skipped")
    assert ended["blocks"]["undo"]["status"] == "completed"
    assert "eu-west is not well" in ended["error"]


@pytest.mark.mission("S1-055")
def test_reviews_go_on_though_their_files_are_gone(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("review_round.yaml", "team_round.yaml")]
    for file in files:
        file.write_text((WORKFLOWS / file.name).read_text())
    json_of = ("--store", "flows.db", "-o", "json")
    asked = outcome_of(workflows(tmp_path, "run", str(files[0]), "--run-id", "r", *json_of), 6)
    paths = ["team[core]/ask[0]", "team[docs]/ask[0]"]
    assert [each["block"] for each in asked["waiting"]] == paths
    for file in files:
        file.unlink()
    answers = ("--answer", "team[core]/ask[0]=good", "--answer", "team[docs]/ask[0]=")
    asked = outcome_of(workflows(tmp_path, "resume", "r", *answers, *json_of), 6)
    assert [each["prompt"] for each in asked["waiting"]] == [
        "bob of core: what do you think? (2 of 2)"
    ]
    last = ("--answer", "team[core]/ask[1]=too long")
    ended = outcome_of(workflows(tmp_path, "resume", "r", *last, *json_of), 0)
    assert ended["outputs"] == {
        "said": {"core": {"said": ["good", "too long"]}, "docs": {"said": [""]}}
    }
    assert "- too long" in (tmp_path / "reviews.md").read_text()
