"""`make mutants`: what it changes, that tests see the change, and that nobody else ever does."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.mutants import mapping, probes, python_edits, report, results, running, sql_edits
from tools.mutants.candidates import candidates
from tools.mutants.mapping import MappedTest
from tools.mutants.mutant import WEIGHTS, Edit, Mutant, Plan, SourceFile
from tools.mutants.running import Limits, Runner, Verdict, first_tests, within_budget
from tools.mutants.tree import Tree, WrongCopy

from tests.suite.recording import Shard

ROOT = Path(__file__).parent.parent.parent

RULES = '''\
"""Rules."""


def is_due(deadline, now):
    return deadline <= now


def countdown(n):
    steps = 0
    while n > 0:
        n -= 1
        steps += 1
    return steps


def unreached(n):
    return n + 1


class Account:
    def __init__(self):
        self.total = 0

    def pay(self, cents):
        if cents < 0 and cents != -1:
            raise ValueError(cents)
        self.total += cents
        self.note(by="pay")

    def note(self, by):
        pass
'''
TESTS = """\
import subprocess, sys, os, signal

from holdfast.kernel import rules


def test_due():
    assert rules.is_due(1, 2) and not rules.is_due(3, 2)


def test_countdown():
    assert rules.countdown(3) == 3


def test_child_that_is_killed():
    code = "import os; from holdfast.kernel import rules; rules.Account().pay(1)"
    code += "; os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
"""
SQL = """\
-- name: settle_once
-- What became of a wait.
UPDATE waits
SET status = ?3, settled_by = ?4
WHERE tenant = ?1 AND wait_id = ?2 AND deadline < ?5
  AND EXISTS (SELECT 1 FROM runs WHERE run_id = ?6 AND status = 'open');

-- name: add_wait
-- A wait's row.
INSERT INTO waits (wait_id) VALUES (?1)
ON CONFLICT DO NOTHING;

