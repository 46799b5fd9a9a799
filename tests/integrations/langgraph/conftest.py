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
    with Child(VICTIMS) as one, Child(VICTIMS) as other:
        yield [one, other]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The blocking face is played on SQLite; on PostgreSQL, where it is the same, with --chaos."""
    if config.getoption("--chaos", default=False):
        return
    items[:] = [item for item in items if not _is_played_enough(item)]


def _is_played_enough(item: pytest.Item) -> bool:
    played: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    is_here = "integrations/langgraph/" in item.nodeid and "conformance" not in item.nodeid
    return (
        is_here
        and played.get("face") == "sync"
        and "postgres" in (played.get("backend"), played.get("store"))
    )
