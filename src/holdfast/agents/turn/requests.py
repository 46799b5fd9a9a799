"""The calls that a model or the agent's own code asks for: permitted, made, and answered.

Of a batch the calls that need nobody are made at once; the run is left for the others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from holdfast.agents.definitions.messages import Message, ToolCall, ToolResult
from holdfast.agents.definitions.people import ask_person
from holdfast.agents.definitions.progress_tools import UNCOUNTED, is_noting
from holdfast.agents.definitions.rules import CallRefused, Repeats
from holdfast.agents.definitions.tokens import fitting, shares
from holdfast.agents.definitions.tools import Arguments, Tool, text_of
from holdfast.agents.exits.exit_reasons import ExitReason, WaitExit, first_exit
from holdfast.agents.turn.blobs import Blobs
from holdfast.agents.turn.calls import CallOutcome, TurnCall, usable_id
from holdfast.agents.turn.effects import TurnEffects
from holdfast.agents.turn.gatekeeper import Gatekeeper
from holdfast.agents.turn.peers import Peers
from holdfast.agents.turn.progress_notes import note
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.turn_waits import ResolvedWait, TurnWaits
from holdfast.agents.turn.views import Value
from holdfast.errors import HoldfastError, MisuseError, ToolFailed, TurnDiverged

_REPEATS: Final = "holdfast.repeats"
_LONGEST_NAME: Final = 200
_TOKENS_OF_A_CUT: Final = 60
"""What is said of a result that was cut, and what its message takes."""

Prepared = TurnCall | str | WaitExit | ResolvedWait
"""A call that may be made, the text that refuses it, who must permit or answer it, the answer."""


class Whole(NamedTuple):
    """All of a call's result. Of its text at most `limit` characters are shown; None: no limit."""

    name: str
    result: ToolResult
    limit: int | None = None


