"""Wake-ups between tasks of one process."""

import asyncio
from collections.abc import Iterable
from typing import Final
from zlib import crc32

SLOTS: Final = 1024


class LocalWakeups:
    """Counts changes per topic; a waiter sleeps on a future, so waiting costs nothing else.

    Topics share a fixed number of counters: two that fall together wake each other needlessly now
    and then, and no topic is remembered for ever.
    """

    def __init__(self) -> None:
        self._counts = [0] * SLOTS
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    async def open(self) -> None:
        """Nothing is needed for one process."""

    async def close(self) -> None:
        self.notify_all()

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    def notify(self, topics: Iterable[str]) -> None:
        self.notify_slots(map(slot_of, topics))

    def notify_all(self) -> None:
        """Wake every waiter: what changed is not known."""
        self._counts = [count + 1 for count in self._counts]
        for waiting in self._waiting.values():
            _wake(waiting)

    def ticket(self, topic: str) -> int:
        return self._counts[slot_of(topic)]

    async def wait(self, topic: str, ticket: int, *, timeout: float) -> bool:
        if self.ticket(topic) != ticket:
            return True
        slot = slot_of(topic)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(slot, set()).add(future)
        try:
            await asyncio.wait([future], timeout=timeout)
            return future.done()
        finally:
            self._waiting[slot].discard(future)
            if not self._waiting[slot]:
                del self._waiting[slot]

    def notify_slots(self, slots: Iterable[int]) -> None:
        """Wake the waiters of the topics that have one of these counters."""
        for slot in slots:
            self._counts[slot] += 1
            if slot in self._waiting:
                _wake(self._waiting[slot])


def slot_of(topic: str) -> int:
    """Which counter a topic has: the same in every process."""
    return crc32(topic.encode()) % SLOTS


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
