"""Savers on each kind of store, by each of their faces."""

from collections.abc import Iterator

import pytest

from tests.integrations.langgraph.killing import VICTIMS
from tests.integrations.langgraph.savers import FACES, MEMORIES, Saver, face_of, opened
from tests.processes import Child


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def no_memories() -> None:
    MEMORIES.clear()


@pytest.fixture
def saver(store: str, face: str) -> Iterator[Saver]:
    """A saver on an empty store; its async methods are those of each face in turn."""
    with opened(store) as made:
        yield face_of(made, face)


@pytest.fixture(scope="module")
def children() -> Iterator[list[Child]]:
    """Two processes that fork victims."""
    with Child(VICTIMS, kind="langgraph") as one, Child(VICTIMS, kind="langgraph") as other:
        yield [one, other]


ON_SQLITE = ("test_durable_graphs", "test_importing", "test_interrupts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What differs by neither face nor store is played on PostgreSQL by `make chaos` only.

    There the blocking face calls the same methods, and a durable graph or an import what
    test_saver, test_durable_tools and the kit play on both stores.
    """
    if not config.getoption("--chaos"):
        items[:] = [item for item in items if not _is_played_enough(item)]


def _is_played_enough(item: pytest.Item) -> bool:
    _, _, name = item.nodeid.partition("integrations/langgraph/")
    if not name or name.startswith("test_conformance"):
        return False
    played: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    is_said_before = played.get("face") == "sync" or name.startswith(ON_SQLITE)
    return is_said_before and played.get("backend") == "postgres"
