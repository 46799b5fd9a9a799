"""Workers, and what an operator does about their runs: real processes, killed and stopped."""

import contextlib
import getpass
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import sync
from holdfast.engine.effects import EffectRequest
from holdfast.kernel.runs import RunRow
from holdfast.terminal.exits import Exit
from tests.acceptance.test_cli import HOLDFAST, LIMIT_SECONDS, MOMENT, environment, keys_of, run
from tests.forked import PIPE, Forked

PROGRAM = '''
import asyncio, os, signal, time
from pathlib import Path
import holdfast
from holdfast import Holdfast, Run, Settings

HERE = Path(__file__).parent

def note(name, text=""):
    with (HERE / name).open("a") as file:
        file.write(f"{text}\\n")

@holdfast.tool
async def charge(who: str) -> str:
    """Its line goes dead the first time."""
    note(f"charged-{who}")
    if len((HERE / f"charged-{who}").read_text().splitlines()) == 1:
        raise ConnectionError("the line went dead")
    return f"charged {who}"

@holdfast.tool(limit_seconds=60)
async def pause(name: str) -> str:
    note(f"began-{name}")
    while not (HERE / f"go-{name}").exists():
        await asyncio.sleep(0.01)
    note(f"ended-{name}")
    return f"paused for {name}"

@holdfast.tool(effect="read")
async def look(name: str) -> str:
    return await pause(name)

@holdfast.tool(limit_seconds=1)
async def hang(name: str) -> str:
    return await pause(name)

@holdfast.tool
def block(name: str) -> str:
    note(f"began-{name}")
    time.sleep(120)
    return "never"

@holdfast.tool(effect="idempotent")
async def die() -> str:
    note("deaths")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"

@holdfast.agent
async def hello(run: Run, name: str = "you") -> str:
    return f"hello {name}"

@holdfast.agent
async def add(run: Run, a: int, b: int) -> int:
    return a + b

@holdfast.agent
async def fail(run: Run, why: str) -> str:
    raise ValueError(why)

@holdfast.agent(tools=[charge])
async def pay(run: Run, who: str) -> str:
    try:
        return await run.call(charge, who)
    except holdfast.errors.ToolFailed as error:
        return f"told that {error}"

@holdfast.agent
async def two_turns(run: Run, name: str) -> str:
    done = run.value("done", bool, False)
    if not done.get():
        await run.call(pause, name)
        done.set(True)
        await run.checkpoint()
    return "both turns"

def using(tool):
    async def work(run: Run, name: str) -> str:
        return await run.call(tool, name)
    return holdfast.agent(name=tool.name)(work)

@holdfast.agent(name="poison")
async def poison(run: Run) -> str:
    return await run.call(die)

AGENTS = [hello, add, fail, pay, two_turns, poison, *map(using, (look, hang, block))]

def make():
    return Holdfast(agents=AGENTS, settings=Settings(lease_seconds=1, wakeup_poll_seconds=0.2))

hf = make()
number = 7

def needs_more(x):
    return hf

async def coroutine():
    return hf
'''


