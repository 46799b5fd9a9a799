"""Test suites that are run by pytest in a process of their own, to be disturbed from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LIMIT_SECONDS = 600.0
NAMES = [f"tests.suite.{name}" for name in ("time_limits", "leftovers", "recording")]
PLUGINS = f"pytest_plugins = {NAMES}\n"


class InnerSuite:
    """A folder with one file of tests; they write what they want to tell to the file `told`."""

    def __init__(self, folder: Path, tests: str) -> None:
        self._folder = folder
        self.told = folder / "told"
        self.told.touch()
        (folder / "conftest.py").write_text(PLUGINS)
        (folder / "test_inner.py").write_text(tests)

    def start(self, *options: str) -> "subprocess.Popen[str]":
        known = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TESTS_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_inner.py"],
            cwd=self._folder,
            env={**known, "PYTHONPATH": str(ROOT), "TOLD": str(self.told)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str) -> str:
        """Run the tests to their end; what pytest printed."""
        with self.start(*options) as process:
            try:
                return process.communicate(timeout=LIMIT_SECONDS)[0]
            finally:
                process.kill()

    def lines(self) -> list[str]:
        return self.told.read_text().split("\n")[:-1]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
