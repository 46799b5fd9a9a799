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

OUTBOX_TOPIC: Final = f"queue:{OUTBOX}"
OWED: Final = frozenset({OUTBOX, OUTGOING})


class MessageStatus(StrEnum):
    """What became of a message."""

    READY = "ready"
    DONE = "done"
    DEAD = "dead"  # nobody can make anything of it


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as its row tells it. `headers` is a JSON object."""

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

    message: Message
