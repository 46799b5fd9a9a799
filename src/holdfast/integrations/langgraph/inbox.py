"""Keeps the approvals inbox in step with what graphs ask.

A question is opened in the commit of the write that asks it. If it was answered elsewhere, or is
no longer asked, that is noted after the write that shows it: if the process dies between, the next
checkpoint shows it again.

LangGraph stores a task's writes and the checkpoint after them in different threads. The checkpoint
waits for the answers that are on their way: else it would withdraw what they answer.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from holdfast.agents.definitions.questions import QUESTION
from holdfast.engine.waits import WaitSpec, opening
from holdfast.engine.writing.run_writer import ConditionFailed
from holdfast.errors import WaitNotFound
from holdfast.integrations.langgraph import interrupts
from holdfast.integrations.langgraph.host import AGENT, Host
from holdfast.integrations.langgraph.interrupts import (
    INTERRUPT,
    RESUME,
    StoredInterrupt,
    TaskInterrupts,
)
from holdfast.kernel.indexes import AddWait
from holdfast.kernel.journal import Draft

_REMEMBERED: Final = 1024
_LATE_SECONDS: Final = 0.05
"""How much later than the checkpoint's thread the thread of an answer may be."""


class WritePosition(Protocol):
    """Where in a thread something is written."""

    @property
    def thread_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def space(self) -> str: ...
    @property
    def checkpoint_id(self) -> str: ...


class QuestionInbox:
    """What the threads of a store ask people."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[str, None] = {}
        self._answering: dict[Future[None], str] = {}

    @contextlib.contextmanager
    def answering(self, run_id: str, writes: Sequence[tuple[str, Any]]) -> Generator[None]:
        """Let checkpoints wait while a task's answers are stored. Use it in the caller's thread."""
        if not any(channel == RESUME for channel, _ in writes):
            yield
            return
        stored: Future[None] = Future()
        self._answering[stored] = run_id
        try:
            yield
        finally:
            del self._answering[stored]
            stored.set_result(None)

    async def write(
        self,
        place: WritePosition,
        task_id: str,
        writes: Sequence[tuple[str, Any]],
        store: Callable[[Sequence[Draft]], Awaitable[None]],
    ) -> None:
        """Let `store` store a task's writes, with the questions that it asks."""
        if not any(channel in (INTERRUPT, RESUME) for channel, _ in writes):
            await store(())
            return
        at = (place.space, place.checkpoint_id, task_id)
        taken = interrupts.taken_from(place.thread_id, *at, writes)
        self._remember(place.run_id)
        await self._store_asked(taken, store)
        async with self._host.lock(place.run_id):
            waits = await self._host.waits.of_run(place.run_id)
            settled = interrupts.settled_by_task(waits, *at, taken)
            for wait_id, value in settled.answered.items():
                await self._host.waits.resolve(wait_id, interrupts.plain(value), by=AGENT)
            for wait_id in settled.withdrawn:
                await self._host.waits.cancel(wait_id, by=AGENT)

    async def go_on(self, place: WritePosition, source: str, *, begins: bool) -> None:
        """Withdraw questions that a checkpoint, stored after the one `place` names, left behind.

        If it `begins` a run of the graph, another process may have asked before.
        """
        is_new_turn = source == "input" and not place.space
        if not is_new_turn and not begins and place.run_id not in self._waiting:
            return
        await self._until_answers_are_stored(place.run_id)
        if not is_new_turn and await self._left_by(place, source):
            await asyncio.sleep(_LATE_SECONDS)
            await self._until_answers_are_stored(place.run_id)
        async with self._host.lock(place.run_id):
            withdrawn = await self._left_by(place, source)
            for wait_id in withdrawn:
                await self._host.waits.cancel(wait_id, by=AGENT)
            if not any(map(interrupts.is_open, await self._host.waits.of_run(place.run_id))):
                self._waiting.pop(place.run_id, None)

    async def _left_by(self, place: WritePosition, source: str) -> list[str]:
        waits = await self._host.waits.of_run(place.run_id)
        return interrupts.withdrawn_by_checkpoint(waits, place.space, place.checkpoint_id, source)

    async def _until_answers_are_stored(self, run_id: str) -> None:
        found = [stored for stored, of in list(self._answering.items()) if of == run_id]
        if found:
            await asyncio.wait([asyncio.wrap_future(stored) for stored in found])

    async def _store_asked(
        self, taken: TaskInterrupts, store: Callable[[Sequence[Draft]], Awaitable[None]]
    ) -> None:
        while True:
            new = [question for question in taken.asked if not await self._is_known(question)]
            try:
                await store(self._drafts(new))
            except ConditionFailed as failed:
                if not isinstance(failed.change, AddWait):
                    raise
            else:
                return

    async def _is_known(self, question: StoredInterrupt) -> bool:
        with contextlib.suppress(WaitNotFound):
            await self._host.waits.get(question.wait_id)
            return True
        return False

    def _drafts(self, asked: Sequence[StoredInterrupt]) -> list[Draft]:
        """Put each question in a separate group: the graph may resume with any answer."""
        specs = {
            question.wait_id: WaitSpec(
                wait_id=question.wait_id,
                kind=QUESTION,
                name=question.name,
                payload=question.payload,
            )
            for question in asked
        }
        now = self._host.context.now()
        return [opening([spec], run_id="", now=now).draft for spec in specs.values()]

    def _remember(self, run_id: str) -> None:
        self._waiting[run_id] = None
        while len(self._waiting) > _REMEMBERED:
            del self._waiting[next(iter(self._waiting))]
