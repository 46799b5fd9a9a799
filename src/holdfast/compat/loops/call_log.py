"""The tool calls of a checkpointer's sessions, which are effects of their runs.

The intent is on disk before a call, its outcome after. An id of a call may be used again for
another operation: the key tells operations apart, and nothing is overwritten.
"""

from collections import OrderedDict
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.agents.definitions.tools import text_of
from holdfast.agents.turn.calls import usable_id
from holdfast.clock import SystemClock, to_datetime
from holdfast.compat.loops.held_sessions import Engine, HeldSessions
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.engine.held.leased_run import LeasedRun
from holdfast.engine.reading.journal import body_of
from holdfast.errors import EffectNotFound, MisuseError
from holdfast.kernel import effects
from holdfast.kernel.effects import Effect, EffectStatus

_WORDS: Final = {
    EffectStatus.ISSUED: "issued",
    EffectStatus.COMPLETED: "completed",
    EffectStatus.NOT_DONE: "failed",
    EffectStatus.UNKNOWN: "unknown",
}
_KEPT: Final = 10_000


class CallLog:
    """The tool calls of sessions. The intent is on disk before a call, its outcome after."""

    def __init__(self, engine: Engine, sessions: HeldSessions) -> None:
        self._engine = engine
        self._sessions = sessions
        self._running: dict[UUID, int] = {}  # since when, by this machine's clock
        self._begun_here: OrderedDict[UUID, None] = OrderedDict()

    async def begin(self, session_id: str, request: EffectRequest) -> Begun:
        """Record the intent of a call; the result says whether it may be made (`fresh`)."""

        async def issue(held: LeasedRun) -> tuple[Begun, int]:
            since = SystemClock().now()
            (answer,) = await held.begin_effects([request])
            return answer, since

        begun, since = await self._sessions.advance(session_id, issue)
        if begun.answer == "fresh":
            self._running[begun.effect.effect_id] = since
            self._begun_here[begun.effect.effect_id] = None
            if len(self._begun_here) > _KEPT:
                self._begun_here.popitem(last=False)
        return begun

    async def find(self, key: str) -> Begun | None:
        """Return what is known of the operation that a key names; None if the key is free."""
        return await self._engine.effects.find(key)

    async def settle(
        self,
        effect: Effect,
        status: EffectStatus,
        text: str | None,
        *,
        by: str = "",
        note: str = "",
    ) -> None:
        """Record the outcome of a call; raises IllegalMove if one is already recorded."""
        result = None if text is None else storable(text)
        try:
            await self._engine.effects.settle(
                effect.effect_id, status, result=result, by=by, note=note
            )
        finally:
            self._running.pop(effect.effect_id, None)

    def is_running_here(self, effect: Effect) -> bool:
        """Return whether this checkpointer began the call, and its outcome is not recorded."""
        return effect.effect_id in self._running

    def is_late(self, effect: Effect) -> bool:
        """Return whether this process hung after an intent: others may have given the call up."""
        since = self._running.get(effect.effect_id)
        if since is None:
            return False
        return SystemClock().now() - since > (effect.limit_at - effect.issued_at) // 2

    async def of_session(self, session_id: str) -> list[Effect]:
        """All calls of a session, in the order they were issued."""
        return await self._engine.effects.of_run(session_id)

    async def pick(self, session_id: str, call_id: str, key: str | None, *, here: bool) -> Effect:
        """Return the call with an id. Ids may be used again: an open call goes before settled ones,
        and with `here` one that this process began goes before those of others."""
        wanted = usable_id(call_id)
        found = [
            effect
            for effect in await self.of_session(session_id)
            if effect.call_id == wanted and key in (None, effect.key)
        ]
        if not found:
            raise EffectNotFound(
                f"session {session_id!r} has no tool call {call_id!r}; list_tool_calls() shows all"
            )
        own = [effect for effect in found if effect.effect_id in self._begun_here]
        meant = own if here and own else found
        open_ones = [effect for effect in meant if effect.status not in effects.SETTLED]
        if len(open_ones) > 1:
            keys = ", ".join(effect.key for effect in open_ones)
            raise MisuseError(
                f"several calls of session {session_id!r} have the id {call_id!r} and no outcome; "
                f"say which with idempotency_key: {keys}"
            )
        return (open_ones or meant)[-1]

    async def args_of(self, effect: Effect) -> Any:
        """The arguments as they were recorded before the call."""
        return await self._body(effect.run_id, effect.issued_seq)

    async def text_of(self, effect: Effect) -> str | None:
        """What was recorded when the call ended: its result, or the text of its error."""
        if not effect.result_seq:
            return None
        stored = await self._body(effect.run_id, effect.result_seq)
        return None if stored is None else text_of(stored)

    async def shown(self, effect: Effect) -> dict[str, Any]:
        """Return a call with all that is recorded of it."""
        is_over = effect.status in effects.SETTLED
        return {
            "session_id": effect.run_id,
            "call_id": effect.call_id,
            "tool_name": effect.tool,
            "args_json": as_json(await self.args_of(effect)),
            "idempotency_key": effect.key,
            "status": _WORDS[effect.status],
            "result_text": await self.text_of(effect),
            "started_at": iso(effect.issued_at),
            "completed_at": iso(effect.settled_at) if is_over else None,
        }

    async def _body(self, run_id: str, seq: int) -> Any:
        (entry,) = await self._engine.journal.read(run_id, after=seq - 1, limit=1)
        return body_of(entry)


def as_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def storable(text: str) -> str:
    """A result without half characters, which no store takes: the outcome must not be lost."""
    return text.encode("utf-8", "replace").decode()


def iso(moment: int) -> str:
    return to_datetime(moment).isoformat()
