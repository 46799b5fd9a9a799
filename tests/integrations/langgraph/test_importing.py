"""Threads of LangGraph's savers come over whole, once, and go on on Holdfast."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import ormsgpack
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import ShallowPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command

from holdfast import sync
from holdfast.errors import IntegrityError, MisuseError, NotFoundError, TypeNotAllowed
from holdfast.integrations.langgraph import HoldfastSaver, durable
from holdfast.integrations.langgraph.imports import (
    ImportOutcome,
    ThreadReport,
    calls_of,
    import_thread,
    parents_first,
)
from holdfast.integrations.langgraph.sources import SourcePosition, Write, open_source
from tests.backends import BACKENDS
from tests.conftest import DATABASE, new_database
from tests.integrations.langgraph.old_threads import (
    GRAPHS,
    config,
    counting,
    fill,
    history,
    old_saver,
    say,
    stored,
    talk,
)

LIMIT_SECONDS = 240
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def old_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("old") / "old.db")
    with old_saver(path) as saver:
        fill(saver)
    return path


@pytest.fixture(scope="module")
def old_postgres(postgres_server: str) -> Iterator[str]:
    with new_database(postgres_server, f"{DATABASE}_old") as url:
        with old_saver(url) as saver:
            fill(saver)
        yield url


@pytest.fixture(params=BACKENDS)
def old(request: pytest.FixtureRequest) -> str:
    """A database of each of LangGraph's savers in turn, with all threads; only read it."""
    return str(request.getfixturevalue(f"old_{request.param}"))


@pytest.fixture
def saver(store: str) -> Iterator[HoldfastSaver]:
    with HoldfastSaver(store, on_conflict="fork") as saver:
        yield saver


def bring(url: str, saver: Any) -> dict[str, ThreadReport]:
    """Import all threads."""
    with contextlib.closing(open_source(url, saver.serde)) as source:
        threads = source.threads()
        return {t.thread_id: import_thread(source, saver, t.thread_id) for t in threads}


# Everything comes over.


def test_every_snapshot_is_that_of_the_source(old: str, saver: HoldfastSaver) -> None:
    reports = bring(old, saver)
    assert {thread: report.outcome for thread, report in reports.items()} == dict.fromkeys(
        GRAPHS, ImportOutcome.IMPORTED
    )
    with old_saver(old) as source:
        for thread_id in GRAPHS:
            assert history(saver, thread_id) == history(source, thread_id)
            assert stored(saver, thread_id) == stored(source, thread_id)
            assert reports[thread_id].checkpoints == len(stored(source, thread_id))


def test_import_again_stores_nothing(old: str, saver: HoldfastSaver) -> None:
    bring(old, saver)
    again = bring(old, saver)
    assert set(again.values()) == {ThreadReport(thread, ImportOutcome.THERE) for thread in GRAPHS}


def test_interrupt_is_answered_after_the_import(old: str, saver: HoldfastSaver) -> None:
    bring(old, saver)
    graph = talk(saver)
    (asked,) = graph.get_state(config("waiting")).interrupts
    assert asked.value == {"question": "is it right?", "turns": 1}
    done = graph.invoke(Command(resume="fine"), config("waiting"))
    assert done["verdict"] == "verdict fine"
    assert graph.get_state(config("waiting")).next == ()


def test_only_what_is_still_asked_is_in_the_inbox(old: str, store: str) -> None:
    with HoldfastSaver(store, on_conflict="fork") as saver:
        bring(old, saver)
        with sync.open(store) as hf:
            asked = hf.approvals.list()
            # The fork stopped at its question as well.
            assert sorted(question.run_id for question in asked) == ["fork", "waiting"]
            (waiting,) = [question for question in asked if question.run_id == "waiting"]
            assert waiting.prompt == "is it right?"
            hf.approvals.answer(waiting.wait_id, "fine", by="ann")
        done = durable(talk(saver)).invoke(None, config("waiting"))
        assert done["verdict"] == "verdict fine"


