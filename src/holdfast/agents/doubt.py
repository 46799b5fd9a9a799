"""What to do about a call that nobody saw the end of. Pure: asking and recording are up to others.

verify says it happened   it did, at whatever moment it is asked
verify says it did not    counts only when the call cannot be running any more
nobody can tell           the tool's policy: ask a person, tell the model, or try again
"""

import asyncio
from typing import Any

import msgspec

from holdfast.agents.calls import is_being_cancelled
from holdfast.agents.tools import Arguments, Happened, Policy, Tool, Verdict
from holdfast.errors import NotDone
from holdfast.kernel.effects import Effect
from holdfast.telemetry import log

RETRIED = "the tool's policy is to retry"


class Adopt(msgspec.Struct, frozen=True):
    """It happened, with this result."""

    result: Any


class TooEarly(msgspec.Struct, frozen=True):
    """It may be running yet."""


class DidNot(msgspec.Struct, frozen=True):
    """It did not happen, and whoever called it has seen the error."""

    error: str


class TryAgain(msgspec.Struct, frozen=True):
    """It is to be done now; `note` says why that is safe."""

    note: str


class Undecided(msgspec.Struct, frozen=True):
    """It stays unknown: the model is told if that is the policy, else a person is asked.

    `reason` is why `verify` could not tell, if it was asked.
    """

    reason: str = ""


Judgement = Adopt | TooEarly | DidNot | TryAgain | Undecided


class CannotTell(msgspec.Struct, frozen=True):
    """`verify` was asked, and broke."""

    reason: str


Answer = Verdict | CannotTell | None


def judge(
    verdict: Answer, policy: Policy, *, error: str | None, is_over: bool, attempts: int
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
    return Undecided("" if verdict is None else verdict.reason)


async def ask(tool: Tool[..., Any], arguments: Arguments, effect: Effect) -> Answer:
    """What the tool's `verify` says; None if there is none."""
    try:
        async with asyncio.timeout(tool.policy.limit_seconds):
            return await tool.verify(arguments, effect.key)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        return CannotTell("verify was cancelled")
    except Exception as error:
        log.warning("verify of %s could not tell", effect.tool, exc_info=True)
        return CannotTell(f"verify raised {type(error).__name__}: {error}")
