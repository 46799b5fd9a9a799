"""A clock that only moves when it is told to."""

from holdfast.clock import seconds


class ManualClock:
    """Stands at the moment it was given until it is advanced."""

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def advance(self, by_seconds: float) -> None:
        self._now += seconds(by_seconds)
