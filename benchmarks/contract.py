"""What a measurement must know of a backend, so that the same code measures all of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Rows(NamedTuple):
    """Rows of one table, and the names of their columns."""

    columns: Sequence[str]
    rows: Iterable[tuple[Any, ...]]


class Group(Protocol):
    """The raw group-commit loop: tasks queue rows, all there are go into one transaction."""

    async def store(self, *row: Any) -> None:
        """Return when the row is on disk."""
        ...

    async def close(self) -> None: ...


class Floor(Protocol):
    """What numbers are compared with: the bare driver, doing no more than it must.

    A floor has a database of its own beside the store's, with the same durability. It stores JSON,
    checks nothing and keeps no index but its key.
    """

    async def commit(self, body: bytes) -> None:
        """The floor of every durable save: one row, one commit."""
        ...

    async def commit_once(self, key: str, body: bytes) -> None:
        """The same under a unique key; a second row with that key is ignored."""
        ...

    async def bodies(self) -> list[bytes]:
        """All that was committed, in order."""
        ...

    def group(self, table: str) -> Group:
        """A group-commit loop into `rows` (body) or `results` (key, body)."""
        ...

    async def close(self) -> None: ...


class Place(Protocol):
    """Where stores and floors lie: makes them, and looks at a store's tables from below."""

    name: str
    queries: Mapping[str, str]  # Holdfast's named statements
    whole: re.Pattern[str]  # how a plan says that it goes through all that a tenant has

    def new_store(self) -> str:
        """The URL of a store that is made when it is opened."""
        ...

    def new_floor(self) -> str:
        """The URL of a floor whose tables are empty."""
        ...

    def clear(self) -> None:
        """Remove the stores and floors made so far."""
        ...

    def stored_bytes(self, url: str) -> int:
        """What a store takes on disk beyond its write-ahead log."""
        ...

    def rows_of(self, url: str, table: str, run_id: str) -> Rows:
        """A run's rows in one table, without numbers that the database gives by itself."""
        ...

    def load(self, url: str, table: str, rows: Rows) -> None:
        """Add many rows to a store that nobody has open."""
        ...

    def settle(self, url: str) -> None:
        """Bring a store that was just written to rest: statistics, vacuum, checkpoint."""
        ...

    def plan(self, url: str, query: str) -> str:
        """How the database would go about a named query of Holdfast's."""
        ...

    def break_down(self) -> bool:
        """Kill the database and start it again; False where there is none but a file."""
        ...

    def connections(self, url: str, pid: int) -> int:
        """How many connections a process has to a store that nobody else has open."""
        ...
