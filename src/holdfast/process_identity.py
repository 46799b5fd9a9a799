"""Which process this is, in a way that another one on the same machine can check.

A pid alone is not enough: pids are reused, other machines have the same ones, and so have other
containers of this machine. So a process is named by its machine's boot, its pid namespace, its pid
and when it started.
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Final, NamedTuple

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_STARTED_FIELD: Final = 19  # "starttime" counted from the state, which follows the program's name
_ENDED_STATES: Final = frozenset("ZXx")


class ProcessIdentity(NamedTuple):
    """A process. Without `boot_id` and `pid_namespace` no other process can check on it."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_start: int


def of_this_process() -> ProcessIdentity:
    """The identity of this process; what the platform does not tell is left empty."""
    boot_id = namespace = ""
    with contextlib.suppress(OSError):
        boot_id = _BOOT_ID.read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    pid = os.getpid()
    state = _state_of(pid)
    started = 0 if state is None else state[1]
    return ProcessIdentity(socket.gethostname(), boot_id, namespace, pid, started)


def has_ended(other: ProcessIdentity, this: ProcessIdentity) -> bool:
    """Whether `other` ran where `this` does and is certainly gone; False if that is not known."""
    is_checkable = bool(other.boot_id and other.pid_namespace and other.pid)
    is_here = other[:3] == this[:3]  # a copy of a machine has its boot id, but another name
    if not is_checkable or not is_here:
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it belongs to somebody else, so it exists
    state = _state_of(other.pid)
    if state is None:
        return False  # processes of others may be hidden
    letter, started = state
    return letter in _ENDED_STATES or (0 < other.process_start != started)


def _state_of(pid: int) -> tuple[str, int] | None:
    """A process's state letter and start time; None if the platform does not tell."""
    try:
        # The program's name may hold blanks and parentheses: the last one ends it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[_STARTED_FIELD])
    except (OSError, ValueError, IndexError):
        return None
