"""The table of mission rows is complete and valid; the report refuses marks it does not know."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mission import report
from tests.mission.report import Marked, MissionError, Row
from tests.suite.inner import PLUGINS

ROOT = Path(__file__).parents[2]
LIST = ROOT.parent / "shared" / "mission-rows.md"
TOTALS = {"S0": 116, "S1": 86, "S2": 33, "S3": 205, "S4": 80, "X": 14}

SHOWN = Row("S0-020", "A reply counts once.", "behaviour", mutant="drop the claim")
OPEN = Row("X-001", "The journal stays.", "behaviour")
PROBLEM = Row("S0-001", "Replicas were impossible.", "none", "problem statement")
ROWS = {row.id: row for row in (PROBLEM, SHOWN, OPEN)}

SAMPLE = """
import pytest

@pytest.mark.mission("S0-020", "S0-021")
@pytest.mark.parametrize("n", [1, 2])
def test_many(n): ...

@pytest.mark.mission("S0-022")
class TestGroup:
    @pytest.mark.mission("S0-023")
    def test_inner(self): ...

@pytest.mark.skip
@pytest.mark.mission("S0-024")
def test_skipped(): ...

@pytest.mark.xfail
@pytest.mark.mission("S0-025")
def test_failing(): ...

@pytest.mark.skipif(True, reason="here")
@pytest.mark.mission("S0-026")
def test_skipped_here(): ...

@pytest.mark.skipif(False, reason="elsewhere")
@pytest.mark.mission("S0-027")
def test_skipped_elsewhere(): ...

