"""A clock that only moves when it is advanced, and a helper to let a worker expire by it."""

from typing import Protocol

from holdfast.clock import seconds
from holdfast.engine.leases.leases import Leases


class ManualClock:
    """Stays at its initial moment until it is advanced."""

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def steady(self) -> int:
        return self._now

    def advance(self, by_seconds: float) -> None:
        self._now += seconds(by_seconds)


class Watcher(Protocol):
    @property
    def leases(self) -> Leases: ...


async def outlive(watcher: Watcher, clock: ManualClock, *, lease_seconds: float) -> int:
    """Let `watcher` watch the others for a lease in which none of them beats.

    Returns how many runs it releases.
    """
    given_back = await watcher.leases.expire_lost()
    for _ in range(4):
        clock.advance(lease_seconds / 4)
        given_back += await watcher.leases.expire_lost()
    return given_back
