"""Connections to PostgreSQL: opened, pooled, limited, tried again; and its errors in our words.

No session state matters beyond what each transaction sets for itself, so a pooler that hands out
servers per transaction may be in between.
"""

import asyncio
import random
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Final, LiteralString, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncPipeline, AsyncRawCursor, conninfo, errors
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from psycopg.pq import Format, TransactionStatus
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from holdfast.errors import (
    HoldfastError,
    IntegrityError,
    InvalidSetting,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreNotPermitted,
    StoreUnavailable,
    UnsupportedValue,
)
from holdfast.settings import Settings, shown_store
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.pool_queue import PoolQueue, PoolStalled
from holdfast.stores.postgres.queries import SQL, Statement
from holdfast.stores.rows import Row
from holdfast.telemetry import log

T = TypeVar("T")
_CHECK_SECONDS: Final = 0.1


class _OnePiece(AsyncPipeline):
    """A pipeline that sends its statements together with their sync, and nothing before or after.

    The server's limit on idle transactions counts from a sync to the next message, be it only a
    request to flush. A process that is stopped between two messages without a sync behind them
    would keep its locks for as long as it is stopped.
    """

    def _communicate_gen(self) -> PQGen[None]:
        *_, last = self.command_queue
        if last == self.pgconn.pipeline_sync:
            commands = tuple(self.command_queue)
            self.command_queue.clear()
            self.command_queue.append(lambda: _call_each(commands))
            yield from super()._communicate_gen()

    def _fetch_gen(self, *, flush: bool) -> PQGen[None]:
        yield from super()._fetch_gen(flush=False)  # the sync has done that


def _call_each(commands: Iterable[Callable[[], None]]) -> None:
    for command in commands:
        command()


class PostgresConnection(AsyncConnection[Row]):
    """A connection that remembers whether its last commits reached the replicas they should."""

    is_replicated = True
    rows_of: AsyncRawCursor[Row]

    async def wait(
        self, gen: PQGen[T], interval: float = _CHECK_SECONDS, timeout: float | None = None
    ) -> T:
        """Do a piece of the driver's work. A caller cancelled meanwhile always sees that.

        The driver then ends the query. If that fails, it raises the error in place of the
        cancellation: a loop that retries after errors would never end.
        """
        asked = _times_cancelled()
        try:
            return await super().wait(gen, interval, timeout)
        except psycopg.Error as error:
            if _times_cancelled() > asked:
                raise asyncio.CancelledError from error
            raise

    def one_round_trip(self) -> AbstractAsyncContextManager[AsyncPipeline]:
        """Send all statements of the block when it ends, in one piece."""
        self._pipeline = _OnePiece(self)
        return self.pipeline()

    def note(self, diagnostic: Diagnostic) -> None:
        """PostgreSQL gave up waiting for a replica: committed here, perhaps nowhere else."""
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self.is_replicated = False


# Nothing was stored, and the same statements may succeed a moment later.
TRANSIENT: Final = (errors.DeadlockDetected, errors.SerializationFailure)
_LOST_STATES: Final = ("57P01", "57P02", "57P03", "25P03", "08")
_NOT_PREPARED: Final = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)


