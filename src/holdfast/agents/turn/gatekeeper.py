"""Calls that a person must permit first: which they are, and what was said about them.

An approval is bound to the digest of the exact arguments and to the tool's schema. It is used by
the one call that asked for it, and only while it is valid; an older one is asked for again.
"""

from typing import Any, cast

import msgspec

from holdfast import clock, names
from holdfast.agents.definitions.questions import APPROVAL, ApprovalRequest, ApprovalVerdict
from holdfast.agents.definitions.rules import CallRefused
from holdfast.agents.definitions.tool_policy import Approval
from holdfast.agents.definitions.tools import Tool, text_of
from holdfast.agents.exits.containment import exits_as_errors
from holdfast.agents.exits.exit_reasons import WaitExit
from holdfast.agents.turn.calls import TurnCall, describe
from holdfast.agents.turn.memo import RecordedWait
from holdfast.agents.turn.turn import Turn
from holdfast.agents.turn.turn_waits import TurnWaits, way_to
from holdfast.engine import effects as engine_effects
from holdfast.kernel.waits import WaitStatus
from holdfast.telemetry import log


class Gatekeeper:
    """Knows which calls of a pass a person has to permit, and what was said."""

    def __init__(self, turn: Turn, waiting: TurnWaits) -> None:
        self._context = turn.context
        self._places = turn.places
        self._waiting = waiting

    async def check(self, call: TurnCall) -> WaitExit | None:
        """Return what the run must wait for before a call is made; None if it may be made.

        Raises CallRefused if it was rejected, or nobody answered in time. A call that happened
        before, in this run or in one that it was forked from, is replayed without an approval.
        """
        wanted = needed_approval(call)
        if wanted is None:
            return None
        tool, digest = call.tool, call.arguments.digest
        awaited = self._places.of_wait(APPROVAL, tool.name, digest)
        while (found := await self._waiting.recorded(awaited)) is not None:
            if found.status is WaitStatus.OPEN:
                return WaitExit(groups=(found.group_id,))
            is_usable = found.payload.get("args_digest") == digest and (
                call.is_on_record or self._is_valid(found, tool, wanted)
            )
            if is_usable:
                _check_verdict(found, tool)
                call.approval = found.wait_id
                return None
        if not call.is_on_record and await self._has_happened(call):
            return None
        request = ApprovalRequest(
            place=awaited.place,
            asked=awaited.asked,
            prompt=_prompt(call, wanted),
            tool=tool.name,
            args=call.arguments.values,
            args_digest=digest,
            tool_digest=tool.digest,
            call_id=call.call_id,
        )
        name = wanted.name or tool.name
        return way_to(APPROVAL, name, request, timeout=wanted.expires_seconds)

    def pass_over(self, call: TurnCall) -> None:
        """Drop the verdict on a call that another rule refuses."""
        if needed_approval(call) is not None:
            digest = call.arguments.digest
            awaited = self._places.of_wait(APPROVAL, call.tool.name, digest)
            while self._waiting.in_turn(awaited) is not None:
                pass

    async def _has_happened(self, call: TurnCall) -> bool:
        known = await engine_effects.find(self._context, call.key) if call.key else None
        return known is not None and known.answer == "done"

    def _is_valid(self, found: RecordedWait, tool: Tool[..., Any], wanted: Approval) -> bool:
        """Whether a verdict is still valid: the tool is the same, and it was given lately."""
        if found.status is not WaitStatus.RESOLVED or not _is_approved(found):
            return True
        age = self._context.now() - found.settled_at
        is_same_tool = found.payload.get("tool_digest") == tool.digest
        return is_same_tool and age <= clock.seconds(wanted.valid_seconds)


def needed_approval(call: TurnCall) -> Approval | None:
    """What approval a call needs; one whose rule breaks needs it too."""
    wanted = call.tool.policy.approval
    if wanted is None or wanted.when is None:
        return wanted
    try:
        with exits_as_errors():
            is_needed = bool(wanted.when(**call.arguments.values))
    except Exception as error:
        log.warning("the approval rule of %s broke, a person is asked: %s", call.tool.name, error)
        return wanted
    return wanted if is_needed else None


def _prompt(call: TurnCall, wanted: Approval) -> str:
    if wanted.prompt is not None:
        try:
            with exits_as_errors():
                return names.check_text(wanted.prompt(**call.arguments.values), what="prompt")
        except Exception as error:
            log.warning("the prompt of %s broke: %s", call.tool.name, describe(error))
    shown = ", ".join(f"{name}={text_of(value)}" for name, value in call.arguments.values.items())
    return f"May {call.tool.name}({shown}) be called?"[: names.MAX_TEXT]


def _is_approved(found: RecordedWait) -> bool:
    value: Any = found.value
    return isinstance(value, dict) and cast("dict[str, Any]", value).get("approved") is True


def _check_verdict(found: RecordedWait, tool: Tool[..., Any]) -> None:
    if found.status is WaitStatus.EXPIRED:
        raise CallRefused(f"{tool.name} was not called: nobody approved it in time")
    if found.status is not WaitStatus.RESOLVED:
        raise CallRefused(f"{tool.name} was not called: the request was withdrawn")
    try:
        verdict = msgspec.convert(found.value, ApprovalVerdict)
    except msgspec.ValidationError:
        verdict = ApprovalVerdict(approved=False, note="the answer was no verdict")
    if not verdict.approved:
        why = f": {verdict.note}" if verdict.note else ""
        raise CallRefused(f"{tool.name} was not called: {found.settled_by} rejected it{why}")
