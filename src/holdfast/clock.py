"""Time: the only module that reads a clock.

Moments are integers, microseconds since 1970 in UTC; `datetime` appears at the public face only.
A store owns the clock that judges deadlines; `ManualClock` in `holdfast.testing` replaces it.
Time passes by a clock that nobody sets: correcting the date ends no lease, and makes nothing due.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from holdfast.errors import MisuseError

MICROSECONDS: Final = 1_000_000
LONGEST_SECONDS: Final = 1000 * 366 * 86_400
# More than a leap second and than what time servers correct in a step; much less than a lease.
JUMP: Final = 2 * MICROSECONDS

_log = logging.getLogger("holdfast")


class Clock(Protocol):
    """Gives the present moment in microseconds since 1970, UTC.

    `steady` counts microseconds that pass in this process, whatever the date is set to.
    """

    def now(self) -> int: ...
    def steady(self) -> int: ...


def _steady_ns() -> Callable[[], int]:
    """The machine's clock that counts while it is suspended too; time.monotonic may not."""
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    number = getattr(time, name, None)
    return time.monotonic_ns if number is None else partial(time.clock_gettime_ns, number)


_STEADY_NS: Final = _steady_ns()


def wall() -> int:
    """What the machine says the time is. People and time servers set it, so it may jump."""
    return time.time_ns() // 1000


def steady() -> int:
    """Microseconds since some moment in the past. It never jumps, and counts while suspended."""
    return _STEADY_NS() // 1000


class SteadyClock:
    """The machine's date and time when it was made, continued by a clock that does not jump.

    Small corrections of the machine's clock are followed, without ever going back. A jump is not:
    it is logged once, and time continues as before.
    """

    def __init__(
        self,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = _STEADY_NS,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._lock = threading.Lock()
        self._offset = wall_ns() // 1000 - steady_ns() // 1000
        self._latest = 0
        self._jumped_by = 0

    def now(self) -> int:
        with self._lock:
            asked_at = self._steady_ns() // 1000
            wall_time = self._wall_ns() // 1000
            passed = self._steady_ns() // 1000
            # This thread may have been paused between two of these: what agrees with them stays.
            drift = max(wall_time - passed, min(self._offset, wall_time - asked_at)) - self._offset
            if abs(drift) <= JUMP:
                self._offset += drift
                self._jumped_by = 0
            elif abs(drift - self._jumped_by) > JUMP:
                self._jumped_by = drift
                _warn(drift)
            self._latest = max(self._latest, passed + self._offset)
            return self._latest


def _warn(jump: int) -> None:
    _log.warning(
        "the machine's clock jumped by %+.0f s; this process goes on by the time it had. If the "
        "new time is the right one, restart the processes that use the same store",
        jump / MICROSECONDS,
    )


_PROCESS: Final = SteadyClock()


class SystemClock:
    """This process's time: one `SteadyClock` for all its stores, made when it began."""

    now = staticmethod(_PROCESS.now)
    steady = staticmethod(steady)


def to_datetime(moment: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)


def from_datetime(moment: datetime) -> int:
    if not isinstance(moment, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(f"{moment!r} is not a datetime")
    if moment.tzinfo is None:
        raise MisuseError(f"{moment.isoformat()} has no time zone; add one, such as datetime.UTC")
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def seconds(amount: float) -> int:
    """Return a length of time in microseconds. Raises MisuseError if it is not one."""
    if type(amount) not in (int, float) or not 0 <= amount <= LONGEST_SECONDS:
        raise MisuseError(f"{amount!r} seconds is not a length of time from 0 to 1,000 years")
    return round(amount * MICROSECONDS)


def hours(amount: float) -> int:
    """Return hours in microseconds. Raises MisuseError if it is not a length of time."""
    is_number = type(amount) in (int, float)
    return seconds(amount * 3600 if is_number else amount)
