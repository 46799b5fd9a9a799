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
    """A message that is delivered to nobody any more, and why."""

    queue: str
    key: str
    reason: str
    body: bytes
    headers: dict[str, str]
    attempt: int


class Delivery(Protocol):
    """A message in the hands of one consumer, until its lease ends.

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
        """It is dealt with, and will not be delivered again.

        False: the lease was lost, and somebody else may have it. Acknowledge after what the message
        asks for is committed, never before.
        """
        ...

    async def retry(self, delay: float = 0.0, note: str = "") -> None:
        """Give it back: it is delivered again, to anybody, after `delay` seconds."""
        ...

    async def extend(self) -> bool:
        """Keep it for another lease from now on. False: it was lost."""
        ...

    async def dead(self, reason: str) -> None:
        """Nobody can make anything of it: keep it aside, with the reason."""
        ...


class Transport(Protocol):
    """Named queues of messages between agents."""

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Let go of the connection; consumers end. What they have taken and not yet handed out is
        given back."""
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
        """Send a message; what was answered is on disk. False: the key was published before.

        `not_before` is a moment in microseconds before which nobody is given it. Messages of one
        `ordering` are delivered one after another, if the transport can.
        """
        ...

    def consume(self, queue: str, *, lease: float, prefetch: int = 1) -> AsyncIterator[Delivery]:
        """The messages of a queue, each for one of its consumers at a time, until `close`.

        One that is neither acknowledged nor extended within `lease` seconds is delivered again.
        """
        ...

    async def cancel(self, queue: str, key: str) -> bool:
        """Withdraw a message that nobody was given yet. False: it was, or is not there."""
        ...

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        """What was set aside, the oldest first."""
        ...

    async def requeue(self, queue: str, key: str) -> bool:
        """Deliver a dead message again, as if it were new. False: none has this key."""
        ...