-- name: lock_runs
-- The runs.
SELECT run_id FROM runs WHERE tenant = ?1 ORDER BY run_id DESC
FOR NO KEY UPDATE SKIP LOCKED;
"""


def lines_of(edits: list[Edit], source: str) -> dict[str, set[str]]:
    """The changed lines by operator."""
    file = SourceFile("x", "kernel", source.encode())
    found: dict[str, set[str]] = {}
    for edit in edits:
        found.setdefault(edit.operator, set()).add(file.mutant(edit).after)
    return found


def test_python_is_changed_in_one_place_at_a_time() -> None:
    found = lines_of(list(python_edits.edits("rules.py", RULES.encode())), RULES)
    assert found["swap a comparison"] == {
        "return deadline < now",
        "while n >= 0:",
        "if cents <= 0 and cents != -1:",
        "if cents < 0 and cents == -1:",
    }
    assert found["drop a condition"] == {"if False:", "if cents < 0:", "if cents != -1:"}
    assert found["skip a write"] == {"pass"}
    assert found["skip a call"] == {"pass"}
    assert found["skip a raise"] == {"pass"}
    assert found["other result"] == {"return None"}
    assert found["return early"] == {"return"}


@pytest.mark.parametrize(
    ("source", "operator", "after"),
    [
        ("with self._lock:\n  x()", "drop a lock", "if True:"),
        ("async with self.lock(name):\n  x()", "drop a lock", "if True:"),
        ("return Row(run=run, at=1)", "blank a field", "return Row(run=None, at=1)"),
        ("return True", "other result", "return False"),
        ("del self.held[x]", "skip a write", "pass"),
        ("self.rows[x] = 1", "skip a write", "pass"),
        ("return [x for x in y if x]", "drop a condition", "return [x for x in y if True]"),
        ("c.execute('PRAGMA synchronous = EXTRA')", "weaken SQL", "OFF"),
        ("c.execute('BEGIN IMMEDIATE')", "weaken SQL", "c.execute('BEGIN')"),
    ],
)
def test_mistake_is_made(source: str, operator: str, after: str) -> None:
    indented = "\n".join(f"    {line}" for line in source.splitlines())
    text = f"async def f(self, x, y):\n    y()\n{indented}\n"
    found = lines_of(list(python_edits.edits("x.py", text.encode())), text)
    assert any(after in line for line in found[operator]), found


@pytest.mark.parametrize("source", ["log.info('x')", "faults.point('x')", "'text'", "x: int"])
def test_what_only_tells_is_left_alone(source: str) -> None:
    text = f"def f():\n    {source}\n"
    assert not list(python_edits.edits("x.py", text.encode()))


def test_sql_is_weakened_and_keeps_its_parameters() -> None:
    found = lines_of(list(sql_edits.edits("sqlite", SQL.encode())), SQL)
    first = "WHERE tenant = ?1 AND wait_id = ?2 AND deadline < ?5"
    assert {line for line in found["drop a condition"] if "wait_id" in line} == {
        first.replace("tenant = ?1", "(tenant = ?1 OR TRUE)"),
        first.replace("wait_id = ?2", "(wait_id = ?2 OR TRUE)"),
        first.replace("deadline < ?5", "(deadline < ?5 OR TRUE)"),
    }
    assert any("(run_id = ?6 OR TRUE)" in line for line in found["drop a condition"])
    assert any("(EXISTS (SELECT" in line for line in found["drop a condition"])
    assert found["swap a comparison"] == {first.replace("<", "<=")}
    assert found["skip a write"] == {
        "SET status = CASE WHEN TRUE THEN waits.status ELSE ?3 END, settled_by = ?4",
        "SET status = ?3, settled_by = CASE WHEN TRUE THEN waits.settled_by ELSE ?4 END",
    }
    assert found["drop ON CONFLICT"] == {"INSERT INTO waits (wait_id) VALUES (?1);"}
    assert (
        len(found["drop a lock"]) == len(found["wait for locks"]) == len(found["drop ORDER"]) == 1
    )


def test_every_mutant_of_the_kernel_is_python_and_has_its_own_name() -> None:
    found = candidates(ROOT)
    assert len({each.id for each in found}) == len(found)
    assert Counter(each.area for each in found).keys() == WEIGHTS.keys()
    sources: dict[str, bytes] = {}
    for each in (each for each in found if each.area == "kernel"):
        path = ROOT / "src" / "holdfast" / each.path
        source = sources.setdefault(each.path, path.read_bytes())
        compile(each.apply(source), each.path, "exec")
        assert each.apply(source) != source


def test_name_of_a_mutant_stays_when_lines_are_added_elsewhere() -> None:
    def names(source: str) -> set[str]:
        file = SourceFile("rules.py", "kernel", source.encode())
        return {file.mutant(edit).id for edit in python_edits.edits("rules.py", source.encode())}

    longer = RULES.replace("class Account", "def more(n):\n    return n < 5\n\n\nclass Account")
    assert names(RULES) < names(longer)


def made_up(count: int) -> list[Mutant]:
    kinds = ("skip a write", "drop a lock", "skip a call")
    return [
        Mutant(f"{area}{n}", area, f"{area}/x.py", n, kinds[n % 7 % 3], "b", "x", "y", 0, 0, "")
        for area in WEIGHTS
        for n in range(count)
    ]


def test_plan_is_repeatable_and_every_part_of_it_is_spread() -> None:
    found = made_up(200)
    order = Plan.default(12).order(found)
    assert order == Plan.default(12).order(found[::-1])
    assert order != Plan.default(13).order(found)
    for count in (42, 420):
        areas = Counter(each.area for each in order[:count])
        assert all(abs(areas[area] - WEIGHTS[area] * count / 420) <= 1 for area in WEIGHTS)
    kinds = Counter(each.operator for each in order[:210] if each.area == "stores")
    assert max(kinds.values()) - min(kinds.values()) <= 1


def test_shards_are_the_whole() -> None:
    found = made_up(50)
    parts = [{each.id for each in found if Shard(k, 3).has(each.id)} for k in (1, 2, 3)]
    assert set.union(*parts) == {each.id for each in found}
    assert sum(map(len, parts)) == len(found)


def test_other_copy_than_the_one_that_is_mutated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongCopy, match="not the copy"):
        Tree(tmp_path).check()


def mapped(**seconds: float) -> list[mapping.MappedTest]:
    tests = [mapping.MappedTest(name, each, frozenset()) for name, each in seconds.items()]
    return sorted(tests, key=lambda test: test.seconds)


def test_fastest_tests_come_first_and_known_killers_are_among_them() -> None:
    tests = mapped(**{f"t{n:03}": 1 + n / 1000 for n in range(100)})
    mutant = made_up(1)[0]
    chosen = within_budget(tests, 20, {mutant.path: {"t090"}}, mutant)
    assert chosen == sorted(chosen, key=lambda test: test.seconds)
    names = [test.name for test in chosen]
    assert names[:9] == [f"t{n:03}" for n in range(9)]
    assert "t090" in names
    assert 18 <= sum(test.seconds for test in chosen) <= 20
    assert within_budget(tests, 200, {}, mutant) == tests
    assert within_budget(mapped(slow=500), 20, {}, mutant) == mapped(slow=500)


def test_tests_of_each_branch_are_among_the_first() -> None:
    mutant = dataclasses.replace(made_up(1)[0], block="kernel/a.py:f#0")
    common = frozenset({"kernel/a.py:f#0", "kernel/a.py:g#1"})
    rare = common | {"kernel/a.py:f#3"}
    tests = [MappedTest(f"t{n:03}", 0.1 + n / 1000, common) for n in range(100)]
    tests += [MappedTest("branch", 1, rare), MappedTest("killer", 2, common)]
    tests += [MappedTest("other", 3, common)]
    names = [each.name for each in first_tests(tests, {mutant.path: {"killer"}}, mutant)]
    assert names == [*(f"t{n:03}" for n in range(running.FIRST_TESTS - 2)), "branch", "killer"]
    slow = [MappedTest("slow", 500, common)]
    assert first_tests(slow, {}, mutant) == slow
    assert first_tests([], {}, mutant) == []


@pytest.mark.parametrize(
    ("status", "outcomes", "verdict"),
    [
        (0, ["passed"], Verdict("survived")),
        (1, ["passed", "failed"], Verdict("killed", "t1")),
        (1, ["too slow"], Verdict("timeout", "t0")),
        (None, ["passed"], Verdict("timeout", "(the run as a whole)")),
        (4, [], Verdict("killed", "(when it is imported)")),
    ],
)
def test_verdict(status: int | None, outcomes: list[str], verdict: Verdict) -> None:
    ran = [{"test": f"t{n}", "outcome": each} for n, each in enumerate(outcomes)]
    assert running._judged(status, ran) == verdict


@pytest.mark.parametrize("status", [running.NO_TESTS, running.WRONG_COPY])
def test_run_that_says_nothing_is_no_verdict(status: int) -> None:
    with pytest.raises(WrongCopy):
        running._judged(status, [])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tree with one module of rules and its tests."""
    root = tmp_path / "small"
    shutil.copytree(ROOT / "tools", root / "tools")
    shutil.copytree(ROOT / "tests" / "suite", root / "tests" / "suite")
    shutil.copy2(ROOT / "pyproject.toml", root)
    plugins = [f"tests.suite.{name}" for name in ("time_limits", "leftovers", "recording")]
    for path, text in {
        "src/holdfast/__init__.py": "",
        "src/holdfast/kernel/__init__.py": "",
        "src/holdfast/kernel/rules.py": RULES,
        "src/holdfast/stores/sqlfiles.py": "def load_queries(package):\n    return {}\n",
        "tests/__init__.py": "",
        "tests/conftest.py": f"pytest_plugins = {plugins}\n",
        "tests/unit/__init__.py": "",
        "tests/unit/test_rules.py": TESTS,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in (root / "src").rglob("*.py")}


