"""Queues of the store: messages that are delivered at least once, each to one worker at a time.

One of them, the outbox, has the messages of commits; transports between agents that share a store
are others. If a process dies with a message, it is delivered again when its lease is over.
"""

from collections.abc import Mapping

import msgspec

from holdfast import clock, names
from holdfast.clock import MICROSECONDS
from holdfast.engine.context import Context
from holdfast.errors import MisuseError
from holdfast.kernel import messages
from holdfast.kernel.messages import MessageStatus, Move, QueuedMessage
from holdfast.stores.contract import MoveMessage, Publish, TakeMessages


class Queues:
    """The queues of one store, as one worker uses them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def publish(
        self,
        queue: str,
        body: bytes = b"",
        *,
        key: str,
        headers: Mapping[str, str] | None = None,
        not_before: int | None = None,
        ordering: str = "",
    ) -> bool:
        """Store a message; False if its key was published before, and then nothing is stored.

        A key is remembered for 5 minutes after its message was handled. `not_before` is a moment
        by the store's clock. Messages of one `ordering` are delivered one after another.
        """
        now, most = self._context.now(), self._context.settings.max_body_bytes
        message = QueuedMessage(
            tenant=self._context.tenant,
            queue=names.check(queue, what="queue"),
            message_id=names.check(key, what="key"),
            ordering=ordering and names.check(ordering, what="ordering"),
            headers=encode_headers(headers or {}),
            body=names.check_size(body, most=most, what="the message"),
            created_at=now,
            due_at=max(now, not_before or 0),
        )
        return await self._context.store.submit(Publish(message))

    async def take(self, queue: str, *, lease: float, limit: int = 1) -> list[QueuedMessage]:
        """Claim up to `limit` messages that are due, in order, for `lease` seconds."""
        names.check(queue, what="queue")
        context = self._context
        wanted = TakeMessages(
            context.tenant,
            queue,
            context.worker,
            names.check_count(limit, what="limit"),
            clock.seconds(lease),
        )
        return await context.store.submit(wanted)

    async def take_or_wait(
        self, queue: str, *, lease: float, limit: int = 1
    ) -> list[QueuedMessage]:
        """Like `take`; if nothing is due, wait until something may be, and return an empty list."""
        ticket = self.ticket(queue)
        taken = await self.take(queue, lease=lease, limit=limit)
        if not taken:
            await self.wait(queue, ticket)
        return taken

    def ticket(self, queue: str) -> int:
        """Return the ticket for `wait`, which ends at the first wake-up from now on."""
        return self._context.wakeups.ticket(topic_of(queue))

    async def wait(self, queue: str, ticket: int) -> None:
        """Wait until there may be something to take."""
        pause = await self.pause(queue)
        await self._context.wakeups.wait(topic_of(queue), ticket, timeout=pause)

    async def ack(self, message: QueuedMessage) -> bool:
        """Acknowledge a message; False if it was delivered to somebody else meanwhile.

        A message of a run is removed even then: it was delivered.
        """
        return await self._move(message, messages.acked(message))

    async def extend(self, message: QueuedMessage, *, lease: float) -> bool:
        """Extend the claim to `lease` seconds from now; False if it is somebody else's."""
        return await self._move(message, messages.extended(message, clock.seconds(lease)))

    async def retry(
        self, message: QueuedMessage, *, delay: float = 0.0, note: str = "", is_counted: bool = True
    ) -> bool:
        """Release a message for another delivery, to any worker, after `delay` seconds.

        Without `is_counted` it does not count as an attempt: delivery could not even be tried.
        """
        names.check_text(note, what="note")
        move = messages.given_back(message, clock.seconds(delay), note, is_counted=is_counted)
        return await self._move(message, move)

    async def dead(self, message: QueuedMessage, reason: str) -> bool:
        """Stop delivering a message; it is kept with the reason, and its key stays used."""
        names.check_text(reason, what="reason")
        return await self._move(message, messages.buried(message, reason))

    async def cancel(self, queue: str, key: str) -> bool:
        """Withdraw a message that was not delivered yet; its key stays used for a while."""
        fresh = QueuedMessage(tenant=self._context.tenant, queue=queue, message_id=key)
        return await self._move(fresh, messages.withdrawn(fresh))

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[QueuedMessage]:
        """Return the dead messages of a queue, the oldest first; `note` is the reason."""
        limit = names.check_count(limit, what="limit")
        return await self._context.store.messages.page(queue, MessageStatus.DEAD, limit)

    async def requeue(self, queue: str, key: str) -> bool:
        """Deliver a dead message again as a new one; False if no dead message has this key."""
        found = await self._context.store.messages.get(queue, key)
        if found is None or found.status is not MessageStatus.DEAD:
            return False
        return await self._move(found, messages.revived(found))

    async def count(self, queue: str) -> dict[str, int]:
        """Return how many messages of each status a queue has."""
        return await self._context.store.messages.count(queue)

    async def next_due(self, queue: str) -> int | None:
        """Return when the next message that is not due yet becomes due; None without any."""
        return await self._context.store.messages.next_due_at(queue, self._context.now())

    async def pause(self, queue: str) -> float:
        """Return for how many seconds nothing is due, unless a wake-up comes."""
        longest = self._context.settings.wakeup_poll_seconds
        due_at = await self.next_due(queue)
        if due_at is None:
            return longest
        return min(longest, max(0, due_at - self._context.now()) / MICROSECONDS)

    async def _move(self, message: QueuedMessage, move: Move) -> bool:
        return await self._context.store.submit(MoveMessage(message, move))


def topic_of(queue: str) -> str:
    """Return the topic of a queue's wake-ups."""
    return f"queue:{queue}"


def encode_headers(headers: Mapping[str, str]) -> str:
    """Encode headers for the store, as a JSON object of texts."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"header {name!r} must be a text, not {value!r}")
    try:
        return msgspec.json.encode(dict(headers)).decode()
    except UnicodeEncodeError as error:
        raise MisuseError(f"a header has a lone surrogate: {error}") from error


def decode_headers(stored: str) -> dict[str, str]:
    """Decode what `encode_headers` made."""
    return msgspec.json.decode(stored, type=dict[str, str])