class Requests:
    """What one pass over a run is asked to call."""

    def __init__(self, turn: Turn, effects: TurnEffects, waiting: TurnWaits, peers: Peers) -> None:
        self._turn = turn
        self._gate = turn.gate
        self._rules = turn.rules
        self._effects = effects
        self._waiting = waiting
        self._peers = peers
        self._gatekeeper = Gatekeeper(turn, waiting)
        self._blobs = Blobs(turn)
        self._repeats = Value(turn.held, _REPEATS, Repeats, Repeats())

    async def make_all(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Make the calls a model asked for; a message for each, in order."""
        by_key: dict[str, Prepared] = {}
        prepared = [await self._prepare(call, by_key) for call in calls]
        calls_to_make = [p for p in prepared if isinstance(p, TurnCall)]
        unapproved = [p for p in prepared if isinstance(p, WaitExit)]
        asked = first_exit(unapproved) if unapproved else None
        if asked is not None and calls_to_make:
            asked = await self._ask_at_once(asked)
        outcomes = iter(await self._effects.carry_out(calls_to_make))
        if asked is not None:
            self._leave_to(asked)
        pairs = list(zip(calls, prepared, strict=True))
        answers = await self._shown([self._answer(call, p, outcomes) for call, p in pairs])
        made = sum(not isinstance(p, str) and self._is_counted(call) for call, p in pairs)
        if (counted := self._turn.counted_usage) is not None:
            counted.count_calls(made, answers)
        return answers

    async def check_permitted(self, call: TurnCall) -> None:
        """Leave the run until a person permits a call of the agent's own code, if one must.

        Raises ToolFailed if it is refused.
        """
        try:
            way = await self._gatekeeper.check(call)
        except CallRefused as refused:
            self._effects.displace(call)
            if (counted := self._turn.counted_usage) is not None:
                counted.count_call(is_error=True)
            raise ToolFailed(str(refused)) from None
        if way is not None:
            self._leave_to(way)

    async def _prepare(self, call: ToolCall, by_key: dict[str, Prepared]) -> Prepared:
        """Decide what to do with a call; of equal ones in a batch, the first decides for all."""
        made: TurnCall | None = None
        try:
            tool = self._rules.find(call.name)
            arguments = self._rules.parse(tool, call.args)
            if tool is ask_person:
                await self._rules.permit(tool, arguments)
                return await self._waiting.asked_by_model(**arguments.values)
            if is_noting(tool):
                await self._rules.permit(tool, arguments)
                return self._note(tool, arguments)
            if (peer := self._rules.peers.get(tool.name)) is not None:
                await self._rules.permit(tool, arguments)
                self._count(tool, arguments)
                return await self._peers.called_by_model(peer, arguments.values)
            made = TurnCall(tool, arguments, call_id=usable_id(call.id))
            self._place(made, [other for other in by_key.values() if isinstance(other, TurnCall)])
            self._count(tool, arguments)
            prepared = await self._permitted(made, by_key)
        except CallRefused as refused:
            prepared = str(refused)
        if made is not None and made.key:
            by_key.setdefault(made.key, prepared)
            if not isinstance(prepared, TurnCall):
                self._effects.displace(made)
        return prepared

    def _note(self, tool: Tool[..., Any], arguments: Arguments) -> ResolvedWait:
        try:
            said = note(tool, arguments.values, self._turn.progress, self._turn.context_usage.wish)
        except MisuseError as error:
            raise CallRefused(f"{tool.name} was not noted: {error}") from error
        return ResolvedWait(said)

    def _is_counted(self, call: ToolCall) -> bool:
        return self._rules.tools.get(call.name) not in UNCOUNTED

    def _count(self, tool: Tool[..., Any], arguments: Arguments) -> None:
        """Refuse a model that goes in circles."""
        self._repeats.set(self._repeats.get().after(tool.name, arguments.digest))
        self._rules.check_repeats(self._repeats.get())

    async def _permitted(self, made: TurnCall, by_key: dict[str, Prepared]) -> Prepared:
        """The call, or who must permit it first; raises CallRefused if it is not permitted."""
        twin = by_key.get(made.key) if made.key else None
        if isinstance(twin, str):
            raise CallRefused(twin)
        if twin is not None:
            return twin if isinstance(twin, WaitExit) else made
        if not made.is_on_record:
            try:
                await self._rules.permit(made.tool, made.arguments)
            except CallRefused:
                self._gatekeeper.pass_over(made)
                raise
        return await self._gatekeeper.check(made) or made

    def _place(self, call: TurnCall, beside: Sequence[TurnCall]) -> None:
        try:
            self._effects.place(call, beside)
        except MisuseError as error:
            raise CallRefused(f"{call.tool.name} was not called: {error}") from error

    def _answer(
        self, call: ToolCall, prepared: Prepared, outcomes: Iterator[CallOutcome]
    ) -> "Whole":
        name = call.name[:_LONGEST_NAME]
        if isinstance(prepared, ResolvedWait):
            answered = ToolResult(call.id, prepared.text, is_error=prepared.is_error)
            return Whole(name, answered)
        if isinstance(prepared, str):
            return Whole(name, ToolResult(call.id, prepared, is_error=True))
        assert isinstance(prepared, TurnCall), "a run that waits is left before"
        outcome = next(outcomes)
        if outcome.error is not None:
            return Whole(name, ToolResult(call.id, outcome.error, is_error=True))
        text = text_of(outcome.value)
        if outcome.replay_of is not None:
            text = f"[idempotent replay of {outcome.replay_of}]: {text}"
        limit = prepared.tool.policy.max_result_chars
        return Whole(name, ToolResult(call.id, text), min(limit, len(text)))

    async def _shown(self, answers: Sequence["Whole"]) -> list[Message]:
        """Results as a model is given them: what is too long is cut, and kept as a blob."""
        counted = self._turn.counted_usage
        room = None if counted is None else counted.room_for_results()
        limits = [len(a.result.content) if a.limit is None else a.limit for a in answers]
        if room is not None:
            texts = [a.result.content[:limit] for a, limit in zip(answers, limits, strict=True)]
            limits = self._limits_within(texts, room)
        shown: list[Message] = []
        for answer, limit in zip(answers, limits, strict=True):
            result = answer.result
            try:
                content = await self._blobs.cut(answer.name, result.content, limit)
            except HoldfastError as error:
                self._gate.leave(error)
            shown.append(Message.tool(msgspec.structs.replace(result, content=content)))
        return shown

    def _limits_within(self, texts: Sequence[str], room: int) -> list[int]:
        """How many characters of each text are shown, so that all have at most `room` tokens."""
        count = self._turn.context_usage.tokens_of
        sizes = [count(text) + _TOKENS_OF_A_CUT for text in texts]
        return [
            len(text) if share >= size else fitting(text, max(0, share - _TOKENS_OF_A_CUT), count)
            for text, size, share in zip(texts, sizes, shares(sizes, room), strict=True)
        ]

    async def _ask_at_once(self, way: ExitReason) -> ExitReason:
        """Open requests now, so that nobody has to wait for the calls beside them to end."""
        if not isinstance(way, WaitExit) or not way.specs or way.groups:
            return way
        try:
            self._turn.stage_before_others()
            return WaitExit(groups=(await self._turn.held.open_waits(way.specs),))
        except HoldfastError as error:
            self._gate.leave(error)

    def _leave_to(self, way: ExitReason) -> NoReturn:
        try:
            self._waiting.check_claimed()
        except TurnDiverged as error:
            self._gate.leave(error)
        self._gate.suspend(way)