class Worker:
    """A `holdfast worker` that is running; what it says is gathered as it comes."""

    def __init__(self, place: "Place", *options: str, target: str = "program:hf") -> None:
        self.process = Forked(
            [*HOLDFAST, "worker", target, *options],
            cwd=place.folder,
            env=environment(HOLDFAST_STORE=place.store),
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )
        self._said: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        poll(lambda: "worker w" in self.said, what=lambda: f"the worker began: {self.said}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._said.extend(iter(self.process.stderr.readline, ""))

    @property
    def said(self) -> str:
        return "".join(self._said)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if any, and wait for the exit code."""
        if number is not None:
            self.send(number)
        code = self.process.wait(LIMIT_SECONDS)
        self._reading.join(LIMIT_SECONDS)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        self._reading.join(LIMIT_SECONDS)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Place:
    """A folder with a program of agents, and a store for their runs."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
        with sync.open(store):
            pass

    def run(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = run(*arguments, cwd=self.folder, HOLDFAST_STORE=self.store)
        assert done.returncode == code, done.stderr or done.stdout
        return done

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def record(self, run_id: str, agent: str, given: object) -> None:
        """A run as `runs start` records it, without a process."""
        with sync.open(self.store) as hf:
            hf.runs.create(run_id, agent=agent, input=given)

    def effect_of(self, run_id: str) -> str:
        (effect,) = self.ask("effects", "list", "--run", run_id)
        return effect["effect_id"]

    def await_status(self, run_id: str, *statuses: str) -> RunRow:
        """The run once it has one of these; polled without a process for every look."""
        with sync.open(self.store) as hf:
            poll(lambda: hf.runs.get(run_id).status in statuses, what=lambda: hf.runs.get(run_id))
            return hf.runs.get(run_id)

    def result_of(self, run_id: str) -> Any:
        self.await_status(run_id, "completed")
        with sync.open(self.store) as hf:
            return hf.runs.result(run_id)

    def kinds_of(self, run_id: str) -> list[str]:
        with sync.open(self.store) as hf:
            return [entry.kind for entry in hf.journal.read(run_id)]

    def await_file(self, name: str) -> None:
        poll((self.folder / name).exists, what=lambda: f"{name} is written")

    def go(self, name: str) -> None:
        (self.folder / f"go-{name}").touch()

    def lines_in(self, name: str) -> int:
        return len((self.folder / name).read_text(encoding="utf-8").splitlines())


def poll(is_so: Callable[[], bool], *, what: Callable[[], object]) -> None:
    """Wait until something is so; fails with what is there instead."""
    deadline = time.monotonic() + LIMIT_SECONDS / 2
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, str(tmp_path / "agents.db"))


# Working.


def test_worker_runs_what_is_started_and_stops_when_told(place: Place) -> None:
    with Worker(place, "-o", "json", "--concurrency", "2") as worker:
        assert f"store {place.store}, agents add, " in worker.said
        assert "at most 2 runs at a time" in worker.said
        place.run("runs", "start", "hello", "Ann", "--id", "one")
        assert place.result_of("one") == "hello Ann"
        listed = place.ask("workers", "list")
        assert [(row["alive"], row["held"]) for row in listed] == [(True, 0)]
        assert {"add", "hello"} <= set(listed[0]["agents"])
        assert "hello" in place.run("workers", "list").stdout
        assert set(listed[0]) == keys_of("workers", "A worker in JSON")
        assert listed[0]["worker"] in worker.said
        assert MOMENT.fullmatch(listed[0]["expires_at"])
        assert worker.end(signal.SIGTERM) == 0
        assert worker.process.stdout is not None
        summary = json.loads(worker.process.stdout.read())
    assert set(summary) == keys_of("worker", "The summary in JSON")
    assert (summary["passes"], summary["stopped"]) == (1, "after its turns")
    assert "SIGTERM: taking no more runs" in worker.said
    assert place.run("workers", "list").stderr == "no workers\n"


def test_worker_takes_what_a_function_returns_and_only_agents_it_is_given(place: Place) -> None:
    place.record("other", "add", {"a": 1, "b": 2})
    with Worker(place, "--agents", "hello, fail", target="program:make") as worker:
        assert "agents hello, fail," in worker.said
        place.record("mine", "hello", {})
        assert place.result_of("mine") == "hello you"
        assert place.await_status("other", "ready")
        assert worker.end(signal.SIGINT) == 0
    assert "1 pass over runs" in worker.said


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("program", 2, "'program' is not MODULE:NAME; name both"),
        ("program:", 2, "is not MODULE:NAME"),
        (":hf", 2, "is not MODULE:NAME"),
        ("nowhere:hf", 2, "there is no module 'nowhere' in this folder"),
        ("program.py:hf", 2, "name it without .py"),
        ("program:hx", 2, "module program has no 'hx'; it has: hf"),
        ("broken:hf", 1, "ZeroDivisionError: division by zero ("),
        ("broken:hf", 1, "broken.py, line 2)"),
        ("lacking:hf", 1, "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("syntax:hf", 1, "syntax.py, line 1)"),
        ("leaving:hf", 1, "importing leaving failed: SystemExit: 3"),
        ("empty:hf", 2, "it has no Holdfast object at all"),
        ("empty:make", 3, "no agent is known here"),
        ("program:number", 2, "program:number is a int, not a Holdfast"),
        ("program:needs_more", 2, "cannot be called without arguments"),
        ("program:coroutine", 2, "is an async function"),
        ("blocking:hf", 2, "is a holdfast.sync.Holdfast"),
        ("memory:hf", 2, "a store in memory has no runs of other processes"),
    ],
)
def test_target_that_is_no_holdfast_is_said(
    target: str, code: int, told: str, place: Place
) -> None:
    programs = {
        "broken": "x = 1\nx / 0\n",
        "lacking": "import nothing_like_it\n",
        "syntax": "def\n",
        "leaving": "raise SystemExit(3)\n",
        "empty": "from holdfast import Holdfast\ndef make(): return Holdfast()\n",
        "memory": "import program\nfrom holdfast import Holdfast\n"
        "hf = Holdfast('memory://', agents=program.AGENTS)\n",
        "blocking": "import holdfast.sync\nhf = holdfast.sync.open()\n",
    }
    for name, text in programs.items():
        (place.folder / f"{name}.py").write_text(text, encoding="utf-8")
    done = place.run("worker", target, code=code)
    assert told in done.stderr
    assert done.stderr.count("\n") <= 2


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--agents", "nobody"], 3, "no agent 'nobody' is known here; known are: add, "),
        (["--agents", "hello,"], 2, "name agents with commas between them"),
        (["--concurrency", "0"], 2, "0 is not in the range"),
        (["--json", "-o", "ids"], 2, "contradict each other"),
    ],
)
def test_options_of_a_worker_are_checked(
    options: list[str], code: int, told: str, place: Place
) -> None:
    assert told in place.run("worker", "program:hf", *options, code=code).stderr


