"""What to do about a call that nobody saw the end of. Pure: asking and recording are up to others.

verify says it happened   it did, at whatever moment it is asked
verify says it did not    counts only when the call cannot be running any more
verify cannot tell now    it is asked again for the tool's `verify_seconds`
nobody can tell           the tool's policy: ask a person, tell the model, or try again
"""

from typing import Any, Final

import msgspec

from holdfast import clock
from holdfast.agents.definitions.tool_policy import ToolPolicy
from holdfast.agents.definitions.tools import Happened, Verdict
from holdfast.errors import NotDone
from holdfast.kernel.effects import Effect
from holdfast.telemetry import log

RETRIED = "the tool's policy is to retry"
_FIRST_PAUSE: Final = clock.MICROSECONDS
_LONGEST_PAUSE: Final = 30 * clock.MICROSECONDS


class Adopt(msgspec.Struct, frozen=True):
    """It happened, with this result."""

    result: Any


class TooEarly(msgspec.Struct, frozen=True):
    """It may be running yet."""


class DidNot(msgspec.Struct, frozen=True):
    """It did not happen, and the caller has seen the error."""

    error: str


class TryAgain(msgspec.Struct, frozen=True):
    """It is to be done now; `note` says why that is safe."""

    note: str


class Undecided(msgspec.Struct, frozen=True):
    """Unknown outcome: report it to the model if that is the policy, else ask a person.

    `reason` is why `verify` could not tell, if it was asked.
    """

    reason: str = ""


class AskAgain(msgspec.Struct, frozen=True):
    """`verify` could not tell for a `reason` that may pass: it is asked again for a while."""

    reason: str


Judgement = Adopt | TooEarly | DidNot | TryAgain | AskAgain | Undecided


class CannotTell(msgspec.Struct, frozen=True):
    """`verify` was asked, and broke. `may_pass`: it may tell when it is asked later."""

    reason: str
    may_pass: bool = True


Answer = Verdict | CannotTell | None


def judge(
    verdict: Answer, policy: ToolPolicy, *, error: str | None, is_over: bool, attempts: int
) -> Judgement:
    """What follows from an answer of `verify`, or from none.

    `error` is what the call raised, if it was seen to end; `is_over` whether it cannot be running.
    """
    if isinstance(verdict, Happened):
        return Adopt(verdict.result)
    if not is_over:
        return TooEarly()
    if isinstance(verdict, NotDone):
        return TryAgain("verified") if error is None else DidNot(error)
    if policy.in_doubt == "retry" and attempts <= max(1, policy.retries):
        return TryAgain(RETRIED)
    if isinstance(verdict, CannotTell) and verdict.may_pass and policy.in_doubt != "fail":
        return AskAgain(verdict.reason)
    return Undecided("" if verdict is None else verdict.reason)


def over_at(effect: Effect, *, now: int) -> int:
    """When to look again at a call that may be running; after its time limit, ever less often."""
    if now < effect.limit_at:
        return effect.limit_at
    return now + _pause(now - effect.limit_at)


def ask_again_at(policy: ToolPolicy, *, since: int, now: int) -> int | None:
    """When to ask `verify` again that could not tell since a moment; None if it was long enough.

    The pauses double, from the time that has passed alone: there is no count to keep.
    """
    end = since + clock.seconds(policy.verify_seconds)
    if now >= end:
        return None
    return min(now + _pause(now - since), end)


def _pause(passed: int) -> int:
    return min(max(passed, _FIRST_PAUSE), _LONGEST_PAUSE)


def command_for(effect: Effect) -> str:
    """The command with which a person settles an effect."""
    return (
        f"`holdfast effects resolve {effect.effect_id}` with --happened RESULT, --did-not-happen "
        "or --retry"
    )


def log_cannot_tell(run_id: str, effect: Effect, reason: str, *, then: str) -> None:
    """Log once, in one line, all that a person needs to settle an effect."""
    log.warning(
        "run %s: nobody knows whether %s happened (effect %s, key %s): %s. %s; settle it with %s",
        *(run_id, effect.tool, effect.effect_id, effect.key, reason, then, command_for(effect)),
    )