def test_thread_goes_on_with_versions_of_its_kind(old: str, saver: HoldfastSaver) -> None:
    bring(old, saver)
    before = saver.get_tuple(config("talk"))
    assert before is not None
    graph = talk(saver)
    say(graph, "talk", "and now")
    after = saver.get_tuple(config("talk"))
    assert after is not None
    old_version = before.checkpoint["channel_versions"]["messages"]
    new_version = after.checkpoint["channel_versions"]["messages"]
    assert isinstance(old_version, str)
    assert new_version > old_version
    values = graph.get_state(config("talk")).values
    assert [m.content for m in values["messages"]][-2:] == ["and now", "answer 4: and now"]
    assert values["turns"] == 4
    graph = counting(saver)
    graph.invoke({"seen": ["more"]}, config("delta"))
    seen = graph.get_state(config("delta")).values["seen"]
    assert (len(seen), seen[-2:]) == (10, ["more", "saw 9"])


def test_what_the_source_got_since_comes_with_the_next_import(
    tmp_path: Path, saver: HoldfastSaver
) -> None:
    path = str(tmp_path / "old.db")
    with old_saver(path) as source:
        talk(source).invoke({"messages": [HumanMessage("a", id="a")]}, config("talk"))
    bring(path, saver)
    with old_saver(path) as source:
        talk(source).invoke(Command(resume="yes"), config("talk"))
        say(talk(source), "talk", "b")
    assert bring(path, saver)["talk"].outcome is ImportOutcome.IMPORTED
    with old_saver(path) as source:
        assert stored(saver, "talk") == stored(source, "talk")


def test_thread_that_went_on_in_both_places_is_left_as_it_is(
    tmp_path: Path, saver: HoldfastSaver
) -> None:
    path = str(tmp_path / "old.db")
    with old_saver(path) as source:
        say(talk(source), "talk", "a")
        say(talk(source), "fork", "a")
    bring(path, saver)
    say(talk(saver), "talk", "only here")
    say(talk(saver), "fork", "only here")
    assert bring(path, saver)["talk"] == ThreadReport("talk", ImportOutcome.THERE)
    with old_saver(path) as source:
        say(talk(source), "talk", "only there")
    before = stored(saver, "talk")
    reports = bring(path, saver)
    assert reports["talk"] == ThreadReport("talk", ImportOutcome.DIVERGED)
    assert reports["fork"] == ThreadReport("fork", ImportOutcome.THERE)
    assert stored(saver, "talk") == before


# Killed in the middle.

KILLED = """
import os, signal, sys
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.imports import import_thread
from holdfast.integrations.langgraph.sources import open_source

url, store, verb, number = sys.argv[1:]
left = int(number)

def die_in_time():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Mortal(HoldfastSaver):
    def put_writes(self, *args, **kwargs):
        if verb == "put_writes":
            die_in_time()
        super().put_writes(*args, **kwargs)

saver = Mortal(store, on_conflict="fork")
source = open_source(url, saver.serde)
for thread in source.threads():
    advance = die_in_time if verb == "advance" else lambda: None
    import_thread(source, saver, thread.thread_id, advance=advance)
"""


@pytest.mark.parametrize(("verb", "number"), [("advance", 1), ("advance", 30), ("put_writes", 40)])
def test_import_that_was_killed_goes_on_where_it_stopped(
    verb: str, number: int, old: str, store: str
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", KILLED, old, store, verb, str(number)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"},
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    with HoldfastSaver(store, on_conflict="fork") as saver, old_saver(old) as source:
        before = sum(len(stored(saver, thread_id)) for thread_id in GRAPHS)
        reports = bring(old, saver)
        wanted = {thread_id: stored(source, thread_id) for thread_id in GRAPHS}
        assert {thread_id: stored(saver, thread_id) for thread_id in GRAPHS} == wanted
        brought = sum(report.checkpoints for report in reports.values())
        assert before + brought == sum(map(len, wanted.values())), "nothing came twice"
        assert before == number or verb == "put_writes"


# What other versions have written.


def test_writes_without_paths_are_read(tmp_path: Path, saver: HoldfastSaver) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as source:
        say(talk(source), "talk", "a")
        wanted = {
            key: len(saved.pending_writes or ()) for key, saved in stored(source, "talk").items()
        }
    execute(path, "ALTER TABLE writes DROP COLUMN task_path")
    bring(str(path), saver)
    found = stored(saver, "talk")
    assert {key: len(saved.pending_writes or ()) for key, saved in found.items()} == wanted


