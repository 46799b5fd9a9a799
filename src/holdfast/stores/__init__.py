"""Stores: one contract, several backends. `open_store` is the only place that names a backend."""

from holdfast.clock import Clock
from holdfast.settings import Settings, locate_store
from holdfast.stores.contract import Store
from holdfast.telemetry import Telemetry


def open_store(
    url: str, *, settings: Settings, clock: Clock | None = None, telemetry: Telemetry | None = None
) -> Store:
    """The store a URL or a file's path names. Nothing is opened until its `open` is awaited."""
    path = locate_store(url).location
    from holdfast.stores.sqlite.store import SQLiteStore

    return SQLiteStore(path, settings=settings, clock=clock, telemetry=telemetry)
