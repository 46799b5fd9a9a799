"""Messages of runs that are not delivered yet, for people to look at."""

import msgspec

from holdfast import names
from holdfast.engine.context import Context
from holdfast.engine.messages.outbox import note_of
from holdfast.engine.messages.queues import Queues
from holdfast.kernel.messages import OWED, MessageStatus, QueuedMessage


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a run. `subject` is the wait it is about, and the id of the peer's run."""

    message_id: str
    kind: str
    run_id: str
    subject: str
    address: str
    status: MessageStatus
    created_at: int
    due_at: int
    attempts: int
    note: str


class Messages:
    """What is under way between runs and their peers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queues = Queues(context)

    async def list(self, *, dead: bool = False, limit: int = 100) -> list[OutboxMessage]:
        """Return pending messages, or with `dead` those that are given up; the oldest first."""
        names.check_count(limit, what="limit")
        status = MessageStatus.DEAD if dead else MessageStatus.READY
        found = [
            message
            for queue in OWED
            for message in await self._context.store.messages.page(queue, status, limit)
        ]
        found.sort(key=lambda message: message.created_at)
        return [_owed(message) for message in found[:limit]]

    async def requeue(self, message_id: str) -> bool:
        """Deliver a dead message again as a new one; False if no dead message has this id."""
        names.check(message_id, what="message id")
        tried = [await self._queues.requeue(queue, message_id) for queue in OWED]
        return any(tried)


def _owed(message: QueuedMessage) -> OutboxMessage:
    note = note_of(message)
    return OutboxMessage(
        message_id=message.message_id,
        kind=note.kind,
        run_id=message.ordering or note.subject,
        subject=note.subject,
        address=note.address,
        status=message.status,
        created_at=message.created_at,
        due_at=message.due_at,
        attempts=message.attempts,
        note=message.note,
    )
