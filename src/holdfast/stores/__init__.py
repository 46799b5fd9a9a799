"""Stores: one contract, several backends. The only module that names a backend."""

import importlib.util
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import InvalidSetting
from holdfast.settings import Settings, locate_store
from holdfast.stores.contract import Store
from holdfast.telemetry import Telemetry

if TYPE_CHECKING:
    from holdfast.stores.sqlfiles import Migration


def open_store(
    url: str, *, settings: Settings, clock: Clock | None = None, telemetry: Telemetry | None = None
) -> Store:
    """The store a URL or a file's path names. Nothing is opened until its `open` is awaited."""
    backend, location = locate_store(url)
    if backend == "postgres":
        _check_has_driver()
        from holdfast.stores.postgres.store import PostgresStore

        return PostgresStore(location, settings=settings, clock=clock, telemetry=telemetry)
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(location, settings=settings, clock=clock, telemetry=telemetry)


def pending_migrations(url: str, *, settings: Settings) -> "list[Migration]":
    """What opening a store would add to its schema; nothing is changed, and no file is made.

    Raises SchemaMismatch for a store of a newer Holdfast, IntegrityError for what is no store.
    """
    backend, location = locate_store(url)
    if backend == "postgres":
        _check_has_driver()
        from holdfast.stores.postgres import schema

        return schema.pending_at(location, settings)
    from holdfast.stores.sqlite.schema import pending_at

    return pending_at(location, settings)


def _check_has_driver() -> None:
    if not all(map(importlib.util.find_spec, ("psycopg", "psycopg_pool"))):
        raise InvalidSetting("PostgreSQL needs its driver: pip install 'holdfast[postgres]'")
