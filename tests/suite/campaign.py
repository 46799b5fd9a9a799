"""Run the suite in parts, and show which parts have been run for this commit.

    python -m tests.suite.campaign test [--shard 2/4] [--area "agents peers"]
    python -m tests.suite.campaign show

`make test`, `make chaos`, `make test-under-load`, `make test-python` and `make campaign` call it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.suite import guardian
from tests.suite.record_files import FILE, commit_of, is_dirty

# Two more than there are cores: a quarter of the time tests wait for processes and servers.
WORKERS = (os.cpu_count() or 2) + 2
BUSY_LOOPS = 8
BUSY = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
NO_TESTS = 5  # how pytest ends if a small area has nothing in a shard


class Target(NamedTuple):
    """What a target of the Makefile runs: folders of tests (none: all), and how."""

    areas: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    workers: int = WORKERS
    busy_loops: int = 0


TARGETS = {
    "test": Target(),
    "chaos": Target(
        areas=(
            "chaos",
            "faults",
            "histories",
            "leasing",
            "agents",
            "peers",
            "handoff",
            "recovery",
            "events",
            "integration",
            "integrations/langgraph",
            "workflows",
            "edges",
        ),
        options=("--chaos", "-v"),
        workers=0,
    ),
    "test-under-load": Target(options=("--time-limit", "1500"), busy_loops=BUSY_LOOPS),
    # What may differ between versions of Python: the language, asyncio, the drivers, processes.
    "test-python": Target(
        areas=("unit", "contract", "integration", "agents", "migration", "suite")
    ),
}
WHOLE = ("test", "chaos", "test-under-load")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.suite.campaign")
    parser.add_argument("what", choices=["show", *TARGETS])
    parser.add_argument("--shard", default="")
    parser.add_argument("--area", default="")
    parser.add_argument("--workers", default="")
    given = parser.parse_args()
    if given.what == "show":
        print("\n".join(report(Path.cwd())))
        return 0
    unknown = [folder for folder in given.area.split() if not Path("tests", folder).exists()]
    if unknown:
        parser.error(f"there is no tests/{unknown[0]}; areas: {', '.join(areas_in(Path.cwd()))}")
    target = TARGETS[given.what]
    folders = [f"tests/{folder}" for folder in given.area.split() or target.areas] or ["tests"]
    workers = given.workers or str(target.workers)
    parallel = ["-n", workers, "--dist", "worksteal"] if workers != "0" else []
    part = ["--record", given.what, f"--shard={given.shard}", *folders]
    return run(target, ["-m", "pytest", *parallel, *target.options, *part])


def run(target: Target, words: list[str]) -> int:
    """Run a part of a target; returns how pytest ended."""
    sys.stdout.flush()
    if not target.busy_loops:
        os.execv(sys.executable, [sys.executable, *words])
    if sys.platform == "linux":
        guardian.start()  # all that follows ends with this process, even if it is killed
    with busy(target.busy_loops), subprocess.Popen([sys.executable, *words]) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which is waited for
        return process.wait()


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have so many processes compete for the machine.

    In the session of the tests: Linux gives each session the same share, so that a loop in one of
    its own would get as much as all tests together.
    """
    words = [sys.executable, "-I", "-S", "-c", BUSY]
    loops = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def report(root: Path) -> list[str]:
    """Describe what was run of this commit, and what is missing."""
    commit = commit_of(root)
    found = [each for each in records(root / FILE) if each["commit"] == commit]
    changed = ", and the working tree has changes" if is_dirty(root) else ""
    lines = [f"commit {commit[:12]}{changed}"]
    for each in found:
        lines += [line_of(each), *(f"    {name}" for name in each["failures"])]
    counted = [each for each in found if not each["dirty"] and each["exit"] in (0, NO_TESTS)]
    for name in WHOLE:
        ran = [each for each in counted if each["target"] == name]
        areas = areas_of(name, root)
        missing = list(missing_parts(ran, areas))
        told = "nothing was run" if missing == areas else f"missing {', '.join(missing)}"
        lines.append(f"{name}: {told if missing else 'whole'}")
    return lines


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def line_of(each: dict[str, Any]) -> str:
    part = " ".join([*each["area"], each["shard"]]).strip() or "all"
    notes = [
        f"{each['passed']} passed, {each['failed']} failed, {each['skipped']} skipped",
        f"{each['seconds']} s at load {each['load']}",
        f"Python {each['python']}",
        each["date"],
    ]
    if each["exit"] not in (0, NO_TESTS):
        notes.append("does not count: pytest ended with " + str(each["exit"]))
    if each["dirty"]:
        notes.append("does not count: the working tree had changes")
    return f"  {each['target']} {part}: {'; '.join(notes)}"


def missing_parts(ran: Sequence[dict[str, Any]], areas: Sequence[str]) -> Iterator[str]:
    """Name the folders, or the shards of them, that no record covers."""
    for area in areas:
        shards = [each["shard"] for each in ran if _covers(each["area"], area)]
        if "" in shards:
            continue
        parts = {int(n): set[int]() for _, n in (shard.split("/") for shard in shards)}
        for k, n in (shard.split("/") for shard in shards):
            parts[int(n)].add(int(k))
        if not parts:
            yield area
        elif all(len(done) < n for n, done in parts.items()):
            n, done = max(parts.items(), key=lambda part: len(part[1]) / part[0])
            yield f"{area} ({', '.join(f'{k}/{n}' for k in range(1, n + 1) if k not in done)})"


def _covers(ran: Sequence[str], area: str) -> bool:
    """Whether folders that were run have an area in them; none stands for all."""
    return not ran or any(area == folder or area.startswith(f"{folder}/") for folder in ran)


def areas_of(name: str, root: Path) -> list[str]:
    chosen = TARGETS[name].areas
    return [area for area in areas_in(root) if _covers(chosen, area)]


def areas_in(root: Path) -> list[str]:
    """The folders with tests, below `tests`."""
    files = (root / "tests").rglob("test_*.py")
    return sorted({str(file.parent.relative_to(root / "tests")) for file in files})


if __name__ == "__main__":
    sys.exit(main())
