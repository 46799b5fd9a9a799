"""The queue for connections of a pool: first come, first served.

A waiter keeps its place however long the queue is. It gives up only if nobody is given a connection
for a whole time limit: a long queue that moves is not a failure.
"""

import asyncio
import time
from collections import deque

from holdfast.errors import StoreClosed


class PoolStalled(Exception):
    """Nobody was given a connection for the whole time limit."""


class PoolQueue:
    """Admits as many callers at once as there are connections, in the order they came."""

    def __init__(self, connections: int, *, limit_seconds: float) -> None:
        self._free = connections
        self._limit = limit_seconds
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._moved_at = 0.0

    async def enter(self) -> None:
        """Wait for admission; the caller must `leave`. Raises PoolStalled, StoreClosed."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        since = time.monotonic()
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=self.check_moving(since))
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

    def check_moving(self, since: float) -> float:
        """The seconds left for one that waits `since` a moment. Raises PoolStalled if none are."""
        left = max(since, self._moved_at) + self._limit - time.monotonic()
        if left <= 0:
            raise PoolStalled
        return left

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
