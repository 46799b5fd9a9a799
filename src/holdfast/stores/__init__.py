"""Stores: one contract, several backends. The only module that names a backend."""

import contextlib
import os

from holdfast.clock import Clock
from holdfast.errors import SchemaMismatch
from holdfast.settings import Settings, locate_store
from holdfast.stores import migrate
from holdfast.stores.contract import Store
from holdfast.stores.sqlfiles import Migration
from holdfast.telemetry import Telemetry


def open_store(
    url: str, *, settings: Settings, clock: Clock | None = None, telemetry: Telemetry | None = None
) -> Store:
    """The store a URL or a file's path names. Nothing is opened until its `open` is awaited."""
    path = locate_store(url).location
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(path, settings=settings, clock=clock, telemetry=telemetry)


def pending_migrations(url: str, *, settings: Settings) -> list[Migration]:
    """What opening a store would add to its schema; nothing is changed, and no file is made.

    Raises SchemaMismatch for a store of a newer Holdfast, and for another program's database.
    """
    path = locate_store(url).location
    from holdfast.stores.sqlite.connection import connect, translated
    from holdfast.stores.sqlite.queries import MIGRATIONS, SQL

    if not os.path.isfile(path):
        return list(MIGRATIONS)
    timeout = settings.busy_timeout_seconds
    with (
        contextlib.closing(
            connect(path, busy_timeout_seconds=timeout, read_only=True)
        ) as connection,
        translated(path),
    ):
        tables = {row[1] for row in connection.execute("PRAGMA table_list")}
        if {"migrations", "journal"} <= tables:
            return migrate.pending(MIGRATIONS, connection.execute(SQL["list_migrations"]))
    if any(not name.startswith("sqlite_") for name in tables):
        raise SchemaMismatch(f"{path} is a database of another program; name another file")
    return list(MIGRATIONS)
