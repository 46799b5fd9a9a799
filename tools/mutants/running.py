"""Try one mutant: run the tests that reach it, fastest first, until one turns red."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.mapping import MappedTest
from tools.mutants.mutant import Mutant
from tools.mutants.plugin import WRONG_COPY
from tools.mutants.tree import Tree, WrongCopy

FIRST_TESTS = 30  # many mutants fall to these, and few files are imported for them
FIRST_SECONDS = 20.0
PER_BLOCK = 4  # tests of each branch of the mutant's function that are among the first
NO_TESTS = 5
START_SECONDS = 120.0  # for pytest, its imports and a database with the schema, on a busy machine
SLOWER = 10.0  # how many times the seconds of the map tests may take


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. `test` has killed it, or was the slow one."""

    verdict: str  # killed, timeout, survived, untouched
    test: str = ""
    ran: int = 0
    reaching: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """How much is done for one mutant."""

    budget_seconds: float  # tests are chosen until the map says that they take this long
    test_seconds: float  # a test that takes longer has found something


class Runner:
    """Runs tests in a tree, on a server of its own."""

    def __init__(
        self,
        tree: Tree,
        tests: Sequence[MappedTest],
        limits: Limits,
        *,
        postgres_url: str,
        killers: Mapping[str, set[str]],
    ) -> None:
        self._tree, self._tests, self._limits = tree, tests, limits
        self._url, self._killers = postgres_url, killers

    def check_green(self) -> None:
        """Raise unless a test is green without a mutant: else every mutant would be killed."""
        verdict, _ = self._run([self._tests[0]])
        if verdict.verdict != "survived":
            raise WrongCopy(f"{self._tests[0].name} fails without any mutant: {verdict}")

    def attempt(self, mutant: Mutant) -> Verdict:
        reaching = [test for test in self._tests if mutant.block in test.touched]
        first = first_tests(reaching, self._killers, mutant)
        chosen = within_budget(reaching, self._limits.budget_seconds, self._killers, mutant)
        if not chosen:
            return Verdict("untouched")
        names = {test.name for test in first}
        later = [test for test in chosen if test.name not in names]
        begun, ran = time.monotonic(), 0
        with self._tree.mutated(mutant):
            for part in (first, later):
                verdict, count = self._confirmed(part)
                ran += count
                if verdict.verdict != "survived":
                    break
        seconds = round(time.monotonic() - begun, 1)
        return Verdict(verdict.verdict, verdict.test, ran, len(reaching), seconds)

    def _confirmed(self, tests: list[MappedTest]) -> tuple[Verdict, int]:
        """Run tests; one that fails must fail again, or a busy machine would kill mutants."""
        left, ran = tests, 0
        while left:
            verdict, count = self._run(left)
            ran += count
            red = [test for test in left if test.name == verdict.test]
            if not red or self._run(red)[0].verdict != "survived":
                return verdict, ran
            left = left[left.index(red[0]) + 1 :]
        return Verdict("survived"), ran

    def _run(self, tests: list[MappedTest]) -> tuple[Verdict, int]:
        log, names = self._tree.root / "log.jsonl", self._tree.root / "tests.json"
        log.write_text("")
        names.write_text(json.dumps([test.name for test in tests]))
        files = dict.fromkeys(test.name.partition("::")[0] for test in tests)
        # No test uses these plugins, and loading all that are installed is most of the start.
        words = ["-p", "no:langsmith_plugin", "-p", "no:xdist", "-p", "no:cacheprovider"]
        words += ["-p", "tools.mutants.plugin", "-x", "-q"]
        words += ["--mutants-log", str(log), "--mutants-tests", str(names)]
        words += ["--time-limit", str(self._limits.test_seconds)]
        limit = START_SECONDS + SLOWER * sum(test.seconds for test in tests)
        status = self._pytest([*words, *files], limit)
        ran = [json.loads(line) for line in log.read_text().splitlines()]
        return _judged(status, ran), len(ran)

    def _pytest(self, words: list[str], limit: float) -> int | None:
        """How pytest ended; None if it did not in time. Its guardian ends what tests started."""
        env = {**self._tree.environment(), "HOLDFAST_TEST_POSTGRES": self._url}
        with (self._tree.root / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words],
                cwd=self._tree.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                process.kill()
                process.wait()

    @property
    def output(self) -> str:
        return Path(self._tree.root, "output.txt").read_text(errors="replace")


def first_tests(
    tests: list[MappedTest], killers: Mapping[str, set[str]], mutant: Mutant
) -> list[MappedTest]:
    """Choose a few tests that are likely to kill a mutant, fastest first.

    They are the fastest of those that reach each branch of its function, those that have killed
    mutants of the same file, and the fastest of all.
    """
    function = mutant.block.partition("#")[0] + "#"
    of_branch: dict[str, list[MappedTest]] = {}
    for test in tests:
        for block in test.touched:
            if block.startswith(function):
                of_branch.setdefault(block, []).append(test)
    likely = [test for branch in of_branch.values() for test in branch[:PER_BLOCK]]
    known = killers.get(mutant.path, set())
    likely += [test for test in tests if test.name in known][:PER_BLOCK]
    chosen: dict[str, MappedTest] = {}
    for test in (*likely, *tests):
        spent = sum(each.seconds for each in chosen.values())
        if not chosen or (len(chosen) < FIRST_TESTS and spent + test.seconds <= FIRST_SECONDS):
            chosen[test.name] = test
    return [test for test in tests if test.name in chosen]


def within_budget(
    tests: list[MappedTest], seconds: float, killers: Mapping[str, set[str]], mutant: Mutant
) -> list[MappedTest]:
    """Choose tests for about so many seconds, and return them fastest first.

    All if there is time. Else the fastest for half of it; then those that have killed mutants of
    the same file, and others by chance, which is the same for the same mutant.
    """
    known = killers.get(mutant.path, set())
    chance = random.Random(mutant.id)
    others = sorted(tests, key=lambda test: (test.name not in known, chance.random()))
    chosen: dict[str, MappedTest] = {}
    for part, limit in ((tests, seconds / 2), (others, seconds)):
        for test in part:
            spent = sum(each.seconds for each in chosen.values())
            if spent + test.seconds <= limit or not chosen:
                chosen[test.name] = test
            elif part is tests:
                break
    return [test for test in tests if test.name in chosen]


def _judged(status: int | None, ran: list[dict[str, str]]) -> Verdict:
    red = [each for each in ran if each["outcome"] not in ("passed", "skipped")]
    if status is None:
        return Verdict("timeout", "(the run as a whole)")
    if status == WRONG_COPY:
        raise WrongCopy("pytest imported another Holdfast than the copy")
    if status == os.EX_OK:
        return Verdict("survived")
    if status == NO_TESTS:
        raise WrongCopy("no test of the map was found: build it anew (make mutants-map)")
    if not red:
        return Verdict("killed", "(when it is imported)")
    return Verdict("timeout" if red[0]["outcome"] == "too slow" else "killed", red[0]["test"])