def test_sends_of_older_versions_become_a_channel(
    postgres_server: str, saver: HoldfastSaver
) -> None:
    """Before version 4 of checkpoints, what was sent was kept with the writes of the parent."""
    older = (
        "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{v}', '3')"
        " #- '{channel_versions,__pregel_tasks}' #- '{channel_values,__pregel_tasks}'"
    )
    with new_database(postgres_server, f"{DATABASE}_older") as url:
        with old_saver(url) as source:
            say(talk(source), "talk", "a")
        with psycopg.connect(url) as connection:
            connection.execute(older)
        bring(url, saver)
        with old_saver(url) as source:
            assert history(saver, "talk") == history(source, "talk")
            sent = [s for s in history(saver, "talk") if s.next == ("note", "note", "note")]
            assert len(sent) == 1


def test_sends_inside_a_checkpoint_become_a_channel(tmp_path: Path, saver: HoldfastSaver) -> None:
    path = tmp_path / "old.db"
    checkpoint = {**empty_checkpoint(), "v": 1, "pending_sends": ["sent"]}
    checkpoint["channel_versions"] = {"a": 2}
    insert(path, "old", JsonPlusSerializer().dumps_typed(checkpoint), checkpoint["id"])
    bring(str(path), saver)
    found = saver.get_tuple({"configurable": {"thread_id": "old", "checkpoint_ns": ""}})
    assert found is not None
    assert found.checkpoint["channel_values"] == {"__pregel_tasks": ["sent"]}
    assert found.checkpoint["channel_versions"] == {"a": 2, "__pregel_tasks": 2}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_last_checkpoint_of_a_shallow_saver_is_read(
    postgres_server: str, saver: HoldfastSaver
) -> None:
    with new_database(postgres_server, f"{DATABASE}_shallow") as url:
        with ShallowPostgresSaver.from_conn_string(url) as source:
            source.setup()
            graph = talk(source)
            graph.invoke({"messages": [HumanMessage("a", id="a")]}, config("waiting"))
            wanted = graph.get_state(config("waiting"))
        bring(url, saver)
    found = talk(saver).get_state(config("waiting"))
    assert found.values == wanted.values
    assert found.interrupts == wanted.interrupts
    done = talk(saver).invoke(Command(resume="yes"), config("waiting"))
    assert done["verdict"] == "verdict yes"


# What nobody should trust.


def execute(path: Path, sql: str, values: Any = ()) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql, values)
    connection.close()


def insert(path: Path, thread_id: str, typed: tuple[str, bytes], checkpoint_id: str) -> None:
    """A row that no saver has written."""
    with old_saver(str(path)) as source:
        source.setup()
    sql = "INSERT INTO checkpoints VALUES (?, '', ?, NULL, ?, ?, '{}')"
    execute(path, sql, (thread_id, checkpoint_id, *typed))


def calling(module: str, name: str, argument: str) -> bytes:
    """MessagePack that asks its reader to import a module and call a function of it."""
    return ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((module, name, argument))))


def hostile(folder: Path) -> dict[str, tuple[str, bytes]]:
    proof = f"touch {folder / 'proof'}"
    constructor = f'{{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["{proof}"]}}'
    return {
        "call": ("msgpack", calling("os", "system", proof)),
        "call-in-json": ("json", constructor.encode()),
        "pickle": ("pickle", f"cos\nsystem\n(S'{proof}'\ntR.".encode()),
        "cut": ("msgpack", b"\x81\xa1"),
        "no-mapping": ("msgpack", ormsgpack.packb([1, 2])),
        "other-id": ("msgpack", ormsgpack.packb(dict(empty_checkpoint()))),
        "no-keys": ("msgpack", ormsgpack.packb({"id": "1"})),
        "unknown-type": ("yaml", b"a: 1"),
    }


