"""The server's time, as a client knows it without asking each time."""

from typing import Final

from holdfast.clock import MICROSECONDS, steady
from holdfast.stores.postgres.connections import PostgresConnection, fetch
from holdfast.stores.postgres.queries import SQL

_MOMENT: Final = MICROSECONDS


class ServerClock:
    """Continues from the server's last time, by this machine's steady clock.

    It is learned when the store is opened and at every commit, so this machine's own idea of the
    time, and jumps of it, do not matter. Writers from outside ask for it if that was long ago.
    """

    def __init__(self) -> None:
        self._offset = 0
        self._learned_at = 0

    def learn(self, server_now: int, *, asked_at: int) -> None:
        """Note that the server had this time at some moment since `asked_at`.

        What is known already stays if it agrees: an answer that took long says little.
        """
        self._learned_at = steady()
        earliest, latest = server_now - self._learned_at, server_now - asked_at
        self._offset = max(earliest, min(self._offset, latest))

    async def refresh(self, connection: PostgresConnection) -> None:
        """Ask the server for its time, unless it was learned a moment ago.

        An idle process would else set moments by a clock that somebody has corrected since.
        """
        asked_at = steady()
        if asked_at - self._learned_at > _MOMENT:
            ((server_now,),) = await fetch(connection, SQL["get_time"])
            self.learn(server_now, asked_at=asked_at)

    def now(self) -> int:
        return steady() + self._offset

    def steady(self) -> int:
        return steady()
