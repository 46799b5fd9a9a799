"""One call of a tool with consequences, from what is known of it to its reply.

`effect_flow` decides what follows from what is known of a call; `Calling` carries its steps out, as
a generator that leaves I/O to its own driver, so that blocking and async callers share it.
"""

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec
from langchain_core.messages import AIMessage, ToolMessage
from langgraph._internal._constants import (  # pyright: ignore[reportMissingTypeStubs]
    CONFIG_KEY_DURABILITY,
)
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from holdfast import clock, codec
from holdfast.agents.definitions.tool_policy import EffectClass
from holdfast.agents.definitions.tool_policy import ToolPolicy as ToolPolicy
from holdfast.agents.definitions.tools import Happened, text_of
from holdfast.agents.effects import effect_flow as flow
from holdfast.agents.turn.calls import describe
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.errors import IllegalMove, MisuseError, NotDone, UnavailableError
from holdfast.integrations.langgraph import interrupts
from holdfast.integrations.langgraph.interrupts import UNKNOWN_EFFECT
from holdfast.integrations.langgraph.thread import Thread
from holdfast.integrations.langgraph.tools import replies
from holdfast.integrations.langgraph.tools.call_watch import CallWatch
from holdfast.integrations.langgraph.tools.replies import GraphToolCall, Reply, Serializer
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.names import MAX_TEXT
from holdfast.telemetry import log

Unknown = Literal["ask", "report"]

_TRIES: Final = 40
_MOST_LOOKS: Final = 100
_VERDICT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["happened"],
    "properties": {
        "happened": {"type": "boolean"},
        "result": {},
        "effect": {"type": "string"},
    },
}


class GraphToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How calls of a tool are made safe."""

    effect: EffectClass = "mutate"
    repeat: bool = False
    limit_seconds: float = 300.0
    unknown: Unknown = "ask"
    not_done_on: tuple[type[BaseException], ...] = ()


class StoreStep(NamedTuple):
    """A step: call this on the saver's event loop, and send back what it returns."""

    function: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Make(NamedTuple):
    """A step: let the tool run, and report what was seen, whatever it raises."""

    key: str


class VerifyStep(NamedTuple):
    """A step: ask outside whether the call of an effect happened."""

    effect: Effect


Step = StoreStep | Make | VerifyStep
Flow = Generator[Step, Any, Reply]


class Made(NamedTuple):
    """What came of letting a tool run."""

    reply: Reply = None
    error: BaseException | None = None


class PersonVerdict(msgspec.Struct, frozen=True):
    """The outcome of a call, as reported by a person."""

    happened: bool
    result: Any = None
    effect: str = ""


