"""The courier: claims messages of a queue and passes them to a delivery function.

It claims no more messages than it delivers at once, and keeps each claim for as long as its
delivery takes. How many that are follows how long deliveries take. Each delivery ends alone: one
that is slow or fails neither holds nor repeats the others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from holdfast import faults
from holdfast.engine.messages.queues import Queues
from holdfast.errors import HoldfastError
from holdfast.kernel.messages import QueuedMessage
from holdfast.telemetry import log

_MOST_AT_ONCE: Final = 256
_AT_ONCE: Final = 64
# As many as a store has connections by default: claims are extended, and fewer take longer.
_FEWEST_AT_ONCE: Final = 8
_CLAIMING_SECONDS: Final = 0.01

Deliver = Callable[[Sequence[QueuedMessage]], Awaitable[None]]
"""Delivers messages one after another, and moves each of them."""
Split = Callable[[Sequence[QueuedMessage]], Sequence[Sequence[QueuedMessage]]]
"""Splits messages into lists, each delivered in order."""


def one_by_one(messages: Sequence[QueuedMessage]) -> list[list[QueuedMessage]]:
    """Deliver each message alone."""
    return [[message] for message in messages]


def in_order(messages: Sequence[QueuedMessage]) -> list[list[QueuedMessage]]:
    """Deliver messages of one ordering one after another."""
    by_ordering: dict[str, list[QueuedMessage]] = {}
    for message in messages:
        by_ordering.setdefault(message.ordering or message.message_id, []).append(message)
    return list(by_ordering.values())


class _BegunDelivery(NamedTuple):
    tasks: set[asyncio.Task[None]]
    messages: int
    is_full: bool  # there may be more that is due


class Courier:
    """Delivers the messages of one queue in this process, for any number of tasks."""

    def __init__(
        self, queues: Queues, queue: str, deliver: Deliver, *, lease: float, split: Split
    ) -> None:
        self._queues = queues
        self._queue = queue
        self._deliver = deliver
        self._lease = lease
        self._split = split
        self._limit = _AT_ONCE
        self._shrunk_at = 0.0
        self._claimed = 0
        self._working: dict[asyncio.Task[None], Sequence[QueuedMessage]] = {}
        self._extending: asyncio.Future[list[Any]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def deliver_due(self) -> int:
        """Deliver what is due now, unless others here deliver it. Returns how many messages."""
        delivered = 0
        mine: set[asyncio.Task[None]] = set()
        try:
            while True:
                begun = await self._begin()
                mine |= begun.tasks
                delivered += begun.messages
                if not mine:
                    return delivered
                until = asyncio.FIRST_COMPLETED if begun.is_full else asyncio.ALL_COMPLETED
                _, mine = await asyncio.wait(mine, return_when=until)
        finally:
            await _stop(mine)

    async def keep_delivering(self, pause_seconds: float) -> None:
        """Deliver what becomes due, until this is cancelled."""
        mine: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    await self._deliver_next(mine)
                except HoldfastError as error:
                    log.warning("messages of the queue %s wait: %s", self._queue, error)
                    await asyncio.sleep(pause_seconds)
        finally:
            await _stop(mine)

    async def _deliver_next(self, mine: set[asyncio.Task[None]]) -> None:
        ticket = self._queues.ticket(self._queue)
        faults.point("outbox.before_take")
        begun = await self._begin()
        for task in begun.tasks:
            mine.add(task)
            task.add_done_callback(mine.discard)
        if not begun.is_full:
            await self._queues.wait(self._queue, ticket)
        elif self._working:
            await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_CLAIMING_SECONDS)  # another task here is just claiming

    async def _begin(self) -> _BegunDelivery:
        """Claim as many messages as there is room for, and begin to deliver them."""
        room = self._limit - self._claimed
        if room < self._limit // 4:  # one claim for many is as cheap as for one
            return _BegunDelivery(set(), 0, is_full=True)
        self._claimed += room
        parts: Sequence[Sequence[QueuedMessage]] = ()
        try:
            taken = await self._queues.take(self._queue, lease=self._lease, limit=room)
            if taken:
                faults.point("outbox.after_take")
            parts = self._split(taken)
        finally:  # what is not delivered here is claimed again when its claim is over
            self._claimed -= room - sum(map(len, parts))
        tasks = {self._start(part) for part in parts}
        return _BegunDelivery(tasks, len(taken), is_full=len(taken) == room)

    def _start(self, messages: Sequence[QueuedMessage]) -> asyncio.Task[None]:
        begun_at = time.monotonic()
        task = asyncio.create_task(self._deliver_safely(messages))
        self._working[task] = messages
        if self._timer is None:
            self._extend_later()

        def ended(task: asyncio.Task[None]) -> None:
            del self._working[task]
            self._claimed -= len(messages)
            self._adapt(time.monotonic() - begun_at)
            if not self._working and self._timer is not None:
                self._timer.cancel()
                self._timer = None

        task.add_done_callback(ended)
        return task

    async def _deliver_safely(self, messages: Sequence[QueuedMessage]) -> None:
        try:
            await self._deliver(messages)
        except HoldfastError as error:
            # Its claim expires.
            log.warning("message %s was not delivered yet: %s", messages[0].message_id, error)

    def _extend_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._lease / 3, self._extend)

    def _extend(self) -> None:
        """Extend the claims of what is under way."""
        messages = [each for part in self._working.values() for each in part]
        if self._extending is None or self._extending.done():
            extending = [self._queues.extend(each, lease=self._lease) for each in messages]
            self._extending = asyncio.gather(*extending, return_exceptions=True)
        self._extend_later()

    def _adapt(self, seconds: float) -> None:
        """Deliver fewer at once when that takes most of a claim, and more when it is quick."""
        now = time.monotonic()
        if seconds < self._lease / 4:
            self._limit = min(_MOST_AT_ONCE, self._limit + 1)
        elif seconds > self._lease / 2 and now - self._shrunk_at > self._lease / 2:
            self._limit = max(_FEWEST_AT_ONCE, self._limit // 2)
            self._shrunk_at = now


async def _stop(tasks: set[asyncio.Task[None]]) -> None:
    """Stop deliveries: their messages are delivered again when their claims are over."""
    stopped = list(tasks)
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)
