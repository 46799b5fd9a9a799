"""A campaign is put together from parts: each test is in one shard, and what was run is kept."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mission.report import passed_tests
from tests.suite.inner import PLUGINS, ROOT, is_alive, wait_until
from tests.suite.record_files import FILE, MARKED_FILE, commit_of
from tests.suite.recording import Shard

TESTS = """
import os, pytest

@pytest.mark.parametrize("n", range(20))
def test_told(n):
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{__name__}-{n}\\n")
"""
MARKED = """
import pytest
pytestmark = pytest.mark.mission("S0-020")

@pytest.mark.parametrize("n", range(2))
def test_passes(n): ...
def test_skips(): pytest.skip()
def test_fails(): assert 0
@pytest.mark.parametrize("n", range(2))
def test_fails_once(n): assert n
"""
FAILING = "def test_fails(): assert 0\n"
WAITING = """
import os, time
def test_waits():
    with open(os.environ["TOLD"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(1000)
"""


TARGETS = ("test", "chaos", "test-under-load")
CHAOS = """
def pytest_addoption(parser):
    parser.addoption("--chaos", action="store_true")
"""


class Repository:
    """A repository with tests in three areas, one of which is asked for by `make chaos` too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told = folder / "told"
        self.write("conftest.py", PLUGINS + CHAOS)
        for area in ("one", "two", "chaos"):
            self.write(f"{area}/test_{area}.py", TESTS)
        (folder / "pytest.ini").write_text("[pytest]\n")
        ignored = [FILE, MARKED_FILE, "told", "__pycache__", ".pytest_cache"]
        (folder / ".gitignore").write_text("\n".join(ignored))
        self.git("init", "-q")
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *words: str) -> None:
        author = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *author, *words], cwd=self.folder, check=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-q", "--no-gpg-sign", "-m", "tests")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        known = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TESTS_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.suite.campaign", *words],
            cwd=self.folder,
            env={**known, "PYTHONPATH": str(ROOT), "TOLD": str(self.told)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        with self.start(*words, "--workers", "0") as process:
            said, _ = process.communicate()
        return process.returncode, said

    def show(self) -> list[str]:
        return self.run("show")[1].splitlines()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_each_test_is_in_one_shard_whichever_others_there_are() -> None:
    ids = [f"tests/a/test_b.py::test_{n}" for n in range(1000)]
    parts = [[name for name in ids if Shard(k, 4).has(name)] for k in (1, 2, 3, 4)]
    assert sorted(itertools.chain(*parts)) == sorted(ids)
    assert all(200 < len(part) < 300 for part in parts)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"])
def test_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected k/n"):
        Shard.parse(text)


def test_parts_make_a_whole_campaign(repository: Repository) -> None:
    assert repository.show()[1:] == [f"{name}: nothing was run" for name in TARGETS]
    assert repository.run("test", "--shard", "1/2")[0] == 0
    assert repository.run("test", "--area", "one chaos", "--shard", "2/2")[0] == 0
    assert "test: missing two (2/2)" in repository.show()
    assert repository.run("test", "--area", "two", "--shard", "2/2")[0] == 0
    assert "test: whole" in repository.show()
    told = repository.told.read_text().split()
    assert len(told) == len(set(told)) == 60
    assert repository.run("chaos", "--area", "chaos")[0] == 0
    assert repository.show()[-3:] == [
        "test: whole",
        "chaos: whole",
        "test-under-load: nothing was run",
    ]
    repository.write("one/test_one.py", TESTS + "\n")
    repository.commit()
    assert repository.show()[1:] == [f"{name}: nothing was run" for name in TARGETS]


def test_failed_part_and_one_of_a_changed_tree_do_not_count(repository: Repository) -> None:
    repository.write("one/test_one.py", FAILING)
    assert repository.run("test", "--area", "two")[0] == 0
    repository.commit()
    assert repository.run("test", "--area", "one")[0] == 1
    shown = "\n".join(repository.show())
    assert "1 failed" in shown
    assert "tests/one/test_one.py::test_fails" in shown
    assert "test: nothing was run" in shown
    repository.write("one/test_one.py", TESTS)
    repository.run("test", "--area", "two")
    shown = "\n".join(repository.show())
    assert "does not count: the working tree had changes" in shown
    assert "test: nothing was run" in shown


def test_marked_test_counts_if_it_passed_and_not_if_it_was_skipped(repository: Repository) -> None:
    repository.write("one/test_one.py", MARKED)
    repository.commit()
    repository.run("test")
    passed = passed_tests(repository.folder / MARKED_FILE, commit_of(repository.folder))
    assert passed == {"tests/one/test_one.py::test_passes"}


def test_unknown_area_is_refused_with_those_that_there_are(repository: Repository) -> None:
    code, said = repository.run("test", "--area", "three")
    assert code == 2
    assert "there is no tests/three; areas: chaos, one, two" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_busy_loops_end_with_the_target(repository: Repository, number: signal.Signals) -> None:
    repository.write("one/test_one.py", WAITING)
    with repository.start("test-under-load", "--area", "one", "--workers", "1") as process:
        wait_until(lambda: repository.told.exists() or process.poll() is not None)
        started = _busy_loops(process.pid)
        assert len(started) == 8
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as the terminal does
        else:
            process.send_signal(number)
        tested = int(repository.told.read_text())
        wait_until(lambda: not any(map(is_alive, [tested, *started])))


def _busy_loops(parent: int) -> list[int]:
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            is_child = int(status.read_text().rpartition(")")[2].split()[1]) == parent
            is_busy = b"while True: pass" in status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if is_child and is_busy:
            found.append(int(status.parent.name))
    return found