class Calling(msgspec.Struct, kw_only=True):
    """A call, what is to be kept about it, and its status."""

    call: GraphToolCall
    policy: GraphToolPolicy
    watch: CallWatch
    serde: Serializer
    config: Any
    thread: Thread
    said: dict[str, "PersonVerdict"]
    """What people said of other calls, by their effects, when it was this one that asked."""
    ordinal: int = 0
    asked: tuple[object, ...] = ()
    """What distinguishes it from an equal call that was meant as another one."""
    is_alone: bool = True
    """Whether no other call runs in its task, so that an answer needs not say which is meant."""
    made: Made | None = None
    began_at: int = 0
    looks: int = 0

    def steps(self) -> Flow:
        """Drive the protocol of the call; a blocking or an async driver does the I/O."""
        anchor = yield _store(anchor_of, self.thread, self.config)
        request = self._request(anchor)
        policy = ToolPolicy(
            effect=self.policy.effect,
            in_doubt="fail" if self.policy.unknown == "report" else "ask",
            not_done_on=(GraphBubbleUp, *self.policy.not_done_on),
        )
        protocol = flow.EffectFlow(policy, reuses_intent=True, records_doubt_first=True).steps()
        answer = None
        while True:
            try:
                step = protocol.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield from self._answer(step, request)

    def _request(self, anchor: str) -> EffectRequest:
        """Return the call's effect. What distinguishes it is in its digest, and so in its key."""
        material: list[object] = [anchor, self.call.args, *self.asked]
        if self.policy.effect == "idempotent" or self.policy.repeat:
            material += [self.call.call_id, self.ordinal]
        return EffectRequest(
            tool=self.call.tool,
            args=self.call.args,
            args_digest=codec.canonical_digest(material, name=f"arguments of {self.call.tool}"),
            call_id=self.call.call_id,
            limit_seconds=self.policy.limit_seconds,
        )

    def _answer(self, step: flow.EffectStep, request: EffectRequest) -> Flow:
        match step:
            case flow.BeginEffect():
                return (yield from self._begin(request))
            case flow.CallTool(begun):
                return (yield from self._make(begun))
            case flow.Settle():
                return (yield from self._settle(step))
            case flow.ReplayOutcome(begun):
                return replies.given_back(begun.result, self.call, self.serde)
            case flow.WaitForTwin(begun):
                return (yield from self._wait_for_twin(begun))
            case flow.AskVerify(begun, error):
                return (yield from self._ask_verify(begun, error))
            case flow.AskPerson(begun, error):
                return (yield from self._ask_person(begun, error))
            case flow.ReportUnknown(_, error):
                made = None if error is None else self.made
                return replies.failed(_report(self.call, made), self.call)
            case _:
                raise AssertionError(f"{step} does not occur: verify is asked of ended calls only")

    def _begin(self, request: EffectRequest) -> Flow:
        self.looks += 1
        if self.looks > _MOST_LOOKS:
            raise UnavailableError(
                f"what became of {self.call.tool} changes whenever it is looked at; it was not "
                "called. Try again later"
            )
        self.began_at = clock.steady()
        (begun,) = yield _store(self.thread.begin_effects, [request])
        return begun

    def _make(self, begun: Begun) -> Flow:
        """Let the tool run, and report to the flow what was seen."""
        half = clock.seconds(self.policy.limit_seconds) // 2
        if begun.answer == "fresh" and clock.steady() - self.began_at > half:
            return flow.TooLate()
        watch = self.watch
        watch.reset()
        made: Made = yield Make(begun.effect.key)
        self.made, error = made, watch.error or made.error
        if made.error is not None and watch.is_running:
            raise made.error  # it may happen yet
        if error is None and (watch.has_begun or not replies.is_error(made.reply)):
            return flow.Returned(made)
        return flow.Raised(error, _note(error) or "it failed", is_not_done=watch.is_refused)

    def _wait_for_twin(self, begun: Begun) -> Flow:
        if begun.answer != "in_flight" or self.policy.effect == "idempotent":
            return begun
        yield _store(self.thread.wait_effect, begun)
        return None

    def _settle(self, step: flow.Settle) -> Flow:
        """Record an outcome, unless one is recorded; return the reply, or None to begin again."""
        made, note = step.result, step.note or _note(step.error)
        if isinstance(made, Made):
            yield from self._complete(step.begun, made.reply)
            return made.reply
        if step.status is EffectStatus.UNKNOWN:
            return (yield from self._doubt(step.begun, note))
        try:
            if step.status is EffectStatus.COMPLETED:
                yield _store(self.thread.finish_effect, step.begun, step.result)
            else:
                yield _store(self.thread.abandon_effect, step.begun, note=note)
        except IllegalMove as error:
            log.warning("%s was settled by somebody else: %s", self.call.tool, error)
        is_end = step.status is EffectStatus.NOT_DONE and not step.retry
        return _as_it_came(self.made) if is_end else None

    def _complete(self, begun: Begun, reply: Reply) -> Flow:
        finish = self.thread.finish_effect
        try:
            yield _store(finish, begun, replies.stored(reply, self.call, self.serde))
        except IllegalMove as error:
            log.warning("%s happened, but is recorded otherwise: %s", self.call.tool, error)
        except MisuseError as error:
            log.warning("the reply of %s is kept as a text: %s", self.call.tool, error)
            yield _store(finish, begun, replies.as_text(reply))

    def _doubt(self, begun: Begun, note: str) -> Flow:
        """The tool raised: nobody knows what it did before."""
        log.warning("%s raised, and may have happened: %s", self.call.tool, note)
        try:
            yield _store(self.thread.doubt_effect, begun, note=note)
        except IllegalMove:
            return None
        return True

    def _ask_verify(self, begun: Begun, error: str | None) -> Flow:
        raised = None if error is None or self.made is None else self.made.error
        if raised is not None and not isinstance(raised, Exception):
            raise raised  # the process or the task is being ended: another one resumes the call
        return flow.VerifyAnswer((yield VerifyStep(begun.effect)))

    def _ask_person(self, begun: Begun, error: str | None) -> Flow:
        asked = yield _store(self.thread.questions)
        numbers = interrupts.numbers_about(asked, str(begun.effect.effect_id))
        said = self._ask(begun.effect, numbers if error is None and self.is_alone else ())
        return Happened(said.result) if said.happened else NotDone()

    def _ask(self, effect: Effect, numbers: Collection[int]) -> PersonVerdict:
        """Return a person's verdict. A task gets all its answers, those to other questions too.

        One that names no effect counts where this effect was asked about: in `numbers`. LangGraph
        gives the last answer once more when a graph resumes without one, so it must be a new one.
        """
        effect_id = str(effect.effect_id)
        question = {
            "question": _question(self.call, effect),
            "kind": UNKNOWN_EFFECT,
            "effect": effect_id,
            "key": effect.key,
            "tool": self.call.tool,
            "args": self.call.args,
            "since": _moment(effect.issued_at),
            "answer": {"effect": effect_id, "happened": True, "result": "(what it returned)"},
        }
        before: list[Any] = []
        while effect_id not in self.said:
            answer = interrupt(question, response_schema=_VERDICT)
            verdict = _verdict(answer)
            is_new = len(before) in numbers and answer not in before
            if verdict is not None and (verdict.effect or is_new):
                self.said[verdict.effect or effect_id] = verdict
            before.append(answer)
        return self.said.pop(effect_id)