class ConnectionPool:
    """A pool that survives the server: what fails because a connection was lost is tried again."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.place = shown_store(url)
        self._conninfo = _with_defaults(url)
        self.patience = settings.busy_timeout_seconds
        self._is_unconfirmed = False
        self._hurries_until = 0.0
        self._idle_timeout = _milliseconds(settings.idle_transaction_seconds)
        self._size = settings.pool_connections
        self._is_preparing = settings.prepared_statements
        self._pool: AsyncConnectionPool[PostgresConnection] | None = None
        self._queue = PoolQueue(self._size, limit_seconds=self.patience)
        self._lent: set[PostgresConnection] = set()

    @property
    def lock_timeout(self) -> str:
        """How long a statement may wait for a lock.

        After one has waited in vain it is short for a while, so that the one write that waits for
        a stranger is soon found and fails alone, and the others do not wait with it.
        """
        is_hurrying = time.monotonic() < self._hurries_until
        return _milliseconds(_HURRIED_SECONDS if is_hurrying else self.patience)

    def hurry(self) -> None:
        """Note that a lock was not available."""
        self._hurries_until = time.monotonic() + self.patience

    async def open(self) -> None:
        """Make the pool. One connection was made before, so that errors were reported plainly."""
        self._pool = AsyncConnectionPool(
            self._conninfo,
            connection_class=PostgresConnection,
            kwargs=_KWARGS,
            configure=self._configure,
            min_size=1,
            max_size=self._size,
            timeout=self.patience,
            max_idle=60,
            reconnect_timeout=_GIVE_UP_SECONDS,
            open=False,
        )
        await self._pool.open()

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            self._queue.refuse()
            await pool.close(timeout=self.patience)

    def abort(self) -> None:
        """End the connections in use, from any thread: the server then ends their transactions.

        Its own limit on idle transactions does not count between two statements of a pipeline.
        """
        for connection in tuple(self._lent):
            with suppress(psycopg.Error):
                hang_up(connection)

    async def connect(self) -> PostgresConnection:
        """A connection outside the pool."""
        with self.translated():
            connection = await PostgresConnection.connect(self._conninfo, **_KWARGS)
            try:
                await self._configure(connection)
            except BaseException:
                await connection.close()
                raise
        connection.prepare_threshold = None
        return connection

    async def read(self, work: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        """The result of `work`, done again on another connection if one is lost on the way."""
        patience = Patience(self)
        while True:
            try:
                with self.translated():
                    async with self.lent(patience) as connection:
                        return await work(connection)
            except OutcomeUnknown as error:
                # Lost on the way, and nothing that matters was written.
                patience.check(StoreUnavailable(str(error)))
            await patience.pause()

    @asynccontextmanager
    async def lent(self, patience: "Patience | None" = None) -> AsyncGenerator[PostgresConnection]:
        """A connection for one piece of work; a broken one is not given to the next.

        A server that does not answer for twice the time one waits for a lock counts as away. The
        time in the queue for a connection does not count against `patience`.
        """
        if self._pool is None:
            raise StoreClosed()
        try:
            await self._queue.enter()
        except PoolStalled as error:
            raise await self._why_none() from error
        try:
            async with self._admitted() as connection:
                if patience is not None:
                    patience.begin()
                yield connection
        finally:
            self._queue.leave()

    @asynccontextmanager
    async def _admitted(self) -> AsyncGenerator[PostgresConnection]:
        pool = self._pool
        if pool is None:
            raise StoreClosed()
        connection = await self._get(pool)
        self._lent.add(connection)
        hanging_up = asyncio.get_running_loop().call_later(2 * self.patience, hang_up, connection)
        try:
            yield connection
        except _NOT_PREPARED as error:
            self._stop_preparing()
            await connection.close()
            raise errors.ConnectionException(
                "a pooler does not keep prepared statements"
            ) from error
        except psycopg.Error as error:
            if tells_of_loss(error):
                await connection.close()
            raise
        finally:
            hanging_up.cancel()
            self._lent.discard(connection)
            await pool.putconn(connection)

    async def _get(self, pool: AsyncConnectionPool[PostgresConnection]) -> PostgresConnection:
        """A connection of the pool. Asking again and again makes it try the server each time."""
        watch = self._queue.watch()
        asked = _times_cancelled()
        while True:
            try:
                connection = await pool.getconn(min(_ASK_AGAIN_SECONDS, self.patience))
            except PoolTimeout:
                try:
                    watch.look()
                except PoolStalled as error:
                    raise await self._why_none() from error
            except PoolClosed as error:
                raise StoreClosed() from error
            else:
                if _times_cancelled() == asked:
                    self._queue.moved()
                    return connection
                # wait_for of Python 3.11, in the pool, forgets it if the connection comes with it.
                await pool.putconn(connection)
                raise asyncio.CancelledError

    @asynccontextmanager
    async def transaction(
        self, connection: PostgresConnection, *, is_one_moment: bool = False
    ) -> AsyncGenerator[None]:
        """A transaction with our limits, whatever the session has; the caller says COMMIT.

        What is not committed when it ends is rolled back.
        """
        begin = _BEGIN_ONE_MOMENT if is_one_moment else _BEGIN
        try:
            # One round trip; the driver's pipeline would take longer than two.
            both = "; ".join([begin, self._limits(is_local=True)])
            await connection.execute(both, prepare=False)
            yield
        finally:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                with suppress(psycopg.Error):
                    await connection.execute("ROLLBACK")

    async def are_tables_free(self) -> bool:
        """Return whether an unavailable lock is one on rows: it concerns some, not everybody."""
        try:
            async with self.lent() as connection, self.transaction(connection):
                await connection.execute(SQL["lock_tables_at_once"])
        except psycopg.Error:
            return False
        return True

    async def confirm(self, connection: PostgresConnection) -> None:
        """Wait for the replicas, if a commit before did not; raises OutcomeUnknown.

        Whatever is acknowledged after a commit was not replicated waits for the replicas first.
        """
        if connection.is_replicated and not self._is_unconfirmed:
            return
        self._is_unconfirmed = connection.is_replicated = True
        await connection.execute(SQL["wait_for_replicas"])
        if not connection.is_replicated:
            raise OutcomeUnknown(
                f"{self.place} has committed, but no replica has confirmed it; it is asked again"
            )
        self._is_unconfirmed = False

    def _limits(self, *, is_local: bool) -> LiteralString:
        """`set_limits` with its parameters in it: words and numbers that we make."""
        said = SQL["set_limits"].replace("$1", f"'{self.lock_timeout}'")
        said = said.replace("$2", f"'{self._idle_timeout}'").replace("$3", str(is_local))
        return cast(LiteralString, said)

    def translated(self) -> AbstractContextManager[None]:
        return translated(self.place)

    async def _configure(self, connection: PostgresConnection) -> None:
        binary_arrays.adapt(connection)
        connection.add_notice_handler(connection.note)
        connection.rows_of = AsyncRawCursor(connection)
        connection.rows_of.format = Format.BINARY
        connection.prepare_threshold = 0 if self._is_preparing else None
        connection.prepared_max = _PREPARED
        # The driver numbers its statements from 0. Behind a pooler a session may have those of
        # another client: a number that nobody else has is missed there, not taken for another.
        names = connection._prepared  # pyright: ignore[reportPrivateUsage] -- no other way to them
        names._prepared_idx = secrets.randbits(60)  # pyright: ignore[reportPrivateUsage]
        await connection.execute(self._limits(is_local=False), prepare=False)

    def _stop_preparing(self) -> None:
        if self._is_preparing:
            self._is_preparing = False
            log.warning(
                "%s does not keep prepared statements from one transaction to the next: going on "
                "without them, which is slower; let the pooler keep them (PgBouncer: "
                "max_prepared_statements), or set prepared_statements=False",
                self.place,
            )

    async def _why_none(self) -> HoldfastError:
        """Why nobody was given a connection for so long: ask the server directly."""
        if self._pool is None:
            return StoreClosed()
        if self._pool.get_stats().get("pool_size", 0) >= self._size:
            return StoreBusy(
                f"all {self._size} connections to {self.place} were in use for "
                f"{self.patience:g} s, and none became free; raise pool_connections, or find out "
                "what keeps them (pg_stat_activity)"
            )
        try:
            connection = await self.connect()
        except HoldfastError as error:
            return error
        await connection.close()
        return StoreUnavailable(f"{self.place} was away, and is back only now; try again")


def _times_cancelled() -> int:
    """Return how often the present task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


