"""Commits of lease holders: a batch is one statement, one round trip, one transaction.

A statement that fails stores nothing. When the connection is lost on the way nobody knows, so the
batch is sent again unchanged: an entry that is there already, with the same link, is success.
"""

from collections.abc import Sequence

from psycopg import errors

from holdfast import faults
from holdfast.clock import steady
from holdfast.errors import OutcomeUnknown, StoreNotPermitted, UnavailableError
from holdfast.kernel.indexes import AddCheckpoint, AddEffect, Change, SettleEffect
from holdfast.stores.contract import Applied, Commit, Conflict, Outcome, Refused
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.changes import ALL, Changes, Condition, Parameters, changes_of
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.connections import (
    TRANSIENT,
    ConnectionPool,
    Patience,
    PostgresConnection,
    backed_off,
    fetch,
    fetch_parts,
)
from holdfast.stores.postgres.queries import (
    CLOSING,
    SHAPES,
    SQL,
    change_statement,
    commit_statement,
)
from holdfast.stores.rows import Row


class TryApart(Exception):
    """Nothing of the batch was stored because of one of its commits: try smaller batches."""


class CommitWriter:
    """Applies batches of commits of one tenant, at most one for each run."""

    def __init__(self, connections: ConnectionPool, tenant: str, clock: ServerClock | None) -> None:
        self._connections = connections
        self._tenant = tenant
        self._clock = clock

    async def apply(self, batch: Sequence[Commit]) -> list[Outcome]:
        """One answer for each commit once all are on disk; an error means that none is stored.

        OutcomeUnknown means that nobody knows. TryApart asks for smaller batches.
        """
        faults.point("batch.before_begin")
        patience = Patience(self._connections)
        is_unknown = False
        while True:
            try:
                with self._connections.translated():
                    outcomes = await self._send(batch, patience)
                faults.point("batch.before_acknowledge")
                return outcomes
            except OutcomeUnknown as error:
                is_unknown = True
                patience.check(error)
            except (UnavailableError, StoreNotPermitted, TryApart) as error:
                if not is_unknown:
                    raise
                # An earlier sending may be stored, or still wait for something: time ends this.
                patience.check(OutcomeUnknown(str(error)))
            await patience.pause()

    async def _send(self, batch: Sequence[Commit], patience: Patience) -> list[Outcome]:
        while True:
            try:
                async with self._connections.lent(patience) as connection:
                    outcomes = await self._apply_on(connection, batch)
                    await self._connections.confirm(connection)
                    faults.point("batch.after_commit")
                    return outcomes
            except errors.LockNotAvailable as error:
                self._connections.hurry()
                if len(batch) > 1 and await self._connections.are_tables_free():
                    raise TryApart from error
                raise
            except TRANSIENT:
                # A deadlock: PostgreSQL chose our transaction to give way.
                await backed_off(0.005)

    async def _apply_on(
        self, connection: PostgresConnection, batch: Sequence[Commit]
    ) -> list[Outcome]:
        if len(batch) == 1:
            return [await self._apply_alone(connection, batch[0])]
        ordered = sorted(batch, key=lambda commit: commit.run_id)
        changes = {commit.run_id: changes_of(commit) for commit in ordered}
        if any(each.is_stepwise for each in changes.values()):
            raise TryApart
        try:
            stored = await self._store(connection, ordered, changes)
        except errors.InvalidTextRepresentation as error:
            if not _tells_of_condition(error):
                raise
            raise TryApart from error
        missing = [commit for commit in batch if commit.run_id not in stored]
        there = await self._already_there(connection, missing) if missing else set[str]()
        stored |= there
        return [Applied() if c.run_id in stored else Conflict() for c in batch]

    async def _apply_alone(self, connection: PostgresConnection, commit: Commit) -> Outcome:
        changes = changes_of(commit)
        if changes.is_stepwise:
            return await self._apply_in_steps(connection, commit, changes)
        try:
            if (lone := _lone_statement(commit)) is not None:
                is_stored = await self._store_lone(connection, lone)
            else:
                is_stored = bool(await self._store(connection, [commit], {commit.run_id: changes}))
        except errors.InvalidTextRepresentation as error:
            if not _tells_of_condition(error):
                raise
            return await self._apply_in_steps(connection, commit, changes)
        if is_stored or await self._already_there(connection, [commit]):
            return Applied()
        return Conflict()

    async def _store_lone(self, connection: PostgresConnection, lone: tuple[str, Row]) -> bool:
        faults.point("batch.after_begin")
        name, row = lone
        asked_at = steady()
        stored = await fetch(connection, SQL[name], (*row, self._connections.lock_timeout))
        if stored:
            self._learn(stored[0][0], asked_at)
        return bool(stored)

    async def _store(
        self, connection: PostgresConnection, ordered: Sequence[Commit], changes: dict[str, Changes]
    ) -> set[str]:
        """Send the statement; return the runs whose entries it stored."""
        parameters = self._parameters(ordered, is_strict=True)
        conditions = [len(changes[commit.run_id].conditions) for commit in ordered]
        if any(conditions):
            parameters.values["first_conditions"] = binary_arrays.int8s(conditions)
        parameters.add_changes(list(changes.values()))
        faults.point("batch.after_begin")
        statement = commit_statement(frozenset(parameters.parts))
        asked_at = steady()
        rows = await fetch_parts(connection, statement, parameters.values)
        self._learn(max((at for *_, at in rows), default=0), asked_at)
        return {run_id for what, run_id, _, _ in rows if what == "stored"}

    async def _apply_in_steps(
        self, connection: PostgresConnection, commit: Commit, changes: Changes
    ) -> Outcome:
        """One commit in a transaction of several statements, to see which condition fails."""
        async with self._connections.transaction(connection):
            faults.point("batch.after_begin")
            parameters = self._parameters([commit], is_strict=False)
            parameters.values["first_conditions"] = binary_arrays.int8s([len(changes.conditions)])
            parameters.add_changes([changes], ALL - frozenset(CLOSING))
            statement = commit_statement(frozenset(parameters.parts))
            asked_at = steady()
            rows = await fetch_parts(connection, statement, parameters.values)
            faults.point("commit.after_entries")
            refused = first_failed_condition(changes, rows)
            if rows and refused is not None:
                return Refused(refused)
            if rows:
                await close_waits(connection, self._tenant, [changes])
                refused = await change_later(connection, self._tenant, changes)
                if refused is not None:
                    return Refused(refused)
                faults.point("commit.after_changes")
                faults.point("batch.before_commit")
                await connection.execute("COMMIT")
                self._learn(max(at for *_, at in rows), asked_at)
                return Applied()
        return Applied() if await self._already_there(connection, [commit]) else Conflict()

    def _parameters(self, commits: Sequence[Commit], *, is_strict: bool) -> Parameters:
        parameters = Parameters(self._tenant)
        parameters.values["is_strict"] = is_strict
        parameters.values["lock_timeout"] = self._connections.lock_timeout
        locked = [commit.run_id for commit in commits if commit.run is not None]
        parameters.values["locked_run_id"] = binary_arrays.texts(locked)
        parameters.add_entries(commits)
        return parameters

    async def _already_there(
        self, connection: PostgresConnection, commits: Sequence[Commit]
    ) -> set[str]:
        """The runs whose commit was stored by an earlier sending."""
        first = {commit.run_id: commit.entries[0] for commit in commits}
        asked = (
            self._tenant,
            binary_arrays.texts(first),
            binary_arrays.int8s([entry.seq for entry in first.values()]),
        )
        links = await fetch(connection, SQL["list_links"], asked)
        there = {run_id for run_id, link in links if link == first[run_id].link}
        if there:
            # That commit was not acknowledged: it is visible here, and perhaps on no replica.
            connection.is_replicated = False
        return there

    def _learn(self, stored_at: int, asked_at: int) -> None:
        if self._clock is not None and stored_at:
            self._clock.learn(stored_at, asked_at=asked_at)