async def anchor_of(thread: Any, config: Any) -> str:
    """The checkpoint with which the turn began; waits for one that is being stored."""
    is_stored = config["configurable"].get(CONFIG_KEY_DURABILITY) != "exit"
    for tried in range(_TRIES if is_stored else 1):
        if anchor := await thread.anchor(config):
            return anchor
        await asyncio.sleep(min(0.25, 0.001 * 2**tried))
    raise MisuseError(
        f"the turn of thread {config['configurable']['thread_id']!r} is not stored, so its calls "
        "cannot be told from those of other turns. Compile the graph with the saver that "
        'durable_tools was given, and do not run it with durability="exit"'
    )


def named(question: object, answer: object) -> object:
    """An answer that says which call it is about, if the question is about one."""
    effect_id = interrupts.effect_in(question)
    if not effect_id or not isinstance(answer, dict):
        return answer
    return {"effect": effect_id, **cast("dict[str, Any]", answer)}


def asked_in(messages: Sequence[Any], call: GraphToolCall) -> tuple[object, ...]:
    """What an equal call, made later on purpose, does not share with this one.

    After a crash the model may be asked again, and say the same in another message. So it is the
    message of a person that it answers, and how often it has seen the reply since. A reply that
    reports an error, or an unknown outcome, does not count.
    """
    _, before = _split(messages, call)
    answered: set[str] = set()
    count = 0
    for message in reversed(before):
        if _is_human(message):
            return ("answers", message.id or sum(_is_human(m) for m in before), count)
        if isinstance(message, ToolMessage) and message.status == "success":
            answered.add(message.tool_call_id)
        if isinstance(message, AIMessage):
            done = (c for c in message.tool_calls if c.get("id") in answered)
            count += sum(_is_like(other, call) for other in done)
    return ("answers", "", count)


def ordinal_of(messages: Sequence[Any], call: GraphToolCall) -> int:
    """Count the calls like this one before it in the message of the model."""
    asking, _ = _split(messages, call)
    before = 0
    for other in () if asking is None else asking.tool_calls:
        if other.get("id") == call.call_id:
            break
        before += _is_like(other, call)
    return before


def _split(messages: Sequence[Any], call: GraphToolCall) -> tuple[AIMessage | None, Sequence[Any]]:
    """The message that asks for a call, and those before it."""
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, AIMessage) and any(
            other.get("id") == call.call_id for other in message.tool_calls
        ):
            return message, messages[:at]
    return None, messages


def _is_human(message: Any) -> bool:
    return getattr(message, "type", "") == "human"


def _is_like(other: Any, call: GraphToolCall) -> bool:
    return (other.get("name"), other.get("args")) == (call.tool, call.args)


def _store(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> StoreStep:
    return StoreStep(function, args, kwargs)


def _as_it_came(made: Made | None) -> Reply:
    """The message that the tool's error was turned into; raises the error if it was not."""
    assert made is not None, "the tool was called"
    if made.error is not None:
        raise made.error
    return made.reply


def _note(error: BaseException | None) -> str:
    return "" if error is None else describe(error)[:MAX_TEXT]


def _verdict(answer: object) -> PersonVerdict | None:
    try:
        return msgspec.convert(answer, PersonVerdict)
    except msgspec.ValidationError:
        return None


def _moment(at: int) -> str:
    return clock.to_datetime(at).astimezone(dt.UTC).isoformat(timespec="seconds")


def _shown(call: GraphToolCall) -> str:
    args = ", ".join(f"{name}={text_of(value)}" for name, value in call.args.items())
    return f"{call.tool}({args})"


def _question(call: GraphToolCall, effect: Effect) -> str:
    asked = f"{_shown(call)} was begun at {_moment(effect.issued_at)}, and nobody saw how it ended."
    return f"{asked} Did it happen?"[:MAX_TEXT]


def _report(call: GraphToolCall, made: Made | None) -> str:
    why = "was interrupted"
    if made is not None:
        why = f"raised {describe(made.error)}" if made.error else "failed"
    return (
        f"{call.tool} {why}. It is NOT KNOWN whether it happened. Do not call it again with these "
        "arguments; tell the user, or find out by other means."
    )
