"""The server's time, as a client knows it without asking each time."""

from holdfast.clock import steady


class ServerClock:
    """Continues from the server's last time, by this machine's steady clock.

    It is learned when the store is opened and at every commit, so this machine's own idea of the
    time, and jumps of it, do not matter.
    """

    def __init__(self) -> None:
        self._offset = 0

    def learn(self, server_now: int, *, asked_at: int) -> None:
        """Note that the server had this time at some moment since `asked_at`.

        What is known already stays if it agrees: an answer that took long says little.
        """
        earliest, latest = server_now - steady(), server_now - asked_at
        self._offset = max(earliest, min(self._offset, latest))

    def now(self) -> int:
        return steady() + self._offset

    def steady(self) -> int:
        return steady()
