"""The command line as people and programs use it: real processes, their output and exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import click
import pytest

import holdfast
from holdfast import Run, agent, cli, errors, sync
from holdfast.engine.effects import EffectRequest
from holdfast.engine.waits import WaitSpec
from holdfast.terminal import exits, progress
from holdfast.terminal.output import TerminalOutput
from tests import forked_cli
from tests.forked import PIPE, Forked

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
HOLDFAST = [sys.executable, "-c", "from holdfast.cli import main; main()"]
LIMIT_SECONDS = 300
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

REFUND, DONE, STOPPED, LONG = "refund-7", "[bold]done[/bold]", "stopped", "long"
EVIL = "evil \x1b[2J \x9b31m \u202e text"
READS = [
    ["runs", "list"],
    ["runs", "show", REFUND],
    ["checkpoints", "list", REFUND],
    ["checkpoints", "show", REFUND],
    ["checkpoints", "diff", REFUND, "1", "2"],
    ["journal", "show", REFUND],
    ["journal", "tail", REFUND],
    ["audit", "verify"],
    ["store", "info"],
    ["store", "reindex"],
]


def seed(path: Path) -> None:
    """A store with one run of each sort that the commands show."""
    with sync.open(str(path)) as hf:
        hf.runs.create(REFUND, agent="support", input={"order": 7}, owner="ann")
        run = hf.runs.open(REFUND)
        run.append("transcript", {"role": "user", "text": EVIL})
        run.set("plan", {"blob": b"\x01\x02"})
        run.checkpoint(label="first", phase="plan")
        run.append("transcript", {"role": "assistant", "text": "grüß dich"})
        run.drop("plan")
        run.set("budget", 3)
        run.checkpoint()
        run.begin_effects([EffectRequest(tool="charge", args={"cents": 1})])
        run.open_waits([WaitSpec(wait_id="answer", timeout_seconds=3600)], suspend=True)
        hf.runs.open(DONE, agent="other").complete({"answer": 42})
        hf.runs.create(STOPPED)
        hf.runs.cancel(STOPPED, note=EVIL)
        long = hf.runs.open(LONG, agent="other")
        for _ in range(40):
            long.append("transcript", os.urandom(2000).hex())
            long.checkpoint()
        long.release()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded store that tests only read."""
    path = tmp_path_factory.mktemp("cli") / "shared.db"
    seed(path)
    return path


@pytest.fixture
def store(shared: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copy(shared, tmp_path / "store.db"))


def environment(**extra: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "HOLDFAST_STORE"}
    return inherited | {"PYTHONWARNINGS": "error"} | extra


def run(
    *arguments: str | bytes, store: Path | None = None, cwd: Path | None = None, **extra: str
) -> "subprocess.CompletedProcess[str]":
    """The command, run to its end. It never shows a traceback."""
    named = [] if store is None else ["--store", str(store)]
    done = forked_cli.run(*arguments, *named, cwd=cwd, env=environment(**extra))
    assert "Traceback" not in done.stderr, done.stderr
    return done


def ask(*arguments: str, store: Path) -> Any:
    """What the command says in JSON."""
    done = run(*arguments, "-o", "json", store=store)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def change(path: Path, sql: str) -> None:
    """Change a store behind Holdfast's back."""
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    assert connection.changes() == 1
    connection.close()


def keys_of(section: str, name: str) -> set[str]:
    """The keys a section of the reference lists in the sentence that begins with `name`."""
    text = DOCS.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    sentence = text.split(name, 1)[1]
    return set(re.findall(r"`(\w+)`", re.split(r"\.\s", sentence, maxsplit=1)[0])) - {"null"}


# Everything is documented.


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in cli.COMMANDS:
        found = cli._root.get_command(click.Context(cli._root), name)
        assert found is not None
        if isinstance(found, click.Group):
            for verb, command in found.commands.items():
                yield f"{name} {verb}", command
        else:
            yield name, found


