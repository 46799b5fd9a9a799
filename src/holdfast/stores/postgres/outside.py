"""Writes of those who hold no lease: replies, timers, cancels, sweeps, heartbeats.

    lock the runs' rows, sorted  →  read what decisions look at  →  decide  →  write  →  COMMIT

Holders of leases may append meanwhile, because a turn does not lock its run's row: then nothing of
that run is stored here, and its decisions are made anew on what is there now.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import errors

from holdfast import faults
from holdfast.clock import Clock
from holdfast.errors import (
    IntegrityError,
    OutcomeUnknown,
    StoreBusy,
    StoreNotPermitted,
    StoreUnavailable,
    UnavailableError,
)
from holdfast.kernel.journal import Entry
from holdfast.stores.contract import Sweep
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.commits import TryApart
from holdfast.stores.postgres.connections import (
    TRANSIENT,
    ConnectionPool,
    Patience,
    PostgresConnection,
    fetch,
    tells_of_loss,
)
from holdfast.stores.postgres.queries import SQL
from holdfast.stores.postgres.rounds import DamagedRuns, OutsideRound, OutsideWrite


class _LostAtCommit(Exception):
    """The connection was lost at COMMIT; `probe` is an entry that is stored if the rest is."""

    def __init__(self, probe: Entry | None) -> None:
        super().__init__()
        self.probe = probe


class OutsideWriter:
    """Applies batches of outside writes of one tenant."""

    def __init__(
        self,
        connections: ConnectionPool,
        tenant: str,
        clock: Clock,
        server_clock: ServerClock | None,
    ) -> None:
        self._connections = connections
        self._tenant = tenant
        self._clock = clock
        self._server_clock = server_clock

    async def apply(self, batch: Sequence[OutsideWrite]) -> list[Any]:
        """One answer for each write; an error means that nothing is stored.

        TryApart asks for smaller batches. What befalls a write after others of its batch were
        stored is the answer to that one alone.
        """
        faults.point("batch.before_begin")
        patience = Patience(self._connections)
        answers: list[Any] = [[] if isinstance(write, Sweep) else None for write in batch]
        waiting = dict(enumerate(batch))
        is_first = True
        while waiting:
            try:
                waiting = await self._finish_round(waiting, answers, patience)
            except Exception as error:
                if is_first:
                    raise
                reported = StoreBusy() if isinstance(error, TryApart) else error
                answers = [reported if i in waiting else a for i, a in enumerate(answers)]
                break
            is_first = False
        faults.point("batch.before_acknowledge")
        return answers

    async def _finish_round(
        self, waiting: dict[int, OutsideWrite], answers: list[Any], patience: Patience
    ) -> dict[int, OutsideWrite]:
        """Transact until something is stored or nothing is to be; return what to decide anew."""
        damaged: dict[str, IntegrityError] = {}
        while True:
            round_ = OutsideRound(self._tenant, self._clock, waiting, damaged)
            try:
                with self._connections.translated():
                    async with (
                        self._apart(len(waiting)),
                        self._connections.lent(patience) as connection,
                    ):
                        await self._transact(connection, round_)
                        await self._connections.confirm(connection)
                break
            except TRANSIENT:
                # A deadlock: PostgreSQL chose our transaction to give way.
                patience.check(StoreBusy())
            except DamagedRuns as found:
                damaged |= found.damage
            except _LostAtCommit as lost:
                if lost.probe is not None and await self._is_stored(lost.probe, patience):
                    await self._confirm(patience)
                    break
                patience.check(StoreUnavailable())
            except OutcomeUnknown as error:
                if round_.is_committed:
                    await self._confirm(patience)
                    break
                patience.check(StoreUnavailable(str(error)))
            await patience.pause()
        round_.give(answers)
        return round_.conflicting()

    async def _transact(self, connection: PostgresConnection, round_: OutsideRound) -> None:
        if self._server_clock is not None:
            await self._server_clock.refresh(connection)
        if await round_.finds_nothing(connection):
            return
        async with self._connections.transaction(connection):
            faults.point("batch.after_begin")
            await round_.decide(connection)
            if not round_.has_writes:
                # After ROLLBACK the driver would prepare every statement anew.
                await connection.execute("COMMIT")
                return
            faults.point("batch.after_decide")
            await round_.write(connection)
            faults.point("batch.before_commit")
            await _commit(connection, round_.probe)
            round_.is_committed = True
        faults.point("batch.after_commit")

    @asynccontextmanager
    async def _apart(self, writes: int) -> AsyncGenerator[None]:
        """Make the write that wants an unavailable lock fail alone."""
        try:
            yield
        except errors.LockNotAvailable as error:
            self._connections.hurry()
            if writes > 1 and await self._connections.are_tables_free():
                raise TryApart from error
            raise

    async def _is_stored(self, probe: Entry, patience: Patience) -> bool:
        """Return whether an entry's transaction was committed. Its lock shows when it has ended."""
        while True:
            try:
                with self._connections.translated():
                    async with (
                        self._connections.lent(patience) as connection,
                        self._connections.transaction(connection),
                    ):
                        runs = binary_arrays.texts([probe.run_id])
                        asked = (self._tenant, runs, binary_arrays.texts([]))
                        await fetch(connection, SQL["lock_runs"], asked)
                        key = (self._tenant, probe.run_id, probe.seq)
                        links = await fetch(connection, SQL["get_link"], key)
                        return [link for (link,) in links] == [probe.link]
            except (UnavailableError, StoreNotPermitted) as error:
                patience.check(OutcomeUnknown(str(error)))
            await patience.pause()

    async def _confirm(self, patience: Patience) -> None:
        """Wait until what was committed on another connection has reached the replicas."""
        while True:
            try:
                with self._connections.translated():
                    async with self._connections.lent(patience) as connection:
                        connection.is_replicated = False
                        return await self._connections.confirm(connection)
            except (UnavailableError, StoreNotPermitted) as error:
                patience.check(OutcomeUnknown(str(error)))
            await patience.pause()


async def _commit(connection: PostgresConnection, probe: Entry | None) -> None:
    try:
        await connection.execute("COMMIT")
    except psycopg.Error as error:
        if tells_of_loss(error):
            raise _LostAtCommit(probe) from error
        raise
