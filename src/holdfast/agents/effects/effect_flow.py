"""The protocol of a call with consequences, without I/O: for agents, the registry and LangGraph.

    begin ─▶ fresh ─▶ call the tool ─▶ settle: completed | not done
          │                         ╰▶ in doubt ──╮
          ├▶ in flight ─▶ wait for the twin       ├▶ verify ─▶ settle, begin again, postpone,
          ├▶ unknown ─────────────────────────────╯           ask a person or report it
          ╰▶ done ─▶ replay

`EffectFlow.steps` is a generator. It decides by what is known of the call, and yields a step; its
driver carries the step out and sends the answer, whose type each step's docstring names. A driver
that cannot continue raises, and drops the generator.
"""

from collections.abc import Generator
from typing import Any, Final

import msgspec

from holdfast.agents.definitions.tool_policy import ToolPolicy
from holdfast.agents.definitions.tools import Happened
from holdfast.agents.effects import doubt
from holdfast.agents.effects.doubt import Adopt, Answer, AskAgain, DidNot, TooEarly, TryAgain
from holdfast.engine.effects import Begun
from holdfast.errors import NotDone
from holdfast.kernel.effects import EffectStatus

STOOD_STILL: Final = "the process stood still too long before the call, and did not make it"


class BeginEffect(msgspec.Struct, frozen=True):
    """Put the intent in the journal, or find what holds its key. Answer: Begun."""


class _StepOfEffect(msgspec.Struct, frozen=True):
    begun: Begun


class CallTool(_StepOfEffect, frozen=True):
    """Call the tool under this intent. Answer: CallAnswer."""


class WaitForTwin(_StepOfEffect, frozen=True):
    """Wait for the operation if it is being made elsewhere just now.

    Answer: the same Begun if nobody is known to make it, another one if it has ended, or None to
    begin again.
    """


class ReplayOutcome(_StepOfEffect, frozen=True):
    """Give back the recorded outcome. Answer: the reply to the caller."""


class AskVerify(_StepOfEffect, frozen=True):
    """Ask outside whether the call happened. Answer: VerifyAnswer, or Interrupted.

    `error` is the text of what the call raised, if it was seen to end; `cause` is the exception if
    this driver saw it just now.
    """

    error: str | None = None
    cause: BaseException | None = None


class AskVerifyLater(_StepOfEffect, frozen=True):
    """Choose when to ask `verify` again. Answer: the moment, or None if it is not asked again.

    `error` is the text of what the call raised, if it was seen to end.
    """

    reason: str
    error: str | None = None


class AskPerson(_StepOfEffect, frozen=True):
    """Ask a person. Answer: Happened, NotDone, or None if nobody can be asked here."""

    error: str | None
    reason: str


class ReportUnknown(_StepOfEffect, frozen=True):
    """Report that nobody knows whether the call happened. Answer: the reply to the caller."""

    error: str | None
    reason: str = ""


class Postpone(_StepOfEffect, frozen=True):
    """Look again later: at a moment, or when the call cannot be running any more. Answer: None."""

    note: str
    until: int | None = None


class Settle(_StepOfEffect, frozen=True):
    """Record an outcome. Answer: the reply to the caller, or None if the flow is to begin again.

    The answer does not matter for interrupted calls and with `retry`. `result` is what the tool
    returned, or the text of its error; `error` is the exception that shows that nothing was done.
    """

    status: EffectStatus
    result: Any = None
    note: str = ""
    retry: bool = False
    error: BaseException | None = None
    is_interrupted: bool = False


_Ordinary = BeginEffect | CallTool | WaitForTwin | ReplayOutcome | Settle
_Doubtful = AskVerify | AskVerifyLater | AskPerson | ReportUnknown | Postpone
EffectStep = _Ordinary | _Doubtful
EffectSteps = Generator[EffectStep, Any, Any]


class Returned(msgspec.Struct, frozen=True):
    """The tool returned."""

    result: Any


class Raised(msgspec.Struct, frozen=True):
    """The tool raised. `is_not_done`: the driver knows that nothing happened."""

    error: BaseException | None
    text: str
    is_not_done: bool = False


class Interrupted(msgspec.Struct, frozen=True):
    """The caller is being cancelled; `ended` is how the tool ended all the same, if it was seen."""

    error: BaseException
    ended: Returned | Raised | None = None


class TooLate(msgspec.Struct, frozen=True):
    """The call was not made: too little of its time limit was left. `until`: postpone it."""

    note: str = STOOD_STILL
    until: int | None = None


CallAnswer = Returned | Raised | Interrupted | TooLate


class VerifyAnswer(msgspec.Struct, frozen=True):
    """What `verify` says; `is_over`: the call cannot be running any more."""

    verdict: Answer
    is_over: bool = True
    attempts: int = 0


