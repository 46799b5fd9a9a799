"""Rebuilding a run's indexes from its journal, in one transaction."""

from collections.abc import Iterator

from holdfast import faults
from holdfast.kernel.budgets import AddBudget, AddReservation
from holdfast.kernel.index_rows import Indexes, replayed
from holdfast.kernel.indexes import (
    AddCheckpoint,
    AddGroup,
    AddMark,
    AddSignal,
    AddWait,
    AddWrites,
    PutRun,
)
from holdfast.kernel.journal import Entry
from holdfast.kernel.records import AddRevision, PutRecord
from holdfast.kernel.waits import Wait
from holdfast.stores.hints import keep_proven_run, with_hints
from holdfast.stores.sqlite import changes
from holdfast.stores.sqlite.connection import SqliteConnection
from holdfast.stores.sqlite.queries import SHAPES, SQL, Row

_DELETES = (
    "delete_run_rows",
    "delete_checkpoint_rows",
    "delete_mark_rows",
    "delete_write_rows",
    "delete_record_rows",
    "delete_revision_rows",
    "delete_effect_rows",
    "delete_wait_rows",
    "delete_group_rows",
    "delete_signal_rows",
    "delete_budget_rows",
    "delete_reservation_rows",
)


def rebuild(connection: SqliteConnection, tenant: str, run_id: str) -> None:
    """Replace a run's rows by what its journal says; hints of peers on open waits are kept."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        hints = {
            wait.wait_id: wait
            for wait in map(
                SHAPES.wait.value, connection.execute(SQL["list_waits"], (tenant, run_id))
            )
        }
        rows = replayed(Entry(*row) for row in _journal(connection, tenant, run_id))
        for row in connection.execute(SQL["get_run"], (tenant, run_id)).fetchall():
            keep_proven_run(rows, SHAPES.run, row)
        for name in ("permit_removal", *_DELETES, "forbid_removal"):
            connection.execute(SQL[name], (tenant, run_id))
        _insert(connection, tenant, run_id, rows, hints)
        faults.point("reindex.before_commit")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _journal(connection: SqliteConnection, tenant: str, run_id: str) -> Iterator[Row]:
    return iter(connection.execute(SQL["read_entries"], (tenant, run_id, 0, -1)))


def _insert(
    connection: SqliteConnection, tenant: str, run_id: str, rows: Indexes, hints: dict[str, Wait]
) -> None:
    wanted = [
        *([PutRun(rows.run)] if rows.run else []),
        *map(AddCheckpoint, rows.checkpoints.values()),
        *map(AddMark, rows.marks.values()),
        *map(AddWrites, rows.writes.values()),
        *(PutRecord(*SHAPES.record.row(row)) for row in rows.records.values()),
        *map(AddRevision, rows.revisions.values()),
        *map(AddGroup, rows.groups.values()),
        *(AddWait(with_hints(wait, hints.get(wait.wait_id))) for wait in rows.waits.values()),
        *map(AddSignal, rows.signals.values()),
        *([AddBudget(rows.books.account)] if rows.books.account else []),
        *map(AddReservation, rows.books.reservations.values()),
    ]
    for change in wanted:
        for name, row in changes.statements(tenant, run_id, change):
            connection.execute(SQL[name], row)
    for effect in rows.effects.values():
        connection.execute(SQL["restore_effect"], SHAPES.effect.row(effect))
