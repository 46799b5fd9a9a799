"""How a task reports its run: the fields of the extension `io.modelcontextprotocol/tasks`.

A task is only a run, so all of it is read from the store: any replica reports the
same, and so does the next process.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import mcp_types as types
from mcp.shared.exceptions import MCPError

from holdfast import clock
from holdfast.app import Holdfast
from holdfast.edges.mcp import forms
from holdfast.edges.mcp.contract import McpCall, ServedTool
from holdfast.edges.mcp.views import QuestionView, RunView, view_of
from holdfast.kernel.runs import RunRow, RunStatus

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL_MILLISECONDS: Final = 1000
_LONGEST_PROMPT: Final = 500

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
Task = dict[str, Any]
"""The wire form: it includes `ttlMs` although it is null, which no model of the SDK would do."""


def is_declared(call: McpCall) -> bool:
    """Whether the client of a call has the extension: it says so in each request."""
    return call.is_modern and EXTENSION in (call.capabilities.extensions or {})


def may_become_task(call: McpCall, tool: ServedTool) -> bool:
    """Whether a call of a tool is answered with a task, if its run continues."""
    return tool.begins_runs and tool.tasks != "never" and is_declared(call)


def require(call: McpCall) -> None:
    """Refuse a client without the extension; nothing has been done for it yet."""
    if not is_declared(call):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message=f"this needs a client with the extension {EXTENSION}; declare it in the "
            "clientCapabilities of the request",
            data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


@dataclass(frozen=True)
class TaskState:
    """The status of a task: what the client may answer, by the ids of the waits, and the rest."""

    status: TaskStatus
    message: str = ""
    requests: dict[str, types.ElicitRequest] = field(default_factory=dict[str, types.ElicitRequest])


def standing_of(call: McpCall, view: RunView) -> TaskState:
    """The status of a run as that of a task.

    While any question is open that the client can show, input is required: also if the run
    continues meanwhile, as one does for a moment after each answer. Questions use the ids of their
    waits, which are unique: a late answer never reaches a later question of that name.

    A run that is blocked, or asks what no form shows, is `working`: nothing that the client could
    send with tasks/update would help, and `input_required` without requests would only mislead it.
    Its message says who must act. A failed run is a completed call whose result is an error.
    """
    if view.status == RunStatus.CANCELLED:
        return TaskState("cancelled")
    if view.status in (RunStatus.COMPLETED, RunStatus.FAILED):
        return TaskState("completed")
    shown = forms.are_shown_by(call.capabilities)
    asked = {each.wait_id: form for each in view.waiting if shown and (form := forms.form_of(each))}
    hidden = [each for each in view.waiting if each.wait_id not in asked]
    message = " ".join([*_blocked(view), *map(_how_to_answer, hidden)])
    return TaskState("input_required" if asked else "working", message, asked)


async def created(call: McpCall, run: RunRow) -> Task:
    """Return the task that answers a call whose run continues. The run is already stored."""
    standing = standing_of(call, await view_of(call.hf, run))
    return {"resultType": "task", **await fields_of(call.hf, run, standing)}


async def fields_of(hf: Holdfast, run: RunRow, standing: TaskState) -> Task:
    """Return the fields of every task. It has no time to live: retention, if set, erases runs."""
    fields: Task = {
        "taskId": run.run_id,
        "status": standing.status,
        "createdAt": clock.to_datetime(run.created_at).isoformat(),
        "lastUpdatedAt": (await _updated_at(hf, run)).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }
    return fields | ({"statusMessage": standing.message} if standing.message else {})


async def _updated_at(hf: Holdfast, run: RunRow) -> datetime:
    """When the newest entry of the run was written."""
    head = await hf.journal.head(run.run_id)
    newest = await hf.journal.read(run.run_id, after=head - 1, limit=1) if head else []
    return clock.to_datetime(newest[-1].at if newest else run.created_at)


def _blocked(view: RunView) -> list[str]:
    if view.is_blocked_below:
        return [view.next]
    if view.status != RunStatus.BLOCKED:
        return []
    return [f"The run is blocked ({view.blocked_reason}): {view.error} {view.next}"]


def _how_to_answer(question: QuestionView) -> str:
    prompt = question.prompt[:_LONGEST_PROMPT]
    return (
        f"It asks: {prompt} Answer with the tool answer(wait_id={question.wait_id!r}, value=...)."
    )