# Starting and watching.


def test_input_is_json_text_or_names(place: Place) -> None:
    (place.folder / "input.json").write_text('{"a": 1, "b": 2}', encoding="utf-8")
    with Worker(place):
        for run_id, agent, *words in (
            ("text", "hello", "Ann Lee"),
            ("json", "hello", '"7"'),
            ("named", "hello", "name=a=b"),
            ("none", "hello"),
            ("object", "add", '{"a": 1, "b": 2}'),
            ("pairs", "add", "a=1", "b=2"),
            ("file", "add", "--input-file", "input.json"),
        ):
            place.run("runs", "start", agent, *words, "--id", run_id)
        found = {name: place.result_of(name) for name in ("text", "json", "named", "none")}
        assert found == {
            "text": "hello Ann Lee",
            "json": "hello 7",
            "named": "hello a=b",
            "none": "hello you",
        }
        assert [place.result_of(name) for name in ("object", "pairs", "file")] == [3, 3, 3]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{broken"], "this looks like JSON, but is not"),
        (["two", "words"], "quote a text that has spaces"),
        (["a=1", "word"], "give one INPUT, or KEY=VALUE words only"),
        (["a=1", "a=2"], "a is given twice"),
        (["x", "--input-file", "-"], "not both"),
        (["[" * 100_000], "this looks like JSON, but is not"),
    ],
)
def test_input_that_cannot_be_meant_is_refused(words: list[str], told: str, place: Place) -> None:
    assert told in place.run("runs", "start", "hello", *words, code=2).stderr
    assert place.ask("runs", "list") == []


def test_same_start_again_changes_nothing_and_another_one_is_a_conflict(place: Place) -> None:
    first = place.run("runs", "start", "hello", "Ann", "--id", "one")
    assert first.stdout == "run one is recorded for the workers\n"
    assert "no worker is alive" in first.stderr
    again = place.ask("runs", "start", "hello", "Ann", "--id", "one")
    assert (again["is_new"], again["status"]) == (False, "ready")
    other = place.run("runs", "start", "hello", "Bob", "--id", "one", code=Exit.CONFLICT)
    assert "was started with another input; choose another --id" in other.stderr
    agent = place.run("runs", "start", "add", "Ann", "--id", "one", code=Exit.CONFLICT)
    assert "another agent, 'hello'" in agent.stderr
    assert place.kinds_of("one") == ["RUN_CREATED"]
    place.run("runs", "start", "", code=Exit.USAGE)
    place.run("runs", "start", "hello", "--id", "", code=Exit.USAGE)
    place.run("runs", "start", "hello", "--input-file", "nowhere", code=Exit.FAILED)


