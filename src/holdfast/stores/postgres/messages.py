"""Messages in PostgreSQL: publishing, moving and taking are one statement each, one round trip.

They need no lock on a run, so they do not queue behind those who do. A statement whose outcome is
unknown is sent again: publishing by key and moving are the same twice as once, and what was taken
by nobody is delivered again when its lease is over.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from holdfast import faults
from holdfast.clock import Clock
from holdfast.kernel.messages import QueuedMessage
from holdfast.stores.contract import MessageWrite, MoveMessage, Publish, TakeMessages
from holdfast.stores.postgres import binary_arrays
from holdfast.stores.postgres.connections import (
    TRANSIENT,
    ConnectionPool,
    PostgresConnection,
    backed_off,
    fetch,
)
from holdfast.stores.postgres.queries import SHAPES, SQL

_PURGED_AT_ONCE: Final = 100

T = TypeVar("T")
W = TypeVar("W", Publish, MoveMessage, TakeMessages)
_Key = tuple[str, str]
_Numbered = list[tuple[int, W]]


class PostgresMessageWriter:
    """Applies batches of writes of messages of one tenant."""

    def __init__(self, connections: ConnectionPool, tenant: str, clock: Clock) -> None:
        self._connections = connections
        self._tenant = tenant
        self._clock = clock

    async def apply(self, batch: Sequence[MessageWrite]) -> list[Any]:
        """One answer for each write; an error means that nothing is stored.

        What befalls a write after others of its batch were stored is the answer to that one alone.
        """
        faults.point("batch.before_begin")
        answers: list[Any] = [None] * len(batch)
        is_first = True
        for part, work in self._parts(batch):
            try:
                found = await self._done(work)
            except Exception as error:
                if is_first:
                    raise
                found = [error] * len(part)
            for index, answer in zip(part, found, strict=True):
                answers[index] = answer
            is_first = False
        faults.point("batch.before_acknowledge")
        return answers

    def _parts(
        self, batch: Sequence[MessageWrite]
    ) -> list[tuple[list[int], Callable[[PostgresConnection], Awaitable[list[Any]]]]]:
        """What is one statement each: all that is published, waves of moves, and each taking.

        Moves come before takings: they let the next of an ordering go.
        """
        parts: list[tuple[list[int], Callable[[PostgresConnection], Awaitable[list[Any]]]]] = []
        published = _of(Publish, batch)
        if published:
            messages = [write.message for _, write in published]
            parts.append((_indexes(published), lambda c: self._publish(c, messages)))
        for wave in _waves(_of(MoveMessage, batch)):
            moves = [write for _, write in wave]
            parts.append((_indexes(wave), lambda c, moves=moves: self._move(c, moves)))
        for index, take in _of(TakeMessages, batch):
            parts.append(([index], lambda c, take=take: self._take(c, take)))
        return parts

    async def _done(self, work: Callable[[PostgresConnection], Awaitable[T]]) -> T:
        async def trying(connection: PostgresConnection) -> T:
            while True:
                try:
                    answer = await work(connection)
                except TRANSIENT:
                    # A deadlock: PostgreSQL chose our transaction to give way.
                    await backed_off(0.005)
                else:
                    await self._connections.confirm(connection)
                    faults.point("batch.after_commit")
                    return answer

        return await self._connections.read(trying)

    async def _publish(
        self, connection: PostgresConnection, messages: Sequence[QueuedMessage]
    ) -> list[bool]:
        row = (
            self._tenant,
            binary_arrays.texts(message.queue for message in messages),
            binary_arrays.texts(message.message_id for message in messages),
            binary_arrays.texts(message.ordering for message in messages),
            binary_arrays.texts(message.headers for message in messages),
            binary_arrays.blobs([message.body for message in messages]),
            binary_arrays.int8s([message.created_at for message in messages]),
            binary_arrays.int8s([message.due_at for message in messages]),
            self._connections.lock_timeout,
        )
        stored = _keys(await fetch(connection, SQL["publish_message"], row))
        return [_was_first(_key(message), stored) for message in messages]

    async def _move(
        self, connection: PostgresConnection, writes: Sequence[MoveMessage]
    ) -> list[bool]:
        messages, moves = [write.message for write in writes], [write.move for write in writes]
        now = self._clock.now()
        row = (
            self._tenant,
            binary_arrays.texts(message.queue for message in messages),
            binary_arrays.texts(message.message_id for message in messages),
            binary_arrays.texts(message.worker for message in messages),
            binary_arrays.int8s([message.attempts for message in messages]),
            binary_arrays.texts(message.status for message in messages),
            binary_arrays.texts(move.status for move in moves),
            binary_arrays.int8s([now + move.delay for move in moves]),
            binary_arrays.texts(move.worker for move in moves),
            binary_arrays.int8s([move.attempts for move in moves]),
            binary_arrays.texts(move.note for move in moves),
            binary_arrays.int8s([int(move.is_forgotten) for move in moves]),
            now,
            _PURGED_AT_ONCE,
            self._connections.lock_timeout,
            binary_arrays.int8s([message.created_at for message in messages]),
        )
        moved = _keys(await fetch(connection, SQL["move_message"], row))
        return [_key(message) in moved for message in messages]

    async def _take(
        self, connection: PostgresConnection, take: TakeMessages
    ) -> list[list[QueuedMessage]]:
        now = self._clock.now()
        row = (self._tenant, take.queue, now, take.limit, now + take.lease, take.worker)
        taken = sorted(await fetch(connection, SQL["take_messages"], row))
        return [[SHAPES.message.value(found[1:]) for found in taken]]


def _of(kind: type[W], batch: Sequence[MessageWrite]) -> "_Numbered[W]":
    return [(index, write) for index, write in enumerate(batch) if isinstance(write, kind)]


def _indexes(numbered: "_Numbered[W]") -> list[int]:
    return [index for index, _ in numbered]


def _waves(moves: "_Numbered[MoveMessage]") -> "list[_Numbered[MoveMessage]]":
    """Moves in order, those of one message apart: a statement changes a row once."""
    waves: list[_Numbered[MoveMessage]] = []
    seen = Counter[_Key]()
    for index, write in moves:
        number = seen[_key(write.message)]
        seen[_key(write.message)] += 1
        if number == len(waves):
            waves.append([])
        waves[number].append((index, write))
    return waves


def _key(message: QueuedMessage) -> _Key:
    return message.queue, message.message_id


def _keys(rows: Sequence[tuple[Any, ...]]) -> set[_Key]:
    return {(queue, message_id) for queue, message_id in rows}


def _was_first(key: _Key, stored: set[_Key]) -> bool:
    """Whether this message was stored; the next one of its key was not."""
    if key not in stored:
        return False
    stored.discard(key)
    return True
