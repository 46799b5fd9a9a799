"""The two backends by name and by URL: `sqlite` and `postgres`."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks.contract import Floor, Place
from benchmarks.postgres import PostgresFloor, PostgresPlace
from benchmarks.sqlite import SQLiteFloor, SQLitePlace

STORES = ("sqlite", "postgres")

# What opening a store would import: no number should have that in it.
for _store in STORES:
    import_module(f"holdfast.stores.{_store}.store")
    import_module(f"holdfast.wakeups.{_store}")


@contextmanager
def open_place(name: str) -> Generator[Place]:
    """A place in a temporary folder; nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        if name == "sqlite":
            yield SQLitePlace(Path(folder))
        else:
            with PostgresPlace.started(Path(folder)) as place:
                yield place


async def connect(url: str) -> Floor:
    """The floor that a URL names, on a new connection."""
    if url.startswith("postgresql://"):
        return await PostgresFloor.connect(url)
    return SQLiteFloor(url)
