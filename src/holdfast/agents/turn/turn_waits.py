"""What an agent waits for in its turn: a person's answer, a signal, a moment.

A wait that is on record is given back, not opened again; an open one suspends the run.
Nothing is held meanwhile: no process, no timer, no connection.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, cast

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import QUESTION, TIMER, Question, WaitPosition
from holdfast.agents.definitions.tools import text_of
from holdfast.agents.exits.exit_reasons import WaitExit
from holdfast.agents.turn.call_positions import AwaitedPosition
from holdfast.agents.turn.memo import RecordedWait
from holdfast.agents.turn.replayed_calls import wait_of
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.views import UNSET
from holdfast.engine.signals import Signals
from holdfast.engine.waits import WaitSpec
from holdfast.errors import AnswerRefused, MisuseError, NoAnswer, UnsupportedValue
from holdfast.kernel.signals import WAIT_KIND as SIGNAL
from holdfast.kernel.waits import WaitStatus

_LONGEST_PROBLEM: Final = 500
_OF_SESSIONS: Final = frozenset({"message", "close"})


class ResolvedWait(msgspec.Struct, frozen=True):
    """What a person or a peer said to a model."""

    text: str
    is_error: bool = False


class TurnWaits:
    """The waits of one pass over a run."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._context = turn.context
        self._held = turn.held
        self._gate = turn.gate
        self._places = turn.places
        self._past = turn.past

    async def ask(
        self,
        prompt: str,
        *,
        schema: Any,
        choices: Sequence[Any] | None,
        timeout: float | None,
        default: Any,
        name: str = "",
    ) -> Any:
        """Return the answer of a person, as the type that was asked for."""
        prompt = names.check_text(prompt, what="prompt")
        if not prompt:
            raise MisuseError("a question needs a prompt")
        if name:
            names.check(name, what="a question's name")
        _check_default(timeout, default)
        json_schema = questions.schema_of(schema)
        listed = _choices(choices)
        if default is not UNSET:
            _check_own_default(default, schema=json_schema, choices=listed)
        digest = codec.canonical_digest([prompt, json_schema, listed])
        awaited, problem = self._places.of_wait(QUESTION, prompt, digest), ""
        while True:
            found = await self._settled(awaited)
            if found is None:
                question = Question(
                    place=awaited.place,
                    asked=awaited.asked,
                    prompt=prompt,
                    schema=json_schema,
                    choices=listed,
                    problem=problem,
                )
                self._open(QUESTION, name, question, timeout=timeout)
            if found.status is not WaitStatus.RESOLVED:
                return _or_default(found, default, what=f"nobody answered {prompt!r}")
            try:
                return _typed(found.value, schema, choices=listed)
            except (AnswerRefused, UnsupportedValue) as error:
                # The next question says why this answer could not be used.
                problem = " ".join(str(error).split())[:_LONGEST_PROBLEM]

    async def asked_by_model(
        self, question: str, choices: list[str] | None
    ) -> "ResolvedWait | WaitExit":
        """Return the answer to a question of a model, or the wait that must end first."""
        listed = choices or None
        digest = codec.canonical_digest([question, None, listed])
        awaited = self._places.of_wait(QUESTION, question, digest)
        found = await self.recorded(awaited)
        if found is None:
            asked = Question(
                place=awaited.place, asked=awaited.asked, prompt=question, choices=listed
            )
            return way_to(QUESTION, "", asked)
        if found.status is WaitStatus.OPEN:
            return WaitExit(groups=(found.group_id,))
        if found.status is not WaitStatus.RESOLVED:
            return ResolvedWait("nobody answered: the question was withdrawn")
        return ResolvedWait(text_of(found.value))

    async def sleep(self, *, seconds: float | None, until: datetime | None) -> None:
        """Resume at a moment."""
        if (seconds is None) == (until is None):
            raise MisuseError("give either seconds or until")
        awaited = self._places.of_wait(TIMER, "")
        if await self._settled(awaited) is not None:
            return
        is_due = seconds == 0 if until is None else clock.from_datetime(until) <= self._now()
        if not is_due:
            self._open(TIMER, "", _place(awaited), timeout=seconds, until=until)

    async def signal(
        self,
        name: str,
        *,
        kind: Any,
        timeout: float | None,
        until: datetime | None,
        default: Any,
    ) -> Any:
        """Return the value of the oldest signal of a name that the run has not taken yet."""
        names.check(name, what="a signal's name")
        if name in _OF_SESSIONS:
            raise MisuseError(f"signals named {name!r} are messages of a session; choose another")
        if timeout is not None and until is not None:
            raise MisuseError("give either timeout or until")
        limit = until if timeout is None else timeout
        _check_default(limit, default)
        awaited = self._places.of_wait(SIGNAL, name)
        signal_id = self._turn.memo.taken(awaited.place)
        found = self._last(awaited)
        if signal_id is None and found is None:
            signal_id = await self._taken_before(name)
        if signal_id is None and found is None:
            found = await self._past_wait(awaited)
        if signal_id is None:
            if found is not None and found.status is WaitStatus.OPEN:
                self._gate.suspend(WaitExit(groups=(found.group_id,)))
            if found is not None and found.status is not WaitStatus.RESOLVED:
                return _or_default(found, default, what=f"no signal {name!r} came")
            signal_id = await self._take(name, awaited.place)
        if signal_id is None:
            self._open(SIGNAL, name, _place(awaited), timeout=timeout, until=until)
        value = await Signals(self._context).value(self._held.run_id, signal_id)
        return (
            type_conversion.convert(value, kind, what=f"signal {name!r}")
            if kind is not Any
            else value
        )

    async def _taken_before(self, name: str) -> str | None:
        """The next signal that was taken before the run was recovered, if it is asked for again."""
        item = self._past.next("signal", name)
        return None if item is None else item.item_id

    async def _take(self, name: str, place: bytes) -> str | None:
        """Take the oldest signal of a name. Returns None if no signal is there."""
        while (signal := await self._held.inbox.next(name)) is not None:
            self._turn.stage_before_others()
            if await self._held.inbox.take(signal.signal_id, place=place):
                return signal.signal_id
        return None

    def settled_or_left(self, found: RecordedWait | None, spec: WaitSpec) -> RecordedWait:
        """Return how a wait has ended. Leaves the run if the wait is open or new."""
        self._leave_if_open(found)
        if found is None:
            self.check_claimed()
            self._gate.suspend(WaitExit((spec,)))
        return found

    def in_turn(self, awaited: AwaitedPosition) -> RecordedWait | None:
        """Return the next recorded wait of this turn at a place, whatever its outcome."""
        return self._turn.memo.wait(awaited.place)

    async def recorded(self, awaited: AwaitedPosition) -> RecordedWait | None:
        """Return the same; else the next that was asked for before the run was recovered."""
        return self.in_turn(awaited) or await self._past_wait(awaited)

    async def _past_wait(self, awaited: AwaitedPosition) -> RecordedWait | None:
        item = self._past.next("wait", awaited.kind, awaited.asked)
        return None if item is None else await wait_of(self._context, item)

    def check_claimed(self) -> None:
        """Raise TurnDiverged if what is to be opened now is not what comes next on record."""
        if not self._gate.is_concurrent:
            self._turn.check_claimed()

    def _last(self, awaited: AwaitedPosition) -> RecordedWait | None:
        """The last wait at a place: what resolved one before it was taken by another branch."""
        last = None
        while (found := self.in_turn(awaited)) is not None:
            last = found
        return last

    async def _settled(self, awaited: AwaitedPosition) -> RecordedWait | None:
        """Return how the wait at a place has ended, if any. Leaves the run if it is open."""
        found = await self.recorded(awaited)
        self._leave_if_open(found)
        return found

    def _leave_if_open(self, found: RecordedWait | None) -> None:
        if found is not None and found.status is WaitStatus.OPEN:
            self._gate.suspend(WaitExit(groups=(found.group_id,)))

    def _open(
        self,
        kind: str,
        name: str,
        payload: WaitPosition,
        *,
        timeout: float | None = None,
        until: datetime | None = None,
    ) -> NoReturn:
        self.check_claimed()
        self._gate.suspend(way_to(kind, name, payload, timeout=timeout, until=until))

    def _now(self) -> int:
        return self._context.now()