def test_mutants_are_found_by_the_tests_that_reach_them(small: Path) -> None:
    before = contents(small)
    assert mapping.build(small, ["unit"], shard="", workers="0") == 3
    tests = mapping.load(small)
    found = {each.after: each for each in candidates(small)}
    with Tree.copied(small) as tree:
        limits = Limits(budget_seconds=60, test_seconds=3)
        runner = Runner(tree, tests, limits, postgres_url="", killers={})
        runner.check_green()

        def verdict_of(mutant: Mutant) -> tuple[str, str]:
            became = runner.attempt(mutant)
            return became.verdict, became.test.partition("::")[2]

        is_due = [each for each in candidates(small) if each.block.endswith(":is_due#0")]
        never = next(each for each in is_due if each.after == "return None")
        assert verdict_of(never) == ("killed", "test_due")
        assert verdict_of(found["return deadline < now"]) == ("survived", "")
        endless = [each for each in candidates(small) if each.before == "n -= 1"]
        assert verdict_of(endless[0]) == ("timeout", "test_countdown")
        assert verdict_of(found["if cents < 0:"]) == ("survived", "")  # in the child that is killed
        unreached = next(each for each in candidates(small) if "unreached" in each.block)
        assert verdict_of(unreached) == ("untouched", "")
        copied = tree.root / "src" / "holdfast" / "kernel" / "rules.py"
        assert copied.read_text() == RULES
    assert not tree.root.exists()
    assert contents(small) == before


