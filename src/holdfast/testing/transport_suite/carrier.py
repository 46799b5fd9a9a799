"""What a suite needs of a transport, and a consumer that a test can ask for one message."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Protocol, Self

from holdfast.peers.transports import Delivery, Transport

LIMIT_SECONDS: Final = 60.0
LONG: Final = 30.0
"""A lease that no test outlives."""


class Carrier(Protocol):
    """A transport whose queues are empty, that can be opened any number of times."""

    @property
    def url(self) -> str:
        """What `open_transport` takes, in another process too."""
        ...

    def transport(self) -> Transport:
        """Return a new connection, not open yet."""
        ...


@asynccontextmanager
async def opened(carrier: Carrier) -> AsyncGenerator[Transport]:
    """A transport while it is open."""
    transport = carrier.transport()
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


class Consumer:
    """Takes messages of a queue one at a time, when a test asks for one."""

    def __init__(
        self, transport: Transport, queue: str, *, lease: float = LONG, prefetch: int = 1
    ) -> None:
        self._deliveries: AsyncIterator[Delivery] = transport.consume(
            queue, lease=lease, prefetch=prefetch
        )
        self._asked: asyncio.Future[Delivery] | None = None

    def ask(self) -> "asyncio.Future[Delivery]":
        """Return a future of the next delivery; the same one until it is done."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(anext(self._deliveries))
        return self._asked

    async def next(self) -> Delivery:
        """Return the next delivery; fails if none comes in time."""
        done, _ = await asyncio.wait([self.ask()], timeout=LIMIT_SECONDS)
        assert done, f"nothing was delivered in {LIMIT_SECONDS:g} s"
        return self.ask_result()

    def ask_result(self) -> Delivery:
        """Return the delivery that was asked for, which must have come."""
        assert self._asked is not None, "asked for before"
        return self._asked.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.cancel()
            await asyncio.wait([self._asked])
        aclose = getattr(self._deliveries, "aclose", None)
        if aclose is not None:
            await aclose()
