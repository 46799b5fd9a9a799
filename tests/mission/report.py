"""Which rows of the mission the tests show: `python -m tests.mission.report`.

A test names the rows it shows with `@pytest.mark.mission("S0-020", …)`. A mark counts only if the
test ran and passed: `make test` and `make chaos` record which marked tests did, by commit. A test
that failed or was only skipped shows nothing. The last line printed is always the summary.
"""

import argparse
import contextlib
import io
import json
import re
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.suite.record_files import MARKED_FILE, commit_of

ROWS_FILE = Path(__file__).with_name("rows.toml")
TESTS_FOLDER = Path(__file__).parents[1]
ROOT = TESTS_FOLDER.parent
ID_PATTERN = re.compile(r"(S[0-4]-\d{3}|X-\d{3})")
KINDS = ("behaviour", "none")
FIELDS = {"says", "kind", "why", "mutant"}
LONGEST_SAYS = 160


class MissionError(Exception):
    """The rows, the marks or the collection are not in order; the message says what to mend."""


@dataclass(frozen=True)
class Row:
    """One row of the mission: what Holdfast must do, or why there is nothing to show.

    `mutant` is the change of the source that a test of the row turns red.
    """

    id: str
    says: str
    kind: str
    why: str | None = None
    mutant: str | None = None

    @property
    def seed(self) -> str:
        return self.id.partition("-")[0]


@dataclass(frozen=True)
class Marked:
    """A collected test and the row ids of its mission marks."""

    test: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """Rows sorted by whether a test shows them."""

    shown: dict[Row, list[str]]
    not_run: list[Row]
    not_shown: list[Row]
    without_behaviour: list[Row]

    def of_seed(self, seed: str) -> "Coverage":
        return Coverage(
            {row: tests for row, tests in self.shown.items() if row.seed == seed},
            [row for row in self.not_run if row.seed == seed],
            [row for row in self.not_shown if row.seed == seed],
            [row for row in self.without_behaviour if row.seed == seed],
        )

    def counts(self) -> str:
        return (
            f"{len(self.shown)} shown, {len(self.not_run)} not run, "
            f"{len(self.not_shown)} not shown, "
            f"{len(self.without_behaviour)} without behaviour"
        )


def load_rows(path: Path = ROWS_FILE) -> dict[str, Row]:
    """Read and validate the table of rows, in the order of the file."""
    return parse_rows(tomllib.loads(path.read_text(encoding="utf-8")))


def parse_rows(table: Mapping[str, Any]) -> dict[str, Row]:
    """Turn a parsed table into rows; a MissionError lists everything wrong with it."""
    problems = [f"{id}: {problem}" for id, body in table.items() for problem in _faults(id, body)]
    if problems:
        raise MissionError("\n".join(problems))
    return {id: Row(id, **body) for id, body in table.items()}


def _faults(id: str, body: Any) -> Iterator[str]:
    if not ID_PATTERN.fullmatch(id):
        yield "not a row id"
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        yield "not a table of strings"
        return
    if unknown := body.keys() - FIELDS:
        yield f"unknown fields: {', '.join(sorted(unknown))}"
    if body.get("kind") not in KINDS:
        yield f"kind is not one of {', '.join(KINDS)}"
    if not 0 < len(body.get("says", "").strip()) <= LONGEST_SAYS:
        yield f"says is missing or longer than {LONGEST_SAYS} characters"
    if ("why" in body) != (body.get("kind") == "none") or not body.get("why", "-").strip():
        yield 'why belongs to kind "none", and only there'
    if "mutant" in body and (body.get("kind") == "none" or not body["mutant"].strip()):
        yield 'mutant belongs to kind "behaviour", and says a change of the source'


class Collector:
    """A pytest plugin that notes the mission marks of the tests that will run."""

    def __init__(self) -> None:
        self.marked: list[Marked] = []
        self.failed: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marks = list(item.iter_markers("mission"))
            if marks and not _is_left_out(item):
                test = item.nodeid.partition("[")[0]
                self.marked.append(Marked(test, tuple(id for mark in marks for id in mark.args)))


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("skip") or item.get_closest_marker("xfail"):
        return True
    return any(
        any(mark.args) or bool(mark.kwargs.get("condition")) for mark in item.iter_markers("skipif")
    )


