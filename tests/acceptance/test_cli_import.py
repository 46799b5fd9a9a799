"""`holdfast import langgraph` as people use it: in a terminal, on files of other savers."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from holdfast.errors import MisuseError
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.terminal import import_names
from holdfast.terminal.exits import Exit
from tests import forked
from tests.acceptance.test_cli import HOLDFAST, LIMIT_SECONDS, ask, environment, keys_of, run
from tests.forked import PIPE, Forked
from tests.integrations.langgraph.old_threads import GRAPHS, config, fill, old_saver, say, talk

OWN_TYPE = """
import operator
from dataclasses import dataclass
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph

@dataclass
class Order:
    number: int

class State(TypedDict):
    orders: Annotated[list[Order], operator.add]

def graph_on(saver):
    builder = StateGraph(State)
    builder.add_node("order", lambda state: {"orders": [Order(len(state["orders"]))]})
    builder.add_edge(START, "order")
    return builder.compile(checkpointer=saver)
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("old") / "old.db"
    with old_saver(str(path)) as saver:
        fill(saver)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def bring(*arguments: str, store: Path) -> Any:
    return ask("import", "langgraph", *arguments, store=store)


def test_threads_are_imported_and_told(old: Path, store: Path) -> None:
    found = bring(str(old), store=store)
    assert [each["thread_id"] for each in found] == sorted(GRAPHS)
    assert {each["outcome"] for each in found} == {"imported"}
    assert set(found[0]) == keys_of("import", "A thread in JSON")
    again = run("import", "langgraph", str(old), store=store)
    assert again.returncode == 0
    assert again.stdout.endswith("0 checkpoints imported; threads: 5 there\n")
    assert run("audit", "verify", store=store).returncode == 0
    runs = ask("runs", "list", store=store)
    assert {each["run_id"] for each in runs} == set(GRAPHS)


def test_dry_run_counts_and_makes_no_store(old: Path, store: Path) -> None:
    found = bring(str(old), "--dry-run", store=store)
    assert {each["thread_id"]: each["checkpoints"] for each in found}["waiting"] == 6
    assert set(found[0]) == keys_of("import", "With `--dry-run`")
    assert all(each["stored_bytes"] > 0 for each in found)
    table = run("import", "langgraph", str(old), "--dry-run", store=store)
    assert "CHECKPOINTS" in table.stdout
    assert not store.exists()


def test_threads_are_chosen(old: Path, store: Path) -> None:
    assert [t["thread_id"] for t in bring(str(old), "--limit", "2", store=store)] == [
        "delta",
        "failed",
    ]
    chosen = bring(str(old), "--thread", "talk", "--thread", "fork", store=store)
    assert [t["thread_id"] for t in chosen] == ["talk", "fork"]
    missing = run("import", "langgraph", str(old), "--thread", "nobody", store=store)
    assert missing.returncode == Exit.NOT_FOUND
    assert "no thread 'nobody'" in missing.stderr


def test_type_of_yours_is_named_or_its_thread_refused(tmp_path: Path, store: Path) -> None:
    (tmp_path / "shop.py").write_text(OWN_TYPE)
    make = (
        "import shop, sqlite3\nfrom langgraph.checkpoint.sqlite import SqliteSaver\n"
        "saver = SqliteSaver(sqlite3.connect('old.db', check_same_thread=False))\n"
        "config = {'configurable': {'thread_id': 'orders'}}\n"
        "shop.graph_on(saver).invoke({'orders': []}, config)\n"
    )
    assert forked.run(["-c", make], cwd=tmp_path, kind="langgraph").returncode == 0
    with old_saver(str(tmp_path / "old.db")) as saver:
        say(talk(saver), "talk", "hello")
    command = ("import", "langgraph", "old.db", "-o", "json")
    refused = run(*command, store=store, cwd=tmp_path)
    assert refused.returncode == Exit.USAGE
    by_id = {each["thread_id"]: each for each in json.loads(refused.stdout)}
    assert (by_id["orders"]["outcome"], by_id["orders"]["error"]) == ("refused", "TypeNotAllowed")
    assert "shop" in by_id["orders"]["message"]
    assert by_id["talk"]["outcome"] == "imported"
    allowed = run(*command, "--allow", "shop:Order", store=store, cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr
    by_id = {each["thread_id"]: each for each in json.loads(allowed.stdout)}
    assert (by_id["orders"]["outcome"], by_id["talk"]["outcome"]) == ("imported", "there")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("json", "is not MODULE:NAME"),
        ("json:Nothing", "has no 'Nothing'"),
        ("json:dumps", "not a class"),
        ("nowhere:Order", "no module 'nowhere'"),
    ],
)
def test_what_is_no_type_is_not_allowed(target: str, why: str) -> None:
    with pytest.raises(MisuseError, match=why):
        import_names.load_type(target)


def test_thread_that_went_on_elsewhere_is_reported(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as saver:
        say(talk(saver), "talk", "a")
    bring(str(path), store=store)
    with HoldfastSaver(str(store)) as new:
        say(talk(new), "talk", "here")
    with old_saver(str(path)) as saver:
        say(talk(saver), "talk", "there")
    done = run("import", "langgraph", str(path), store=store)
    assert done.returncode == Exit.CONFLICT
    assert "diverged  talk\n" in done.stdout
    assert "left as it is" in done.stdout


def test_import_that_is_interrupted_goes_on(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as saver:
        graph = talk(saver)
        for number in range(40):
            say(graph, "talk", f"hello {number}")
    child = Forked(
        [*HOLDFAST, "import", "langgraph", str(path), "--store", str(store)],
        env=environment(),
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        kind="langgraph",
    )
    deadline = time.monotonic() + LIMIT_SECONDS
    while not store.exists() or os.path.getsize(store) == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=LIMIT_SECONDS)
    assert child.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    (thread,) = bring(str(path), store=store)
    with old_saver(str(path)) as saver:
        assert len(list(saver.list(config("talk")))) >= thread["checkpoints"] > 0
    (again,) = bring(str(path), store=store)
    assert again["outcome"] == "there"


def test_what_is_no_database_of_langgraph_is_refused(tmp_path: Path, store: Path) -> None:
    nothing = run("import", "langgraph", str(tmp_path / "none.db"), store=store)
    assert nothing.returncode == Exit.NOT_FOUND
    (tmp_path / "text.db").write_text("text " * 1000)
    assert run("import", "langgraph", str(tmp_path / "text.db"), store=store).returncode == 7
    strange = run("import", "langgraph", "mysql://host/db", store=store)
    assert strange.returncode == Exit.USAGE
    assert not store.exists()


def test_empty_database_has_no_threads(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as saver:
        assert isinstance(saver, SqliteSaver)
        saver.setup()
    done = run("import", "langgraph", str(path), store=store)
    assert (done.returncode, done.stdout) == (0, "0 checkpoints imported: there are no threads\n")


def test_without_langgraph_the_extra_is_named(tmp_path: Path, store: Path) -> None:
    (tmp_path / "langgraph.py").write_text("raise ModuleNotFoundError(name='langgraph')")
    done = subprocess.run(
        [*HOLDFAST, "import", "langgraph", "old.db", "--store", str(store)],
        env=environment(PYTHONPATH=path_with(tmp_path)),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == Exit.USAGE
    assert "pip install 'holdfast[langgraph]'" in done.stderr


def path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
