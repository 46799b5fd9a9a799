"""The transport of agents that share a store: its queues."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from holdfast import clock
from holdfast.engine.context import Context
from holdfast.engine.messages.queues import Queues, decode_headers, topic_of
from holdfast.errors import StoreClosed
from holdfast.kernel.messages import QueuedMessage
from holdfast.peers.transports.contract import NO_HEADERS, DeadLetter


@dataclass(frozen=True)
class StoreDelivery:
    """A claimed message of a store's queue."""

    _queues: Queues
    _message: QueuedMessage
    lease: float

    @property
    def queue(self) -> str:
        return self._message.queue

    @property
    def key(self) -> str:
        return self._message.message_id

    @property
    def due_at(self) -> int:
        """The end of its first claim."""
        return self._message.due_at

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def headers(self) -> Mapping[str, str]:
        return decode_headers(self._message.headers)

    @property
    def attempt(self) -> int:
        return self._message.attempts

    async def ack(self) -> bool:
        return await self._queues.ack(self._message)

    async def retry(self, delay: float = 0.0, note: str = "") -> None:
        await self._queues.retry(self._message, delay=delay, note=note)

    async def extend(self) -> bool:
        return await self._queues.extend(self._message, lease=self.lease)

    async def dead(self, reason: str) -> None:
        await self._queues.dead(self._message, reason)


class StoreQueue:
    """Queues in a store as a transport. With `is_owner` it opens and closes the store itself."""

    def __init__(self, context: Context, *, is_owner: bool = False) -> None:
        self._context = context
        self._is_owner = is_owner
        self._queues = Queues(context)
        self._prefetched: dict[str, list[list[QueuedMessage]]] = {}
        self._is_open = False

    async def open(self) -> None:
        if self._is_owner:
            self._context.store.on_applied = self._context.wakeups.notify
            await self._context.store.open()
            await self._context.wakeups.open()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        for prefetched in list(self._prefetched.values()):
            for taken in prefetched:
                await self._give_back(taken)
        self._context.wakeups.notify([topic_of(queue) for queue in self._prefetched])
        if self._is_owner:
            await self._context.wakeups.close()
            await self._context.store.close()

    async def publish(
        self,
        queue: str,
        body: bytes,
        *,
        key: str,
        headers: Mapping[str, str] = NO_HEADERS,
        not_before: int | None = None,
        ordering: str = "",
    ) -> bool:
        self._check()
        return await self._queues.publish(
            queue, body, key=key, headers=headers, not_before=not_before, ordering=ordering
        )

    async def consume(
        self, queue: str, *, lease: float, prefetch: int = 1
    ) -> AsyncIterator[StoreDelivery]:
        self._check()
        taken: list[QueuedMessage] = []
        consumers = self._prefetched.setdefault(queue, [])
        consumers.append(taken)
        keeping = asyncio.create_task(self._keep_claims(taken, lease))
        try:
            while self._is_open:
                taken += await self._queues.take_or_wait(queue, lease=lease, limit=prefetch)
                while taken and self._is_open:
                    delivery = StoreDelivery(self._queues, taken.pop(0), lease)
                    if await self._is_still_claimed(delivery):
                        yield delivery
        except StoreClosed:
            if self._is_open:
                raise
        finally:
            keeping.cancel()
            await self._give_back(taken)
            # The list itself: others may be equal to it.
            consumers[:] = [each for each in consumers if each is not taken]

    async def _keep_claims(self, taken: list[QueuedMessage], lease: float) -> None:
        """Extend the claims of messages that wait here until the consumer asks for them."""
        while True:
            await asyncio.sleep(lease / 3)
            extending = [self._queues.extend(message, lease=lease) for message in taken]
            await asyncio.gather(*extending, return_exceptions=True)

    async def _is_still_claimed(self, delivery: StoreDelivery) -> bool:
        """Return whether this consumer still has a message; renew a claim that waited for long."""
        left = delivery.due_at - self._context.now()
        return left > clock.seconds(delivery.lease) // 2 or await delivery.extend()

    async def _give_back(self, taken: list[QueuedMessage]) -> None:
        while taken:
            with contextlib.suppress(StoreClosed):
                await self._queues.retry(taken.pop())

    async def cancel(self, queue: str, key: str) -> bool:
        self._check()
        return await self._queues.cancel(queue, key)

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        self._check()
        return [
            DeadLetter(
                queue=message.queue,
                key=message.message_id,
                reason=message.note,
                body=message.body,
                headers=decode_headers(message.headers),
                attempt=message.attempts,
            )
            for message in await self._queues.dead_letters(queue, limit=limit)
        ]

    async def requeue(self, queue: str, key: str) -> bool:
        self._check()
        return await self._queues.requeue(queue, key)

    def _check(self) -> None:
        if not self._is_open:
            raise StoreClosed("the transport is not open; await its open() first")
