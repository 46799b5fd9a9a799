"""The queue for connections of a pool: first come, first served.

A waiter keeps its place however long the queue is. It gives up only if nobody is given a connection
for a whole time limit: a long queue that moves is not a failure. An event loop that was kept busy
for so long has not moved either, so what counts is that several looks in a row saw nothing move.
"""

import asyncio
import time
from collections import deque
from typing import Final

from holdfast.errors import StoreClosed

_LOOKS: Final = 4
"""How often a waiter looks again after the limit."""


class PoolStalled(Exception):
    """Nobody was given a connection for the whole time limit."""


class PoolQueue:
    """Admits as many callers at once as there are connections, in the order they came."""

    def __init__(self, connections: int, *, limit_seconds: float) -> None:
        self._free = connections
        self.limit = limit_seconds
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._moved_at = 0.0

    async def enter(self) -> None:
        """Wait for admission; the caller must `leave`. Raises PoolStalled, StoreClosed."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        watch = self.watch()
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=watch.look())
            turn.result()
        except BaseException:
            self._withdraw(turn)
            raise

    def leave(self) -> None:
        """Admit the next waiter."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def moved(self) -> None:
        """Note that somebody was given a connection."""
        self._moved_at = time.monotonic()

    def watch(self) -> "StallWatch":
        """Begin to watch whether anybody is given a connection."""
        return StallWatch(self)

    def seconds_left(self, since: float) -> float:
        """The seconds until the limit for one that waits `since` a moment; below 0 after it."""
        return max(since, self._moved_at) + self.limit - time.monotonic()

    def refuse(self) -> None:
        """Refuse everybody who waits."""
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(StoreClosed())
        self._waiting.clear()

    def _withdraw(self, turn: "asyncio.Future[None]") -> None:
        """Give up a place; a caller admitted in the same moment admits the next one."""
        if not turn.done():
            turn.cancel()
        elif turn.exception() is None:
            self.leave()


class StallWatch:
    """The looks of one waiter at a queue."""

    def __init__(self, queue: PoolQueue) -> None:
        self._queue = queue
        self._since = time.monotonic()
        self._looks = 0

    def look(self) -> float:
        """Return the seconds until the next look. Raises PoolStalled if there is to be none."""
        left = self._queue.seconds_left(self._since)
        if left > 0:
            self._looks = 0
            return left
        if self._looks == _LOOKS:
            raise PoolStalled
        self._looks += 1
        return self._queue.limit / 16
