"""Databases of LangGraph's own savers, which threads are imported from."""

import importlib.util

from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.errors import InvalidSetting
from holdfast.integrations.langgraph.sources.contract import (
    Saved,
    SourcePosition,
    SourceReader,
    ThreadSource,
    Write,
)
from holdfast.integrations.langgraph.sources.contract import ThreadSize as ThreadSize
from holdfast.settings import locate_store


def open_source(url: str, serde: SerializerProtocol) -> ThreadSource:
    """Open a database by its path or URL, to be read only; what it stores goes through `serde`."""
    backend, location = locate_store(url)
    if backend == "postgres":
        if importlib.util.find_spec("psycopg") is None:
            raise InvalidSetting("PostgreSQL needs its driver: pip install 'holdfast[postgres]'")
        from holdfast.integrations.langgraph.sources.postgres import PostgresSource

        return PostgresSource(location, serde)
    from holdfast.integrations.langgraph.sources.sqlite import SQLiteSource

    return SQLiteSource(location, serde)


__all__ = [
    "Saved",
    "SourcePosition",
    "SourceReader",
    "ThreadSize",
    "ThreadSource",
    "Write",
    "open_source",
]
