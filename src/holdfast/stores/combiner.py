"""Group commit: pending writes of all runs share transactions.

While one batch is being written the next one gathers: a thousand sessions cost a few commits. The
combiner owns what was submitted: a caller that goes away does not withdraw it. If a batch fails it
is tried again in halves, so that only the culprit fails.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import OutcomeUnknown, StoreClosed
from holdfast.stores.contract import Beat, Commit, Sweep, Write
from holdfast.telemetry import BATCH_COMMITTED, BATCH_HALVED, Telemetry

OnApplied = Callable[[Iterable[str]], None]
Apply = Callable[[Sequence[Write]], Awaitable[list[Any]]]


Answer = asyncio.Future[Any]


class Combiner:
    """Drains submitted writes into batches and hands each caller its own answer."""

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
        self._queue: deque[tuple[Write, Answer]] = deque()
        self._room = asyncio.Condition()
        self._drainer: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, write: Write) -> Any:
        """The answer to `write`; what a decision raised is raised here."""
        if self._closed:
            raise StoreClosed()
        while len(self._queue) >= self._queue_commits:
            async with self._room:
                await self._room.wait()
        answer: Answer = asyncio.get_running_loop().create_future()
        self._queue.append((write, answer))
        if self._drainer is None:
            self._drainer = asyncio.create_task(self._drain())
        result = await asyncio.shield(answer)
        if isinstance(result, BaseException):
            raise result
        return result

    async def close(self) -> None:
        """Refuse new writes and wait until those submitted are answered."""
        self._closed = True
        if self._drainer is not None:
            await asyncio.shield(self._drainer)

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._let_it_grow()
                batch = self._next_batch()
                async with self._room:
                    self._room.notify_all()
                await self._write([write for write, _ in batch], [answer for _, answer in batch])
        finally:
            self._drainer = None

    async def _let_it_grow(self) -> None:
        """Let every session that is about to submit do so before the batch is closed.

        Besides larger batches this keeps the loop from fighting the writer thread for the
        interpreter, which costs far more than the few callbacks run here.
        """
        size = 0
        while size != len(self._queue) < self._batch_commits:
            size = len(self._queue)
            await asyncio.sleep(0)

    def _next_batch(self) -> list[tuple[Write, Answer]]:
        """Up to `batch_commits` writes in order, at most one commit of each run."""
        batch: list[tuple[Write, Answer]] = []
        seen: set[str] = set()
        put_off: list[tuple[Write, Answer]] = []
        while self._queue and len(batch) < self._batch_commits:
            item = self._queue.popleft()
            write = item[0]
            if isinstance(write, Commit):
                if write.run_id in seen:
                    put_off.append(item)
                    continue
                seen.add(write.run_id)
            batch.append(item)
        self._queue.extendleft(reversed(put_off))
        return batch

    async def _write(self, writes: Sequence[Write], answers: Sequence[Answer]) -> None:
        try:
            results = await self._apply(writes)
        except Exception as error:
            if len(writes) == 1 or isinstance(error, OutcomeUnknown):
                for answer in answers:
                    _answer(answer, error)
                return
            self._telemetry.count(BATCH_HALVED)
            middle = len(writes) // 2
            await self._write(writes[:middle], answers[:middle])
            await self._write(writes[middle:], answers[middle:])
            return
        self._telemetry.count(BATCH_COMMITTED, len(writes))
        for answer, result in zip(answers, results, strict=True):
            _answer(answer, result)
        self._on_applied({topic for write in writes for topic in topics_of(write)})


def _answer(answer: Answer, result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def topics_of(write: Write) -> tuple[str, ...]:
    """Whom an applied write may concern."""
    match write:
        case Beat():
            return ()
        case Sweep():
            return ("ready",)
        case Commit(run=None):
            return (f"run:{write.run_id}",)
        case _:
            return (f"run:{write.run_id}", "ready")
