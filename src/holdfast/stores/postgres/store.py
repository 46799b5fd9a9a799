"""PostgreSQL as a store: a pool of connections, and a combiner for each kind of writer."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.clock import Clock, steady
from holdfast.errors import StoreBusy
from holdfast.settings import Settings
from holdfast.stores.combiner import Combiner, Done
from holdfast.stores.contract import Commit, LookForForeign, MessageWrite, StoreInfo, Write
from holdfast.stores.home import Home
from holdfast.stores.postgres import reindex, schema
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.commits import CommitWriter
from holdfast.stores.postgres.connections import (
    TRANSIENT,
    ConnectionPool,
    Patience,
    PostgresConnection,
    fetch,
)
from holdfast.stores.postgres.messages import PostgresMessageWriter
from holdfast.stores.postgres.outside import OutsideWriter
from holdfast.stores.postgres.queries import MIGRATIONS, SHAPES, SQL
from holdfast.stores.readers import Readers
from holdfast.stores.retries import PASSING, Retries
from holdfast.stores.rows import Row
from holdfast.telemetry import Telemetry, log


class PostgresStore(Readers):
    """Durable rows in a PostgreSQL database, for any number of processes and machines."""

    def __init__(
        self,
        url: str,
        *,
        settings: Settings,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._server_clock = ServerClock() if clock is None else None
        self.clock: Clock = clock or self._server_clock or ServerClock()
        super().__init__(self._rows, SHAPES, settings.tenant)
        self.on_applied: Callable[[Iterable[str]], None] | None = None
        self.look_for_foreign_commits: LookForForeign | None = None  # others announce theirs
        self._settings = settings
        self._telemetry = telemetry or Telemetry()
        self._retries = Retries(settings, self._telemetry)
        self._connections = ConnectionPool(url, settings)
        self._commits: Combiner | None = None
        self._outside: Combiner | None = None
        self._messages: Combiner | None = None
        self.home = Home()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Reach the server, bring the schema up to date if this role may, make the pool."""
        self.home.settle()
        try:
            connection = await self._connections.connect()
            try:
                await self._prepare(connection)
            finally:
                await connection.close()
            await self._connections.open()
        except BaseException:
            self.home.leave()
            raise
        commits = CommitWriter(self._connections, self.tenant, self._server_clock)
        outside = OutsideWriter(self._connections, self.tenant, self.clock, self._server_clock)
        self._commits = self._combiner(commits.apply)
        self._outside = self._combiner(outside.apply)
        messages = PostgresMessageWriter(self._connections, self.tenant, self.clock)
        self._messages = self._combiner(messages.apply)

    async def close(self) -> None:
        """Answer what was submitted, then close the connections."""
        combiners = [each for each in (self._commits, self._outside, self._messages) if each]
        if not combiners:
            return
        for combiner in combiners:
            await combiner.close()
        self._commits = self._outside = self._messages = None
        self.home.leave()
        await self._connections.close()

    async def submit(self, write: Write) -> Any:
        self.home.check()
        begun = time.monotonic()
        if isinstance(write, Commit):
            combiner = self._commits
        else:
            combiner = self._messages if isinstance(write, MessageWrite) else self._outside
        assert combiner is not None, "checked with its home"
        try:
            return await combiner.submit(write)
        except PASSING as error:
            return await self._retries.again(partial(combiner.submit, write), error, begun=begun)

    def abort_connections(self) -> None:
        self._connections.abort()

    async def reindex(self, run_id: str) -> None:
        self.home.check()
        patience = Patience(self._connections)
        while True:
            try:
                return await self._connections.read(
                    lambda c: reindex.rebuild(self._connections, c, self.tenant, run_id)
                )
            except TRANSIENT as error:
                patience.check(StoreBusy(f"run {run_id} changes all the time; try again"))
                log.debug("rebuilding run %s begins again: %s", run_id, error)
            await patience.pause()

    async def store_id(self) -> str:
        ((found,),) = await self._rows("get_store_id", ())
        return found

    async def info(self) -> StoreInfo:
        runs = await self.runs.count()
        migrations = await self._rows("list_migrations", ())
        ((version, _, size, _, _),) = await self._rows("get_server", ())
        return StoreInfo(
            url=self._connections.place,
            backend="postgres",
            library=f"PostgreSQL {version}",
            schema=max((number for number, *_ in migrations), default=0),
            newest_schema=MIGRATIONS[-1].number,
            journal_mode="wal",
            size_bytes=size,
            runs=runs,
        )

    async def _prepare(self, connection: PostgresConnection) -> None:
        with self._connections.translated():
            if self._server_clock is not None:
                asked_at = steady()
                ((*_, now),) = await fetch(connection, SQL["get_server"])
                self._server_clock.learn(now, asked_at=asked_at)
            await schema.upgrade(connection, self._connections.place, self.clock.now())
            await schema.settle(connection)

    def _combiner(self, apply: Callable[[Any], Coroutine[Any, Any, list[Any]]]) -> Combiner:
        return Combiner(
            lambda batch, done: self._start(apply, batch, done),
            batch_commits=self._settings.batch_commits,
            queue_commits=self._settings.queue_commits,
            telemetry=self._telemetry,
            on_applied=self._tell,
        )

    def _start(
        self,
        apply: Callable[[Sequence[Write]], Coroutine[Any, Any, list[Any]]],
        batch: Sequence[Write],
        done: Done,
    ) -> None:
        """Apply a batch in its own task: its submitters may go away meanwhile."""

        async def work() -> None:
            try:
                answers = await apply(batch)
            except BaseException as error:
                done(None, error)
                if not isinstance(error, Exception):
                    raise
            else:
                done(answers, None)

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _rows(self, name: str, row: Row) -> list[Row]:
        self.home.check()

        async def read() -> list[Row]:
            return await self._connections.read(lambda c: fetch(c, SQL[name], row))

        return await self._retries.after(read(), read)

    def _tell(self, topics: Iterable[str]) -> None:
        if self.on_applied is not None:
            self.on_applied(topics)
