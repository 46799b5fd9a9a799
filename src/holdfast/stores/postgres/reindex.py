"""Rebuilding a run's indexes from its journal, in one transaction.

All of it sees the store at one moment. What a holder adds meanwhile is kept; what it changes
meanwhile makes PostgreSQL refuse the transaction, and the rebuild begins again. Rows that are right
are left alone. Others are deleted and written anew, under a lock: a writer that waited for one of
them, or for its run, would continue as if it were gone.
"""

from collections.abc import Iterable
from typing import Final, LiteralString

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
from holdfast.kernel.marks import Marked
from holdfast.kernel.records import AddRevision, PutRecord
from holdfast.kernel.signals import Signal
from holdfast.kernel.waits import Wait
from holdfast.stores.hints import keep_proven_run, with_hints
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.changes import Changes, Parameters
from holdfast.stores.postgres.connections import (
    ConnectionPool,
    PostgresConnection,
    fetch,
    fetch_parts,
)
from holdfast.stores.postgres.queries import SHAPES, SQL, change_statement
from holdfast.stores.rows import Row

_READS: Final[tuple[tuple[LiteralString, Row], ...]] = (
    ("get_run_row", ()),
    ("list_checkpoints", (2**62, 2**62)),
    ("list_marks_of_run", ()),
    ("list_writes", ()),
    ("list_records", ()),
    ("list_revisions", ()),
    ("list_effects_of_run", ()),
    ("list_waits", ()),
    ("list_groups", ()),
    ("list_signals", ()),
    ("get_budget", ()),
    ("list_reservations", ()),
)
_DELETES: Final = (
    "delete_run_rows",
    "delete_mark_rows",
    "delete_write_rows",
    "delete_record_rows",
    "delete_effect_rows",
    "delete_wait_rows",
    "delete_group_rows",
    "delete_signal_rows",
    "delete_budget_rows",
    "delete_reservation_rows",
)


async def rebuild(
    connections: ConnectionPool, connection: PostgresConnection, tenant: str, run_id: str
) -> None:
    """Replace a run's rows by what its journal says; hints of peers on open waits are kept."""
    key = (tenant, run_id)
    async with connections.transaction(connection, is_one_moment=True):
        stored = {name: await fetch(connection, SQL[name], (*key, *more)) for name, more in _READS}
        journal = await fetch(connection, SQL["read_entries"], (*key, 0, -1))
        rows = replayed(Entry(*row) for row in journal)
        for row in await fetch(connection, SQL["get_run"], key):
            keep_proven_run(rows, SHAPES.run, row)
        _keep_hints(rows, map(SHAPES.wait.value, stored["list_waits"]))
        if _expected_rows(rows) != {name: set(_cut(name, found)) for name, found in stored.items()}:
            await connection.execute(SQL["lock_out_changes_of_runs"])
            for name in _DELETES:
                await connection.execute(SQL[name], key)
            await _insert(connection, tenant, run_id, rows)
        faults.point("reindex.before_commit")
        await connection.execute("COMMIT")


_CUT: Final = {
    "list_marks_of_run": len(Marked.__struct_fields__),
    "list_signals": len(Signal.__struct_fields__),
}


def _cut(name: str, found: Iterable[Row]) -> Iterable[Row]:
    """Leave out what a query reads beside the rows of its table."""
    return [row[: _CUT.get(name)] for row in found]


def _keep_hints(rows: Indexes, stored: Iterable[Wait]) -> None:
    for wait in stored:
        if wait.wait_id in rows.waits:
            rows.waits[wait.wait_id] = with_hints(rows.waits[wait.wait_id], wait)


def _expected_rows(rows: Indexes) -> dict[str, set[Row]]:
    """Return what the journal says, in the form of the queries that read the tables."""
    return {
        "get_run_row": set() if rows.run is None else {SHAPES.run.row(rows.run)},
        "list_checkpoints": set(map(SHAPES.checkpoint.row, rows.checkpoints.values())),
        "list_marks_of_run": set(map(SHAPES.mark.row, rows.marks.values())),
        "list_writes": set(map(SHAPES.writes.row, rows.writes.values())),
        "list_records": set(map(SHAPES.record.row, rows.records.values())),
        "list_revisions": set(map(SHAPES.revision.row, rows.revisions.values())),
        "list_effects_of_run": set(map(SHAPES.effect.row, rows.effects.values())),
        "list_waits": set(map(SHAPES.wait.row, rows.waits.values())),
        "list_groups": set(map(SHAPES.group.row, rows.groups.values())),
        "list_signals": set(map(SHAPES.signal.row, rows.signals.values())),
        "get_budget": set()
        if rows.books.account is None
        else {SHAPES.account.row(rows.books.account)},
        "list_reservations": set(map(SHAPES.reservation.row, rows.books.reservations.values())),
    }


async def _insert(connection: PostgresConnection, tenant: str, run_id: str, rows: Indexes) -> None:
    wanted = [
        *([PutRun(rows.run)] if rows.run else []),
        *map(AddCheckpoint, rows.checkpoints.values()),
        *map(AddMark, rows.marks.values()),
        *map(AddWrites, rows.writes.values()),
        *(PutRecord(*SHAPES.record.row(row)) for row in rows.records.values()),
        *map(AddRevision, rows.revisions.values()),
        *map(AddGroup, rows.groups.values()),
        *map(AddWait, rows.waits.values()),
        *map(AddSignal, rows.signals.values()),
        *([AddBudget(rows.books.account)] if rows.books.account else []),
        *map(AddReservation, rows.books.reservations.values()),
    ]
    parameters = Parameters(tenant)
    parameters.values["stored_run_id"] = binary_arrays.texts([run_id])
    changes = Changes(run_id, wanted)
    if rows.effects:
        changes.records["restore_effect"] = dict(rows.effects)
    parameters.add_changes([changes])
    statement = change_statement(frozenset(parameters.parts))
    await fetch_parts(connection, statement, parameters.values)
