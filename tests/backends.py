"""The backends that tests run on; and their rows, read and changed behind Holdfast's back.

An oracle must not share code with what it judges: nothing of Holdfast is used here.
"""

import itertools
import re
from pathlib import Path
from typing import Any, Protocol, Self

import apsw
import psycopg

BACKENDS = ("sqlite", "postgres")
ENTRY = "seq, kind, tenant, run_id, at, actor, schema, encoding, key_id, facts, nonce, {body}, link"
PROOFS = "SELECT run_id, seq, proof FROM journal"


class Raw(Protocol):
    """A connection of a stranger's; each statement is a transaction, `?` stands for a value."""

    def execute(self, sql: str, *values: Any) -> int:
        """Change rows; how many there were."""
        ...

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]: ...

    def entries(self) -> list[tuple[Any, ...]]:
        """The journal in order, in the columns of ENTRY, each body wherever it is stored."""
        ...

    def proofs(self) -> dict[tuple[str, int], bytes | None]:
        """The proofs of entries, by their runs and seqs."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Backend(Protocol):
    """An empty store: what it is called, where it is, and a way to its rows."""

    name: str
    url: str

    def raw(self) -> Raw: ...


class SQLiteRaw:
    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path)
        self._connection.set_busy_timeout(10_000)

    def execute(self, sql: str, *values: Any) -> int:
        self._connection.execute(sql, values)
        return self._connection.changes()

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(sql, values))

    def entries(self) -> list[tuple[Any, ...]]:
        columns = ENTRY.format(body="coalesce(journal.body, bodies.body)")
        return self.rows(
            f"SELECT {columns} FROM journal LEFT JOIN bodies USING (id) ORDER BY run_id, seq"
        )

    def proofs(self) -> dict[tuple[str, int], bytes | None]:
        return {(run, seq): proof for run, seq, proof in self.rows(PROOFS)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class PostgresRaw:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(
            url, autocommit=True, connect_timeout=10, cursor_factory=psycopg.RawCursor
        )
        self._connection.execute("SET lock_timeout = '20s'")

    def execute(self, sql: str, *values: Any) -> int:
        return self._connection.execute(_numbered(sql), values or None).rowcount

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(_numbered(sql), values or None).fetchall()

    def entries(self) -> list[tuple[Any, ...]]:
        columns = ENTRY.format(body="body")
        return self.rows(f"SELECT {columns} FROM journal ORDER BY run_id, seq")

    def proofs(self) -> dict[tuple[str, int], bytes | None]:
        return {(run, seq): proof for run, seq, proof in self.rows(PROOFS)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class SQLiteBackend:
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url = str(path)

    def raw(self) -> SQLiteRaw:
        return SQLiteRaw(self.url)


class PostgresBackend:
    name = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url

    def raw(self) -> PostgresRaw:
        return PostgresRaw(self.url)


def _numbered(sql: str) -> str:
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
