"""A transport that does its worst: everything comes twice, late, and in another order.

What it has acknowledged is on disk, as the contract wants; the second copy goes out under another
key when it likes, so no broker can tell that it is one.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping

from holdfast.peers.transports.contract import NO_HEADERS, DeadLetter, Delivery, Transport

LATEST_SECONDS = 0.2


class Disturbing:
    """Another transport, disturbed."""

    def __init__(self, inner: Transport, seed: int) -> None:
        self._inner = inner
        self._chance = random.Random(seed)
        self._copies: set[asyncio.Task[bool]] = set()

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        if self._copies:
            await asyncio.wait(self._copies)
        await self._inner.close()

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
        async def publish(key: str) -> bool:
            await asyncio.sleep(self._chance.uniform(0, LATEST_SECONDS))
            return await self._inner.publish(
                queue, body, key=key, headers=headers, not_before=not_before
            )

        copies = [asyncio.create_task(publish(f"{key}#{n}")) for n in range(2)]
        self._copies.update(copies)
        for copy in copies:
            copy.add_done_callback(self._sent)
        # The message is sent when either copy is; the other is on its way.
        done, _ = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        return all(task.result() for task in done)

    def _sent(self, copy: "asyncio.Task[bool]") -> None:
        self._copies.discard(copy)
        if not copy.cancelled():
            copy.exception()  # of the copy that nobody waits for

    def consume(self, queue: str, *, lease: float, prefetch: int = 1) -> AsyncIterator[Delivery]:
        return self._inner.consume(queue, lease=lease, prefetch=prefetch)

    async def cancel(self, queue: str, key: str) -> bool:
        return any([await self._inner.cancel(queue, f"{key}#{n}") for n in range(2)])

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        return await self._inner.dead_letters(queue, limit=limit)

    async def requeue(self, queue: str, key: str) -> bool:
        return await self._inner.requeue(queue, key)