@pytest.mark.mission("S3-205")
@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_command_and_its_options_are_documented(name: str, command: click.Command) -> None:
    assert f"`holdfast {name}" in DOCS
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert all(f"`{flag}" in DOCS for flag in option.opts), option.opts


@pytest.mark.parametrize("code", exits.Exit)
def test_exit_code_is_documented(code: exits.Exit) -> None:
    assert re.search(rf"^\| {code.value} \|", DOCS, re.MULTILINE)


def test_no_words_at_all_give_the_help() -> None:
    done = run()
    assert "Commands" in done.stdout + done.stderr


def test_help_lists_every_command_and_loads_none() -> None:
    script = (
        "import sys; sys.argv[1:] = ['--help']\nfrom holdfast import cli\n"
        "try: cli.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in cli.COMMANDS)
    loaded = set(done.stderr.split())
    assert (
        loaded & {"rich", "anyio", "apsw", "holdfast.sync", "holdfast.cli.runs.commands"} == set()
    )


@pytest.mark.parametrize("module", ["msgspec", "click", "rich"])
def test_ctrl_c_while_modules_are_imported_ends_quietly(tmp_path: Path, module: str) -> None:
    """While Holdfast is imported, while its command line is, and while a command is at work."""
    (tmp_path / f"{module}.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    where, name = project["scripts"]["holdfast"].split(":")
    script = f"import sys\nfrom {where} import {name}\nsys.exit({name}())"
    words = ["config", "show"]
    folders = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=environment(PYTHONPATH=folders),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (exits.Exit.INTERRUPTED, "", "")


# Formats.


def test_runs_are_listed_in_every_format(shared: Path) -> None:
    found = ask("runs", "list", store=shared)
    assert [row["run_id"] for row in found] == [LONG, STOPPED, DONE, REFUND]
    assert set(found[0]) == keys_of("runs", "A run in JSON")
    assert MOMENT.fullmatch(found[0]["created_at"])
    lines = run("runs", "list", "-o", "jsonl", store=shared).stdout.splitlines()
    assert [json.loads(line) for line in lines] == found
    assert run("runs", "list", "-o", "ids", store=shared).stdout.split() == [
        row["run_id"] for row in found
    ]
    table = run("runs", "list", store=shared).stdout
    assert re.search(r"^\[bold\]done\[/bold\] +completed +other ", table, re.MULTILINE)


def test_runs_are_listed_by_status_agent_owner_and_number(shared: Path) -> None:
    by_status = run("runs", "list", "--status", "waiting", "-o", "ids", store=shared)
    assert by_status.stdout.split() == [REFUND]
    owned = ("runs", "list", "--owner", "ann", "-o", "ids")
    assert run(*owned, store=shared).stdout.split() == [REFUND]
    assert run(*owned, "--status", "ready", store=shared).stdout == ""
    by_agent = run("runs", "list", "--agent", "other", "--limit", "1", store=shared)
    assert LONG in by_agent.stdout
    assert DONE not in by_agent.stdout
    assert "--limit" in by_agent.stderr


def test_run_is_shown_with_what_it_needs_from_outside(shared: Path) -> None:
    found = ask("runs", "show", REFUND, store=shared)
    assert found["status"] == "waiting"
    assert found["owner"] == "ann"
    assert found["input"] == {"order": 7}
    assert found["version"] == 2
    assert [wait["wait_id"] for wait in found["open_waits"]] == ["answer"]
    assert set(found["open_waits"][0]) == keys_of("runs", "A wait")
    assert [effect["tool"] for effect in found["unsettled_effects"]] == ["charge"]
    assert set(found["unsettled_effects"][0]) == keys_of("runs", "An effect")
    added = keys_of("runs", "`runs show` adds")
    assert added <= set(found)
    assert ask("runs", "show", DONE, store=shared)["result"] == {"answer": 42}


def test_checkpoints_are_listed_shown_and_compared(shared: Path) -> None:
    listed = ask("checkpoints", "list", REFUND, "--before", "2", store=shared)
    assert [(row["version"], row["label"]) for row in listed] == [(1, "first")]
    assert set(listed[0]) == keys_of("checkpoints", "A checkpoint in JSON")
    first = ask("checkpoints", "show", REFUND, "1", store=shared)
    assert first["state"]["plan"] == {"blob": "0102"}
    assert first["state"]["transcript"][0]["text"] == EVIL
    latest = ask("checkpoints", "show", REFUND, store=shared)
    assert (latest["version"], latest["versions"]) == (2, None)  # no agent has worked on it
    assert "plan" not in latest["state"]
    found = ask("checkpoints", "diff", REFUND, "1", "2", store=shared)
    assert set(found) == keys_of("checkpoints", "`checkpoints diff` in JSON") - {"kept"}
    assert found["parts"] == ["budget", "plan", "transcript"]
    assert found["logs"]["transcript"]["kept"] == 1


def test_checkpoint_of_an_agent_tells_what_it_was_made_of(tmp_path: Path) -> None:
    @agent(name="support", version="3", model="vendor/one", prompt="be kind")
    async def support(run: Run) -> None:
        run.value("plan", str, "").set("leap")

    store = tmp_path / "agents.db"
    with sync.open(str(store), agents=[support]) as hf:
        hf.run(support, run_id=REFUND)
    shown = ask("checkpoints", "show", REFUND, store=store)["versions"]
    assert (shown["agent_version"], shown["model"]) == ("3", "vendor/one")
    assert (len(shown["prompt_digest"]), shown["tools_digest"]) == (64, "")
    assert "vendor/one" in run("checkpoints", "show", REFUND, store=store).stdout


def test_run_without_checkpoints_has_an_empty_state(shared: Path) -> None:
    found = ask("checkpoints", "show", STOPPED, store=shared)
    assert (found["version"], found["state"], found["checkpoint_id"]) == (0, {}, None)


def test_journal_is_shown_in_part_and_with_bodies(shared: Path) -> None:
    found = ask("journal", "show", REFUND, "--after", "2", "--limit", "1", store=shared)
    assert [(row["seq"], row["kind"], row["intact"]) for row in found] == [
        (3, "CHECKPOINT_CREATED", True)
    ]
    assert set(found[0]) | {"body"} == keys_of("journal", "An entry in JSON")
    assert found[0]["facts"]["label"] == "first"
    table = run("journal", "show", REFUND, "--bodies", "--limit", "1", store=shared)
    assert '{"order": 7}' in table.stdout
    assert "--after 1" in table.stderr


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(
    "command", [["journal", "show", STOPPED], ["checkpoints", "show", REFUND]], ids=" ".join
)
def test_nothing_a_terminal_would_act_on_is_printed(
    command: list[str], output: str, shared: Path
) -> None:
    done = run(*command, "-o", output, store=shared)
    assert "evil" in done.stdout
    assert not set("\x1b\x9b\u202e") & set(done.stdout)


def test_tenant_and_store_are_taken_from_option_and_environment(shared: Path) -> None:
    named = run("runs", "list", "-o", "ids", HOLDFAST_STORE=str(shared))
    assert REFUND in named.stdout
    other = run("runs", "list", "--tenant", "other", HOLDFAST_STORE=str(shared))
    assert (other.returncode, other.stdout, other.stderr) == (0, "", "no runs\n")


# What goes wrong.


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_missing_store_is_said_and_not_made(command: list[str], tmp_path: Path) -> None:
    done = run(*command, cwd=tmp_path)
    assert done.returncode == exits.Exit.NOT_FOUND
    assert done.stdout == ""
    assert "there is no store at holdfast.db" in done.stderr
    assert "HOLDFAST_STORE" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["rnus"], 2),
        (["runs", "list", "--status", "odd"], 2),
        (["runs", "list", "--limit", "0"], 2),
        (["runs", "list", "--limit", "9" * 30], 2),
        (["runs", "list", "--json", "-o", "ids"], 2),
        (["runs", "list", "--tenant", ""], 2),
        (["runs", "list", "--store", "mysql://x"], 2),
        (["checkpoints", "show", REFUND, "9"], 3),
        (["checkpoints", "list", "nobody"], 3),
        (["journal", "tail", "nobody"], 3),
        (["audit", "verify", REFUND, "nobody"], 3),
        (["store", "reindex", "nobody"], 3),
        (["runs", "show", ""], 2),
        (["runs", "show", "a\nb"], 2),
        (["runs", "show", "x" * 300], 2),
        (["runs", "show", b"\xff\xfe"], 2),
        (["runs", "show", "'; DROP TABLE runs; --"], 3),
        (["store", "migrate", "--store", "no/folder/x.db"], 4),
        (["store", "info", "--store", "."], 4),
    ],
)
def test_wrong_input_has_its_exit_code_and_changes_nothing(
    arguments: list[str | bytes], code: int, shared: Path, tmp_path: Path
) -> None:
    done = run(*arguments, cwd=tmp_path, HOLDFAST_STORE=str(shared))
    assert done.returncode == code
    assert 1 <= len(done.stderr.splitlines()) <= 4
    assert list(tmp_path.iterdir()) == []


