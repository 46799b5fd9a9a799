"""One run behind three faces: what a call gives, by what the client can do.

Every client gets a structured result with the run's status. One that can show forms is
asked in one (`input_required`), and calls again with what was filled in; the state that it brings
back only points at the run. One that has the tasks extension gets a task. A client of an older
protocol that can show forms gets the structured result too: it would have to hold its connection
while a person thinks.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, cast

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from holdfast.agents.definitions.questions import APPROVAL
from holdfast.edges.mcp import failures, forms, run_watch, task_views
from holdfast.edges.mcp.agent_tools import AS_TOOL
from holdfast.edges.mcp.answers import give, visible
from holdfast.edges.mcp.contract import WAIT_SECONDS, FollowedRun, McpCall, ServedTool
from holdfast.edges.mcp.meta import RUN_ID
from holdfast.edges.mcp.views import QuestionView, RunView, question_of, view_of
from holdfast.errors import AlreadyAnswered, MisuseError, WaitNotFound
from holdfast.kernel.runs import ENDED, RunRow, RunStatus
from holdfast.workflows.execution.kit import AGENT as WORKFLOW

Reply = types.CallToolResult | types.InputRequiredResult | task_views.Task

_DECLINED: Final = "The question was not answered; the run waits, and is listed as waiting."


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """What a client brings back: the run that it was asked for, and the waits behind the keys."""

    run_id: str
    asked: dict[str, str] = {}


async def follow(
    call: McpCall,
    tool: ServedTool,
    run_id: str,
    seconds: float | None,
    *,
    note: str = "",
    has_answered: bool = False,
) -> Reply:
    """Wait for a run for a limited time, and report it in the form that fits the client."""
    await call.run(run_id)
    is_task = task_views.may_become_task(call, tool)
    asks_first = tool.tasks == "after_input" and not has_answered
    longest = (0.0 if is_task and not asks_first else WAIT_SECONDS) if seconds is None else seconds
    run = await run_watch.settled(
        call.hf, run_id, seconds=longest, progress=call.progress, stopping=call.stopping
    )
    if run.status in ENDED or not is_task:
        return await _reply_for(call, tool, run, note)
    asked = _form_for(call, run, await view_of(call.hf, run)) if asks_first else None
    return asked or await task_views.created(call, run)


async def begin(
    call: McpCall, tool: ServedTool, begun: FollowedRun, seconds: float | None
) -> Reply:
    """Follow a run that a call has begun; answers that came with the call are used when asked.

    Only if the run is new: a repeated call may mean them for a question answered before.
    """
    reply = await follow(call, tool, begun.run_id, seconds)
    is_early = begun.is_new and bool(call.responses)
    if not is_early or not isinstance(reply, types.InputRequiredResult):
        return reply
    view = await view_of(call.hf, await call.run(begun.run_id))
    # Nobody approves what nobody has seen.
    asked = keys_of([each for each in view.waiting if each.kind != APPROVAL])
    pointer = Pointer(run_id=begun.run_id, asked=asked)
    known = call.responses.keys() & asked.keys()
    return await _answered(call, tool, pointer, seconds) if known else reply


async def go_on(call: McpCall, tool: ServedTool, seconds: float | None) -> Reply:
    """Take the answers that a client brings back to a question it was asked, and follow again."""
    pointer = msgspec.json.decode(call.request_state or "", type=Pointer)
    return await _answered(call, tool, pointer, seconds)


async def _answered(
    call: McpCall, tool: ServedTool, pointer: Pointer, seconds: float | None
) -> Reply:
    run = await call.run(pointer.run_id)
    view = await view_of(call.hf, run)
    questions = {each.wait_id: each for each in view.waiting}
    taken = _Taken()
    for key, wait_id in pointer.asked.items():
        if key in call.responses:
            await taken.take(call, wait_id, call.responses[key], questions.get(wait_id))
    if taken.has_declined:
        return result_of(await view_of(call.hf, run, note=_DECLINED), run.run_id)
    if taken.problems:
        left = [
            msgspec.structs.replace(each, problem=taken.problems[each.wait_id])
            for each in view.waiting
            if each.wait_id in taken.problems
        ]
        return _asked(run, left) or result_of(view, run.run_id)
    return await follow(
        call, tool, run.run_id, seconds, note="; ".join(taken.notes), has_answered=True
    )


@dataclass
class _Taken:
    """The outcome of the answers that a client sent."""

    problems: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    has_declined: bool = False

    async def take(
        self, call: McpCall, wait_id: str, response: Any, known: QuestionView | None
    ) -> None:
        """Give one answer; look up a question that is no longer open, so that nothing is lost."""
        if not isinstance(response, types.ElicitResult):
            return
        if response.action != "accept":
            self.has_declined |= known is not None
            return
        try:
            question = known or question_of(await visible(call, wait_id))
            await give(call, wait_id, forms.answer_of(question, response.content or {}))
        except MisuseError as refused:  # it does not fit, or cannot be stored
            self.problems[wait_id] = str(refused)
        except (AlreadyAnswered, WaitNotFound) as late:
            self.notes.append(str(late))


async def _reply_for(call: McpCall, tool: ServedTool, run: RunRow, note: str) -> Reply:
    view = await view_of(call.hf, run, note=note)
    if (asked := _form_for(call, run, view)) is not None:
        return asked
    if tool.shows_result and run.status is RunStatus.FAILED:
        raised = await failures.raised_by(call.hf, run)
        if raised is not None:
            raise MCPError.from_error_data(raised)
    return ended(view, is_alone=tool.shows_result and run.status in ENDED)


def _form_for(call: McpCall, run: RunRow, view: RunView) -> types.InputRequiredResult | None:
    """What the client is asked in forms, if that is what the run waits for."""
    is_asked = call.is_modern and forms.are_shown_by(call.capabilities)
    return _asked(run, view.waiting) if is_asked and run.status is RunStatus.WAITING else None


def is_alone(run: RunRow) -> bool:
    """Whether the agent's own tool began the run: then only tasks show that there is a run."""
    return run.subject == AS_TOOL and run.agent != WORKFLOW


