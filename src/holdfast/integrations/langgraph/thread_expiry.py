"""Threads that nobody has used for a while are erased."""

import asyncio
from datetime import timedelta
from typing import Final

from holdfast import clock
from holdfast.errors import HoldfastError, MisuseError, ThreadBusy
from holdfast.integrations.langgraph.deletion import Deletion
from holdfast.integrations.langgraph.host import Host
from holdfast.telemetry import log

_BATCH: Final = 100
_LONGEST_PAUSE: Final = 3600.0
_SHORTEST_PAUSE: Final = 1.0


class ThreadExpiry:
    """The time that threads are kept, and what erases those whose time is over."""

    def __init__(self, host: Host, ttl: timedelta | float | None) -> None:
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(
                f"ttl is how long a thread is kept: seconds, or a timedelta, not {ttl!r}"
            )
        self._seconds = seconds
        self._host = host
        if seconds is not None:
            host.in_background(self._keep_erasing)

    async def erase_expired(self) -> int:
        """Erase every expired thread; return how many there were.

        A thread that is in use, or waits for a person, is not touched.
        """
        if self._seconds is None:
            return 0
        count = 0
        before = self._host.context.now() - clock.seconds(self._seconds)
        tried: set[str] = set()
        while found := set(await self._host.marks.idle(before, _BATCH)) - tried:
            tried |= found
            for run_id in sorted(found):
                try:
                    note = "its time to live is over"
                    await Deletion(self._host).thread(run_id, note, unused_since=before)
                except ThreadBusy:
                    return count
                count += 1
        return count

    async def _keep_erasing(self) -> None:
        assert self._seconds is not None, "begun with a ttl only"
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, self._seconds / 10))
        while True:
            try:
                await self.erase_expired()
            except HoldfastError as error:
                log.warning("threads whose time is over could not be erased: %s", error)
            await asyncio.sleep(pause)