def test_follow_shows_the_journal_and_exits_with_the_outcome(place: Place) -> None:
    with Worker(place):
        good = place.run("runs", "start", "hello", "Ann", "--follow", "-o", "jsonl")
        *entries, last = map(json.loads, good.stdout.splitlines())
        assert [entry["kind"] for entry in entries] == [
            "RUN_CREATED",
            "RUN_LEASED",
            "RUN_COMPLETED",
        ]
        assert (last["status"], last["result"]) == ("completed", "hello Ann")
        bad = place.run("runs", "start", "fail", "no luck", "--follow", code=Exit.FAILED)
        assert "RUN_FAILED" in bad.stdout
        assert re.search(r"\nrun \S+: failed since \S+: ValueError: no luck\n", bad.stdout)
        assert bad.stdout.splitlines()[-1] == "ValueError: no luck"
        doubtful = place.run("runs", "start", "pay", "Ann", "--follow", code=Exit.NEEDS_PERSON)
        assert "nobody knows whether charge happened" in doubtful.stdout
        assert "holdfast effects resolve " in doubtful.stderr
    place.record("stopped", "hello", {})
    place.run("runs", "cancel", "stopped")
    place.run("runs", "show", "stopped", "--follow", code=Exit.CONFLICT)


def test_watching_ends_at_ctrl_c_and_the_run_goes_on(place: Place) -> None:
    place.record("one", "hello", {})
    with Forked(
        [*HOLDFAST, "runs", "show", "one", "--follow", "--store", place.store],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        env=environment(),
    ) as watching:
        assert watching.stdout is not None
        assert "RUN_CREATED" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=LIMIT_SECONDS)
    assert (watching.returncode, told.strip()) == (Exit.INTERRUPTED, "")
    assert place.await_status("one", "ready")


def test_cancel_and_unblock_say_what_they_did_and_what_is_left(place: Place) -> None:
    with sync.open(place.store) as hf:
        held = hf.runs.open("held", agent="pay")
        held.begin_effects([EffectRequest(tool="charge")])
        hf.runs.create("stuck")
        hf.runs.block("stuck", "no_agent", note="nobody knows it")
    shown = place.run("runs", "show", "stuck")
    first, _, fields = shown.stdout.partition("\n")
    assert re.fullmatch(r"run stuck: blocked \(no_agent\) since \S+: nobody knows it", first)
    assert "input_digest" not in fields
    assert "lease_seq" not in fields
    assert "input_digest" in place.run("runs", "show", "stuck", "-v").stdout
    assert "`holdfast runs unblock stuck`" in shown.stderr
    assert place.ask("runs", "unblock", "stuck", "--by", "ann")["status"] == "ready"
    place.run("runs", "unblock", "stuck", code=Exit.CONFLICT)
    cancelled = place.run("runs", "cancel", "held", "--note", "not wanted")
    assert cancelled.stdout == "run held: cancelled\n"
    assert "1 effect of it may have happened all the same" in cancelled.stderr
    assert place.ask("runs", "show", "held")["note"] == "not wanted"
    again = place.run("runs", "cancel", "held", code=Exit.CONFLICT)
    assert "run held is cancelled already; there is nothing to cancel" in again.stderr
    for verb in ("cancel", "unblock", "show"):
        place.run("runs", verb, "nobody", code=Exit.NOT_FOUND)


# Stopping.


@contextlib.contextmanager
def paused(place: Place, agent: str, *options: str) -> Iterator[Worker]:
    """A worker in the middle of a tool of run `one`."""
    place.record("one", agent, "one")
    with Worker(place, *options) as worker:
        place.await_file("began-one")
        yield worker


