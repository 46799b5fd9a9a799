"""The databases of SqliteSaver and AsyncSqliteSaver."""

import json
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import quote

import apsw
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import IntegrityError, MisuseError, NotFoundError, StoreBusy, StoreUnavailable
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
_BUSY_MILLISECONDS: Final = 10_000
_FLAGS: Final = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


class _Connection(Protocol):
    """What is used of apsw's connection, whose own types are not complete."""

    def execute(self, sql: str, values: Sequence[str] = (), /) -> Iterable[Sequence[Any]]: ...

    def set_busy_timeout(self, milliseconds: int, /) -> None: ...

    def close(self) -> None: ...


class SQLiteSource:
    """A file that is opened read-only; concurrent writers are not disturbed."""

    def __init__(self, path: str, serde: SerializerProtocol) -> None:
        if not os.path.isfile(path):
            raise NotFoundError(f"there is no file {path}; name the database of LangGraph's saver")
        self._path = path
        self._serde = serde
        with _translate_errors(path):
            opened = apsw.Connection(f"file:{quote(path)}?mode=ro", flags=_FLAGS)
            self._connection = cast(_Connection, opened)
            self._connection.set_busy_timeout(_BUSY_MILLISECONDS)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._check_tables()

    def _check_tables(self) -> None:
        columns = {
            table: {
                column for _, column, *_ in self._connection.execute(f"PRAGMA table_info({table})")
            }
            for table in ("checkpoints", "writes")
        }
        if "checkpoint_ns" not in columns["checkpoints"] or "task_id" not in columns["writes"]:
            self._connection.close()
            raise MisuseError(
                f"{self._path} has no tables of LangGraph's SqliteSaver (checkpoints, writes); "
                "name the file that it writes"
            )
        has_paths = "task_path" in columns["writes"]
        self.writes_query = "sqlite_writes" if has_paths else "sqlite_writes_without_path"

    def rows(self, query: str, *values: str) -> list[Sequence[Any]]:
        with _translate_errors(self._path):
            return list(self._connection.execute(_SQL[query], values))

    def threads(self) -> list[ThreadSize]:
        return sizes(self.rows("sqlite_threads"), self.rows("sqlite_writes_of_threads"))

    def reading(self, thread_id: str) -> "_SqliteReader":
        return _SqliteReader(self, self._connection, thread_id, Decoding(self._serde, thread_id))

    def close(self) -> None:
        self._connection.close()


class _SqliteReader:
    def __init__(
        self,
        source: SQLiteSource,
        connection: _Connection,
        thread_id: str,
        decoding: Decoding,
    ) -> None:
        self._source = source
        self._connection = connection
        self._thread_id = thread_id
        self._decoding = decoding

    def __enter__(self) -> Self:
        self._connection.execute("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.execute("ROLLBACK")

    def places(self) -> list[SourcePosition]:
        rows = self._source.rows("sqlite_places", self._thread_id)
        return [self._decoding.place(row) for row in rows]

    def saved(self, place: SourcePosition) -> Saved:
        where = f"checkpoint {place.checkpoint_id}"
        ((kind, data, metadata),) = self._source.rows(
            "sqlite_checkpoint", self._thread_id, place.ns, place.checkpoint_id
        )
        checkpoint = self._decoding.value(kind, data, where=where)
        return Saved(
            self._decoding.mapping(checkpoint, where=where),
            self._decoding.mapping(self._metadata(metadata, where), where=f"metadata of {where}"),
        )

    def _metadata(self, stored: bytes | str | None, where: str) -> object:
        """JSON since version 2; before that what the serde made, which may be MessagePack."""
        try:
            return {} if stored is None else json.loads(stored)
        except ValueError:
            return self._decoding.value("msgpack", stored, where=f"metadata of {where}")

    def writes(self, ns: str, checkpoint_id: str) -> list[Write]:
        query = self._source.writes_query
        rows = self._source.rows(query, self._thread_id, ns, checkpoint_id)
        return self._decoding.writes(rows, of=checkpoint_id)


@contextmanager
def _translate_errors(path: str) -> Generator[None]:
    """Translate the driver's errors to ours."""
    try:
        yield
    except apsw.BusyError as error:
        raise StoreBusy(f"{path} is locked by another process; try again") from error
    except (apsw.NotADBError, apsw.CorruptError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} is no whole SQLite database: {error}") from error
    except apsw.Error as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