def _place(awaited: AwaitedPosition) -> WaitPosition:
    return WaitPosition(place=awaited.place, asked=awaited.asked)


def way_to(
    kind: str,
    name: str,
    payload: WaitPosition,
    *,
    timeout: float | None = None,
    until: datetime | None = None,
) -> WaitExit:
    """Return the exit from an agent's code that opens a new wait."""
    if timeout is not None:
        clock.seconds(timeout)
    if until is not None:
        clock.from_datetime(until)
    spec = WaitSpec(kind=kind, name=name, timeout_seconds=timeout, deadline=until, payload=payload)
    return WaitExit((spec,))


def _check_default(limit: object, default: object) -> None:
    if default is not UNSET and limit is None:
        raise MisuseError("a default is given when the time is over: give a timeout as well")


def _check_own_default(default: Any, *, schema: Any, choices: list[Any] | None) -> None:
    if default is None:
        return  # the usual word for "nobody answered"
    try:
        questions.check_answer(default, schema=schema, choices=choices)
    except AnswerRefused as error:
        raise MisuseError(f"the default is no answer to the question: {error}") from error


def _choices(choices: Sequence[Any] | None) -> list[Any] | None:
    if choices is None:
        return None
    if isinstance(choices, str) or not choices:
        raise MisuseError("choices is a list of what can be answered, such as ['yes', 'no']")
    return type_conversion.plain(list(choices), what="choices")


def _or_default(found: RecordedWait, default: Any, *, what: str) -> Any:
    if default is not UNSET and found.status is WaitStatus.EXPIRED:
        return default
    why = (
        "in time"
        if found.status is WaitStatus.EXPIRED
        else f"(the wait was cancelled by {found.settled_by})"
    )
    raise NoAnswer(f"{what} {why}")


def _typed(value: Any, schema: Any, *, choices: list[Any] | None) -> Any:
    """Convert an answer to the type that was asked for; a JSON Schema asks for plain data.

    It was checked when it was given, unless somebody has resolved the wait itself.
    """
    if schema is None or isinstance(schema, dict):
        questions.check_answer(value, schema=cast(Any, schema), choices=choices)
        return value
    questions.check_answer(value, schema=None, choices=choices)
    return type_conversion.convert(value, schema, what="the answer")
