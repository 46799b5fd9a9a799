"""The official conformance kit: which version, how it is installed, run, and what it said."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
WIRES = ("2025-11-25", "2026-07-28")
EXPECTED_FAILURES = Path(__file__).with_name("expected-failures.yaml")
_PROGRAMS = Path(sys.executable).parent
_DEADLINE_SECONDS = 300
_RESULT = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
_LISTED = re.compile(r"^  - (?P<scenario>\S+) \[(?P<versions>[^]]*)\]$", re.MULTILINE)


@dataclass(frozen=True)
class Score:
    """How many checks of a scenario held, of those that were made."""

    passed: int
    made: int

    def __str__(self) -> str:
        return f"{self.passed}/{self.made}"


@dataclass(frozen=True)
class Verdict:
    """What one call of the kit said, and whether all of it was expected."""

    scores: dict[str, Score]
    good: bool


class Kit:
    """The kit, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._package = folder / "node_modules" / PACKAGE

    def install(self) -> None:
        """Have the pinned version; ask npm for it when it is not there."""
        manifest = self._package / "package.json"
        if manifest.exists() and json.loads(manifest.read_text())["version"] == VERSION:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        npm = (_PROGRAMS / "npm", "install", "--prefix", self.folder, "--no-package-lock")
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        subprocess.run([*npm, *quiet, f"{PACKAGE}@{VERSION}"], check=True)

    def tasks_scenarios(self) -> list[str]:
        """Those of the tasks extension: `--suite all` on one wire leaves them out."""
        listed = _LISTED.finditer(self._call("list", "--server").stdout)
        names = [each["scenario"] for each in listed if each["versions"] == "extension"]
        return [name for name in names if name.startswith("tasks-")]

    def run(self, url: str, results: Path, *options: str) -> Verdict:
        """Run scenarios on the server at `url`; tell the kit's words on stderr."""
        expected = ("--expected-failures", str(EXPECTED_FAILURES))
        done = self._call("server", "--url", url, *options, *expected, "-o", str(results))
        if done.returncode != 0:
            print(done.stdout, done.stderr, file=sys.stderr)
        return Verdict(_scores(results), good=done.returncode == 0)

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = self._package / "dist" / "index.js"
        return subprocess.run(
            [_PROGRAMS / "node", program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_SECONDS,
        )


def node_version() -> str:
    told = subprocess.run([_PROGRAMS / "node", "--version"], capture_output=True, check=True)
    return told.stdout.decode().strip().removeprefix("v")


def _scores(results: Path) -> dict[str, Score]:
    return {
        found["scenario"]: _score(folder / "checks.json")
        for folder in sorted(results.iterdir())
        if (found := _RESULT.fullmatch(folder.name)) is not None
    }


def _score(checks: Path) -> Score:
    count = Counter(each["status"] for each in json.loads(checks.read_text(encoding="utf-8")))
    passed = count["SUCCESS"]
    return Score(passed, passed + count["FAILURE"] + count["WARNING"])
