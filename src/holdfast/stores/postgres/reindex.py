"""Rebuilding a run's indexes from its journal, in one transaction.

All of it sees the store at one moment. What a holder adds meanwhile stays as it is; what it changes
meanwhile makes PostgreSQL refuse the transaction, and the rebuild begins again.
"""

from holdfast import faults
from holdfast.kernel.indexes import (
    AddCheckpoint,
    AddEffect,
    AddGroup,
    AddWait,
    Indexes,
    PutRun,
    replayed,
)
from holdfast.kernel.journal import Entry
from holdfast.kernel.waits import Wait
from holdfast.stores.hints import with_hints
from holdfast.stores.postgres import packing
from holdfast.stores.postgres.changes import Changes, Parameters
from holdfast.stores.postgres.connections import Connection, Connections, fetch, fetch_parts
from holdfast.stores.postgres.queries import SHAPES, SQL, change_statement

_DELETES = (
    "delete_run_rows",
    "delete_checkpoint_rows",
    "delete_effect_rows",
    "delete_wait_rows",
    "delete_group_rows",
)


async def rebuild(
    connections: Connections, connection: Connection, tenant: str, run_id: str
) -> None:
    """Replace a run's rows by what its journal says; hints of peers on open waits are kept."""
    key = (tenant, run_id)
    async with connections.transaction(connection, is_one_moment=True):
        stored = map(SHAPES.wait.value, await fetch(connection, SQL["list_waits"], key))
        hints = {wait.wait_id: wait for wait in stored}
        journal = await fetch(connection, SQL["read_entries"], (*key, 0, -1))
        rows = replayed(Entry(*row) for row in journal)
        for name in _DELETES:
            await connection.execute(SQL[name], key)
        await _insert(connection, tenant, run_id, rows, hints)
        faults.point("reindex.before_commit")
        await connection.execute("COMMIT")


async def _insert(
    connection: Connection, tenant: str, run_id: str, rows: Indexes, hints: dict[str, Wait]
) -> None:
    wanted = [
        *([PutRun(rows.run)] if rows.run else []),
        *map(AddCheckpoint, rows.checkpoints.values()),
        *map(AddEffect, rows.effects.values()),
        *map(AddGroup, rows.groups.values()),
        *(AddWait(with_hints(wait, hints.get(wait.wait_id))) for wait in rows.waits.values()),
    ]
    parameters = Parameters(tenant)
    parameters.values["stored_run_id"] = packing.texts([run_id])
    parameters.add_changes([Changes(run_id, wanted)])
    statement = change_statement(frozenset(parameters.parts))
    await fetch_parts(connection, statement, parameters.values)
