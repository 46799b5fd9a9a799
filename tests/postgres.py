"""What tests of PostgreSQL do again and again: wait for something, save, look, end sessions."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.testing.postgres import PostgresServer
from tests.backends import PostgresRaw

LIMIT_SECONDS = 300.0
IMPATIENT = holdfast.Settings(busy_timeout_seconds=0.5)


@dataclass(frozen=True)
class Spare:
    """A server that may be stopped, killed and restarted, and an empty database in it."""

    server: PostgresServer
    database: str

    @property
    def url(self) -> str:
        return self.server.url(self.database)


@dataclass(frozen=True)
class Replicated(Spare):
    """The same with a standby, which each commit waits for."""

    standby: PostgresServer

    @property
    def standby_url(self) -> str:
        return self.standby.url(self.database)

    @contextlib.contextmanager
    def standby_away(self) -> Iterator[None]:
        self.standby.stop()
        try:
            yield
        finally:
            # Also when the test fails: whoever closes a store commits, and waits for the standby.
            self.standby.restart()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def taking(least: float, most: float) -> Iterator[None]:
    """What happens inside takes so many seconds."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert least <= took <= most, f"it took {took:.2f} s"


async def save(run: holdfast.LeasedRun, *items: object) -> int:
    run.append("log", *items)
    return (await run.checkpoint()).version


async def check_whole(hf: holdfast.Holdfast, run_id: str, log: list[Any]) -> None:
    assert (await hf.checkpoints.load(run_id))["log"] == log
    assert await hf.journal.verify(run_id) == []


def terminate(raw: PostgresRaw, application: str) -> int:
    """End the sessions of an application, as an operator may; how many there were."""
    ended = raw.rows(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = ? AND datname = current_database()",
        application,
    )
    return sum(1 for (is_ended,) in ended if is_ended)


def pooled(hf: holdfast.Holdfast) -> list[Any]:
    """The connections of an open store that nobody uses just now."""
    pool = hf._context.store._connections._pool  # type: ignore[attr-defined]
    found = list(pool._pool)
    assert found
    return found
