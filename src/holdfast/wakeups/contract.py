"""Wake-ups: hints that something may have changed. Losing one costs delay, never truth.

Take a ticket, look at the store, then wait with the ticket: what changed in between is not missed.
"""

from collections.abc import Callable, Iterable
from typing import Protocol


class LookForForeign(Protocol):
    """Calls back with whether another process has committed since the last look.

    `begun` and `ended` count the batches that this process itself writes.
    """

    @property
    def begun(self) -> int: ...
    @property
    def ended(self) -> int: ...
    def __call__(self, then: Callable[[bool], None], /) -> None: ...


class Wakeups(Protocol):
    """Notifies waiting tasks of this process of changes, made here or elsewhere."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def notify(self, topics: Iterable[str]) -> None: ...
    def ticket(self, topic: str) -> int: ...
    async def wait(self, topic: str, ticket: int, *, timeout: float) -> bool:
        """Whether `topic` may have changed since the ticket was taken; False after `timeout`."""
        ...
