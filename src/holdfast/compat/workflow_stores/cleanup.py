"""Removing what has expired, again and again, until it is stopped."""

import asyncio
import threading
from collections.abc import Awaitable
from types import TracebackType
from typing import Final, Protocol, Self

from holdfast import clock
from holdfast.errors import MisuseError
from holdfast.telemetry import log

_LONGEST_MINUTES: Final = 366 * 24 * 60


class SupportsExpiry(Protocol):
    """A store whose entries expire: a `CheckpointStore`, or your own."""

    def cleanup_expired(self, max_age_hours: float = 24) -> int: ...


class SupportsAsyncExpiry(Protocol):
    """The same, to be awaited: `StoredCheckpoints`."""

    def cleanup_expired(self, max_age_hours: float = 24) -> Awaitable[int]: ...


def periodic_cleanup(
    checkpoint_store: SupportsExpiry,
    interval_minutes: float = 60,
    *,
    max_age_hours: float = 24,
    stop: threading.Event | None = None,
) -> None:
    """Remove what has expired now and at every interval, until `stop` is set.

    An error is logged, and the next round comes as planned. It blocks: `Cleaner` does it in a
    thread.
    """
    seconds = _seconds(interval_minutes)
    stopped = stop or threading.Event()
    while not stopped.is_set():
        try:
            _tell(checkpoint_store.cleanup_expired(max_age_hours=max_age_hours))
        except Exception as error:
            _complain(error)
        stopped.wait(seconds)


async def periodic_cleanup_async(
    checkpoints: SupportsAsyncExpiry, interval_minutes: float = 60, *, max_age_hours: float = 24
) -> None:
    """The same as a task, until it is cancelled."""
    seconds = _seconds(interval_minutes)
    while True:
        try:
            _tell(await checkpoints.cleanup_expired(max_age_hours=max_age_hours))
        except Exception as error:
            _complain(error)
        await asyncio.sleep(seconds)


class Cleaner:
    """`periodic_cleanup` in a thread: `with Cleaner(store): ...`, or `start()` and `stop()`."""

    def __init__(
        self,
        checkpoint_store: SupportsExpiry,
        interval_minutes: float = 60,
        *,
        max_age_hours: float = 24,
    ) -> None:
        _seconds(interval_minutes)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=periodic_cleanup,
            args=(checkpoint_store, interval_minutes),
            kwargs={"max_age_hours": max_age_hours, "stop": self._stop},
            name="holdfast-cleaner",
            daemon=True,
        )

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop after the present round; does nothing if it was never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _seconds(interval_minutes: float) -> float:
    is_number = type(interval_minutes) in (int, float)
    if not is_number or not 0 < interval_minutes <= _LONGEST_MINUTES:
        raise MisuseError(
            f"interval_minutes is a number above 0, a year's at most, not {interval_minutes!r}"
        )
    return clock.seconds(interval_minutes * 60) / clock.MICROSECONDS


def _tell(count: int) -> None:
    if count:
        log.info("Cleaned up %d expired checkpoints", count)


def _complain(error: Exception) -> None:
    log.error("Checkpoint cleanup failed: %s", error, exc_info=error)
