"""Messages: what is delivered at least once, from a queue of the store.

    ready ──▶ done | dead          (`due_at` in the future: delivered to somebody, or put off)

A commit that owes something to somebody else puts it into a queue in the same transaction
(`kernel.peers`). What the message says is on the journal: it names the entry.
"""

from enum import StrEnum
from typing import Final

import msgspec

OUTBOX: Final = "outbox"
"""What is owed to runs of the same store."""
OUTGOING: Final = "outgoing"
"""What is owed to others, for a transport."""

OWED: Final = (OUTBOX, OUTGOING)
OWED_TOPICS: Final = tuple(f"queue:{queue}" for queue in OWED)
KEPT_MICROSECONDS: Final = 300_000_000
"""For how long a message that is done keeps its key from being used again."""


class MessageStatus(StrEnum):
    """The state of a message."""

    READY = "ready"
    DONE = "done"
    DEAD = "dead"  # it cannot be processed


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as stored in its row. `headers` is a JSON object."""

    tenant: str
    queue: str
    message_id: str
    ordering: str = ""
    headers: str = "{}"
    body: bytes = b""
    created_at: int = 0
    due_at: int = 0
    attempts: int = 0
    worker: str = ""
    status: MessageStatus = MessageStatus.READY
    note: str = ""


class AddMessage(msgspec.Struct, frozen=True, gc=False):
    """Left out if the message's id was used in its queue before."""

    message: QueuedMessage


class Move(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A change to a message. `delay` counts from the moment the store does it."""

    status: MessageStatus
    delay: int = 0
    worker: str = ""
    attempts: int = 0
    note: str = ""
    is_forgotten: bool = False


def acked(message: QueuedMessage) -> Move:
    """Mark it as done. Delete what was owed at once: nothing is published there by key."""
    return Move(
        status=MessageStatus.DONE,
        delay=KEPT_MICROSECONDS,
        worker=message.worker,
        attempts=message.attempts,
        note=message.note,
        is_forgotten=message.queue in OWED,
    )


def withdrawn(message: QueuedMessage) -> Move:
    """Withdraw it from delivery, as if it were done."""
    attempts = message.attempts + 1
    delay = KEPT_MICROSECONDS
    return Move(status=MessageStatus.DONE, delay=delay, attempts=attempts, note="cancelled")


def extended(message: QueuedMessage, lease: int) -> Move:
    """Give its worker more time."""
    return Move(
        status=MessageStatus.READY,
        delay=lease,
        worker=message.worker,
        attempts=message.attempts,
        note=message.note,
    )


def given_back(message: QueuedMessage, delay: int, note: str, *, is_counted: bool = True) -> Move:
    """Deliver it again, to any worker; a delivery that is not counted is forgotten."""
    attempts = message.attempts if is_counted else max(0, message.attempts - 1)
    return Move(status=MessageStatus.READY, delay=delay, attempts=attempts, note=note)


def buried(message: QueuedMessage, reason: str) -> Move:
    """Stop its delivery, and keep it for people to look at."""
    return Move(
        status=MessageStatus.DEAD, worker=message.worker, attempts=message.attempts, note=reason
    )


def revived(message: QueuedMessage) -> Move:
    """Deliver a dead message as if it were new."""
    return Move(status=MessageStatus.READY, note=message.note)
