"""The exchange of one process with peers elsewhere: what goes out, what comes back, what comes in.

An unavailable transport blocks nobody: pending messages stay in the store until it is back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from holdfast.agents.work.work import Work
from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.kernel.peers import at_queue
from holdfast.peers import envelopes
from holdfast.peers.receiver import Receiver
from holdfast.peers.relay import Relay
from holdfast.peers.transports.contract import Transport
from holdfast.telemetry import log

_AGAIN_SECONDS: Final = 1.0


class Exchange:
    """Begins with the first run or worker that may need it, and ends with the process."""

    def __init__(self, context: Context, transport: Transport, work: Work) -> None:
        self._context = context
        self._transport = transport
        self._receiver = Receiver(context, transport, work)
        self._working: asyncio.Task[None] | None = None
        self._is_up = asyncio.Event()

    def address_of(self, agent: str) -> str:
        """Return the address of an agent that is not served in this store."""
        return at_queue(envelopes.queue_of_agent(self._context.tenant, agent))

    def begin(self) -> None:
        """Start to send pending messages and to take replies; once."""
        if self._working is None:
            self._working = asyncio.create_task(_until_it_works(self._work))

    async def serve(self, agents: Sequence[str], *, concurrency: int) -> None:
        """Take requests for agents, until this is cancelled."""
        self._receiver.most_tasks = concurrency
        self.begin()
        await self._is_up.wait()
        tenant = self._context.tenant
        queues = [envelopes.queue_of_agent(tenant, name) for name in agents]
        await asyncio.gather(*map(self._receive, queues))

    async def publish(
        self, queue: str, body: bytes, *, key: str, headers: Mapping[str, str], ordering: str
    ) -> None:
        """Put a message that belongs to no run into a queue; it is on disk when this returns."""
        self.begin()
        await self._is_up.wait()
        await self._transport.publish(queue, body, key=key, headers=headers, ordering=ordering)

    async def close(self) -> None:
        """Close the transport; the next process sends unfinished messages again."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
            await self._receiver.close()
            await self._transport.close()

    async def _work(self) -> None:
        await _until_it_works(self._transport.open)
        self._is_up.set()
        tenant = self._context.tenant
        queue = envelopes.queue_of_store(tenant, await self._context.store.store_id())
        relay = Relay(self._context, self._transport, reply_to=at_queue(queue))
        async with asyncio.TaskGroup() as both:
            both.create_task(relay.keep_sending())
            both.create_task(self._receive(queue))

    async def _receive(self, queue: str) -> None:
        await _until_it_works(lambda: self._receiver.keep_receiving(queue))


async def _until_it_works(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await work()
        except HoldfastError as error:
            log.warning("peers elsewhere are not reached just now: %s", error)
        except Exception:
            log.exception("what goes between peers broke, and begins again")
        await asyncio.sleep(_AGAIN_SECONDS)
