"""The map: which tests reach which place, and how long each takes. Built in parts, kept on disk."""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutants import probes
from tools.mutants.tree import Tree

FOLDER = Path(".mutants")
# Tests that judge the text of the source, or that only repeat others.
LEFT_OUT = ("architecture", "chaos", "docs", "mission", "suite", "typing")


@dataclass(frozen=True)
class MappedTest:
    """A test that passes on the source as it is."""

    name: str
    seconds: float
    touched: frozenset[str]


def areas(root: Path) -> list[str]:
    """The folders of tests that are mapped."""
    folders = (file.parent.name for file in (root / "tests").glob("*/__init__.py"))
    return sorted(folder for folder in folders if folder not in LEFT_OUT)


def missing(root: Path, tests: list[MappedTest]) -> list[str]:
    """The folders of which no test is in the map: what they reach is not known."""
    mapped = {test.name.split("/")[1] for test in tests}
    return [folder for folder in areas(root) if folder not in mapped]


def build(root: Path, folders: list[str], *, shard: str, workers: str) -> int:
    """Run tests with probes, and add what they reach to the map; returns how many passed."""
    (root / FOLDER).mkdir(exist_ok=True)
    with Tree.copied(root) as tree, tempfile.TemporaryDirectory(prefix="mutants-map-") as scratch:
        seen, log = Path(scratch, "seen"), Path(scratch, "log.jsonl")
        probes.install(tree, seen)
        words = ["-p", "tools.mutants.plugin", "--mutants-log", str(log), f"--shard={shard}"]
        parallel = ["-n", workers, "--dist", "worksteal"] if workers != "0" else []
        paths = [f"tests/{folder}" for folder in folders]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, *parallel, *paths],
            cwd=tree.root,
            env=tree.environment(),
        )
        return _keep(root / FOLDER / "map.jsonl", log, probes.touched(seen))


def _keep(file: Path, log: Path, touched: dict[str, set[str]]) -> int:
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    passed = [each for each in lines if each["outcome"] == "passed"]
    with file.open("a") as target:
        for each in passed:
            found = sorted(touched.get(each["test"], ()))
            target.write(json.dumps({**each, "touched": found}) + "\n")
    return len(passed)


def load(root: Path) -> list[MappedTest]:
    """The tests of the map, fastest first; of one that was mapped twice, the newer."""
    file = root / FOLDER / "map.jsonl"
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        each = json.loads(line)
        found[each["test"]] = each
    tests = [
        MappedTest(name, each["seconds"], frozenset(each["touched"]))
        for name, each in found.items()
    ]
    return sorted(tests, key=lambda test: (test.seconds, test.name))
