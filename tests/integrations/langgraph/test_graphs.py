"""Graphs of every kind, with Holdfast and with LangGraph's saver in memory: nothing differs.

What is compared is all that a user can see: results, errors, streams, states with their subgraphs,
whole histories with their parent links, and how often each node ran.
"""

from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.testing.store_suite import async_test
from tests.integrations.langgraph import zoo_nested
from tests.integrations.langgraph.savers import FACES, Saver, opened
from tests.integrations.langgraph.staging import Stage, numbered
from tests.integrations.langgraph.zoo import ACTS, Order, Point

assert zoo_nested.__name__  # its acts are registered by importing it
ALLOWED = (Point, Order)
# Of durability "async" LangGraph hands a state over once the one before it is stored. Messages that
# are changed in place meanwhile are stored so, by every saver that takes time.
UNTIMELY = ["change_messages_in_place"]
ANY_DURABILITY = [
    "invoke_and_stream_a_line",
    "resume_what_failed",
    "ask_several_times_in_one_node",
    "nest_graphs_two_deep",
    "rebuild_delta_channels",
    "travel_from_every_point",
    "say_something_else_at_every_point",
    "update_state_here_and_there",
    "fan_out_with_one_branch_that_fails",
]


async def played(name: str, saver: Saver, face: str, durability: str) -> Stage:
    calls: Counter[str] = Counter()
    stage = Stage(ACTS[name].make(saver, calls), face, durability=durability, calls=calls)
    await ACTS[name].play(stage)
    await stage.end()
    return stage


async def compare(name: str, store: str, face: str, durability: str) -> None:
    durability = "sync" if name in UNTIMELY else durability
    expected = (await played(name, InMemorySaver(), face, durability)).text().splitlines()
    with opened(store, allow=ALLOWED) as saver:
        stage = await played(name, saver, face, durability)
        assert stage.text().splitlines() == expected
        kept = [await stage.read_history(), [*saver.list(None)]]
    with opened(store, allow=ALLOWED) as other:
        again = Stage(
            ACTS[name].make(other, Counter()), face, durability=durability, calls=Counter()
        )
        assert numbered([await again.read_history(), [*other.list(None)]]) == numbered(kept)


@pytest.mark.parametrize("name", ACTS)
@async_test
async def test_a_graph_does_what_it_does_in_memory(tmp_path: Path, face: str, name: str) -> None:
    await compare(name, str(tmp_path / "store.db"), face, face)


@pytest.mark.parametrize(("name", "face"), list(zip(ACTS, cycle(FACES), strict=False)))
@async_test
async def test_a_graph_on_postgres_does_what_it_does_in_memory(
    postgres_url: str, name: str, face: str
) -> None:
    await compare(name, postgres_url, face, face)


@pytest.mark.parametrize("name", ANY_DURABILITY)
@pytest.mark.parametrize(
    ("durability", "face"), [("sync", "async"), ("async", "sync"), ("exit", "async")]
)
@async_test
async def test_a_graph_of_any_durability_does_what_it_does_in_memory(
    tmp_path: Path, name: str, durability: str, face: str
) -> None:
    await compare(name, str(tmp_path / "store.db"), face, durability)
