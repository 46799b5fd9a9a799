"""Messages in SQLite: published, delivered and moved in the transaction of their batch."""

from typing import Any, Final

from holdfast.clock import Clock
from holdfast.kernel.messages import QueuedMessage
from holdfast.stores.contract import MessageWrite, MoveMessage, Publish, TakeMessages
from holdfast.stores.sqlite.connection import SqliteConnection
from holdfast.stores.sqlite.queries import SHAPES, SQL, Row

_PURGED_AT_ONCE: Final = 100


class SqliteMessageWriter:
    """Applies writes of messages on the writer's connection."""

    def __init__(self, connection: SqliteConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock

    def apply(self, write: MessageWrite) -> Any:
        match write:
            case Publish(message):
                return self._changes("publish_message", SHAPES.message.row(message))
            case MoveMessage():
                return self._move(write)
            case TakeMessages():
                return self._take(write)

    def _move(self, write: MoveMessage) -> bool:
        message, move, now = write.message, write.move, self._clock.now()
        name, status = (message.tenant, message.queue, message.message_id), message.status.value
        self._changes("purge_messages", (message.tenant, message.queue, now, _PURGED_AT_ONCE))
        if move.is_forgotten:
            return self._changes("forget_message", (*name, message.created_at, status))
        known = (*name, message.worker, message.attempts, status)
        wanted = (move.status.value, now + move.delay, move.worker, move.attempts, move.note)
        return self._changes("move_message", (*known, *wanted))

    def _take(self, take: TakeMessages) -> list[QueuedMessage]:
        now = self._clock.now()
        row = (take.tenant, take.queue, now, take.limit, now + take.lease, take.worker)
        # The order in which changed rows come back is not promised.
        taken = sorted(self._connection.execute(SQL["take_messages"], row).fetchall())
        return [SHAPES.message.value(found[1:]) for found in taken]

    def _changes(self, name: str, row: Row) -> bool:
        self._connection.execute(SQL[name], row)
        return bool(self._connection.changes())