def test_unmarked(): ...
"""


def listed_ids() -> list[str]:
    return re.findall(r"^\| ((?:S[0-4]|X)-\d{3}) \|", LIST.read_text(encoding="utf-8"), re.M)


def collect_elsewhere(folder: Path) -> subprocess.CompletedProcess[str]:
    """Collect in a process of its own: pytest inside pytest would share state."""
    # As strict as the suite, and with its plugins.
    ini = "[pytest]\nfilterwarnings = error\nmarkers = mission\n"
    (folder / "pytest.ini").write_text(ini, encoding="utf-8")
    (folder / "conftest.py").write_text(PLUGINS, encoding="utf-8")
    code = (
        "import json, sys; from pathlib import Path; from tests.mission import report; "
        "marked = report.collect_marks(Path(sys.argv[1])); "
        "sys.stdout.write(json.dumps([[mark.test, mark.ids] for mark in marked]))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def missing_names(mutant: str) -> list[str]:
    """The file of a mutant and the names in it that are not there any more."""
    file, *names = re.match(r"(\S+?\.\w+)(?: ([A-Za-z_.]+):)?", mutant).groups("")  # type: ignore[union-attr]
    found = [*(ROOT / "src" / "holdfast").glob(file), *ROOT.glob(file)]
    if not found:
        return [file]
    text = "".join(each.read_text(encoding="utf-8") for each in found if each.is_file())
    parts = [part for name in names for part in name.split(".") if part]
    return [part for part in parts if not re.search(rf"\b{part}\b", text)]


def test_every_mutant_names_code_that_exists() -> None:
    mutants = {row.id: row.mutant for row in report.load_rows().values() if row.mutant}
    assert {row: gone for row, text in mutants.items() if (gone := missing_names(text))} == {}
    assert missing_names("engine/waits.py nobody: return") == ["nobody"]
    assert missing_names("engine/nothing.py settle: return") == ["engine/nothing.py"]


def test_table_holds_exactly_the_listed_rows_in_order() -> None:
    rows = report.load_rows()
    if LIST.exists():
        assert list(rows) == listed_ids()
    else:
        assert Counter(row.seed for row in rows.values()) == TOTALS


def test_every_wording_is_said_once() -> None:
    wordings = Counter(row.says for row in report.load_rows().values())
    assert [wording for wording, times in wordings.items() if times > 1] == []


def test_every_decision_between_seeds_is_behaviour() -> None:
    decisions = [row for row in report.load_rows().values() if row.seed == "X"]
    assert {row.kind for row in decisions} == {"behaviour"}


@pytest.mark.parametrize(
    ("id", "body"),
    [
        ("S5-001", {"says": "x", "kind": "behaviour"}),
        ("S0-1", {"says": "x", "kind": "behaviour"}),
        ("S0-001", "x"),
        ("S0-001", {"says": 1, "kind": "behaviour"}),
        ("S0-001", {"kind": "behaviour"}),
        ("S0-001", {"says": "x" * 161, "kind": "behaviour"}),
        ("S0-001", {"says": "x"}),
        ("S0-001", {"says": "x", "kind": "maybe"}),
        ("S0-001", {"says": "x", "kind": "none"}),
        ("S0-001", {"says": "x", "kind": "none", "why": ""}),
        ("S0-001", {"says": "x", "kind": "behaviour", "why": "x"}),
        ("S0-001", {"says": "x", "kind": "behaviour", "note": "x"}),
        ("S0-001", {"says": "x", "kind": "behaviour", "mutant": ""}),
        ("S0-001", {"says": "x", "kind": "none", "why": "x", "mutant": "x"}),
    ],
)
def test_invalid_row_is_refused_by_its_id(id: str, body: object) -> None:
    with pytest.raises(MissionError, match=f"^{id}: "):
        report.parse_rows({id: body})


def test_rows_are_sorted_by_what_the_tests_show() -> None:
    twice = [Marked("test_a", ("S0-020",)), Marked("test_a", ("S0-020",))]
    marked = [*twice, Marked("test_b", ("S0-020",)), Marked("test_c", ("S0-020",))]
    coverage = report.cover(ROWS, marked, {"test_a", "test_b"})
    assert coverage.shown == {SHOWN: ["test_a", "test_b"]}
    assert coverage.not_run == []
    assert coverage.not_shown == [OPEN]
    assert coverage.without_behaviour == [PROBLEM]


def test_mark_of_a_test_that_did_not_pass_does_not_count() -> None:
    coverage = report.cover(ROWS, [Marked("test_a", ("S0-020",))], {"test_b"})
    assert (coverage.shown, coverage.not_run) == ({}, [SHOWN])


def test_tests_count_that_passed_at_this_commit_and_did_not_fail_there(tmp_path: Path) -> None:
    runs = [
        {"commit": "a", "passed": ["test_a", "test_b"], "failed": ["test_c"]},
        {"commit": "a", "passed": ["test_c", "test_d"], "failed": []},
        {"commit": "b", "passed": ["test_e"], "failed": []},
    ]
    path = tmp_path / "marked.jsonl"
    assert report.passed_tests(path, "a") == set()
    path.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    assert report.passed_tests(path, "a") == {"test_a", "test_b", "test_d"}


def test_every_marked_row_names_a_mutant_that_a_test_turns_red() -> None:
    files = set(report.TESTS_FOLDER.rglob("test_*.py")) - {Path(__file__)}
    marked = {id for path in files for id in ids_named_in(path)}
    rows = report.load_rows()
    assert [id for id in rows if id in marked and not rows[id].mutant] == []


def ids_named_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and report.ID_PATTERN.fullmatch(str(node.value)):
            yield str(node.value)


@pytest.mark.parametrize("ids", [("S0-999",), ("S0-020", "S0-999"), ("S0-001",), ()])
def test_mark_without_a_row_to_show_is_refused_with_its_test(ids: tuple[str, ...]) -> None:
    with pytest.raises(MissionError, match=r"tests/x\.py::test_wrong"):
        report.cover(ROWS, [Marked("tests/x.py::test_wrong", ids)], ())


def test_collection_reads_marks_and_leaves_out_tests_that_do_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
    done = collect_elsewhere(tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["test_sample.py::test_many", ["S0-020", "S0-021"]],
        ["test_sample.py::test_many", ["S0-020", "S0-021"]],
        ["test_sample.py::TestGroup::test_inner", ["S0-023", "S0-022"]],
        ["test_sample.py::test_skipped_elsewhere", ["S0-027"]],
    ]


def test_collection_that_fails_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import no_such_module\n", encoding="utf-8")
    done = collect_elsewhere(tmp_path)
    assert done.returncode == 1
    assert "collection failed: test_broken.py" in done.stderr


@pytest.mark.parametrize("options", [[], ["--shown"], ["--json"]])
def test_summary_is_the_last_line(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "load_rows", lambda: ROWS)
    monkeypatch.setattr(report, "collect_marks", lambda: [Marked("test_a", ("S0-020",))])
    monkeypatch.setattr(report, "passed_tests", lambda *_: {"test_a"})
    assert report.main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "mission: 1 shown, 0 not run, 1 not shown, 1 without behaviour"


def test_json_is_one_object_before_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "load_rows", lambda: ROWS)
    monkeypatch.setattr(report, "collect_marks", lambda: [Marked("test_a", ("S0-020",))])
    monkeypatch.setattr(report, "passed_tests", lambda *_: {"test_a"})
    report.main(["--json"])
    first, _summary = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {
        "shown": {"S0-020": ["test_a"]},
        "mutants": {"S0-020": "drop the claim"},
        "not_run": {},
        "not_shown": {"X-001": "The journal stays."},
        "without_behaviour": {"S0-001": "problem statement"},
    }


def test_unknown_mark_ends_the_report_with_1_and_names_the_test(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "load_rows", lambda: ROWS)
    monkeypatch.setattr(report, "collect_marks", lambda: [Marked("test_a", ("S9-001",))])
    assert report.main([]) == 1
    assert capsys.readouterr().err == "test_a: 'S9-001' is not a row of the mission\n"