def _lone_statement(commit: Commit) -> tuple[str, Row] | None:
    """The statement for one entry with one change, the most frequent commits, and its row."""
    is_simple = commit.run is None and not commit.begun
    if not is_simple or len(commit.entries) != 1 or len(commit.changes) != 1:
        return None
    entry = (*SHAPES.entry.row(commit.entries[0]), commit.after.link)
    match commit.changes[0]:
        case AddCheckpoint(checkpoint):
            return "save_turn", (*entry, *SHAPES.checkpoint.row(checkpoint)[2:])
        case AddEffect(effect):
            _, effect_id, key, _, *rest = SHAPES.effect.row(effect)
            return "issue_effect", (*entry, effect_id, key, *rest)
        case SettleEffect(effect_id, status, seq, at):
            return "settle_effect", (*entry, effect_id, status.value, seq, at)
        case _:
            return None


def _tells_of_condition(error: errors.InvalidTextRepresentation) -> bool:
    return "holdfast: a condition" in str(error)


def first_failed_condition(changes: Changes, rows: Sequence[Row]) -> Change | None:
    """Return the change whose condition did not hold, if any."""
    held = {Condition(what, item) for what, _, item, _ in rows}
    return next((change for at, change in changes.conditions.items() if at not in held), None)


async def change_later(
    connection: PostgresConnection, tenant: str, changes: Changes
) -> Change | None:
    """Make the later changes in order; return the one whose condition did not hold, if any."""
    for each in changes.later:
        parameters = Parameters(tenant)
        parameters.values["stored_run_id"] = binary_arrays.texts([each.run_id])
        parameters.add_changes([each])
        statement = change_statement(frozenset(parameters.parts))
        refused = first_failed_condition(
            each, await fetch_parts(connection, statement, parameters.values)
        )
        if refused is not None:
            return refused
    return None


async def close_waits(
    connection: PostgresConnection, tenant: str, changes: Sequence[Changes]
) -> None:
    """Cancel what closed groups and ended runs leave open, after all else is done to the rows."""
    for part in CLOSING:
        closing = [each for each in changes if part in each.records]
        if closing:
            parameters = Parameters(tenant)
            parameters.values["stored_run_id"] = binary_arrays.texts(
                [each.run_id for each in closing]
            )
            parameters.add_changes(closing, frozenset({part}))
            await fetch_parts(connection, change_statement(frozenset({part})), parameters.values)
