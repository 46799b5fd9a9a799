"""A few more tries for what failed and may succeed a moment later: the same for every backend.

Only what is known to have stored nothing is tried again; the head
handles a commit whose outcome is unknown, and the caller handles a late-bound decision.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.errors import HoldfastError, StoreBusy, StoreFull, StoreUnavailable
from holdfast.settings import Settings
from holdfast.telemetry import STORE_RETRIED, Telemetry

T = TypeVar("T")
PASSING: Final = (StoreBusy, StoreFull, StoreUnavailable)


class Retries:
    """Tries `store_retries` times more, with growing pauses that differ from one to the other.

    Never once `busy_timeout_seconds` are over: a caller that waited so long has tried enough.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._tries = settings.store_retries
        self._pause = settings.store_retry_seconds
        self._patience = settings.busy_timeout_seconds
        self._telemetry = telemetry

    async def after(self, first: Awaitable[T], again: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `first`, or else of one of some more tries; raise the last error."""
        begun = time.monotonic()
        try:
            return await first
        except PASSING as error:
            return await self.again(again, error, begun=begun)

    async def again(
        self, attempt: Callable[[], Awaitable[T]], error: HoldfastError, *, begun: float
    ) -> T:
        """Try again what failed with one of PASSING; `begun` is when the first try was begun."""
        pause = self._pause
        for _ in range(self._tries):
            if time.monotonic() + pause > begun + self._patience:
                break
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
            self._telemetry.count(STORE_RETRIED)
            try:
                return await attempt()
            except PASSING as newer:
                error = newer
        raise error
