"""A few more tries for what failed and may succeed a moment later: the same for every backend.

Only what is known to have stored nothing is tried again; the head
handles a commit whose outcome is unknown, and the caller handles a late-bound decision.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.errors import StoreBusy, StoreFull, StoreUnavailable
from holdfast.settings import Settings
from holdfast.telemetry import STORE_RETRIED, Telemetry

T = TypeVar("T")
_PASSING: Final = (StoreBusy, StoreFull, StoreUnavailable)


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
        until = time.monotonic() + self._patience
        pause = self._pause
        for _ in range(self._tries):
            try:
                return await first
            except _PASSING:
                if time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
            self._telemetry.count(STORE_RETRIED)
            first = again()
        return await first