def test_hostile_rows_are_refused_and_the_others_come(tmp_path: Path, saver: HoldfastSaver) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as source:
        say(talk(source), "talk", "a")
    threads = hostile(tmp_path)
    for thread_id, typed in threads.items():
        insert(path, thread_id, typed, "1")
    reports = bring(str(path), saver)
    assert reports.pop("talk").outcome is ImportOutcome.IMPORTED
    assert reports.keys() == threads.keys()
    for thread_id, report in reports.items():
        assert (report.outcome, report.checkpoints) == (ImportOutcome.REFUSED, 0)
        assert f"of thread {thread_id!r}" in str(report.error)
        assert isinstance(report.error, TypeNotAllowed | IntegrityError)
        assert stored(saver, thread_id) == {}
    assert isinstance(reports["call"].error, TypeNotAllowed)
    assert not (tmp_path / "proof").exists()


def test_hostile_write_stops_its_thread_only(tmp_path: Path, saver: HoldfastSaver) -> None:
    path = tmp_path / "old.db"
    with old_saver(str(path)) as source:
        say(talk(source), "talk", "a")
        say(talk(source), "fork", "a")
    data = calling("os", "system", f"touch {tmp_path / 'proof'}")
    execute(
        path, "UPDATE writes SET value = ? WHERE thread_id = 'talk' AND channel = 'turns'", (data,)
    )
    reports = bring(str(path), saver)
    assert reports["talk"].outcome is ImportOutcome.REFUSED
    assert reports["fork"].outcome is ImportOutcome.IMPORTED
    assert not (tmp_path / "proof").exists()


def test_file_that_is_no_database_of_langgraph_is_refused(tmp_path: Path) -> None:
    serde = JsonPlusSerializer()
    with pytest.raises(NotFoundError, match="there is no file"):
        open_source(str(tmp_path / "none.db"), serde)
    execute(tmp_path / "other.db", "CREATE TABLE a (b)")
    with pytest.raises(MisuseError, match="no tables of LangGraph's SqliteSaver"):
        open_source(str(tmp_path / "other.db"), serde)
    (tmp_path / "text.db").write_text("no database " * 100)
    with pytest.raises(IntegrityError, match="no whole SQLite database"):
        open_source(str(tmp_path / "text.db"), serde)


def test_database_without_the_tables_is_refused(postgres_url: str) -> None:
    with pytest.raises(MisuseError, match="no tables of LangGraph's PostgresSaver"):
        open_source(postgres_url, JsonPlusSerializer())


def test_source_is_only_read(old_sqlite: str, store: str) -> None:
    before = Path(old_sqlite).read_bytes()
    with HoldfastSaver(store) as saver:
        bring(old_sqlite, saver)
    assert Path(old_sqlite).read_bytes() == before


# In which order, and under which numbers.


def test_parents_come_first_whatever_their_ids() -> None:
    places = [
        SourcePosition("", "1", "3"),
        SourcePosition("", "2", "1"),
        SourcePosition("", "3", None),
        SourcePosition("a", "2", None),
    ]
    assert [(p.ns, p.checkpoint_id) for p in parents_first(places)] == [
        ("", "3"),
        ("", "1"),
        ("", "2"),
        ("a", "2"),
    ]


def test_parents_that_are_gone_or_go_in_circles_lose_nothing() -> None:
    places = [
        SourcePosition("", "1", "2"),
        SourcePosition("", "2", "1"),
        SourcePosition("", "3", "9"),
    ]
    assert sorted(parents_first(places)) == places


def test_writes_keep_their_numbers() -> None:
    """A task that asked, failed, was answered and ended; one that was answered and asks again."""
    writes = [
        Write("t", "p", -4, "__resume__", ["yes"]),
        Write("t", "p", -3, "__interrupt__", "asked"),
        Write("t", "p", -1, "__error__", "failed"),
        Write("t", "p", 1, "a", 1),
        Write("t", "p", 2, "b", 2),
        Write("u", "", -4, "__resume__", ["yes"]),
        Write("u", "", -3, "__interrupt__", "asked again"),
    ]
    assert list(calls_of(writes)) == [
        ("t", "p", [("__error__", "failed")]),
        ("t", "p", [("__interrupt__", "asked")]),
        ("t", "p", [("__resume__", ["yes"]), ("a", 1), ("b", 2)]),
        ("u", "", [("__resume__", ["yes"]), ("__interrupt__", "asked again")]),
    ]
