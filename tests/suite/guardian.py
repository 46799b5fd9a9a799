"""Find and end every process that a test process has started, also after it was killed.

A process passes its resource limits on through `fork` and `exec`. The test process sets its soft
limit of real-time CPU time, which has no effect on ordinary processes, to a random number: its
mark. All that it starts has the mark, even after it has left its session, its environment and its
parent. `python guardian.py PID MARK` waits for the end of PID and kills what is marked. Linux only.
"""

import ctypes
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = 3.0
LIMIT_SECONDS = 60.0
PR_SET_PDEATHSIG = 1
LOWEST_MARK = 1 << 50  # 36 years in microseconds: nobody else sets such a limit


kept_alone: set[int] = set()
kept_servers: list[Callable[[], int]] = []


def keep_alone(pid: int) -> None:
    """Let a process stay until the end of this one, but not what it starts."""
    kept_alone.add(pid)


def keep_server(pid: Callable[[], int]) -> None:
    """Let a server stay with all that it starts, also after a test has restarted it."""
    kept_servers.append(pid)


class Process(NamedTuple):
    """A living process, as /proc shows it."""

    pid: int
    parent: int
    state: str
    name: str
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state}): {self.command}"


class MarkedProcesses:
    """Finds the processes with one mark. It remembers others, so that a repeated look is cheap."""

    def __init__(self, mark: int) -> None:
        self._mark = b"%d" % mark
        self._others: set[str] = set()

    def find(self) -> list[Process]:
        """Return those that are alive, without this process; a process that has ended is not."""
        listed = {name for name in os.listdir("/proc") if name.isdigit()}
        self._others &= listed
        found: list[Process] = []
        for name in listed - self._others - {str(os.getpid())}:
            try:
                if not self._has_mark(name):
                    self._others.add(name)
                elif (process := _read(name)) is not None:
                    found.append(process)
            except OSError:  # it has ended meanwhile
                continue
        return found

    def _has_mark(self, name: str) -> bool:
        for line in Path("/proc", name, "limits").read_bytes().splitlines():
            if line.startswith(b"Max realtime timeout"):
                return line.split()[3] == self._mark
        return False


def _read(name: str) -> Process | None:
    stat = Path("/proc", name, "stat").read_text(errors="replace")
    comm, _, rest = stat.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    if state in "ZX":
        return None
    words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
    command = b" ".join(words).decode(errors="replace").strip()
    return Process(int(name), int(parent), state, comm, command[:300])


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def start() -> int:
    """Mark this process and start its guardian; returns the mark.

    A test process inside another one, such as a worker of xdist, dies with that one.
    """
    import resource  # the guardian has no use for it

    soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    if soft >= LOWEST_MARK:
        die_with_parent()
    mark = LOWEST_MARK + random.SystemRandom().getrandbits(48)
    resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(mark)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
    guard = os.posix_spawn(words[0], words, os.environ, file_actions=nowhere, setsid=True)
    keep_alone(guard)
    return mark


def end_all(marked: MarkedProcesses) -> list[Process]:
    """Kill all marked processes; returns those that did not end by themselves."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := marked.find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = {process.pid: process for process in left}
    deadline = time.monotonic() + LIMIT_SECONDS
    while left and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)
        left = marked.find()
        killed.update((process.pid, process) for process in left)
    return list(killed.values())


def main(pid: int, mark: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        if os.getppid() == pid:
            select.select([watched], [], [])
    for process in end_all(MarkedProcesses(mark)):
        sys.stderr.write(f"the tests left a process, which was killed: {process}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
