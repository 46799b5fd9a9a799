"""Keeps the approvals inbox in step with what graphs ask.

A question is opened in the commit of the write that asks it. That one was answered elsewhere, or is
asked no more, is noted after the write that shows it: if the process dies between, the next
checkpoint shows it again.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from holdfast.agents.questions import QUESTION
from holdfast.engine.head import ConditionFailed
from holdfast.engine.waits import WaitSpec, opening
from holdfast.errors import WaitNotFound
from holdfast.integrations.langgraph import interrupts
from holdfast.integrations.langgraph.host import AGENT, Host
from holdfast.integrations.langgraph.interrupts import INTERRUPT, RESUME, Question, Taken
from holdfast.kernel.indexes import AddWait
from holdfast.kernel.journal import Draft

_REMEMBERED: Final = 1024


class Place(Protocol):
    """Where in a thread something is written."""

    @property
    def thread_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def space(self) -> str: ...
    @property
    def checkpoint_id(self) -> str: ...


class Asking:
    """What the threads of a store ask people."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[str, None] = {}

    async def write(
        self,
        place: Place,
        task_id: str,
        writes: Sequence[tuple[str, Any]],
        store: Callable[[Sequence[Draft]], Awaitable[None]],
    ) -> None:
        """Let `store` write what a task has written, with the questions that it asks."""
        if not any(channel in (INTERRUPT, RESUME) for channel, _ in writes):
            await store(())
            return
        at = (place.space, place.checkpoint_id, task_id)
        taken = interrupts.taken_from(place.thread_id, *at, writes)
        self._remember(place.run_id)
        await self._store_asked(taken, store)
        waits = await self._host.waits.of_run(place.run_id)
        settled = interrupts.settled_by_task(waits, *at, taken)
        for wait_id, value in settled.answered.items():
            await self._host.waits.resolve(wait_id, interrupts.plain(value), by=AGENT)
        for wait_id in settled.withdrawn:
            await self._host.waits.cancel(wait_id, by=AGENT)

    async def go_on(self, place: Place, source: str, *, begins: bool) -> None:
        """A checkpoint was stored after the one that `place` names.

        If it `begins` a run of the graph, another process may have asked before.
        """
        is_new_turn = source == "input" and not place.space
        if not is_new_turn and not begins and place.run_id not in self._waiting:
            return
        waits = await self._host.waits.of_run(place.run_id)
        withdrawn = interrupts.withdrawn_by_checkpoint(
            waits, place.space, place.checkpoint_id, source
        )
        for wait_id in withdrawn:
            await self._host.waits.cancel(wait_id, by=AGENT)
        if len(withdrawn) == sum(map(interrupts.is_open, waits)):
            self._waiting.pop(place.run_id, None)

    async def _store_asked(
        self, taken: Taken, store: Callable[[Sequence[Draft]], Awaitable[None]]
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

    async def _is_known(self, question: Question) -> bool:
        with contextlib.suppress(WaitNotFound):
            await self._host.waits.get(question.wait_id)
            return True
        return False

    def _drafts(self, asked: Sequence[Question]) -> list[Draft]:
        """Each question is a group of its own: the graph may go on with any answer."""
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
