"""What an agent waits for in its turn: a person's answer, a signal, a moment.

A wait that is on record is given back, not opened again; one that is open leaves the run to it.
Nothing is held meanwhile: no process, no timer, no connection.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, cast

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.conversion import shapes
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import QUESTION, TIMER, Place, Question
from holdfast.agents.definitions.tools import text_of
from holdfast.agents.exits.leaving import Wait
from holdfast.agents.turn.memo import RecordedWait
from holdfast.agents.turn.past import wait_of
from holdfast.agents.turn.places import Awaited
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.views import UNSET
from holdfast.engine.signals import Signals
from holdfast.engine.waits import WaitSpec
from holdfast.errors import AnswerRefused, MisuseError, NoAnswer, UnsupportedValue
from holdfast.kernel.signals import WAIT_KIND as SIGNAL
from holdfast.kernel.waits import WaitStatus

_LONGEST_PROBLEM: Final = 500
_OF_SESSIONS: Final = frozenset({"message", "close"})


class Answered(msgspec.Struct, frozen=True):
    """What a person or a peer said to a model."""

    text: str
    is_error: bool = False


class Waiting:
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
        """The answer of a person, as the type that was asked for."""
        prompt = names.check_text(prompt, what="prompt")
        if not prompt:
            raise MisuseError("a question needs a prompt")
        if name:
            names.check(name, what="a question's name")
        _check_default(timeout, default)
        told = questions.schema_of(schema)
        listed = _choices(choices)
        if default is not UNSET:
            _check_own_default(default, schema=told, choices=listed)
        digest = codec.canonical_digest([prompt, told, listed])
        awaited, problem = self._places.of_wait(QUESTION, prompt, digest), ""
        while True:
            found = await self._settled(awaited)
            if found is None:
                question = Question(
                    place=awaited.place,
                    asked=awaited.asked,
                    prompt=prompt,
                    schema=told,
                    choices=listed,
                    problem=problem,
                )
                self._open(QUESTION, name, question, timeout=timeout)
            if found.status is not WaitStatus.RESOLVED:
                return _or_default(found, default, what=f"nobody answered {prompt!r}")
            try:
                return _typed(found.value, schema, choices=listed)
            except (AnswerRefused, UnsupportedValue) as error:
                # The next one is told why this one would not do.
                problem = " ".join(str(error).split())[:_LONGEST_PROBLEM]

    async def asked_by_model(self, question: str, choices: list[str] | None) -> "Answered | Wait":
        """The answer to a question of a model, or what the run must be left to before."""
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
            return Wait(groups=(found.group_id,))
        if found.status is not WaitStatus.RESOLVED:
            return Answered("nobody answered: the question was withdrawn")
        return Answered(text_of(found.value))

    async def sleep(self, *, seconds: float | None, until: datetime | None) -> None:
        """Come back at a moment."""
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
        """The value of the oldest signal of a name that the run has not taken yet."""
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
                self._gate.suspend(Wait(groups=(found.group_id,)))
            if found is not None and found.status is not WaitStatus.RESOLVED:
                return _or_default(found, default, what=f"no signal {name!r} came")
            signal_id = await self._take(name, awaited.place)
        if signal_id is None:
            self._open(SIGNAL, name, _place(awaited), timeout=timeout, until=until)
        value = await Signals(self._context).value(self._held.run_id, signal_id)
        return shapes.convert(value, kind, what=f"signal {name!r}") if kind is not Any else value

    async def _taken_before(self, name: str) -> str | None:
        """The next signal that was taken before the run was recovered, if it is asked for again."""
        item = self._past.next("signal", name)
        return None if item is None else item.item_id

    async def _take(self, name: str, place: bytes) -> str | None:
        """Take the oldest signal of a name; None if there is none."""
        while (signal := await self._held.inbox.next(name)) is not None:
            self._turn.stage_before_others()
            if await self._held.inbox.take(signal.signal_id, place=place):
                return signal.signal_id
        return None

    def settled_or_left(self, found: RecordedWait | None, spec: WaitSpec) -> RecordedWait:
        """How a wait has ended; one that is open, or new, the run is left to."""
        self._leave_if_open(found)
        if found is None:
            self.check_claimed()
            self._gate.suspend(Wait((spec,)))
        return found

    def in_turn(self, awaited: Awaited) -> RecordedWait | None:
        """The next wait at a place that is on record of this turn, whatever became of it."""
        return self._turn.memo.wait(awaited.place)

    async def recorded(self, awaited: Awaited) -> RecordedWait | None:
        """The same; else the next that was asked for before the run was recovered."""
        return self.in_turn(awaited) or await self._past_wait(awaited)

    async def _past_wait(self, awaited: Awaited) -> RecordedWait | None:
        item = self._past.next("wait", awaited.kind, awaited.asked)
        return None if item is None else await wait_of(self._context, item)

    def check_claimed(self) -> None:
        """Raise TurnDiverged if what is to be opened now is not what the record goes on with."""
        if not self._gate.is_concurrent:
            self._turn.check_claimed()

    def _last(self, awaited: Awaited) -> RecordedWait | None:
        """The last wait at a place: what resolved one before it was taken by another branch."""
        last = None
        while (found := self.in_turn(awaited)) is not None:
            last = found
        return last

    async def _settled(self, awaited: Awaited) -> RecordedWait | None:
        """How the wait at a place has ended, if there was one; one that is open is left to."""
        found = await self.recorded(awaited)
        self._leave_if_open(found)
        return found

    def _leave_if_open(self, found: RecordedWait | None) -> None:
        if found is not None and found.status is WaitStatus.OPEN:
            self._gate.suspend(Wait(groups=(found.group_id,)))

    def _open(
        self,
        kind: str,
        name: str,
        payload: Place,
        *,
        timeout: float | None = None,
        until: datetime | None = None,
    ) -> NoReturn:
        self.check_claimed()
        self._gate.suspend(way_to(kind, name, payload, timeout=timeout, until=until))

    def _now(self) -> int:
        return self._context.now()


def _place(awaited: Awaited) -> Place:
    return Place(place=awaited.place, asked=awaited.asked)


def way_to(
    kind: str,
    name: str,
    payload: Place,
    *,
    timeout: float | None = None,
    until: datetime | None = None,
) -> Wait:
    """The way out of an agent's code that leads to a new wait."""
    if timeout is not None:
        clock.seconds(timeout)
    if until is not None:
        clock.from_datetime(until)
    spec = WaitSpec(kind=kind, name=name, timeout_seconds=timeout, deadline=until, payload=payload)
    return Wait((spec,))


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
    return shapes.plain(list(choices), what="choices")


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
    """An answer as the type that was asked for; a JSON Schema asks for plain data.

    It was checked when it was given, unless somebody has resolved the wait itself.
    """
    if schema is None or isinstance(schema, dict):
        questions.check_answer(value, schema=cast(Any, schema), choices=choices)
        return value
    questions.check_answer(value, schema=None, choices=choices)
    return shapes.convert(value, schema, what="the answer")