def collect_marks(folder: Path = TESTS_FOLDER) -> list[Marked]:
    """Collect the tests below a folder without running them, and return the marked ones."""
    collector = Collector()
    # `-m ""` undoes a default selection, so that slow tests count too.
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", str(folder)]
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        code = pytest.main(options, plugins=[collector])
    if code != pytest.ExitCode.OK:
        where = ", ".join(collector.failed) or f"pytest exit code {int(code)}"
        raise MissionError(f"collection failed: {where}")
    return collector.marked


def passed_tests(path: Path, commit: str) -> set[str]:
    """The marked tests that passed at a commit; one that also failed there is not among them."""
    passed: set[str] = set()
    failed: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        run = json.loads(line)
        if run["commit"] == commit:
            passed.update(run["passed"])
            failed.update(run["failed"])
    return passed - failed


def cover(rows: Mapping[str, Row], marked: Iterable[Marked], passed: Container[str]) -> Coverage:
    """Sort the rows by the marks; refuse marks that name no row, or one without behaviour."""
    tests: dict[str, list[str]] = {}
    problems: list[str] = []
    for mark in marked:
        problems += _refusals(rows, mark)
        for id in mark.ids:
            tests.setdefault(id, []).append(mark.test)
    if problems:
        raise MissionError("\n".join(dict.fromkeys(problems)))
    to_show = [row for row in rows.values() if row.kind == "behaviour"]
    proven = {
        id: [test for test in dict.fromkeys(of) if test in passed] for id, of in tests.items()
    }
    return Coverage(
        {row: proven[row.id] for row in to_show if proven.get(row.id)},
        [row for row in to_show if row.id in tests and not proven[row.id]],
        [row for row in to_show if row.id not in tests],
        [row for row in rows.values() if row.kind == "none"],
    )


def _refusals(rows: Mapping[str, Row], mark: Marked) -> Iterator[str]:
    if not mark.ids:
        yield f"{mark.test}: the mission mark names no row"
    for id in mark.ids:
        if id not in rows:
            yield f"{mark.test}: {id!r} is not a row of the mission"
        elif rows[id].kind == "none":
            yield f"{mark.test}: {id} states no behaviour that a test could show"


def as_text(coverage: Coverage, seeds: Iterable[str], *, with_shown: bool) -> Iterator[str]:
    """The report by seed: counts, rows not shown, and on request the rows shown."""
    for seed in seeds:
        part = coverage.of_seed(seed)
        yield f"{seed}: {part.counts()}"
        for row in part.not_run:
            yield f"  not run    {row.id}  {row.says}"
        for row in part.not_shown:
            yield f"  not shown  {row.id}  {row.says}"
        for row, tests in part.shown.items() if with_shown else ():
            yield f"  shown      {row.id}  {row.says}"
            yield f"                 mutant: {row.mutant or 'not named'}"
            yield from (f"                 {test}" for test in tests)


def as_json(coverage: Coverage) -> str:
    """The same as one JSON object on one line."""
    return json.dumps(
        {
            "shown": {row.id: tests for row, tests in coverage.shown.items()},
            "mutants": {row.id: row.mutant for row in coverage.shown},
            "not_run": {row.id: row.says for row in coverage.not_run},
            "not_shown": {row.id: row.says for row in coverage.not_shown},
            "without_behaviour": {row.id: row.why for row in coverage.without_behaviour},
        },
        ensure_ascii=False,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 1 when rows, marks or collection are not in order."""
    parser = argparse.ArgumentParser(prog="python -m tests.mission.report", description=__doc__)
    parser.add_argument(
        "--shown", action="store_true", help="list the rows shown, with the mutant and the tests"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object before the summary")
    options = parser.parse_args(arguments)
    try:
        rows = load_rows()
        coverage = cover(rows, collect_marks(), passed_tests(ROOT / MARKED_FILE, commit_of(ROOT)))
    except MissionError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    seeds = dict.fromkeys(row.seed for row in rows.values())
    lines = as_text(coverage, seeds, with_shown=options.shown)
    body = [as_json(coverage)] if options.json else list(lines)
    if coverage.not_run:
        sys.stderr.write("Rows are not run: no `make test` of this commit passed their tests.\n")
    sys.stdout.write("\n".join([*body, f"mission: {coverage.counts()}", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