_HURRIED_SECONDS: Final = 0.1
# The pool's own pauses grow to seconds; we ask it anew instead.
_GIVE_UP_SECONDS: Final = 0.1
_ASK_AGAIN_SECONDS: Final = 0.25
# Statements are made of parts, in some hundred combinations.
_PREPARED: Final = 1000
# Not READ WRITE: a standby refuses that without saying that it is one.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_ONE_MOMENT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_KWARGS: Final[dict[str, Any]] = {"autocommit": True, "cursor_factory": AsyncRawCursor}


async def fetch(connection: PostgresConnection, sql: LiteralString, row: Row = ()) -> list[Row]:
    """The rows of one statement, in binary form."""
    cursor = await connection.rows_of.execute(sql, row)
    return await cursor.fetchall()


async def fetch_together(
    connection: PostgresConnection, *statements: tuple[LiteralString, Row]
) -> list[list[Row]]:
    """The rows of several statements in one round trip, in order."""
    if len(statements) == 1:
        return [await fetch(connection, *statements[0])]
    async with connection.one_round_trip():
        cursors = [
            await connection.cursor(binary=True).execute(sql, row) for sql, row in statements
        ]
    return [await cursor.fetchall() for cursor in cursors]


async def fetch_parts(
    connection: PostgresConnection, statement: Statement, values: dict[str, Any]
) -> list[Row]:
    """The rows of a statement made of parts."""
    row = tuple([values[name] for name in statement.parameters])
    return await fetch(connection, statement.sql, row)