def test_error_is_json_where_json_was_asked_for(shared: Path) -> None:
    done = run("runs", "show", "nobody", "--json", store=shared)
    assert (done.returncode, done.stdout) == (3, "")
    told = json.loads(done.stderr)
    assert told["error"] == "RunNotFound"
    assert "nobody" in told["message"]


def test_every_error_has_the_code_of_its_family() -> None:
    found = {
        name: exits.code_of(error())
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.HoldfastError)
    }
    assert found["HoldfastError"] == 1
    assert {found[name] for name in ("MisuseError", "InvalidIdentifier", "SchemaMismatch")} == {2}
    assert {found[name] for name in ("NotFoundError", "RunNotFound")} == {3}
    assert found["StoreNotPermitted"] == 4
    assert {found[name] for name in ("ConflictError", "Fenced", "RunCancelled")} == {5}
    assert {found[name] for name in ("IntegrityError", "CheckpointCorrupted")} == {7}
    assert {found[name] for name in ("UnavailableError", "StoreBusy", "OutcomeUnknown")} == {8}


def test_other_files_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    other, text, empty = (tmp_path / name for name in ("other.db", "text.db", "empty.db"))
    apsw.Connection(str(other)).execute("CREATE TABLE migrations (id, migration)")
    text.write_text("not a database, but long enough to be taken for one" * 100)
    empty.touch()
    before = {path: path.read_bytes() for path in (other, text, empty)}
    assert run("runs", "list", store=other).returncode == exits.Exit.INTEGRITY
    assert run("store", "migrate", store=other).returncode == exits.Exit.INTEGRITY
    assert run("runs", "list", store=text).returncode == exits.Exit.INTEGRITY
    refused = run("runs", "list", store=empty)
    assert refused.returncode == exits.Exit.USAGE
    assert "holdfast store migrate" in refused.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_store_of_a_newer_version_is_refused(store: Path) -> None:
    change(store, "INSERT INTO migrations VALUES (99, 'future', 1, 0)")
    done = run("runs", "list", store=store)
    assert done.returncode == exits.Exit.USAGE
    assert "Upgrade Holdfast" in done.stderr