def test_sigterm_during_a_tool_lets_the_turn_end_and_hands_the_run_back(place: Place) -> None:
    with paused(place, "two_turns") as worker:
        worker.send(signal.SIGTERM)
        poll(lambda: "taking no more runs" in worker.said, what=lambda: worker.said)
        assert worker.process.poll() is None
        place.go("one")
        assert worker.end() == 0
    assert place.await_status("one", "ready").attempts == 0
    assert place.kinds_of("one")[-2:] == ["CHECKPOINT_CREATED", "RUN_RELEASED"]
    with Worker(place):
        assert place.result_of("one") == "both turns"
    assert place.lines_in("began-one") == place.lines_in("ended-one") == 1


def test_second_signal_stops_in_the_middle_and_says_what_is_unknown(place: Place) -> None:
    with paused(place, "two_turns") as worker:
        worker.send(signal.SIGTERM)
        poll(lambda: "taking no more runs" in worker.said, what=lambda: worker.said)
        assert worker.end(signal.SIGTERM) == Exit.INTERRUPTED
    assert "stopped at once" in worker.said
    assert place.await_status("one", "ready")
    assert "EFFECT_UNKNOWN" in place.kinds_of("one")


def test_second_signal_ends_a_worker_whose_tool_blocks_a_thread(place: Place) -> None:
    with paused(place, "block") as worker:
        worker.send(signal.SIGINT)
        poll(lambda: "taking no more runs" in worker.said, what=lambda: worker.said)
        began = time.monotonic()
        assert worker.end(signal.SIGINT) == Exit.INTERRUPTED
        assert time.monotonic() - began < 30


# Dying.


def test_run_of_a_killed_worker_is_taken_over_by_another(place: Place) -> None:
    with paused(place, "look") as killed:
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    with Worker(place):
        place.go("one")
        assert place.result_of("one") == "paused for one"
    assert place.kinds_of("one") == [
        "RUN_CREATED",
        "RUN_LEASED",
        "LEASE_EXPIRED",
        "RECOVERY_INITIATED",
        "RUN_LEASED",
        "RECOVERY_COMPLETED",
        "RUN_COMPLETED",
    ]


def test_run_that_kills_its_workers_is_blocked_and_others_complete(place: Place) -> None:
    place.record("poisoned", "poison", {})
    for number in range(3):
        place.record(f"good-{number}", "hello", f"run {number}")
    deaths = 0
    with sync.open(place.store) as hf:
        while hf.runs.get("poisoned").status != "blocked":
            with Worker(place, "--concurrency", "1") as worker:
                poll(
                    lambda: (
                        worker.process.poll() is not None
                        or hf.runs.get("poisoned").status == "blocked"
                    ),
                    what=lambda: worker.said,
                )
                deaths += worker.process.poll() == -signal.SIGKILL
            assert deaths <= 3
    assert (deaths, place.lines_in("deaths")) == (3, 3)
    assert place.await_status("poisoned", "blocked").blocked_reason == "breaker"
    with Worker(place):
        found = [place.result_of(f"good-{number}") for number in range(3)]
    assert found == [f"hello run {number}" for number in range(3)]
    shown = place.ask("runs", "show", "poisoned")
    assert "3 workers in a row were lost without progress" in shown["note"]


# In doubt.


def test_run_in_doubt_goes_on_as_the_operator_says(place: Place) -> None:
    check_in_doubt(place)


def test_run_in_doubt_goes_on_as_the_operator_says_on_postgresql(
    tmp_path: Path, postgres_url: str
) -> None:
    check_in_doubt(Place(tmp_path, postgres_url))


def check_in_doubt(place: Place) -> None:
    people = ("ann", "bob", "eve")
    with Worker(place) as worker:
        for who in people:
            place.record(who, "pay", who)
        for who in people:
            assert place.await_status(who, "blocked").blocked_reason == "unknown_effect"
        listed = place.ask("effects", "list", "--unknown")
        assert sorted(row["args"]["who"] for row in listed) == sorted(people)
        assert set(listed[0]) == keys_of("effects", "An effect in JSON")
        ids = {row["run_id"]: row["effect_id"] for row in listed}
        place.run("effects", "resolve", ids["ann"], "--happened", "paid", "--note", "asked")
        place.run("effects", "resolve", ids["bob"], "--did-not-happen", "--by", "eve")
        done = place.ask("effects", "resolve", ids["eve"], "--retry")
        assert (done["status"], done["retry"]) == ("not_done", True)
        assert place.result_of("ann") == "paid"
        assert place.result_of("bob") == "told that charge did not happen"
        assert place.result_of("eve") == "charged eve"
        assert worker.end(signal.SIGTERM) == 0
    assert [place.lines_in(f"charged-{who}") for who in people] == [1, 1, 2]
    shown = place.ask("effects", "show", ids["bob"])
    assert set(shown) == keys_of("effects", "An effect in JSON") | keys_of(
        "effects", "`effects show` adds"
    )
    assert (shown["status"], shown["settled_by"]) == ("not_done", "eve")
    assert place.run("effects", "list").stderr == "no effects whose outcome is open\n"


