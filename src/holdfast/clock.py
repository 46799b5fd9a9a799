"""Time: the only module that reads a clock.

Moments are integers, microseconds since 1970 in UTC; `datetime` appears at the public face only.
A store owns the clock that judges deadlines; `ManualClock` in `holdfast.testing` replaces it.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from holdfast.errors import MisuseError

MICROSECONDS: Final = 1_000_000
LONGEST_SECONDS: Final = 1000 * 366 * 86_400


class Clock(Protocol):
    """Tells the present moment in microseconds since 1970, UTC."""

    def now(self) -> int: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1000


def to_datetime(moment: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)


def from_datetime(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise MisuseError(f"{moment.isoformat()} has no time zone; add one, such as datetime.UTC")
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def seconds(amount: float) -> int:
    """A length of time in microseconds; raises MisuseError for what is none."""
    if type(amount) not in (int, float) or not 0 <= amount <= LONGEST_SECONDS:
        raise MisuseError(f"{amount!r} seconds is not a length of time from 0 to 1,000 years")
    return round(amount * MICROSECONDS)
