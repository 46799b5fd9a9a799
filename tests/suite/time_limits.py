"""A pytest plugin: a limit of time for each test, its fixtures included.

A test that takes longer fails with the stacks of all threads and asyncio tasks. If it cannot even
be interrupted, the process shows its stacks and ends; xdist reports that as a failure of the test
and starts another process for the rest. `@pytest.mark.time_limit(seconds)` gives a test more time;
`--time-limit` gives all tests more, and those with the mark in proportion.
"""

import asyncio
import faulthandler
import gc
import io
import os
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

LIMIT_SECONDS = 300.0
CHAOS_LIMIT_SECONDS = 7200.0
AGAIN_SECONDS = 10.0
LAST_SECONDS = 60.0
_MOST_TASKS = 200
_STDERR = pytest.StashKey[int]()
_DEADLINE = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"how long a test may take ({LIMIT_SECONDS:g}; with --chaos {CHAOS_LIMIT_SECONDS:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "time_limit(seconds): how long the test may take")
    config.stash[_STDERR] = os.dup(2)  # while a test runs, 2 is a file that pytest captures


def limit_of(item: pytest.Item) -> float:
    """How many seconds a test may take."""
    is_chaos = item.config.getoption("--chaos", False)
    given = item.config.getoption("--time-limit")
    limit = given or (CHAOS_LIMIT_SECONDS if is_chaos else LIMIT_SECONDS)
    mark = item.get_closest_marker("time_limit")
    return limit if mark is None else max(limit, mark.args[0] * limit / LIMIT_SECONDS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_DEADLINE] = time.monotonic() + limit_of(item)
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    with limited(item):
        return (yield)


@contextmanager
def limited(item: pytest.Item) -> Generator[None]:
    """Interrupt a phase of a test when the test's time is over, and end the process soon after.

    Only phases are limited: while pytest makes its report, an interruption would lose the report.
    """
    limit, file = limit_of(item), item.config.stash[_STDERR]
    more = min(limit, LAST_SECONDS)
    left = max(item.stash[_DEADLINE] - time.monotonic(), more)  # a late test is torn down as well
    told: list[str] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not told:
            told.append(stacks())
        elif len(told) == 1:  # the exception was swallowed: nobody else will show the stacks
            told.append("shown")
            os.write(file, f"{item.nodeid} swallows its interruption\n{told[0]}\n".encode())
        pytest.fail(f"the test took longer than {limit:g} s\n\n{told[0]}")

    before = signal.signal(signal.SIGALRM, interrupt)
    # Again and again: the exception may be raised in a task that nobody waits for.
    signal.setitimer(signal.ITIMER_REAL, left, min(limit / 4, AGAIN_SECONDS))
    faulthandler.dump_traceback_later(left + more, exit=True, file=file)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def stacks() -> str:
    """Describe what every thread and every asyncio task of this process is doing."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        threads = file.read().decode(errors="replace")
    # Also those of loops in other threads, which only the garbage collector knows.
    tasks: list[asyncio.Task[Any]] = [
        found for found in gc.get_objects() if isinstance(found, asyncio.Task) and not found.done()
    ]
    text = io.StringIO()
    for task in tasks[:_MOST_TASKS]:
        task.print_stack(file=text)
    left_out = max(0, len(tasks) - _MOST_TASKS)
    more = f"… and {left_out} tasks more\n" if left_out else ""
    return f"{threads}\n{text.getvalue()}{more}"
