"""Graphs killed at every place where LangGraph does tools again: nothing is paid twice.

The ledger that counts shares no code with Holdfast. A call whose outcome nobody knows is asked
about, and is answered by what the ledger says.
"""

from pathlib import Path

import pytest

from tests.integrations.langgraph.killing import KILLED, Scene
from tests.processes import Child

PLACES = ["before effect", "in tool", "before writes", "after writes", "before checkpoint"]
SHAPES = ["node", "send", "agent"]


@pytest.mark.mission("S4-001", "S4-003", "S4-005")
@pytest.mark.parametrize(
    ("shape", "face"), [("node", "sync"), ("send", "async"), ("agent", "sync")]
)
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_graph_pays_once(
    children: list[Child], tmp_path: Path, shape: str, place: str, face: str
) -> None:
    store = str(tmp_path / "store.db")
    scene = Scene(children, tmp_path, store=store, shape=shape, face=face)
    assert scene.run("go", die=place) == KILLED
    assert scene.faults(scene.go_on()) == []
    assert len(scene.lines("model")) == 2


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_graph_on_postgres_pays_once(
    children: list[Child], postgres_url: str, tmp_path: Path, place: str
) -> None:
    scene = Scene(children, tmp_path, store=postgres_url, shape="agent", face="async")
    assert scene.run("go", die=place) == KILLED
    assert scene.faults(scene.go_on()) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", ["in tool", "after writes"])
def test_a_graph_killed_between_two_calls_pays_each_once(
    children: list[Child], tmp_path: Path, shape: str, place: str
) -> None:
    """One of two calls is done, the other has begun: LangGraph's ToolNode does both again."""
    scene = Scene(children, tmp_path, store=str(tmp_path / "store.db"), shape=shape, many=2)
    after = 0 if shape == "node" and place == "after writes" else 1
    assert scene.run("go", die=place, after=after) == KILLED
    assert scene.faults(scene.go_on()) == []


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("place", ["in tool", "before writes"])
def test_tools_pay_once_in_a_graph_that_is_not_durable(
    children: list[Child], tmp_path: Path, place: str, durability: str
) -> None:
    """Of durability "async" the model's reply may be lost, and is asked for again: other ids."""
    store = str(tmp_path / "store.db")
    scene = Scene(
        children, tmp_path, store=store, shape="agent", is_durable=False, durability=durability
    )
    assert scene.run("go", die=place) == KILLED
    assert scene.faults(scene.go_on()) == []


@pytest.mark.parametrize("place", ["in tool", "before writes", "after writes"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_durable_graph_without_durable_tools_loses_nothing(
    children: list[Child], tmp_path: Path, shape: str, place: str
) -> None:
    """What was stored is not done again; a call whose result was not, is, as in LangGraph."""
    store = str(tmp_path / "store.db")
    scene = Scene(children, tmp_path, store=store, shape=shape, has_tools=False)
    assert scene.run("go", die=place) == KILLED
    answer = scene.go_on()
    assert answer["messages"][-1] == scene.end()
    are_stored = place == "after writes"
    assert scene.paid(10) == (1 if are_stored else 2)
    # LangGraph stores writes in another thread: it may have called the model again by then.
    assert len(scene.lines("model")) in ({2, 3} if are_stored else {2})


def test_a_graph_killed_again_and_again_pays_once(
    children: list[Child], store: str, tmp_path: Path
) -> None:
    scene = Scene(children, tmp_path, store=store, shape="agent", many=3)
    given: str | None = "go"
    for place in (*PLACES, "after checkpoint"):
        answer = scene.run_when_free(given, die=place)
        given = None
        if asks := answer.get("asks"):
            scene.run_when_free({"resume": scene.truth(asks)}, die=place)
    assert scene.faults(scene.go_on()) == []


def test_the_next_turn_after_a_kill_pays_anew(
    children: list[Child], store: str, tmp_path: Path
) -> None:
    scene = Scene(children, tmp_path, store=store, shape="agent")
    assert scene.run("go", die="after writes") == KILLED
    scene.go_on()
    assert scene.run_when_free("and again")["next"] == []
    assert (scene.paid(10), scene.paid(20)) == (1, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_victims_pay_twice_with_langgraphs_own_saver(
    children: list[Child], tmp_path: Path, shape: str
) -> None:
    """So the kills are where they should be."""
    scene = Scene(
        children,
        tmp_path,
        store="",
        shape=shape,
        stock=True,
        is_durable=False,
        has_tools=False,
        durability="sync",
    )
    assert scene.run("go", die="in tool") == KILLED
    assert scene.go_on()["messages"][-1] == scene.end()
    assert scene.paid(10) == 2
