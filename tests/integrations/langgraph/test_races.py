"""Several processes on one thread: one of them goes on, the others are told, nothing is mixed."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.backends import Backend
from tests.integrations.langgraph.killing import KILLED, Scene
from tests.integrations.langgraph.making import id_of
from tests.integrations.langgraph.savers import opened
from tests.processes import Child


@pytest.fixture
def scene(children: list[Child], backend: Backend, tmp_path: Path) -> Scene:
    face = "sync" if backend.name == "sqlite" else "async"
    return Scene(children, tmp_path, store=backend.url, shape="gated", face=face)


def history(store: str) -> list[Any]:
    with opened(store) as saver:
        return [*saver.list({"configurable": {"thread_id": "t"}})]


def parents(found: list[Any]) -> list[str]:
    return [id_of(each.parent_config) for each in found if each.parent_config]


def winner_of(answers: list[dict[str, Any]], error: str) -> dict[str, Any]:
    """The one that went on, when the other got the error."""
    assert sorted(answer.get("error", "") for answer in answers) == ["", error], answers
    return next(answer for answer in answers if "error" not in answer)


def test_one_of_two_inputs_runs_and_the_other_is_told_that_the_thread_is_busy(
    scene: Scene,
) -> None:
    scene.tell("first", child=0)
    scene.wait_until("entered", 1)
    busy = scene.run("second", child=1)
    assert busy["error"] == "ThreadBusy"
    assert "t" in busy["message"]
    scene.open_gate()
    done = scene.answer(0)
    assert done["messages"] == ["first", "first entered", "left"]
    assert (scene.paid(1), scene.paid(2)) == (1, 1)
    assert len(history(scene.order.store)) == 4
    again = scene.run("second", child=1)
    assert again["messages"][3:] == ["second", "second entered", "left"]


@pytest.mark.mission("S3-197")
def test_one_of_two_inputs_on_the_same_state_is_refused(scene: Scene) -> None:
    """Without `durable` nobody holds the thread: whoever stores second is told, before it runs."""
    scene.open_gate()
    for child in (0, 1):
        scene.tell(f"input {child}", child=child, is_durable=False, durability="sync", meet="read")
    scene.wait_until("at-read", 2)
    scene.open_gate("read")
    answers = [scene.answer(child) for child in (0, 1)]
    winner = winner_of(answers, "CheckpointConflict")
    name = winner["messages"][0]
    assert winner["messages"] == [name, f"{name} entered", "left"]
    found = history(scene.order.store)
    assert len(found) == 4
    assert len(set(parents(found))) == 3
    (refused,) = {"input 0", "input 1"} - {name}
    assert refused not in str(found)
    assert (scene.paid(1), scene.paid(2)) == (1, 1)


def test_two_inputs_on_the_same_state_fork_if_that_is_wanted(scene: Scene) -> None:
    scene.open_gate()
    scene.run("before", is_durable=False)
    changes: dict[str, Any] = {"is_durable": False, "durability": "sync", "on_conflict": "fork"}
    for child in (0, 1):
        scene.tell(f"input {child}", child=child, meet="read", **changes)
    scene.wait_until("at-read", 2)
    scene.open_gate("read")
    answers = [scene.answer(child) for child in (0, 1)]
    assert [answer.get("error") for answer in answers] == [None, None]
    found = history(scene.order.store)
    assert len(found) == 12
    both = parents(found)
    (forked,) = {each for each in both if both.count(each) > 1}
    ends = [each for each in found if id_of(each) not in both]
    texts = [[m.content for m in each.checkpoint["channel_values"]["messages"]] for each in ends]
    assert sorted(texts) == [
        ["before", "before entered", "left", f"input {n}", f"input {n} entered", "left"]
        for n in (0, 1)
    ]
    assert forked in [id_of(each) for each in found]


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "plain"])
def test_one_of_two_answers_to_a_question_counts(scene: Scene, is_durable: bool) -> None:
    """Both have read the question; one is stopped before anything is paid a second time."""
    changes: dict[str, Any] = {
        "shape": "asking",
        "is_durable": is_durable,
        "durability": None if is_durable else "sync",
    }
    asked = scene.run("go", **changes)
    assert list(asked["asks"].values()) == ["pay?"]
    for child in (0, 1):
        scene.tell({"resume": f"of {child}"}, child=child, **changes)
    if is_durable:
        scene.wait_until("answered", 1)
        loser = scene.children[1 - scene_holder(scene)].answer()
        scene.open_gate()
        answers = [loser, scene.children[scene_holder(scene)].answer()]
    else:
        scene.wait_until("answered", 2)
        scene.open_gate()
        answers = [scene.answer(0), scene.answer(1)]
    winner = winner_of(answers, "ThreadBusy" if is_durable else "CheckpointConflict")
    assert scene.paid(1) == 1
    assert winner["messages"][0] == "go"
    answer = winner["messages"][1]
    assert winner["messages"] == ["go", answer, f"paid, as of {answer}"]
    found = history(scene.order.store)
    assert len(parents(found)) == len(set(parents(found)))


def scene_holder(scene: Scene) -> int:
    """The child whose fork came to the question first."""
    (pid, *_) = scene.wait_until("answered", 1)
    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return [child.process.pid for child in scene.children].index(parent)


def test_a_thread_is_free_again_when_its_holder_was_killed(scene: Scene) -> None:
    scene.tell("first", child=0)
    scene.wait_until("entered", 1)
    assert scene.run("second", child=1)["error"] == "ThreadBusy"
    scene.open_gate(say="SIGKILL")
    assert scene.answer(0) == KILLED
    scene.open_gate()
    answer = scene.run_when_free()
    assert answer["messages"] == ["first", "first entered", "left"]
    assert (scene.paid(1), scene.paid(2)) == (1, 1)


def wait_until_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)


def is_locked(store: str) -> bool:
    """Whether somebody is in the middle of a transaction that lets nobody else write."""
    if store.startswith("postgres"):
        return False
    with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


def test_a_holder_that_was_away_too_long_stores_nothing_more(scene: Scene) -> None:
    """It is stopped in its node until another has taken the thread and gone on."""
    scene.tell("first", child=0)
    (pid,) = scene.wait_until("entered", 1)
    scene.open_gate(say="SIGSTOP")
    wait_until_stopped(pid)
    while is_locked(scene.order.store):  # it was stopped while it renewed its lease
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
    scene.open_gate()
    try:
        answer = scene.run_when_free(child=1)
        before = history(scene.order.store)
    finally:
        os.kill(pid, signal.SIGCONT)
        woken = scene.answer(0)
    assert answer.get("messages") == ["first", "first entered", "left"], answer
    assert "error" in woken, woken
    assert history(scene.order.store) == before
    assert scene.paid(2) == 1


def test_updates_by_hand_race_with_a_run(scene: Scene) -> None:
    """A state changed by somebody else while a node runs: the run is told when it stores."""
    scene.tell("first", child=0, is_durable=False, durability="sync")
    scene.wait_until("entered", 1)
    with opened(scene.order.store) as saver:
        head = next(saver.list({"configurable": {"thread_id": "t"}}))
        by_hand = {**head.checkpoint, "id": "1fffffff-0000-6000-8000-000000000000"}
        saver.put(head.config, by_hand, {"source": "loop", "step": 9, "parents": {}}, {})
    scene.open_gate()
    assert scene.answer(0)["error"] == "CheckpointConflict"
    assert scene.paid(2) == 0
    assert id_of(history(scene.order.store)[0]) == by_hand["id"]
