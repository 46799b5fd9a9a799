"""A registry of tools for your own agent loop: it repeats no call blindly.

    validation ─▶ permission ─▶ loop check ─▶ key ─▶ replay | intent on disk ─▶ the tool ─▶ outcome

A call returns a `ToolResult`, also if the tool fails. If the store fails, its error is raised; the
call may then be pending: see `verify_pending`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from holdfast import faults
from holdfast.agents.definitions.messages import ToolResult
from holdfast.agents.definitions.rules import CallRefused, Permission, Repeats, Rules
from holdfast.agents.definitions.tool_arguments import Key
from holdfast.agents.definitions.tools import Arguments, CallPosition, Happened, Tool, text_of, tool
from holdfast.agents.effects import doubt
from holdfast.agents.effects import effect_flow as flow
from holdfast.agents.effects.doubt import Answer
from holdfast.agents.turn.calls import (
    ask_verify,
    attempt,
    error_text,
    interrupted,
    raised,
    usable_id,
)
from holdfast.compat.loops.call_log import CallLog
from holdfast.compat.loops.checkpointer import Checkpointer, check_pending_tool_calls
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.errors import IllegalMove, MisuseError, NotDone, UnsupportedValue
from holdfast.kernel.effects import Effect, EffectStatus
from holdfast.telemetry import log

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25
_UNKNOWN: Final = "(whether it happened is not known)"


class _RegistryCall(msgspec.Struct):
    """One call to dispatch: its tool, arguments, id and key."""

    tool: Tool[..., Any]
    arguments: Arguments
    call_id: str
    key: str
    session_id: str = ""
    attempts: int = 0

    @property
    def request(self) -> EffectRequest:
        return EffectRequest(
            tool=self.tool.name,
            args=self.arguments.values,
            args_digest=self.arguments.digest,
            call_id=usable_id(self.call_id),
            key=self.key,
            limit_seconds=self.tool.policy.limit_seconds,
        )

    def result(self, text: str, *, prefix: str = "") -> ToolResult:
        limit, is_failure = self.tool.policy.max_result_chars, self.tool.policy.is_failure
        content = prefix + text
        if len(content) > limit:
            content = (
                f"{content[:limit]}\n[{limit:,} of {len(content):,} characters are shown; what is "
                "on record of the call is whole]"
            )
        is_error = is_failure is not None and is_failure(text)
        return ToolResult(self.call_id, content, is_error=is_error)

    def failed(self, content: str) -> ToolResult:
        return ToolResult(self.call_id, content, is_error=True)


class ToolRegistry:
    """Tools by name. With a checkpointer and a session, it records calls with consequences."""

    def __init__(
        self,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]],
        checkpointer: Checkpointer | None = None,
        session_id: str | None = None,
        *,
        permission: Permission | None = None,
        loop_limit: int = 5,
    ) -> None:
        if checkpointer is not None and not session_id:
            raise MisuseError("a registry with a checkpointer needs the id of its session")
        known = [_as_tool(each) for each in tools]
        self.tools = {each.name: each for each in known}
        if len(self.tools) < len(known):
            raise MisuseError("two tools have the same name")
        self._rules = Rules(tools=self.tools, permission=permission, loop_limit=loop_limit)
        self._checkpointer = checkpointer
        self._session_id = session_id or ""
        self._repeats = Repeats()
        self._version = -1
        self._counts: Counter[tuple[str, bytes]] = Counter()

    async def adispatch(self, name: str, args: Mapping[str, Any] | str, call_id: str) -> ToolResult:
        """Make a call and return its result; if it was made before, return the recorded result.

        If several callers make a `mutate` call with the same key at once, in any process, one makes
        it. The others get its result.
        """
        try:
            tool = self._rules.find(name)
            arguments = self._rules.parse(tool, args)
            await self._rules.permit(tool, arguments)
            self._repeats = self._repeats.after(tool.name, arguments.digest)
            self._rules.check_repeats(self._repeats)
        except CallRefused as refused:
            return ToolResult(call_id, str(refused), is_error=True)
        if tool.policy.effect == "read" or self._checkpointer is None:
            key = self._key(tool, arguments, call_id, nth=0)
            call = _RegistryCall(tool, arguments, call_id, key, self._session_id)
            return await _call_only(call)
        call = await self._place(tool, arguments, call_id)
        return await _Dispatch(await self._checkpointer.calls(), call).finish()

    async def verify_pending(self) -> list[dict[str, Any]]:
        """Ask the tools' `verify` about interrupted calls; return those that are still pending.

        Each verdict is recorded. A call that only reads is recorded as not done after its timeout.
        Call this when you resume a session, before its loop continues.
        """
        if self._checkpointer is None:
            return []
        calls = await self._checkpointer.calls()
        for effect in await calls.of_session(self._session_id):
            if (
                effect.status in (EffectStatus.ISSUED, EffectStatus.UNKNOWN)
                and effect.tool in self.tools
            ):
                await self._verify(calls, self.tools[effect.tool], effect)
        return await check_pending_tool_calls(self._checkpointer, self._session_id)

    async def _verify(self, calls: CallLog, tool: Tool[..., Any], effect: Effect) -> None:
        if calls.is_running_here(effect):
            return
        try:
            arguments = self._rules.parse(tool, await calls.args_of(effect))
        except CallRefused as refused:
            log.warning("%s takes other arguments by now, and was not asked: %s", tool, refused)
            return
        call = _RegistryCall(tool, arguments, effect.call_id, effect.key)
        found = await calls.find(effect.key)  # records it as unknown after its timeout
        if found is not None and found.answer in ("in_flight", "unknown"):
            await _Dispatch(calls, call).verify(found)

    async def _place(
        self, tool: Tool[..., Any], arguments: Arguments, call_id: str
    ) -> _RegistryCall:
        """Return a call with its key: the same key when a turn is repeated after a crash."""
        assert self._checkpointer is not None, "only recorded calls have a place"
        version = await self._checkpointer.latest_version(self._session_id)
        if version != self._version:
            self._version = version
            self._counts.clear()
        nth = self._counts[tool.name, arguments.digest]
        self._counts[tool.name, arguments.digest] += 1
        key = self._key(tool, arguments, call_id, nth=nth)
        return _RegistryCall(tool, arguments, call_id, key, self._session_id)

    def _key(self, tool: Tool[..., Any], arguments: Arguments, call_id: str, *, nth: int) -> str:
        # A loop may save a checkpoint between two tries of a call: its id names it in all versions.
        is_named = call_id and tool.policy.effect == "mutate" and not tool.policy.repeat
        turn = 0 if is_named else self._version
        place = CallPosition(self._session_id, turn, usable_id(call_id), str(nth))
        return tool.key_for(arguments, place)


class _Dispatch:
    """Dispatches one call of a tool with consequences."""

    def __init__(self, calls: CallLog, call: _RegistryCall) -> None:
        self._calls = calls
        self._call = call
        self._policy = call.tool.policy

    async def finish(self) -> ToolResult:
        """Follow the call's protocol to its end; return the result."""
        steps = flow.EffectFlow(self._policy, reuses_intent=True, doubts_interrupted=True).steps()
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._answer(step))
        except StopIteration as end:
            return end.value

    async def _answer(self, step: flow.EffectStep) -> Any:
        match step:
            case flow.BeginEffect():
                return await self._calls.begin(self._call.session_id, self._call.request)
            case flow.CallTool(begun):
                return await self._make(begun.effect)
            case flow.Settle():
                return self._reply(step, await self._settle(step))
            case flow.ReplayOutcome(begun):
                text = await self._calls.text_of(begun.effect) or ""
                prefix = f"[idempotent replay of {begun.effect.call_id}]: "
                return self._call.result(text, prefix=prefix)
            case flow.WaitForTwin(begun) if not self._calls.is_running_here(begun.effect):
                return begun
            case flow.WaitForTwin() | flow.Postpone():
                return await self._await_twin()  # another caller may be making it now
            case flow.AskVerify(begun, error):
                faults.point("tool.before_verify")
                verdict = await self._verdict(begun.effect)
                return flow.VerifyAnswer(
                    verdict, error is not None or begun.is_over, self._call.attempts
                )
            case flow.AskVerifyLater() | flow.AskPerson():
                return None  # the caller's loop decides
            case flow.ReportUnknown(begun, error, reason):
                return self._report_unknown(begun.effect, error, reason)

    async def verify(self, begun: Begun) -> None:
        """Ask the tool's `verify`, and record its verdict.

        "Happened" is recorded at once, "not done" only after the call's timeout. A call that only
        reads needs no `verify`: it is recorded as not done after its timeout.
        """
        if self._policy.effect == "read":
            if begun.is_over:
                await self._settle(flow.Settle(begun, EffectStatus.NOT_DONE, note="it only reads"))
            return
        verdict = await self._verdict(begun.effect)
        if isinstance(verdict, Happened):
            await self._settle(
                flow.Settle(begun, EffectStatus.COMPLETED, verdict.result, "verified")
            )
        elif isinstance(verdict, NotDone) and begun.is_over:
            await self._settle(flow.Settle(begun, EffectStatus.NOT_DONE, note="verified"))

    async def _verdict(self, effect: Effect) -> Answer:
        return await ask_verify(self._call.tool, self._call.arguments, effect.key)

    async def _make(self, effect: Effect) -> flow.CallAnswer:
        """Call the tool; return its value, its error or TooLate, as an answer to the flow."""
        call, policy = self._call, self._policy
        if policy.effect == "mutate" and self._calls.is_late(effect):
            return flow.TooLate()
        call.attempts += 1
        try:
            faults.point("tool.before_call")
            key = Key(effect.key, run_id=effect.run_id, call_id=call.call_id)
            value = await attempt(
                call.tool, call.arguments, key, limit_seconds=policy.limit_seconds
            )
            faults.point("tool.after_call")
        except (NotDone, *policy.not_done_on) as error:
            return raised(call.tool, error)
        except asyncio.CancelledError as cancelled:
            return interrupted(call.tool, cancelled)
        except Exception as error:
            return raised(call.tool, error)
        return flow.Returned(value)

    async def _settle(self, step: flow.Settle) -> str | None:
        """Record an outcome; return the recorded text."""
        effect, text = step.begun.effect, step.result
        if step.status is EffectStatus.COMPLETED:
            text = _text(step.result)
        note = "the call was cancelled" if step.is_interrupted else step.note
        recording = self._record(effect, step.status, text, note=note)
        if step.status is EffectStatus.UNKNOWN or step.is_interrupted:
            settling = asyncio.ensure_future(recording)  # completes even if this task is cancelled
            await asyncio.wait([settling])
            settling.result()
        else:
            await recording
        return text

    def _reply(self, step: flow.Settle, text: str | None) -> ToolResult:
        if step.status is EffectStatus.COMPLETED and not step.is_interrupted:
            return self._call.result(text or "")
        return self._call.failed(text or "")

    async def _record(
        self, effect: Effect, status: EffectStatus, text: str | None, *, note: str
    ) -> None:
        try:
            await self._calls.settle(effect, status, text, note=note)
        except IllegalMove as error:
            # Another caller recorded an outcome first; that one is kept.
            log.warning("the outcome of %s was recorded by somebody else: %s", effect.tool, error)

    def _report_unknown(self, effect: Effect, error: str | None, reason: str) -> ToolResult:
        if reason:
            then = "It is asked again when the call is made again"
            doubt.log_cannot_tell(effect.run_id, effect, reason, then=then)
        if error:
            return self._call.failed(f"{error} {_UNKNOWN}")
        what = f"{effect.tool} was begun before (call {effect.call_id}) and interrupted {_UNKNOWN}"
        if self._policy.in_doubt != "ask":
            return self._call.failed(what)
        return self._call.failed(
            f"{what}. It is not made again until somebody finds out: "
            f"checkpointer.resolve_pending({effect.run_id!r}, {effect.call_id!r}, happened=True, "
            f"result_text=…) or happened=False; or `holdfast effects resolve {effect.effect_id}`"
        )

    async def _await_twin(self) -> None:
        """Wait until the same operation, begun by another caller, has ended or timed out.

        If it still runs in a thread of this process after the timeout, wait until it ends.
        """
        pause = _FIRST_PAUSE
        while True:
            found = await self._calls.find(self._call.key)
            if found is None or found.answer == "done":
                return
            if found.is_over and not self._calls.is_running_here(found.effect):
                return
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 1.5)


def _as_tool(given: Tool[..., Any] | Callable[..., Any]) -> Tool[..., Any]:
    """Return the tool; wrap a plain function as a `mutate` tool, which is the safe default."""
    return cast("Tool[..., Any]", given) if isinstance(given, Tool) else tool(given)


async def _call_only(call: _RegistryCall) -> ToolResult:
    """Call a tool without recording the call."""
    limit = call.tool.policy.limit_seconds
    try:
        key = Key(call.key, run_id=call.session_id, call_id=call.call_id)
        value = await attempt(call.tool, call.arguments, key, limit_seconds=limit)
    except Exception as error:
        return call.failed(error_text(call.tool, error))
    return call.result(_text(value))


def _text(value: object) -> str:
    try:
        return text_of(value)
    except UnsupportedValue:
        return str(value)
