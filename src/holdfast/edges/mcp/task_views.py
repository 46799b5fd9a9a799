"""How a task tells of its run: the fields of the extension `io.modelcontextprotocol/tasks`.

A task is a run and nothing besides, so all of it is read from the store: any replica tells the
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
from holdfast.edges.mcp.contract import Call, ServedTool
from holdfast.edges.mcp.views import Question, RunView, view_of
from holdfast.kernel.runs import Run, Status

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL_MILLISECONDS: Final = 1000
_LONGEST_PROMPT: Final = 500

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
Task = dict[str, Any]
"""As it is on the wire: `ttlMs` is told though it is null, which no model of the SDK would do."""


def is_declared(call: Call) -> bool:
    """Whether the client of a call has the extension: it says so in each request."""
    return call.is_modern and EXTENSION in (call.capabilities.extensions or {})


def may_become_task(call: Call, tool: ServedTool) -> bool:
    """Whether a call of a tool is answered with a task, if its run goes on."""
    return tool.begins_runs and tool.tasks != "never" and is_declared(call)


def require(call: Call) -> None:
    """Refuse a client without the extension; nothing has been done for it yet."""
    if not is_declared(call):
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message=f"this needs a client with the extension {EXTENSION}; declare it in the "
            "clientCapabilities of the request",
            data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )


@dataclass(frozen=True)
class Standing:
    """Where a task stands: what the client may answer, by the ids of the waits, and what else."""

    status: TaskStatus
    message: str = ""
    requests: dict[str, types.ElicitRequest] = field(default_factory=dict[str, types.ElicitRequest])


def standing_of(call: Call, view: RunView) -> Standing:
    """The status of a run as that of a task.

    While any question is open that the client can show, input is required: also if the run goes on
    meanwhile, as one does for a moment after each answer. Questions go by the ids of their waits,
    which no other question ever has: a late answer never reaches a later question of that name.

    A run that is blocked, or asks what no form shows, is `working`: nothing that the client could
    send with tasks/update would help, and `input_required` without requests would only mislead it.
    Its message says who must act. A failed run is a completed call whose result is an error.
    """
    if view.status == Status.CANCELLED:
        return Standing("cancelled")
    if view.status in (Status.COMPLETED, Status.FAILED):
        return Standing("completed")
    shown = forms.are_shown_by(call.capabilities)
    asked = {each.wait_id: form for each in view.waiting if shown and (form := forms.form_of(each))}
    hidden = [each for each in view.waiting if each.wait_id not in asked]
    message = " ".join([*_blocked(view), *map(_how_to_answer, hidden)])
    return Standing("input_required" if asked else "working", message, asked)


async def created(call: Call, run: Run) -> Task:
    """The answer to a call whose run goes on: its task. The run is in the store already."""
    standing = standing_of(call, await view_of(call.hf, run))
    return {"resultType": "task", **await fields_of(call.hf, run, standing)}


async def fields_of(hf: Holdfast, run: Run, standing: Standing) -> Task:
    """What is told of every task. It has no time to live: retention erases runs, when it is set."""
    told: Task = {
        "taskId": run.run_id,
        "status": standing.status,
        "createdAt": clock.to_datetime(run.created_at).isoformat(),
        "lastUpdatedAt": (await _updated_at(hf, run)).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }
    return told | ({"statusMessage": standing.message} if standing.message else {})


async def _updated_at(hf: Holdfast, run: Run) -> datetime:
    """When the newest entry of the run was written."""
    head = await hf.journal.head(run.run_id)
    newest = await hf.journal.read(run.run_id, after=head - 1, limit=1) if head else []
    return clock.to_datetime(newest[-1].at if newest else run.created_at)


def _blocked(view: RunView) -> list[str]:
    if view.is_blocked_below:
        return [view.next]
    if view.status != Status.BLOCKED:
        return []
    return [f"The run is blocked ({view.blocked_reason}): {view.error} {view.next}"]


def _how_to_answer(question: Question) -> str:
    prompt = question.prompt[:_LONGEST_PROMPT]
    return (
        f"It asks: {prompt} Answer with the tool answer(wait_id={question.wait_id!r}, value=...)."
    )
