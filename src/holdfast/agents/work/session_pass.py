"""A pass over a session: messages are taken in order, each answered once, then it waits.

A message is a signal. Its answer is stored in one commit with the state that led to it: a crash in
between means that the message is answered again, never that it is lost or answered twice.
"""

from typing import Any, Final

import msgspec

from holdfast import names
from holdfast.agents.definitions.agent import Agent
from holdfast.agents.definitions.session_input import MESSAGE
from holdfast.agents.exits.exit_reasons import HandBackExit, Suspend
from holdfast.agents.turn.calls import describe
from holdfast.agents.turn.memo import Memo
from holdfast.agents.turn.turn import Turn
from holdfast.agents.work.executor import Ending, Pass, run_agent
from holdfast.engine.signals import Signals
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    MisuseError,
    OutcomeUnknown,
    TurnDiverged,
    UnavailableError,
)
from holdfast.kernel.signals import Signal
from holdfast.kernel.travel import FRESH

CLOSE: Final = "close"
CLOSE_ID: Final = "holdfast.close"


class StoredReply(msgspec.Struct, frozen=True):
    """The answer to a message as it is stored: what the agent returned, or how it failed."""

    result: Any = None
    error: str = ""


class SessionPass(Pass):
    """Answers what is there, one message after another; works on other runs as any pass does."""

    async def converse(self, agent: Agent[..., Any], memo: Memo) -> Ending:
        inbox, signals = self.held.inbox, Signals(self.context)
        memo.answered |= self.held.part(FRESH) is not None
        while True:
            message = await inbox.next(MESSAGE)
            if message is None:
                if await inbox.next(CLOSE) is not None:
                    await self.held.complete(None)
                    return Ending(True)
                if await inbox.wait(MESSAGE, CLOSE):
                    return Ending(False)
                continue
            content = await signals.value(self.run_id, message.signal_id)
            turn = self.begin(agent, memo)
            try:
                reply = await self._reply(agent, turn, content)
            except Suspend as suspended:
                await self.leave(suspended.way)
                return Ending(False)
            await self._answer(turn, message, reply)
            memo = Memo()
            memo.answered = True
            if self.stop_note:
                await self.leave(HandBackExit(self.stop_note))
                return Ending(False)

    async def _reply(self, agent: Agent[..., Any], turn: Turn, content: object) -> StoredReply:
        try:
            return StoredReply(result=await run_agent(agent, turn, agent.arguments_for(content)))
        except HoldfastError as error:
            is_misuse = isinstance(error, MisuseError) and not isinstance(error, TurnDiverged)
            is_of_store = isinstance(error, OutcomeUnknown) and not self.held.stage.is_settled
            if is_of_store or (turn.gate.leaving is error and not is_misuse):
                raise
            return await self._failed(error)
        except Exception as error:
            return await self._failed(error)

    async def _failed(self, error: Exception) -> StoredReply:
        """Report the failure to the sender of this message; the session continues."""
        await self.held.stage.settle()
        self.held.discard()
        return StoredReply(error=describe(error)[: names.MAX_TEXT])

    async def _answer(self, turn: Turn, message: Signal, reply: StoredReply) -> None:
        if not reply.error:
            turn.check_claimed()
            await turn.past.give_up_kept(turn.context)
        try:
            await self.held.inbox.answer(message.signal_id, reply)
        except HoldfastError as error:
            if isinstance(error, ConflictError | UnavailableError | TurnDiverged):
                raise
            await self.held.inbox.answer(message.signal_id, await self._failed(error))
