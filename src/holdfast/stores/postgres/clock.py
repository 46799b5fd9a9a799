"""The server's time, as a client knows it without asking each time."""

import time
from typing import Final

_MICROSECONDS: Final = 1_000_000


class ServerClock:
    """Goes on from what the server last said, by this machine's steady clock.

    It is learned when the store is opened and at every commit, so this machine's own idea of the
    time, and jumps of it, do not matter.
    """

    def __init__(self) -> None:
        self._offset = 0

    def learn(self, server_now: int) -> None:
        """The server said this just now: its time when it answered, so never ahead of it."""
        self._offset = server_now - _steady()

    def now(self) -> int:
        return _steady() + self._offset


def _steady() -> int:
    return time.monotonic_ns() * _MICROSECONDS // 1_000_000_000
