"""Group commit: pending writes of all runs share transactions.

While the store writes one batch, the next one collects: a thousand sessions cost a few commits.
Cancelling a caller does not withdraw a write that is in the queue. The combiner retries a failed
batch in halves, so that only the faulty write fails. The whole batch fails if the store is busy or
the outcome is unknown.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.errors import OutcomeUnknown, StoreBusy, StoreClosed
from holdfast.kernel.indexes import AddWait, CloseGroup, CloseRunWaits
from holdfast.kernel.messages import OWED_TOPICS, AddMessage, MessageStatus
from holdfast.stores.contract import (
    DEADLINES,
    JOURNAL,
    Beat,
    Commit,
    Conflict,
    FoundRun,
    Late,
    MoveMessage,
    NoteBlockedLoop,
    Publish,
    Refused,
    Sweep,
    TakeMessages,
    Write,
)
from holdfast.telemetry import BATCH_COMMITTED, BATCH_HALVED, Telemetry

_OWING = (AddMessage, CloseGroup, CloseRunWaits)

OnApplied = Callable[[Iterable[str]], None]
Done = Callable[[list[Any] | None, BaseException | None], None]
Apply = Callable[[Sequence[Write], Done], None]


class _Submitted(NamedTuple):
    write: Write
    answer: asyncio.Future[Any]


_Batch = list[_Submitted]


class Combiner:
    """Applies submitted writes in batches, one batch at a time.

    Each caller gets the answer to its own write.
    """

    def __init__(
        self,
        apply: Apply,
        *,
        batch_commits: int,
        queue_commits: int,
        telemetry: Telemetry,
        on_applied: OnApplied,
    ) -> None:
        self._apply = apply
        self._on_applied = on_applied
        self._batch_commits = batch_commits
        self._queue_commits = queue_commits
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Submitted] = deque()
        self._retries: deque[_Batch] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._seen = 0
        self._is_alone = True
        self._closed = False

    def submit(self, write: Write) -> Awaitable[Any]:
        """Queue a write. Awaiting the result returns the write's answer, or raises its error.

        A queued write stays in the queue if its caller is cancelled. While the queue is full, a
        caller waits for room, and its write is not queued yet. Raises StoreClosed after `close`.
        """
        if len(self._queue) >= self._queue_commits:
            return self._submit_when_there_is_room(write)
        if self._closed:
            raise StoreClosed()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append(_Submitted(write, answer))
        if self._idle.is_set():
            self._idle.clear()
            self._seen = 0
            if self._is_alone:
                self._gather()
            else:
                self._loop.call_soon(self._gather)
        return answer

    async def _submit_when_there_is_room(self, write: Write) -> Any:
        while len(self._queue) >= self._queue_commits:
            room: asyncio.Future[None] = self._loop.create_future()
            self._room.append(room)
            await room
        return await self.submit(write)

    async def close(self) -> None:
        """Refuse new writes, and wait until all queued writes are answered."""
        self._closed = True
        await self._idle.wait()

    def _gather(self) -> None:
        """Wait while other sessions add writes to the queue, then write the next batch.

        After a batch of one write, `submit` assumes a lone session and does not wait. Waiting makes
        batches larger. It also keeps the event loop from competing with the writer's thread for the
        interpreter: that would cost far more than these few callbacks.
        """
        if 1 < len(self._queue) > self._seen and len(self._queue) < self._batch_commits:
            self._seen = len(self._queue)
            self._loop.call_soon(self._gather)
            return
        batch = self._next_batch()
        self._is_alone = len(batch) == 1
        self._write(batch)

    def _next_batch(self) -> _Batch:
        """Return up to `batch_commits` writes in order, with at most one commit of each run.

        Callers that wait for room in the queue are woken.
        """
        batch: _Batch = []
        runs: set[str] = set()
        put_off: _Batch = []
        while self._queue and len(batch) < self._batch_commits:
            submitted = self._queue.popleft()
            if isinstance(submitted.write, Commit):
                if submitted.write.run_id in runs:
                    put_off.append(submitted)
                    continue
                runs.add(submitted.write.run_id)
            batch.append(submitted)
        self._queue.extendleft(reversed(put_off))
        for _ in range(min(len(self._room), self._queue_commits - len(self._queue))):
            _answer(self._room.popleft(), None)
        return batch

    def _write(self, batch: _Batch) -> None:
        writes = [submitted.write for submitted in batch]
        self._apply(writes, partial(self._written, batch))

    def _written(
        self, batch: _Batch, answers: list[Any] | None, error: BaseException | None
    ) -> None:
        is_full = len(self._queue) >= self._batch_commits and not self._retries
        if is_full and answers is not None:
            # Start the next batch first: the callers prepare new writes while it is written.
            self._write(self._next_batch())
        if answers is None:
            self._fail(batch, error or AssertionError("neither answers nor an error"))
        else:
            self._telemetry.count(BATCH_COMMITTED, len(batch))
            for submitted, answer in zip(batch, answers, strict=True):
                _answer(submitted.answer, answer.answer if isinstance(answer, FoundRun) else answer)
            # Announce the topics after the callers resume: topics are hints, and may be late.
            self._loop.call_soon(self._tell, batch, answers)
        if not is_full or answers is None:
            self._go_on()

    def _tell(self, batch: _Batch, answers: list[Any]) -> None:
        pairs = zip(batch, answers, strict=True)
        topics = {topic for each, answer in pairs for topic in topics_of(each.write, answer)}
        if topics:
            self._on_applied(topics)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        # No single write is at fault if the store is busy or the outcome is unknown.
        if len(batch) > 1 and not isinstance(error, OutcomeUnknown | StoreBusy):
            self._telemetry.count(BATCH_HALVED)
            middle = len(batch) // 2
            self._retries.extendleft([batch[middle:], batch[:middle]])
            return
        for submitted in batch:
            _answer(submitted.answer, error)

    def _go_on(self) -> None:
        if self._retries:
            self._write(self._retries.popleft())
        elif self._queue:
            self._seen = 0
            self._loop.call_soon(self._gather)
        else:
            self._idle.set()


def _answer(answer: "asyncio.Future[Any]", result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, BaseException):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def topics_of(write: Write, answer: Any) -> tuple[str, ...]:
    """Return the topics to announce after a write; none if it changed nothing for waiters."""
    match write:
        case Beat() | NoteBlockedLoop() | TakeMessages():
            return ()
        case _ if isinstance(answer, BaseException | Conflict | Refused):
            return ()
        case Publish() | MoveMessage():
            return (f"queue:{write.message.queue}",) if answer and _is_due(write) else ()
        case Sweep():
            topics = (f"run:{run_id}" for run_id, _ in answer)
            return ("ready", JOURNAL, *OWED_TOPICS, *topics) if answer else ()
        case Commit():
            return _topics_of_commit(write)
        case Late():
            run_id = answer.run_id if isinstance(answer, FoundRun) else write.run_id
            return (f"run:{run_id}", "ready", JOURNAL, *write.topics)


def _topics_of_commit(commit: Commit) -> tuple[str, ...]:
    topics = [f"run:{commit.run_id}", JOURNAL]
    if commit.run is not None or commit.begun:
        topics.append("ready")
    if any(isinstance(change, _OWING) for change in commit.changes):
        topics += OWED_TOPICS
    if any(isinstance(change, AddWait) and change.wait.deadline for change in commit.changes):
        topics.append(DEADLINES)
    return tuple(topics)


def _is_due(write: Publish | MoveMessage) -> bool:
    """Return whether a write may make a message due: its own, or the next of the same ordering."""
    if isinstance(write, Publish) or write.message.ordering:
        return True
    return write.move.status is MessageStatus.READY and not write.move.worker