class EffectFlow(msgspec.Struct, frozen=True):
    """The protocol for one call of a tool; the flags are where its drivers differ on purpose."""

    policy: ToolPolicy
    reuses_intent: bool = False
    """Call an idempotent tool again under an open intent that this turn did not record."""
    records_doubt_first: bool = False
    """Record that a call is in doubt before `verify` is asked, not after."""
    doubts_interrupted: bool = False
    """Record an interrupted call as unknown even if its tool is idempotent."""

    def steps(
        self, known: Begun | None = None, *, error: str | None = None, is_recorded: bool = False
    ) -> EffectSteps:
        """Take a call from what is known of it to its reply.

        `is_recorded`: what is known is this turn's own record, and `error` the text in it.
        """
        is_idempotent = self.policy.effect == "idempotent"
        begun: Begun = known or (yield BeginEffect())
        while True:
            if begun.answer == "done":
                return (yield ReplayOutcome(begun))
            if begun.answer != "fresh" and not is_recorded:
                found = yield WaitForTwin(begun)
                if found is not begun:
                    begun = found or (yield BeginEffect())
                    continue
            reply = None
            may_repeat = is_idempotent and (is_recorded or self.reuses_intent)
            if begun.answer == "fresh" or may_repeat:
                seen = yield CallTool(begun)
                if isinstance(seen, Returned):
                    reply = yield Settle(begun, EffectStatus.COMPLETED, seen.result)
                else:
                    reply = yield from self._after_failure(begun, seen)
            elif is_idempotent:
                yield _not_done(begun, "it is safe to repeat")
            elif is_recorded and begun.answer == "unknown" and self.policy.in_doubt == "fail":
                return (yield ReportUnknown(begun, error))
            else:
                reply = yield from self._resolve_doubt(begun, error)
            if reply is not None:
                return reply
            begun, error, is_recorded = (yield BeginEffect()), None, False

    def _after_failure(self, begun: Begun, seen: Raised | Interrupted | TooLate) -> EffectSteps:
        """Settle a call that did not return, or find out its outcome."""
        if isinstance(seen, TooLate):
            yield _not_done(begun, seen.note)
            if seen.until is not None:
                yield Postpone(begun, seen.note, seen.until)
            return None
        if isinstance(seen, Interrupted):
            yield from self._settle_interrupted(begun, seen)
            raise seen.error
        if self.policy.effect != "mutate" or seen.is_not_done or self._shows_not_done(seen.error):
            return (yield Settle(begun, EffectStatus.NOT_DONE, seen.text, error=seen.error))
        if self.records_doubt_first:
            recorded = yield Settle(begun, EffectStatus.UNKNOWN, error=seen.error)
            if recorded is None:
                return None
        return (yield from self._resolve_doubt(begun, seen.text, seen.error))

    def _shows_not_done(self, error: BaseException | None) -> bool:
        return isinstance(error, (NotDone, *self.policy.not_done_on))

    def _settle_interrupted(self, begun: Begun, seen: Interrupted) -> EffectSteps:
        """Record what was seen of a call; an idempotent one that raised is called again later."""
        ended, error, note = seen.ended, seen.error, "the call was cancelled"
        result = None
        if isinstance(ended, Returned):
            yield Settle(begun, EffectStatus.COMPLETED, ended.result, is_interrupted=True)
            return
        if ended is not None:
            result, error, note = ended.text, ended.error, "it raised"
        is_doubtful = self.policy.effect == "mutate" or self.doubts_interrupted
        if self._shows_not_done(error):
            cause = None if ended is None else error
            yield Settle(
                begun, EffectStatus.NOT_DONE, result, note, error=cause, is_interrupted=True
            )
        elif is_doubtful or ended is None:
            status = EffectStatus.UNKNOWN if is_doubtful else EffectStatus.NOT_DONE
            yield Settle(begun, status, result, note, is_interrupted=True)

    def _resolve_doubt(
        self, begun: Begun, error: str | None, cause: BaseException | None = None
    ) -> EffectSteps:
        """Find out the outcome of a call whose end nobody saw. Returns None to begin again."""
        asked = yield AskVerify(begun, error, cause)
        if isinstance(asked, Interrupted):
            if error is not None:
                yield from self._record_doubt(begun, error)
            raise asked.error
        is_over, attempts = asked.is_over, asked.attempts
        match doubt.judge(
            asked.verdict, self.policy, error=error, is_over=is_over, attempts=attempts
        ):
            case Adopt(result):
                return (yield Settle(begun, EffectStatus.COMPLETED, result, "verified"))
            case DidNot(text):
                return (yield Settle(begun, EffectStatus.NOT_DONE, text, "verified"))
            case TryAgain(note):
                yield _not_done(begun, note)
            case TooEarly():
                then = "then it is found out what became of it"
                yield Postpone(begun, f"{begun.effect.tool} may still be running; {then}")
            case AskAgain(reason):
                until = yield AskVerifyLater(begun, reason, error)
                return (yield from self._leave_unknown(begun, error, reason, until))
            case undecided:
                return (yield from self._leave_unknown(begun, error, undecided.reason))
        return None

    def _leave_unknown(
        self, begun: Begun, error: str | None, reason: str, until: int | None = None
    ) -> EffectSteps:
        """Do what the policy says when `verify` cannot tell."""
        yield from self._record_doubt(begun, error)
        if until is not None:
            note = f"{reason}; it is asked again about {begun.effect.tool}"
            yield Postpone(begun, note, until)
            return None
        said: Happened[Any] | NotDone | None = None
        if self.policy.in_doubt != "fail":
            said = yield AskPerson(begun, error, reason)
        if said is None:
            return (yield ReportUnknown(begun, error, reason))
        if isinstance(said, Happened):
            note = "a person said that it happened"
            return (yield Settle(begun, EffectStatus.COMPLETED, said.result, note))
        yield _not_done(begun, "a person said that it did not happen")
        return None

    def _record_doubt(self, begun: Begun, error: str | None) -> EffectSteps:
        if begun.effect.status is EffectStatus.ISSUED and not self.records_doubt_first:
            note = "it raised" if error else "its worker was lost"
            yield Settle(begun, EffectStatus.UNKNOWN, error, note)


def _not_done(begun: Begun, note: str) -> Settle:
    return Settle(begun, EffectStatus.NOT_DONE, note=note, retry=True)
