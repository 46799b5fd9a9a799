"""Sessions: conversations that outlive processes. A session is a run that takes messages."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from holdfast import ids
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent
from holdfast.agents.definitions.session_input import MESSAGE, metadata_of, session_input
from holdfast.agents.work.session_pass import CLOSE, CLOSE_ID, StoredReply
from holdfast.agents.work.work import Work
from holdfast.engine.checkpoints import Checkpoints, State
from holdfast.engine.reading import turns
from holdfast.engine.runs import Runs
from holdfast.engine.signals import Signals
from holdfast.errors import (
    ConflictError,
    InputDiffers,
    MisuseError,
    NotFoundError,
    RunBlocked,
    RunEnded,
    RunExists,
    RunFailed,
    RunNotFound,
    RunWaiting,
)
from holdfast.kernel import runs as kernel_runs
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.signals import Signal

R = TypeVar("R")
_GONE = "whoever sent a message went away"


class Session(Generic[R]):
    """A conversation with an agent, by its id, from any process."""

    def __init__(
        self,
        work: Work,
        runs: Runs,
        agent: Agent[..., R],
        session_id: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._work = work
        self._runs = runs
        self._agent = agent
        self._given = dict(metadata or {})
        self._signals = Signals(work.context)
        self.session_id = session_id
        if not agent.takes_one_input:
            raise MisuseError(
                f"agent {agent.name} takes {len(agent.parameters)} inputs; the agent of a session "
                "takes one, the message"
            )

    async def send(
        self, message: object, *, id: str | None = None, timeout: float | None = None
    ) -> R:
        """Send a message, and wait for the answer to it.

        Messages are answered in the order they came. One with an `id` that was sent before is not
        taken again: its answer is given. Raises RunFailed with what the agent raised, RunWaiting
        after `timeout` seconds (the message is answered all the same), RunEnded if it was closed. A
        sender that is cancelled is gone at once: its message is answered all the same.
        """
        self._agent.arguments_for(type_conversion.plain(message, what="message"))
        message_id = id or str(ids.uuid7())
        if message_id == CLOSE_ID:
            raise MisuseError(f"{CLOSE_ID!r} is what ends a session; give the message another id")
        try:
            await self._begin()
            await self._signals.send(self.session_id, MESSAGE, message, id=message_id)
        except RunEnded:
            # It may have been answered before the end.
            with contextlib.suppress(NotFoundError, ConflictError):
                answer = await self._signals.answer(self.session_id, message_id)
                return self._given_back(answer)
            raise
        try:
            return await self._answer_to(message_id, timeout)
        except asyncio.CancelledError:
            self._work.hand_back_helped(self.session_id, _GONE)
            raise

    async def close(self) -> None:
        """End the session when all its messages are answered; it takes no more from then on.

        Closing one that has ended changes nothing.
        """
        if (await self._runs.get(self.session_id)).status in kernel_runs.ENDED:
            return
        await self._signals.send(self.session_id, CLOSE, id=CLOSE_ID)
        async for _ in self._work.context.changes(f"run:{self.session_id}"):
            run = await self._runs.get(self.session_id)
            if run.status in kernel_runs.ENDED:
                return
            await self._check_going(run)
            await self._advance(run, None)

    async def status(self) -> RunStatus:
        """Where the session is now."""
        return (await self._runs.get(self.session_id)).status

    async def metadata(self) -> dict[str, Any]:
        """What the session was begun with, such as the root of its scratchpad."""
        return metadata_of(await turns.input_of(self._work.context, self.session_id))

    async def state(self, version: int | None = None) -> State:
        """What the session has stored: its transcript, plan and whatever its agent keeps."""
        return await Checkpoints(self._work.context).load(self.session_id, version)

    async def unanswered(self) -> list[Signal]:
        """The messages that have come and are not answered yet, in their order."""
        return await self._signals.untaken(self.session_id, MESSAGE)

    async def _begin(self) -> None:
        self._work.agents.add(self._agent)
        try:
            found = await self._runs.get(self.session_id)
        except RunNotFound:
            try:
                await self._runs.create(
                    self.session_id, agent=self._agent.name, input=session_input(self._given)
                )
                return
            except RunExists:
                found = await self._runs.get(self.session_id)
        begun_by = await turns.begun_by(self._work.context, found)
        if begun_by != self._agent.name:
            raise InputDiffers(
                f"session {self.session_id!r} is with agent {begun_by!r}; choose another id"
            )
        if self._given and self._given != await self.metadata():
            raise InputDiffers(
                f"session {self.session_id!r} was begun with other metadata, which stays"
            )
        kernel_runs.check_alive(found)

    async def _answer_to(self, message_id: str, timeout: float | None) -> R:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (3600.0 * 24 * 3650 if timeout is None else timeout)
        while True:
            ticket = self._work.context.wakeups.ticket(f"run:{self.session_id}")
            # Read before the signal: a session that has ended by then has answered it, or never.
            run = await self._runs.get(self.session_id)
            signal = await self._signals.get(self.session_id, message_id)
            if signal.is_taken:
                return self._given_back(await self._signals.answer(self.session_id, message_id))
            await self._check_going(run)
            left = deadline - loop.time()
            if left <= 0:
                raise RunWaiting(
                    f"session {self.session_id} has not answered message {message_id} yet; send it "
                    "again with the same id to get its answer",
                    run_id=self.session_id,
                )
            if not await self._advance(run, left):
                await self._work.help_peers(run)
                await self._work.pause(run, ticket, at_most=left)

    async def _advance(self, run: RunRow, timeout: float | None) -> bool:
        """Let the session answer here, if nobody else works on it."""
        task = await self._work.try_to_advance(run)
        if task is None:
            return False
        try:
            done, _ = await asyncio.wait([task], timeout=timeout)
        except asyncio.CancelledError:
            self._work.hand_back_one(task, _GONE)
            raise
        for ended in done:
            ended.result()
        return True

    async def _check_going(self, run: RunRow) -> None:
        if run.status in kernel_runs.ENDED:
            raise RunEnded(f"session {self.session_id} has {run.status}, and took this no more")
        if run.status is RunStatus.BLOCKED:
            note = await turns.last_note(self._work.context, self.session_id)
            raise RunBlocked(f"session {self.session_id} is blocked ({run.blocked_reason}): {note}")

    def _given_back(self, stored: object) -> R:
        reply = type_conversion.convert(stored, StoredReply, what="the answer")
        if reply.error:
            raise RunFailed(f"session {self.session_id} could not answer: {reply.error}")
        return self._agent.result_of(reply.result)
