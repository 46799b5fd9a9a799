"""Processes that fork victims, for the tests that kill them."""

from collections.abc import Iterator

import pytest

from tests.processes import Child
from tests.workflows.killing import VICTIMS


@pytest.fixture(scope="module")
def children() -> Iterator[list[Child]]:
    """Two processes that fork victims."""
    with Child(VICTIMS) as one, Child(VICTIMS) as other:
        yield [one, other]
