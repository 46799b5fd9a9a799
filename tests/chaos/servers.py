"""Ways in which a PostgreSQL server goes away. When they return, none of its processes serves."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.testing.postgres import PostgresServer

LIMIT_SECONDS = 240.0


def kill(server: PostgresServer) -> None:
    """Kill the postmaster; its sessions notice when they have answered, and leave."""
    server.kill()


def kill_all(server: PostgresServer) -> None:
    """Kill every process of the server wherever it is, as a machine does that loses its power."""
    children = _children_of_stopped(server.pid)
    for pid in (*children, server.pid):
        _signal(pid, signal.SIGKILL)
    for pid in children:
        _wait_until(lambda pid=pid: state_of(pid) in "ZX")
    server.kill()


def freeze(server: PostgresServer) -> None:
    """Stop every process of the server, as a machine does that stands still."""
    for pid in _children_of_stopped(server.pid):
        _stop(pid)


def thaw(server: PostgresServer) -> None:
    for pid in (*children_of(server.pid), server.pid):
        _signal(pid, signal.SIGCONT)


def children_of(parent: int) -> list[int]:
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(_fields(status)[1]) == parent:
                found.append(int(status.parent.name))
    return found


def state_of(pid: int) -> str:
    """The letter that /proc has for what a process does; `X` if there is none any more."""
    try:
        return _fields(Path(f"/proc/{pid}/stat"))[0]
    except OSError:
        return "X"


def _children_of_stopped(postmaster: int) -> list[int]:
    """The children of a postmaster, which is stopped first: else a session may begin unseen."""
    _stop(postmaster)
    return children_of(postmaster)


def _stop(pid: int) -> None:
    """Stop a process and wait until it stands still: a signal takes its time on a busy machine."""
    _signal(pid, signal.SIGSTOP)
    _wait_until(lambda: state_of(pid) in "TZX")


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _fields(status: Path) -> list[str]:
    return status.read_text(encoding="utf-8").rpartition(")")[2].split()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "a process was not stopped in time"
        time.sleep(0.001)
