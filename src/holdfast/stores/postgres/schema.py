"""The schema of a database: whether it is Holdfast's, and bringing it up to date.

Migrations run under an advisory lock, one process at a time. A role that may not make tables only
checks: then a role that may runs `holdfast store migrate`.
"""

import asyncio

from psycopg import errors

from holdfast import faults
from holdfast.errors import IntegrityError, SchemaMismatch, StoreNotPermitted
from holdfast.settings import Settings
from holdfast.stores import migrate
from holdfast.stores.migrate import AppliedMigration
from holdfast.stores.postgres.connections import ConnectionPool, PostgresConnection, fetch
from holdfast.stores.postgres.queries import MIGRATIONS, SQL
from holdfast.stores.sqlfiles import Migration


async def pending(connection: PostgresConnection, place: str) -> list[Migration]:
    """What the schema lacks; raises SchemaMismatch for a newer one."""
    ((has_table, _, has_others),) = await fetch(connection, SQL["has_migrations"])
    anothers = IntegrityError(
        f"{place} has another program's tables with the names of Holdfast's; name another "
        "database, or a schema of its own: ?options=-csearch_path%3Dholdfast"
    )
    if has_table:
        try:
            applied = await fetch(connection, SQL["list_migrations"])
        except errors.UndefinedColumn as error:
            raise anothers from error
        return migrate.pending(MIGRATIONS, [AppliedMigration(*row) for row in applied])
    if has_others:
        raise anothers
    return list(MIGRATIONS)


def pending_at(url: str, settings: Settings) -> list[Migration]:
    """What opening the database would add to its schema; for callers without an event loop."""

    async def look() -> list[Migration]:
        connections = ConnectionPool(url, settings)
        connection = await connections.connect()
        try:
            with connections.translated():
                return await pending(connection, connections.place)
        finally:
            await connection.close()

    return asyncio.run(look())


async def upgrade(connection: PostgresConnection, place: str, now: int) -> list[str]:
    """Apply what is missing, each migration in its own transaction; their names."""
    done: list[str] = []
    while missing := await pending(connection, place):
        await _check_may_migrate(connection, place, missing)
        async with connection.transaction():
            await connection.execute(SQL["lock_migrations"])
            await connection.execute(SQL["make_migrations"])
            still_missing = await pending(connection, place)
            if still_missing:
                first = still_missing[0]
                await connection.execute(first.sql, prepare=False)
                row = (first.number, first.name, first.is_breaking, now)
                await connection.execute(SQL["add_migration"], row)
                done.append(first.name)
            faults.point("migration.before_commit")
        faults.point("migration.after_commit")
    return done


async def settle(connection: PostgresConnection) -> None:
    """Note in which cluster the store is: one that was restored into another counts on there."""
    ((before, here),) = await fetch(connection, SQL["get_cluster"])
    if here and before != here:
        await connection.execute(SQL["move_to_cluster"], (here,))


async def _check_may_migrate(
    connection: PostgresConnection, place: str, missing: list[Migration]
) -> None:
    ((_, may_create, _),) = await fetch(connection, SQL["has_migrations"])
    if may_create:
        return
    if len(missing) == len(MIGRATIONS):
        raise StoreNotPermitted(
            f"{place} has no Holdfast schema yet, and this role may not make one; let a role that "
            "may run `holdfast store migrate` once"
        )
    names = ", ".join(f"{migration.number:04} {migration.name}" for migration in missing)
    raise SchemaMismatch(
        f"{place} lacks {names}, and this role may not add it; let a role that may run "
        "`holdfast store migrate`"
    )
