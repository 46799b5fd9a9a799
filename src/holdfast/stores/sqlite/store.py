"""SQLite as a store: one thread that writes, some that read, and the combiner in front."""

import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from holdfast import faults
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreNotPermitted
from holdfast.settings import Settings
from holdfast.stores.combiner import Combiner
from holdfast.stores.contract import LookForForeign, StoreInfo, Write
from holdfast.stores.home import Home
from holdfast.stores.readers import Readers
from holdfast.stores.retries import PASSING, Retries
from holdfast.stores.rows import Row
from holdfast.stores.sqlite import forks, reindex, schema
from holdfast.stores.sqlite.connection import (
    SqliteConnection,
    check_is_ours,
    choose_journal_mode,
    connect,
    library_version,
)
from holdfast.stores.sqlite.foreign_commits import ForeignCommits
from holdfast.stores.sqlite.lanes import Done, Lane
from holdfast.stores.sqlite.queries import MIGRATIONS, SHAPES, SQL
from holdfast.stores.sqlite.writer import SqliteWriter
from holdfast.telemetry import Telemetry

T = TypeVar("T")


class SQLiteStore(Readers):
    """Durable rows in one file; in memory when the path is empty, with the same code."""

    def __init__(
        self,
        path: str,
        *,
        settings: Settings,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        super().__init__(self._rows, SHAPES, settings.tenant)
        self.on_applied: Callable[[Iterable[str]], None] | None = None
        self._path = os.path.abspath(path) if path else ""
        self._settings = settings
        self._telemetry = telemetry or Telemetry()
        self._retries = Retries(settings, self._telemetry)
        self._writer: SqliteWriter | None = None
        self._write_lane: Lane | None = None
        self._read_lane: Lane | None = None
        self._combiner: Combiner | None = None
        self.home = Home()
        self._journal_mode = ""
        self._foreign_commits = ForeignCommits(self._post)
        self.look_for_foreign_commits: LookForForeign | None = self._foreign_commits

    async def open(self) -> None:
        """Make the file if need be, bring its schema up to date, start the threads."""
        self._check_path()
        forks.check(self._path)
        self.home.settle()
        self._write_lane = Lane("writer", self._path, self._connect)
        try:
            await self._write_lane.run(self._prepare)
        except BaseException:
            await self._write_lane.close()
            self.home.leave()
            raise
        if self._path:
            forks.enter(self._path, self)
            threads = self._settings.reader_threads
            self._read_lane = Lane("reader", self._path, self._connect_to_read, threads)
        self._combiner = Combiner(
            self._apply,
            batch_commits=self._settings.batch_commits,
            queue_commits=self._settings.queue_commits,
            telemetry=self._telemetry,
            on_applied=self._tell,
        )

    async def close(self) -> None:
        """Answer what was submitted, then close the file."""
        if self._combiner is None or self._write_lane is None:
            return
        await self._combiner.close()
        if self._read_lane is not None:
            await self._read_lane.close()
        await self._write_lane.close()
        forks.leave(self)
        self.home.leave()

    async def submit(self, write: Write) -> Any:
        self.home.check()
        combiner, begun = self._combiner, time.monotonic()
        assert combiner is not None, "checked with its home"
        try:
            return await combiner.submit(write)
        except PASSING as error:
            return await self._retries.again(partial(combiner.submit, write), error, begun=begun)

    def abort_connections(self) -> None:
        """Do nothing: a separate thread ends each transaction, whatever the loop does."""

    async def reindex(self, run_id: str) -> None:
        self.home.check()
        assert self._write_lane is not None, "checked with its home"
        await self._write_lane.run(lambda c: reindex.rebuild(c, self.tenant, run_id))

    async def store_id(self) -> str:
        ((found,),) = await self._read(lambda c: c.execute(SQL["get_store_id"]).fetchall())
        return found

    async def info(self) -> StoreInfo:
        runs = await self.runs.count()
        migrations = await self._read(lambda c: c.execute(SQL["list_migrations"]).fetchall())
        return StoreInfo(
            url=self._path or "memory://",
            backend="sqlite",
            library=f"SQLite {library_version()}",
            schema=max((number for number, *_ in migrations), default=0),
            newest_schema=MIGRATIONS[-1].number,
            journal_mode=self._journal_mode,
            size_bytes=self._size(),
            runs=runs,
        )

    def _size(self) -> int:
        files = [self._path, self._path + "-wal"] if self._path else []
        return sum(Path(file).stat().st_size for file in files if Path(file).exists())

    def _connect(self) -> SqliteConnection:
        return connect(self._path, busy_timeout_seconds=self._settings.busy_timeout_seconds)

    def _connect_to_read(self) -> SqliteConnection:
        timeout = self._settings.busy_timeout_seconds
        return connect(self._path, busy_timeout_seconds=timeout, read_only=True)

    def _check_path(self) -> None:
        folder = Path(self._path).parent
        try:
            if self._path and not folder.is_dir():
                raise StoreNotPermitted(f"{folder} is not a folder; make it, or name another file")
            if self._path and Path(self._path).is_dir():
                raise StoreNotPermitted(f"{self._path} is a folder; name a file in it")
            if self._path and not os.access(folder, os.W_OK | os.X_OK):
                raise StoreNotPermitted(
                    f"{folder} may not be written, and SQLite keeps its log beside the store; "
                    "check its owner and permissions"
                )
        except OSError as error:
            raise StoreNotPermitted(f"{self._path} cannot be used: {error.strerror}") from error

    def _prepare(self, connection: SqliteConnection) -> None:
        check_is_ours(connection, self._path)
        self._journal_mode = choose_journal_mode(
            connection, self._path, busy_timeout_seconds=self._settings.busy_timeout_seconds
        )
        schema.upgrade(connection, self.clock)
        self._foreign_commits.begin(connection)
        self._writer = SqliteWriter(connection, self.clock)

    def _apply(self, batch: Sequence[Write], done: Done) -> None:
        self._post(partial(self._write, batch), done)

    def _post(self, work: Callable[[SqliteConnection], Any], done: Done) -> None:
        assert self._write_lane is not None, "made in open"
        self._write_lane.post(work, done)

    def _write(self, batch: Sequence[Write], _: SqliteConnection) -> list[Any]:
        assert self._writer is not None, "made in _prepare"
        self._foreign_commits.begun += 1
        try:
            answers = self._writer.apply(batch)
        finally:
            self._foreign_commits.ended += 1
        faults.point("batch.before_acknowledge")
        return answers

    def _rows(self, name: str, row: Row) -> Awaitable[list[Row]]:
        sql = SQL[name]
        bound = tuple([_bound(value) if type(value) in _BOUND else value for value in row])
        return self._read(lambda connection: connection.execute(sql, bound).fetchall())

    def _read(self, work: Callable[[SqliteConnection], T]) -> Awaitable[T]:
        self.home.check()
        lane = self._read_lane or self._write_lane
        assert lane is not None, "checked with its home"
        return self._retries.after(lane.run(work), lambda: lane.run(work))

    def _tell(self, topics: Iterable[str]) -> None:
        if self.on_applied is not None:
            self.on_applied(topics)


_BOUND: Final = frozenset({UUID, list})


def _bound(value: UUID | list[Any]) -> Any:
    """A parameter as SQLite takes it: ids as bytes, lists as JSON."""
    return value.bytes if isinstance(value, UUID) else json.dumps(value)