def ended(view: RunView, *, is_alone: bool) -> types.CallToolResult:
    """Return the result of the tool that began a run: only the run's result, or its status."""
    return _alone(view) if is_alone else result_of(view, view.run_id)


def _asked(run: RunRow, questions: list[QuestionView]) -> types.InputRequiredResult | None:
    asked = {each.wait_id: form for each in questions if (form := forms.form_of(each))}
    if not asked:
        return None
    keys = keys_of([each for each in questions if each.wait_id in asked])
    pointer = Pointer(run_id=run.run_id, asked=keys)
    return types.InputRequiredResult(
        input_requests={key: asked[wait_id] for key, wait_id in keys.items()},
        request_state=msgspec.json.encode(pointer).decode(),
        _meta=cast(Any, {RUN_ID: run.run_id}),
    )


def keys_of(questions: list[QuestionView]) -> dict[str, str]:
    """The waits of questions by what a client calls them: their names, where these differ."""
    counts = Counter(each.name for each in questions)
    return {
        each.name if counts[each.name] == 1 else each.wait_id: each.wait_id for each in questions
    }


def _alone(view: RunView) -> types.CallToolResult:
    """The result of a run as if it were that of a tool, and its failure as that of one."""
    if view.status == RunStatus.COMPLETED:
        return _reply(view.result, view.run_id)
    is_cancelled = view.status == RunStatus.CANCELLED
    failure = failures.ErrorView(
        type="RunCancelled" if is_cancelled else "RunFailed",
        kind="failed",
        message=view.error or f"the run was {view.status}",
    )
    return _reply({"error": msgspec.to_builtins(failure)}, view.run_id, is_error=True)


def result_of(view: msgspec.Struct, run_id: str = "") -> types.CallToolResult:
    """A view as the result of a tool."""
    return _reply(view, run_id)


def _reply(value: Any, run_id: str, *, is_error: bool = False) -> types.CallToolResult:
    plain = msgspec.json.decode(msgspec.json.encode(value))
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=plain if isinstance(plain, dict) else {"result": plain},
        is_error=is_error,
        _meta=cast(Any, {RUN_ID: run_id} if run_id else None),
    )