class Patience:
    """How long to retry once there was a connection, with growing pauses."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._seconds = connections.patience
        self._until: float | None = None
        self._pause = 0.01

    def begin(self) -> None:
        """Count from now on, unless it counts already."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds

    def check(self, error: HoldfastError) -> None:
        """Raise `error` when it is over."""
        self.begin()
        if self._until is not None and time.monotonic() > self._until:
            raise error

    async def pause(self) -> None:
        self._pause = await backed_off(self._pause)


async def backed_off(pause: float) -> float:
    """Wait a little; return how long to wait the next time."""
    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
    return min(pause * 2, 1.0)


def is_lost(connection: PostgresConnection) -> bool:
    return connection.closed or connection.broken


def hang_up(connection: PostgresConnection) -> None:
    """End a connection from this side: a task that waits for an answer gets an error.

    Cancelling the wait would ask the server to cancel the statement, and wait for that.
    """
    if not is_lost(connection):
        line = socket.socket(fileno=connection.fileno())
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.detach()


def tells_of_loss(error: psycopg.Error) -> bool:
    """Whether an error means that the connection is gone, and what it was doing is not known."""
    if error.sqlstate:
        return error.sqlstate.startswith(_LOST_STATES)
    return isinstance(error, psycopg.OperationalError)


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _with_defaults(url: str) -> str:
    """The connection string, with a name for the server's lists and a bound on connecting."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # The words of the driver may quote the password.
        raise InvalidSetting(
            f"{shown_store(url)} is not a URL that PostgreSQL's driver understands; "
            "it looks like postgresql://user:password@host:5432/database?sslmode=require"
        ) from error
    defaults = {"application_name": "holdfast", "connect_timeout": "10", "client_encoding": "utf8"}
    return conninfo.make_conninfo(url, **{k: v for k, v in defaults.items() if k not in given})


_ERRORS: Final[tuple[tuple[type[Exception], type[HoldfastError], str], ...]] = (
    (errors.InvalidPassword, StoreNotPermitted, "{place} refuses this user or password"),
    (
        errors.InvalidAuthorizationSpecification,
        StoreNotPermitted,
        "{place} does not let this user in; check the role and the server's pg_hba.conf",
    ),
    (
        errors.InvalidCatalogName,
        StoreNotPermitted,
        "there is no such database at {place}; create it first: createdb NAME",
    ),
    (
        errors.TooManyConnections,
        StoreBusy,
        "{place} has no connection left; raise its max_connections, lower pool_connections, or "
        "put a pooler in between",
    ),
    (
        errors.ReadOnlySqlTransaction,
        StoreNotPermitted,
        "{place} is read-only, perhaps a standby; name the primary",
    ),
    (
        errors.InsufficientPrivilege,
        StoreNotPermitted,
        "this role may not do that at {place}; docs/how-to/postgres.md lists what it needs",
    ),
    (errors.LockNotAvailable, StoreBusy, "somebody held a lock at {place} for too long"),
    (errors.QueryCanceled, StoreBusy, "{place} cancelled a statement: a timeout, or an operator"),
    (errors.DiskFull, StoreFull, "there is no room left at {place}; nothing was written"),
    (errors.OutOfMemory, StoreFull, "{place} is out of memory; nothing was written"),
    (errors.ProgramLimitExceeded, StoreFull, "a row is larger than PostgreSQL stores"),
    (errors.DataCorrupted, IntegrityError, "{place} is damaged; restore it from a backup"),
    (errors.IndexCorrupted, IntegrityError, "{place} is damaged; restore it from a backup"),
    (
        errors.UndefinedTable,
        IntegrityError,
        "{place} lacks a table of Holdfast's; was it dropped? `holdfast store migrate` makes it",
    ),
    (errors.DataError, UnsupportedValue, "PostgreSQL cannot store a value that was given"),
)


@contextmanager
def translated(place: str) -> Generator[None]:
    """Raise PostgreSQL's errors as ours; its own words go along as the cause, never any SQL.

    What may succeed a moment later (TRANSIENT) is raised unchanged, for callers that retry.
    """
    try:
        yield
    except TRANSIENT:
        raise
    except psycopg.Error as error:
        raise _ours(error, place) from error


def _ours(error: psycopg.Error, place: str) -> HoldfastError:
    for theirs, ours, message in _ERRORS:
        if isinstance(error, theirs):
            return ours(message.format(place=place))
    if isinstance(error, psycopg.OperationalError) and _is_connecting(error):
        return _while_connecting(error, place)
    if tells_of_loss(error):
        return OutcomeUnknown(f"the connection to {place} was lost")
    return StoreUnavailable(
        f"{place} refused a statement ({type(error).__name__} {error.sqlstate})"
    )


def _is_connecting(error: psycopg.OperationalError) -> bool:
    if error.sqlstate:
        return False
    return isinstance(error, errors.ConnectionTimeout) or "connection failed" in str(error)


# libpq has no SQLSTATE for what went wrong while connecting, only the server's words.
_WHILE_CONNECTING: Final[tuple[tuple[str, type[Exception]], ...]] = (
    ("password authentication failed", errors.InvalidPassword),
    ("no password supplied", errors.InvalidPassword),
    ("pg_hba.conf", errors.InvalidAuthorizationSpecification),
    ("not permitted to log in", errors.InvalidAuthorizationSpecification),
    ("permission denied for database", errors.InsufficientPrivilege),
    ("too many clients", errors.TooManyConnections),
    ("too many connections", errors.TooManyConnections),
    ("remaining connection slots", errors.TooManyConnections),
)


def _while_connecting(error: psycopg.OperationalError, place: str) -> HoldfastError:
    words = str(error)
    if "FATAL" in words and "does not exist" in words:
        is_database = 'database "' in words
        known = errors.InvalidCatalogName if is_database else errors.InvalidPassword
        return _ours(known(words), place)
    for said, known in _WHILE_CONNECTING:
        if said in words:
            return _ours(known(words), place)
    return StoreUnavailable(
        f"{place} cannot be reached; is the server running, and is this its address? "
        f"({_first_line(words)})"
    )


def _first_line(words: str) -> str:
    said = words.strip().removeprefix("connection failed: ")
    return said.splitlines()[0] if said else "no reason given"