def test_output_that_cannot_be_written_is_a_failure(shared: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HOLDFAST, "runs", "list", "--json", "--store", str(shared)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    assert done.returncode == exits.Exit.FAILED
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


# Audits.


def test_audit_of_a_whole_store_says_so(shared: Path) -> None:
    done = run("audit", "verify", store=shared)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert sorted(lines[:-1]) == sorted(f"ok       {r}" for r in (REFUND, DONE, STOPPED, LONG))
    assert lines[-1] == "4 runs verified: whole"


def test_audit_names_the_entry_whose_byte_was_changed(store: Path) -> None:
    change(
        store,
        "UPDATE journal SET body = CAST(X'00' || substr(body, 2) AS BLOB) "
        f"WHERE run_id = '{REFUND}' AND seq = 3",
    )
    done = run("audit", "verify", "--json", store=store)
    assert done.returncode == exits.Exit.INTEGRITY
    (damaged,) = [row for row in json.loads(done.stdout) if not row["ok"]]
    assert damaged["run_id"] == REFUND
    assert [problem["seq"] for problem in damaged["problems"]] == [3]
    assert "4 runs verified: 1 damaged, 1 problem" in done.stderr
    named = run("audit", "verify", "nobody", REFUND, DONE, "-o", "ids", store=store)
    assert (named.returncode, named.stdout) == (exits.Exit.INTEGRITY, f"{REFUND}\n")


def test_damaged_entry_is_never_shown_as_if_it_were_whole(store: Path) -> None:
    change(store, f"UPDATE journal SET actor = 'me' WHERE run_id = '{REFUND}' AND seq = 4")
    shown = run("journal", "show", REFUND, "--after", "3", "-o", "jsonl", store=store)
    assert shown.returncode == exits.Exit.INTEGRITY
    assert json.loads(shown.stderr)["error"] == "JournalCorrupted"
    intact = {row["seq"]: row["intact"] for row in map(json.loads, shown.stdout.splitlines())}
    assert intact == {seq: seq != 4 for seq in intact}
    state = run("checkpoints", "show", REFUND, store=store)
    assert (state.returncode, state.stdout) == (exits.Exit.INTEGRITY, "")
    assert "entry 4" in state.stderr


def test_lost_index_is_found_and_rebuilt(store: Path) -> None:
    change(store, f"DELETE FROM runs WHERE run_id = '{REFUND}'")
    assert run("audit", "verify", REFUND, store=store).returncode == exits.Exit.INTEGRITY
    rebuilt = run("store", "reindex", "-o", "ids", store=store)
    assert (rebuilt.returncode, rebuilt.stdout.count("\n")) == (0, 4)
    assert run("audit", "verify", REFUND, store=store).returncode == 0


def test_audit_of_a_run_that_is_being_written_finds_nothing_wrong(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    stop = threading.Event()
    with sync.open(str(path)) as hf:
        busy = hf.runs.open("busy")

        def write() -> None:
            while not stop.is_set():
                busy.append("log", busy.version)
                busy.checkpoint()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(2):
                done = run("audit", "verify", store=path)
                assert done.returncode == 0, done.stdout
        finally:
            stop.set()
            writer.join(LIMIT_SECONDS)
    assert busy.version > 0


def test_long_work_tells_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    runs = progress.shown(["a", "b"], verb="verified", total=2, output=TerminalOutput("json"))
    assert list(runs) == ["a", "b"]
    written = capsys.readouterr()
    assert written.out == ""
    assert "verified 1 of 2 runs" in written.err


# Stores.


def test_migrations_are_printed_then_applied(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    printed = run("store", "migrate", "--print", store=path)
    assert printed.returncode == 0
    assert "CREATE TABLE journal" in printed.stdout
    assert not path.exists()
    pending = ask("store", "migrate", "--print", store=path)
    assert set(pending[0]) == {"number", "name", "sql"}
    applied = ask("store", "migrate", store=path)
    assert applied == [{"number": row["number"], "name": row["name"]} for row in pending]
    again = run("store", "migrate", store=path)
    assert (again.returncode, again.stdout) == (0, "")
    assert "up to date" in again.stderr
    info = ask("store", "info", store=path)
    assert set(info) == keys_of("store", "`store info` in JSON")
    assert info["schema"] == info["newest_schema"] == len(pending)


# Following a run, and being interrupted.


class Tail:
    """A `journal tail` that is running."""

    def __init__(self, path: Path, run_id: str, *options: str) -> None:
        self.process = Forked(
            [*HOLDFAST, "journal", "tail", run_id, "--store", str(path), *options],
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env=environment(),
        )
        # A tail that says nothing is ended, and the test fails at the line it misses.
        self._timer = threading.Timer(LIMIT_SECONDS, self.process.kill)
        self._timer.start()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __enter__(self) -> "Tail":
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self.process.kill()
        self.process.communicate()


def test_tail_follows_a_run_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    with sync.open(str(path)) as hf:
        live = hf.runs.open("live")
        with Tail(path, "live", "-o", "json") as tail:
            kinds = [json.loads(tail.line())["kind"] for _ in range(2)]
            live.append("log", 1)
            live.checkpoint()
            kinds.append(json.loads(tail.line())["kind"])
            live.complete()
            rest, told = tail.process.communicate(timeout=LIMIT_SECONDS)
    assert kinds == ["RUN_CREATED", "RUN_LEASED", "CHECKPOINT_CREATED"]
    assert json.loads(rest)["kind"] == "RUN_COMPLETED"
    assert (tail.process.returncode, told) == (0, "")


def test_tail_ends_at_ctrl_c_without_a_traceback(shared: Path) -> None:
    with Tail(shared, REFUND) as tail:
        assert "RUN_CREATED" in tail.line()
        tail.process.send_signal(signal.SIGINT)
        _, told = tail.process.communicate(timeout=LIMIT_SECONDS)
    assert tail.process.returncode == exits.Exit.INTERRUPTED
    assert told.strip() == ""


def test_reader_that_goes_away_is_no_error(shared: Path) -> None:
    with Tail(shared, LONG, "--bodies") as tail:
        assert "RUN_CREATED" in tail.line()
        assert tail.process.stdout is not None
        tail.process.stdout.close()
        assert tail.process.wait(LIMIT_SECONDS) == exits.Exit.BROKEN_PIPE
        assert tail.process.stderr is not None
        assert tail.process.stderr.read() == ""


# Peers.


def test_caller_is_shown_with_its_peers_and_they_are_listed_by_it(tmp_path: Path) -> None:
    @holdfast.agent
    async def fine(run: holdfast.Run) -> str:
        await run.report({"page": 1})
        return "fine"

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        answer = await run.peer(fine)
        return answer + await run.peer("nobody")

    store = tmp_path / "store.db"
    with sync.open(str(store), agents=[caller, fine]) as hf:
        handle = hf.start(caller, run_id="caller")
        while "nobody" not in {wait.name for wait in hf.waits.of_run("caller")}:
            with pytest.raises(errors.RunWaiting):
                handle.result(timeout=0.5)
        first = next(wait for wait in hf.waits.of_run("caller") if wait.name == "fine")
        assert not hf.waits.resolve(first.wait_id, "again").accepted
    found = ask("runs", "show", "caller", store=store)
    calls = {call["peer"]: call for call in found["peers"]}
    told = {name: (call["status"], call["run_status"]) for name, call in calls.items()}
    assert told == {"fine": ("resolved", "completed"), "nobody": ("open", "ready")}
    assert set(calls["fine"]) == keys_of("runs", "A call of a peer") - {
        *("open", "resolved", "expired", "cancelled", "open_waits")
    }
    assert (calls["fine"]["duplicates"], calls["fine"]["progress"]) == (1, {"page": 1})
    assert MOMENT.fullmatch(calls["fine"]["deadline"])
    assert calls["nobody"]["deadline"] is None  # nobody has taken it
    (wait,) = found["open_waits"]
    assert set(wait) == keys_of("runs", "A wait")
    assert (wait["patience_seconds"], wait["claimed_until"], wait["progress_at"]) == (
        600,
        None,
        None,
    )
    people = run("runs", "show", "caller", store=store).stdout
    assert re.search(rf"{calls['fine']['wait_id']} +fine +resolved +completed", people)
    listed = run("runs", "list", "--parent", "caller", "-o", "ids", store=store).stdout.split()
    assert set(listed) == {call["wait_id"] for call in calls.values()}
    ready = ask("runs", "list", "--parent", "caller", "--status", "ready", store=store)
    assert [(row["agent"], row["parent_id"]) for row in ready] == [("nobody", "caller")]
    assert ask("runs", "list", "--parent", listed[0], store=store) == []
