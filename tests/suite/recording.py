"""A pytest plugin: a part of the suite (`--shard 2/4`), and a record of what was run.

`--record TARGET` appends one line of JSON to `.campaign.jsonl` beside the configuration of pytest:
the commit, the part, how many tests passed. `tests.suite.campaign` reads it. Which tests with a
mission mark passed or failed goes to `.marked.jsonl`, which `tests.mission.report` reads.
"""

import datetime
import hashlib
import os
import platform
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.suite.record_files import FILE, MARKED_FILE, append, commit_of, is_dirty

_MOST_NAMED = 50


class Shard(NamedTuple):
    """The k-th of n parts; a test is in one of them, whichever other tests there are."""

    k: int
    n: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= shard.k <= shard.n:
            raise pytest.UsageError(f"--shard {text!r}: expected k/n with 1 <= k <= n, such as 2/4")
        return shard

    def has(self, node_id: str) -> bool:
        digest = hashlib.sha256(node_id.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.n == self.k - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="", metavar="K/N", help="run the K-th of N parts")
    parser.addoption("--record", metavar="TARGET", help=f"append what was run to {FILE}")


def pytest_configure(config: pytest.Config) -> None:
    if given := config.getoption("--shard"):
        Shard.parse(given)
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config), "recorder")


@pytest.hookimpl(trylast=True)  # after repetitions are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if given := config.getoption("--shard"):
        shard = Shard.parse(given)
        left_out = [item for item in items if not shard.has(item.nodeid)]
        items[:] = [item for item in items if shard.has(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._commit = commit_of(self._root)
        self._is_dirty = is_dirty(self._root)
        self._begun = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        config = session.config
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        stats: dict[str, list[Any]] = reporter.stats
        failed = stats.get("failed", []) + stats.get("error", [])
        record = {
            "commit": self._commit,
            "dirty": self._is_dirty or is_dirty(self._root),
            "target": config.getoption("--record"),
            "shard": config.getoption("--shard"),
            "area": areas_of(config),
            "passed": len(stats.get("passed", [])),
            "failed": len(failed),
            "skipped": len(stats.get("skipped", [])),
            "exit": int(exitstatus),
            "seconds": round(time.monotonic() - self._begun),
            "load": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "failures": sorted({report.nodeid for report in failed})[:_MOST_NAMED],
        }
        append(self._root / FILE, record)
        marked = {"passed": _marked(stats.get("passed", [])), "failed": _marked(failed)}
        if not record["dirty"]:
            append(self._root / MARKED_FILE, {"commit": self._commit} | marked)


def _marked(reports: list[Any]) -> list[str]:
    """The tests of some reports that have a mission mark, without their parameters."""
    marked = [each for each in reports if "mission" in getattr(each, "keywords", ())]
    return sorted({each.nodeid.partition("[")[0] for each in marked})


def areas_of(config: pytest.Config) -> list[str]:
    """The folders that were asked for, without `tests`; none if all were."""
    top = config.rootpath / "tests"
    asked = [Path(config.invocation_params.dir, arg) for arg in config.args]
    return [] if top in asked else sorted(str(path.relative_to(top)) for path in asked)
