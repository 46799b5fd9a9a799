"""Making a process fail at a named point: raise, hang, or die by SIGKILL."""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from holdfast import faults
from holdfast.errors import MisuseError

Action = Literal["raise", "hang", "kill"]


class InjectedFault(RuntimeError):
    """Raised at a point that was armed to raise."""


class Armed:
    """What happens at one point: nothing the first `skip` times, then the action, once."""

    def __init__(self, point: str, action: Action, *, skip: int = 0) -> None:
        if point not in faults.POINTS:
            raise MisuseError(f"{point!r} is not a fault point; see holdfast.faults.POINTS")
        self.reached = 0
        self.released = threading.Event()
        self._point = point
        self._action: Action = action
        self._skip = skip

    def __call__(self, point: str) -> None:
        if point != self._point:
            return
        self.reached += 1
        if self.reached != self._skip + 1:
            return
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == "hang":
            self.released.wait()
            return
        raise InjectedFault(f"injected at {point}")


def arm(point: str, action: Action, *, skip: int = 0) -> Armed:
    """Arm a point for the rest of the process."""
    trigger = Armed(point, action, skip=skip)
    faults.install(trigger)
    return trigger


@contextmanager
def armed(point: str, action: Action, *, skip: int = 0) -> Generator[Armed]:
    """Arm a point inside a `with`; a hanging thread is released at its end."""
    trigger = arm(point, action, skip=skip)
    try:
        yield trigger
    finally:
        trigger.released.set()
        faults.install(None)
