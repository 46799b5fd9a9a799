"""No test can hang the suite."""

import re
from pathlib import Path

import pytest

from tests.suite.inner import InnerSuite

HANGING = """
import asyncio, threading

def waits_in_a_thread(event):
    event.wait()

async def waits_in_a_task(event):
    await event.wait()

def test_hangs():
    is_over = threading.Event()
    threading.Thread(target=waits_in_a_thread, args=[is_over]).start()

    async def main():
        task = asyncio.create_task(waits_in_a_task(asyncio.Event()))
        await asyncio.sleep(1000)

    try:
        asyncio.run(main())
    finally:
        is_over.set()

def test_next(): pass
"""

SWALLOWING = """
import time

def spin():
    while True: time.sleep(0.01)

def test_hangs():
    while True:
        try: spin()
        except BaseException: pass

def test_next(): pass
"""

SLOW_TO_REPORT = """
import time

class Slow(Exception):
    def __str__(self):
        time.sleep(6)
        return "described at last"

def test_fails():
    time.sleep(2.5)
    raise Slow

def test_next(): pass
"""

HOLDING = """
import ctypes, os, signal

def test_holds_the_interpreter():
    held = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(held)

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_next(): pass
def test_second_next(): pass
"""


@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_hanging_test_fails_with_the_stacks_of_threads_and_tasks(
    tmp_path: Path, options: list[str]
) -> None:
    said = InnerSuite(tmp_path, HANGING).run("--time-limit", "3", *options)
    assert "1 failed, 1 passed" in said, said
    assert "the test took longer than 3 s" in said
    assert re.search("File .*test_inner.py.* in waits_in_a_thread", said)
    assert "waits_in_a_task() running at" in said


def test_test_that_cannot_be_interrupted_is_ended_and_the_rest_goes_on(tmp_path: Path) -> None:
    said = InnerSuite(tmp_path, HOLDING).run("--time-limit", "5", "-n", "2")
    assert "2 failed, 2 passed" in said, said
    assert re.search("worker .* crashed while running .*::test_holds_the_interpreter", said)
    assert re.search("worker .* crashed while running .*::test_is_killed", said)
    assert re.search("File .* in test_holds_the_interpreter", said), "its stack is shown"


def test_test_that_swallows_the_interruption_is_ended_too(tmp_path: Path) -> None:
    said = InnerSuite(tmp_path, SWALLOWING).run("--time-limit", "4", "-n", "1")
    assert "1 failed, 1 passed" in said, said
    assert "test_hangs swallows its interruption" in said, said
    assert re.search("File .*test_inner.py.* in test_hangs", said), "its stack is shown"


def test_report_that_takes_long_is_neither_interrupted_nor_lost(tmp_path: Path) -> None:
    said = InnerSuite(tmp_path, SLOW_TO_REPORT).run("--time-limit", "3", "-n", "1")
    assert "1 failed, 1 passed" in said, said
    assert "described at last" in said
    assert "crashed" not in said


def test_mark_gives_a_test_more_time_in_proportion_to_the_limit(tmp_path: Path) -> None:
    tests = """
import pytest
from tests.suite.time_limits import limit_of

@pytest.mark.time_limit(900)
def test_marked(request): assert limit_of(request.node) == 1500
def test_other(request): assert limit_of(request.node) == 500
"""
    said = InnerSuite(tmp_path, tests).run("--time-limit", "500")
    assert "2 passed" in said, said