def test_test_that_fails_once_only_kills_nothing(small: Path) -> None:
    once = small / "once"
    flaky = f"""
import pathlib
from holdfast.kernel import rules

def test_flaky():
    assert rules.is_due(1, 2)
    marker = pathlib.Path({str(once)!r})
    if marker.exists():
        marker.unlink()
        assert False
"""
    (small / "tests" / "unit" / "test_flaky.py").write_text(flaky)
    name = "tests/unit/test_flaky.py::test_flaky"
    block = next(each for each in candidates(small) if each.after == "return deadline < now")
    tests = [mapping.MappedTest(name, 0.1, frozenset({block.block}))]
    with Tree.copied(small) as tree:
        runner = Runner(tree, tests, Limits(60, 3), postgres_url="", killers={})
        once.touch()
        assert runner.attempt(block).verdict == "survived"
    assert not once.exists()


def test_mutant_of_the_same_size_in_the_same_second_is_seen(small: Path) -> None:
    mutants = [each for each in candidates(small) if each.operator == "swap a comparison"]
    mutant = next(each for each in mutants if each.after == "if cents < 0 and cents == -1:")
    asked = "from holdfast.kernel.rules import Account; Account().pay(-2)"

    def is_refused() -> bool:
        done = subprocess.run(
            [sys.executable, "-c", asked], env=tree.environment(), capture_output=True
        )
        return b"ValueError" in done.stderr

    with Tree.copied(small) as tree:
        assert is_refused()
        with tree.mutated(mutant):
            assert not is_refused()
        assert is_refused()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_copy_is_gone_after_an_interruption(small: Path) -> None:
    mutant = candidates(small)[0]
    with ExitStack() as stack:
        tree = stack.enter_context(Tree.copied(small))
        stack.enter_context(tree.mutated(mutant))
        stack.enter_context(pytest.raises(KeyboardInterrupt))
        stack.callback(interrupt)
    assert not tree.root.exists()
    assert (small / "src" / "holdfast" / mutant.path).read_text() == RULES


def test_probes_keep_docstrings_and_forget_what_is_cached() -> None:
    names: list[str] = []
    source = '"""Doc."""\nfrom __future__ import annotations\n'
    source += '@cache\ndef f():\n    """Of f."""\n    g()\n'
    text = probes.probed("stores/postgres/queries.py", source, names)
    assert names == ["stores/postgres/queries.py:f#0"]
    assert text.index("Doc") < text.index("__future__") < text.index("_touch_")
    assert text.index("Of f") < text.index("_touch_(0)") < text.index("g()")
    assert "cache" not in text


def test_newest_result_counts_and_explained_survivors_are_no_gap(tmp_path: Path) -> None:
    (tmp_path / "tools" / "mutants").mkdir(parents=True)
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "src" / "holdfast" / "kernel").mkdir(parents=True)
    (tmp_path / "src" / "holdfast" / "kernel" / "rules.py").write_text(RULES)
    first, second, third, *_ = candidates(tmp_path)
    (tmp_path / results.EQUIVALENT).write_text(
        f'[[equivalent]]\nid = "{third.id}"\nchange = "c"\nreason = "nobody sees it"\n'
    )
    survived, killed = Verdict("survived", ran=1, reaching=2), Verdict("killed", "t")
    results.add(tmp_path, first, survived, commit="c1", seed=1)
    results.add(tmp_path, second, survived, commit="c1", seed=1)
    results.add(tmp_path, third, survived, commit="c1", seed=1)
    results.add(tmp_path, first, killed, commit="c2", seed=1)
    text = report.write(tmp_path)
    assert "| `kernel` | 3 | 1 | 0 | 1 | 0 | 1 | 50 % |" in text
    survivors, explained = text.partition("## Explained")[::2]
    assert second.id in survivors
    assert first.id not in text
    assert f"{third.id}" in explained
    assert "nobody sees it" in explained
    assert results.killers(tmp_path) == {"kernel/rules.py": {"t"}}


def test_every_explained_mutant_exists_and_has_a_reason() -> None:
    exist = {each.id for each in candidates(ROOT)}
    explained = results.explained(ROOT)
    assert explained.keys() <= exist
    assert all(len(reason.split()) > 5 for reason in explained.values())


def test_results_are_of_known_kinds() -> None:
    verdicts = Counter(each["verdict"] for each in results.load(ROOT).values())
    assert verdicts.keys() <= {"killed", "timeout", "survived", "untouched"}
    assert json.dumps(verdicts)
    assert os.access(ROOT / report.PAGE, os.R_OK)
