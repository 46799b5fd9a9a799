"""Wake-ups: hints that something may have changed. Losing one costs delay, never truth.

Take a ticket, look at the store, then wait with the ticket: what changed in between is not missed.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

LookForForeign = Callable[[Callable[[bool], None]], None]
"""Calls back with whether another process has committed since the last look."""


class Wakeups(Protocol):
    """Notifies waiting tasks of this process of changes, made here or elsewhere."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def notify(self, topics: Iterable[str]) -> None: ...
    def ticket(self, topic: str) -> int: ...
    async def wait(self, topic: str, ticket: int, *, timeout: float) -> bool:
        """Whether `topic` may have changed since the ticket was taken; False after `timeout`."""
        ...
