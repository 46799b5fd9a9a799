"""Stores: one contract, several backends. The only module that names a backend."""

import contextlib
import os
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.settings import Settings, locate_store
from holdfast.stores.contract import Store
from holdfast.telemetry import Telemetry

if TYPE_CHECKING:
    from holdfast.stores.sqlfiles import Migration


def open_store(
    url: str, *, settings: Settings, clock: Clock | None = None, telemetry: Telemetry | None = None
) -> Store:
    """The store a URL or a file's path names. Nothing is opened until its `open` is awaited."""
    path = locate_store(url).location
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(path, settings=settings, clock=clock, telemetry=telemetry)


def pending_migrations(url: str, *, settings: Settings) -> "list[Migration]":
    """What opening a store would add to its schema; nothing is changed, and no file is made.

    Raises SchemaMismatch for a store of a newer Holdfast, IntegrityError for a file that is none.
    """
    path = locate_store(url).location
    from holdfast.stores import migrate
    from holdfast.stores.sqlite.connection import check_is_ours, connect, translated
    from holdfast.stores.sqlite.queries import MIGRATIONS, SQL

    if not os.path.isfile(path):
        return list(MIGRATIONS)
    timeout = settings.busy_timeout_seconds
    opened = connect(path, busy_timeout_seconds=timeout, read_only=True)
    with contextlib.closing(opened) as connection, translated(path):
        check_is_ours(connection, path)
        if connection.execute("PRAGMA table_list(migrations)").fetchone() is None:
            return list(MIGRATIONS)
        return migrate.pending(MIGRATIONS, connection.execute(SQL["list_migrations"]))
