"""A pytest plugin for both kinds of run: it times tests, chooses and orders them, and proves that
the copy is what is tested. `python -m tools.mutants` starts pytest with it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import holdfast

WRONG_COPY = 70
_SLOW = "the test took longer than"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants-log", help="append each test's outcome and seconds to this file")
    parser.addoption("--mutants-tests", help="run the tests that this file names, in its order")


def pytest_configure(config: pytest.Config) -> None:
    tree = Path(os.environ["MUTANTS_TREE"])
    found = Path(holdfast.__file__)
    if not found.is_relative_to(tree):
        pytest.exit(f"{found} would be tested, not the copy in {tree}", WRONG_COPY)
    if not hasattr(config, "workerinput"):  # the reports of workers come to the process above them
        log = Path(str(config.getoption("--mutants-log")))
        config.pluginmanager.register(_Log(log), "log")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if given := config.getoption("--mutants-tests"):
        wanted = {name: n for n, name in enumerate(json.loads(Path(given).read_text()))}
        items[:] = sorted(
            (item for item in items if item.nodeid in wanted), key=lambda item: wanted[item.nodeid]
        )


class _Log:
    """One line for each test: what became of it, and how long it took with its fixtures."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: dict[str, float] = {}
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.outcome != "passed" and self._outcomes.get(name) != "failed":
            is_slow = report.failed and _SLOW in report.longreprtext
            self._outcomes[name] = "too slow" if is_slow else report.outcome
        if report.when == "teardown":
            self._write(name)

    def _write(self, name: str) -> None:
        line: dict[str, Any] = {
            "test": name,
            "outcome": self._outcomes.pop(name, "passed"),
            "seconds": round(self._seconds.pop(name), 3),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