def test_outcome_that_is_known_is_not_changed(place: Place) -> None:
    with Worker(place):
        place.record("one", "pay", {"who": "Ann"})
        place.await_status("one", "blocked")
        effect = place.effect_of("one")
        table = place.run("effects", "list", "--run", "one")
        assert '{"who": "Ann"}' in table.stdout
        assert "effects resolve ID" in table.stderr
        assert place.ask("effects", "show", effect)["note"] == "it raised"
        place.run("effects", "resolve", effect, code=Exit.USAGE)
        place.run("effects", "resolve", effect, "--retry", "--did-not-happen", code=Exit.USAGE)
        place.run("effects", "resolve", effect, "--happened", "{bad", code=Exit.USAGE)
        place.run("effects", "resolve", effect, "--happened", '"1"')
        assert place.result_of("one") == "1"
    again = place.run("effects", "resolve", effect, "--retry", code=Exit.CONFLICT)
    assert f"effect {effect} is completed since" in again.stderr
    for unknown in ("x", "01a1e221-494e-7000-8e7d-b1b29bb8250d"):
        place.run("effects", "resolve", unknown, "--retry", code=Exit.NOT_FOUND)
    place.run("effects", "list", "--run", "nobody", code=Exit.NOT_FOUND)


def test_effect_that_may_be_running_is_resolved_with_force_only(place: Place) -> None:
    with sync.open(place.store) as hf:
        hf.runs.open("one").begin_effects([EffectRequest(tool="charge", args={"cents": 1})])
    assert place.ask("effects", "list", "--unknown") == []
    (issued,) = place.ask("effects", "list", "--issued")
    assert (issued["status"], issued["in_doubt"]) == ("issued", False)
    refused = place.run("effects", "resolve", issued["effect_id"], "--retry", code=Exit.CONFLICT)
    assert "charge may be running until" in refused.stderr
    forced = place.run("effects", "resolve", issued["effect_id"], "--did-not-happen", "--force")
    assert "not_done" in forced.stdout


def test_effect_of_a_cancelled_run_whose_worker_was_killed_is_resolved(place: Place) -> None:
    with paused(place, "hang") as killed:
        killed.end(signal.SIGKILL)
    place.run("runs", "cancel", "one")
    poll(
        lambda: place.run("effects", "list", "--unknown", "-o", "ids").stdout != "",
        what=lambda: place.ask("effects", "list"),
    )
    effect = place.effect_of("one")
    resolved = place.ask("effects", "resolve", effect, "--happened", "true")
    assert (resolved["status"], resolved["run_status"]) == ("completed", "cancelled")
    shown = place.ask("effects", "show", effect)
    assert (shown["result"], shown["settled_by"]) == (True, getpass.getuser())


def test_run_that_is_put_off_says_until_when_and_why(place: Place) -> None:
    with sync.open(place.store) as hf:
        hf.runs.open("later", agent="pay").release(delay_seconds=3600, note="the bank is closed")
    shown = place.run("runs", "show", "later").stdout.splitlines()[0]
    assert re.fullmatch(r"run later: ready, put off until \S+ since \S+: the bank is closed", shown)
    assert place.ask("runs", "show", "later")["note"] == "the bank is closed"


def test_start_says_at_once_that_no_worker_serves_the_agent(place: Place) -> None:
    with sync.open(place.store, agents=[]) as hf:
        hf.runs.open("held", agent="pay")  # this process is a worker that is alive
        started = place.run("runs", "start", "reserch")
    assert "no live worker serves 'reserch'; served now:" in started.stderr
