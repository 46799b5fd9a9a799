"""A pytest plugin: no process outlives its test, and none outlives the test process.

What a fixture of a module or session starts may stay as long as that fixture; all else must be
gone when the test's fixtures are torn down. A test that leaves a process fails, and names it.
"""

import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import suppress

import pytest

from tests.suite import guardian
from tests.suite.guardian import MarkedProcesses, Process, kept_alone, kept_servers

GRACE_SECONDS = 5.0
_KEY = pytest.StashKey["Leftovers"]()


class Leftovers:
    """Tells the processes that a test has left from those that may stay."""

    def __init__(self, marked: MarkedProcesses) -> None:
        self._marked = marked
        self._roots: set[int] = set()

    def pids(self) -> set[int]:
        return {process.pid for process in self._marked.find()}

    def keep(self, pids: set[int]) -> None:
        """Let processes stay with all that they start."""
        self._roots |= pids - kept_alone

    def find(self) -> list[Process]:
        """Return the processes that are left, after a moment for those that are ending."""
        deadline = time.monotonic() + GRACE_SECONDS
        while (left := self._look()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _look(self) -> list[Process]:
        found = {process.pid: process for process in self._marked.find()}
        roots = self._roots | {pid() for pid in kept_servers}
        return [each for each in found.values() if not _may_stay(each, found, roots)]


def _may_stay(process: Process, found: dict[int, Process], roots: set[int]) -> bool:
    if process.pid in kept_alone:
        return True
    ancestor: Process | None = process
    while ancestor is not None and ancestor.pid not in kept_alone:
        if ancestor.pid in roots:
            return True
        ancestor = found.get(ancestor.parent)
    return False


def pytest_configure(config: pytest.Config) -> None:
    if sys.platform == "linux":
        config.stash[_KEY] = Leftovers(MarkedProcesses(guardian.start()))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    leftovers = request.config.stash.get(_KEY, None)
    if leftovers is None or fixturedef.scope == "function":
        return (yield)
    before = leftovers.pids()
    value = yield
    leftovers.keep(leftovers.pids() - before)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    left: list[Process] = []
    try:
        yield
    finally:
        leftovers = item.config.stash.get(_KEY, None)
        if leftovers is not None:
            left = leftovers.find()
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    if left:
        named = "\n".join(map(str, left))
        pytest.fail(f"the test left processes behind, which were killed:\n{named}", pytrace=False)
