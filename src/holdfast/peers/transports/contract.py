"""What a transport between agents promises: at least once, and a key counts once for a while.

That a reply counts exactly once is decided by the store that waits for it, never by a transport. So
a transport may deliver twice, and may forget keys; it may not lose what it has acknowledged.
"""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that is not delivered any more, and the reason."""

    queue: str
    key: str
    reason: str
    body: bytes
    headers: dict[str, str]
    attempt: int


class Delivery(Protocol):
    """A message claimed by one consumer, until its lease ends.

    `attempt` counts its deliveries from 1.
    """

    @property
    def queue(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def attempt(self) -> int: ...

    async def ack(self) -> bool:
        """Acknowledge the message: it will not be delivered again.

        False: the lease was lost, and another consumer may have it. Acknowledge after what the
        message asks for is committed, never before.
        """
        ...

    async def retry(self, delay: float = 0.0, note: str = "") -> None:
        """Release it: it is delivered again, to any consumer, after `delay` seconds."""
        ...

    async def extend(self) -> bool:
        """Extend the lease from now on. False: it was lost."""
        ...

    async def dead(self, reason: str) -> None:
        """Set aside a message that cannot be processed, with the reason."""
        ...


class Transport(Protocol):
    """Named queues of messages between agents."""

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Close the connection; consumers end. Messages that they have claimed and not yet handed
        out are released."""
        ...

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
        """Send a message; it is on disk on return. False: the key was published before.

        It is not delivered before `not_before`, a moment in microseconds. Messages of one
        `ordering` are delivered one after another, if the transport can.
        """
        ...

    def consume(self, queue: str, *, lease: float, prefetch: int = 1) -> AsyncIterator[Delivery]:
        """Yield the messages of a queue, each to one of its consumers at a time, until `close`.

        One that is neither acknowledged nor extended within `lease` seconds is delivered again.
        """
        ...

    async def cancel(self, queue: str, key: str) -> bool:
        """Withdraw an undelivered message. False: it was delivered, or does not exist."""
        ...

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        """List the messages that were set aside, oldest first."""
        ...

    async def requeue(self, queue: str, key: str) -> bool:
        """Deliver a dead message again, as if it were new. False: none has this key."""
        ...
