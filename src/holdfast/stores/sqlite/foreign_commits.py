"""Whether somebody else has committed to the file of this store."""

from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreClosed
from holdfast.stores.sqlite.connection import SqliteConnection
from holdfast.stores.sqlite.lanes import Done


class ForeignCommits:
    """Compares data versions on the writer's connection, where `post` does its work.

    There the data version changes only when another connection has committed. `begun` and `ended`
    count this store's own batches: whoever sees that the file has changed while none was under way
    need not ask.
    """

    def __init__(self, post: Callable[[Callable[[SqliteConnection], Any], Done], None]) -> None:
        self._post = post
        self._version = 0
        self.begun = 0
        self.ended = 0

    def begin(self, connection: SqliteConnection) -> None:
        """Count from now on; the connection is the writer's."""
        self._version = _data_version(connection)

    def __call__(self, then: Callable[[bool], None]) -> None:
        """Call `then` with whether another connection may have committed since the last look."""

        def compare(version: int, error: BaseException | None) -> None:
            is_foreign = error is not None or version != self._version
            self._version = version
            then(is_foreign)

        try:
            self._post(_data_version, compare)
        except StoreClosed:
            then(True)


def _data_version(connection: SqliteConnection) -> int:
    return connection.execute("PRAGMA data_version").fetchall()[0][0]
