"""The schema of a file: what it lacks, and bringing it up to date."""

import contextlib
import os

from holdfast import faults
from holdfast.clock import Clock
from holdfast.settings import Settings
from holdfast.stores import migrate
from holdfast.stores.migrate import AppliedMigration
from holdfast.stores.sqlfiles import Migration
from holdfast.stores.sqlite.connection import (
    APPLICATION_ID,
    SqliteConnection,
    check_is_ours,
    connect,
    translated,
)
from holdfast.stores.sqlite.queries import MIGRATIONS, SQL


def pending_at(path: str, settings: Settings) -> list[Migration]:
    """What opening the file would add to its schema; it is not made if it is not there."""
    if not os.path.isfile(path):
        return list(MIGRATIONS)
    timeout = settings.busy_timeout_seconds
    opened = connect(path, busy_timeout_seconds=timeout, read_only=True)
    with contextlib.closing(opened) as connection, translated(path):
        check_is_ours(connection, path)
        if connection.execute("PRAGMA table_list(migrations)").fetchone() is None:
            return list(MIGRATIONS)
        return migrate.pending(MIGRATIONS, _applied(connection))


def upgrade(connection: SqliteConnection, clock: Clock) -> list[str]:
    """Apply the migrations that are missing, each in its own transaction; their names."""
    done: list[str] = []
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(SQL["make_migrations"])
            missing = migrate.pending(MIGRATIONS, _applied(connection))
            if missing:
                first = missing[0]
                connection.execute(first.sql)
                row = (first.number, first.name, first.is_breaking, clock.now())
                connection.execute(SQL["add_migration"], row)
                done.append(first.name)
            faults.point("migration.before_commit")
            connection.execute("COMMIT")
            faults.point("migration.after_commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if len(missing) <= 1:
            return done


def _applied(connection: SqliteConnection) -> list[AppliedMigration]:
    return [AppliedMigration(*row) for row in connection.execute(SQL["list_migrations"])]
