"""No process outlives its test, whoever is killed."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.suite.inner import InnerSuite, is_alive, wait_until

SPIN = """
import os, signal, subprocess, sys, time

def tell(*words):
    with open(os.environ["TOLD"], "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def spin():
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    child = subprocess.Popen(command, env={}, start_new_session=True)
    tell("child", child.pid)
    return child
"""

STARTS_EVERYTHING = (
    SPIN
    + """
from pathlib import Path
from holdfast.testing.nats import nats_server
from holdfast.testing.postgres import PostgresServer
from tests.processes import Child

STARTS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while 1: pass'])"

def test_that_is_killed(tmp_path):
    spin()
    spin().send_signal(signal.SIGSTOP)
    subprocess.run([sys.executable, "-c", STARTS], env={}, check=True)  # an orphan
    store = str(tmp_path / "store.db")
    with (
        Child("tests.child", store) as child,
        Child("tests.child", store) as stopped,
        PostgresServer.start(tmp_path / "postgres") as server,
        nats_server(tmp_path / "nats") as broker,
    ):
        child.ask(["hello"])
        stopped.signal(signal.SIGSTOP)
        for pid in (child.process.pid, stopped.process.pid, server.pid, broker.pid):
            tell("child", pid)
        from tests.suite.guardian import MarkedProcesses
        import resource
        mark, _ = resource.getrlimit(resource.RLIMIT_RTTIME)
        for process in MarkedProcesses(mark).find():
            tell("child", process.pid)
        tell("parent", os.getpid())
        time.sleep(1000)
"""
)


def _pids(suite: InnerSuite, what: str) -> list[int]:
    found = [line.split() for line in suite.lines()]
    return [int(pid) for said, pid in found if said == what]


@pytest.mark.parametrize("victim", ["alone", "worker", "controller"])
def test_processes_end_with_the_test_process_that_is_killed(tmp_path: Path, victim: str) -> None:
    suite = InnerSuite(tmp_path, STARTS_EVERYTHING)
    options = [] if victim == "alone" else ["-n", "1", "--max-worker-restart", "0"]
    with suite.start(*options) as process:
        wait_until(lambda: _pids(suite, "parent") or process.poll() is not None)
        (parent,), children = _pids(suite, "parent"), _pids(suite, "child")
        assert len(children) > 12
        assert all(map(is_alive, children))
        os.kill(process.pid if victim == "controller" else parent, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, [parent, *children])))
        said, _ = process.communicate()
    assert "the tests left a process, which was killed" in said


@pytest.mark.parametrize("kind", ["started", "orphaned"])
def test_test_that_leaves_a_process_fails_and_names_it(tmp_path: Path, kind: str) -> None:
    leave = {
        "started": "spin()",
        "orphaned": "if os.fork() == 0: spin(); os._exit(0)\n    os.wait()\n    time.sleep(0.2)",
    }[kind]
    tests = f"{SPIN}\ndef test_leaves():\n    {leave}\n\ndef test_next(): pass\n"
    suite = InnerSuite(tmp_path, tests)
    said = suite.run("-W", "ignore")
    (pid,) = _pids(suite, "child")
    assert re.search("2 passed, 1 error", said), said
    assert f"{pid} (" in said
    assert "while True: pass" in said
    assert not is_alive(pid)


def test_process_of_a_module_may_stay_as_long_as_its_fixture(tmp_path: Path) -> None:
    tests = (
        SPIN
        + """
import pytest

@pytest.fixture(scope="module")
def child():
    child = spin()
    yield child
    child.kill()
    child.wait()

def test_first(child): pass

def test_second(child): assert child.poll() is None
"""
    )
    said = InnerSuite(tmp_path, tests).run()
    assert "2 passed" in said, said
    assert "error" not in said
