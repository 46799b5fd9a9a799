"""The databases of PostgresSaver, AsyncPostgresSaver and their shallow relatives."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, LiteralString, NamedTuple, Self

import psycopg
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast import settings
from holdfast.errors import MisuseError, StoreNotPermitted, StoreUnavailable
from holdfast.integrations.langgraph.sources.contract import (
    Decoding,
    Saved,
    SourcePosition,
    ThreadSize,
    Write,
    sizes,
)
from holdfast.stores.sqlfiles import load_queries

_SQL: Final = load_queries("holdfast.integrations.langgraph.sources")
_CONNECT_SECONDS: Final = 10


class _Queries(NamedTuple):
    """Which statements fit the tables that are there."""

    places: str
    checkpoint: str
    values: str
    writes: str


_DEEP: Final = _Queries(
    "postgres_places", "postgres_checkpoint", "postgres_values", "postgres_writes"
)
_SHALLOW: Final = _Queries(
    "postgres_shallow_places",
    "postgres_shallow_checkpoint",
    "postgres_shallow_values",
    "postgres_writes",
)


class PostgresSource:
    """A database that is read in transactions which cannot write."""

    def __init__(self, url: str, serde: SerializerProtocol) -> None:
        self._shown = settings.shown_store(url)
        self._serde = serde
        with self._translate_errors():
            self._connection = psycopg.connect(
                url, connect_timeout=_CONNECT_SECONDS, cursor_factory=psycopg.RawCursor
            )
            self._connection.read_only = True
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            self.queries = self._fitting()
        except BaseException:
            self._connection.close()
            raise

    def _fitting(self) -> _Queries:
        columns: defaultdict[str, set[str]] = defaultdict(set)
        for table, column in self.rows("postgres_columns"):
            columns[table].add(column)
        self._connection.rollback()
        if len(columns) != 3:
            raise MisuseError(
                f"{self._shown} has no tables of LangGraph's PostgresSaver (checkpoints, "
                "checkpoint_blobs, checkpoint_writes); name the database that it writes to, and "
                "its schema with ?options=-csearch_path=NAME"
            )
        fitting = _DEEP if "version" in columns["checkpoint_blobs"] else _SHALLOW
        if "task_path" not in columns["checkpoint_writes"]:
            return fitting._replace(writes="postgres_writes_without_path")
        return fitting

    def rows(self, query: str, *values: str) -> list[Sequence[Any]]:
        sql: LiteralString = _SQL[query]
        with self._translate_errors():
            return list(self._connection.execute(sql, values or None).fetchall())

    def threads(self) -> list[ThreadSize]:
        try:
            return sizes(self.rows("postgres_threads"), self.rows("postgres_writes_of_threads"))
        finally:
            self.end()

    def reading(self, thread_id: str) -> "_PostgresReader":
        return _PostgresReader(self, thread_id, Decoding(self._serde, thread_id))

    def end(self) -> None:
        """End the transaction that reading began."""
        with self._translate_errors():
            self._connection.rollback()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        """Translate the driver's errors to ours."""
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            raise StoreNotPermitted(f"{self._shown} may not be read: {error}") from error
        except psycopg.Error as error:
            raise StoreUnavailable(f"{self._shown} cannot be read: {error}") from error


class _PostgresReader:
    def __init__(self, source: PostgresSource, thread_id: str, decoding: Decoding) -> None:
        self._source = source
        self._thread_id = thread_id
        self._decoding = decoding

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.end()

    def places(self) -> list[SourcePosition]:
        rows = self._source.rows(self._source.queries.places, self._thread_id)
        return [self._decoding.place(row) for row in rows]

    def saved(self, place: SourcePosition) -> Saved:
        queries, where = self._source.queries, f"checkpoint {place.checkpoint_id}"
        key = (self._thread_id, place.ns, place.checkpoint_id)
        ((stored, metadata),) = self._source.rows(queries.checkpoint, *key)
        checkpoint = self._decoding.mapping(stored, where=where)
        inline = self._decoding.mapping(checkpoint.get("channel_values") or {}, where=where)
        apart = {
            channel: self._decoding.value(kind, data, where=f"{where}, channel {channel}")
            for channel, kind, data in self._source.rows(queries.values, *key)
            if kind != "empty"
        }
        return Saved(
            {**checkpoint, "channel_values": {**inline, **apart}},
            self._decoding.mapping(metadata, where=f"metadata of {where}"),
        )

    def writes(self, ns: str, checkpoint_id: str) -> list[Write]:
        query = self._source.queries.writes
        rows = self._source.rows(query, self._thread_id, ns, checkpoint_id)
        return self._decoding.writes(rows, of=checkpoint_id)
