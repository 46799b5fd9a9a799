"""Tools for runs: starting agents, looking at runs, and ending them."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast import clock
from holdfast.edges.mcp import run_watch
from holdfast.edges.mcp.agent_tools import input_schema
from holdfast.edges.mcp.contract import (
    FollowedRun,
    Limit,
    McpCall,
    Note,
    RunId,
    ServedTool,
    WaitSeconds,
    served,
)
from holdfast.edges.mcp.tools.workflows import NewId
from holdfast.edges.mcp.views import RunView, view_of
from holdfast.errors import AgentNotFound, RunCancelled
from holdfast.kernel.runs import RunRow
from holdfast.workflows.execution.kit import AGENT as WORKFLOW

States = Literal["ready", "running", "waiting", "blocked", "completed", "failed", "cancelled"]


class ListAgents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ListedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that start_agent starts; its `input` fits `input_schema`."""

    name: str
    description: str
    input_schema: dict[str, Any]


class ListedAgents(msgspec.Struct, frozen=True, kw_only=True):
    agents: list[ListedAgent]


class GetRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId
    wait_seconds: WaitSeconds = 0.0


class ListRuns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Annotated[States | None, Meta(description="Only runs in this state.")] = None
    agent: Annotated[str | None, Meta(description="Only runs of this agent.")] = None
    workflow: Annotated[str | None, Meta(description="Only runs of this workflow.")] = None
    parent_id: Annotated[str | None, Meta(description="Only runs that this run began.")] = None
    limit: Limit = 50
    before: Annotated[
        str | None, Meta(description="The `next` of a page, to list those after it.")
    ] = None


class ListedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    run_id: str
    status: str
    agent: str
    workflow: str = ""
    created_at: datetime
    parent_id: str = ""
    blocked_reason: str = ""


class ListedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, newest first; `next` is the `before` of the next page, if there may be one."""

    runs: list[ListedRun]
    next: str = ""


class CancelRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId
    note: Note = ""


class StartAgent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, Meta(description="The name of an agent: see list_agents.")]
    input: Annotated[
        Any, Meta(description="Its input: its arguments by name, or its one argument as it is.")
    ] = None
    run_id: NewId = None
    wait_seconds: WaitSeconds | UnsetType = UNSET


@served(title="Look at a run", is_read_only=True)
async def get_run(call: McpCall, given: GetRun) -> RunView:
    """Where a run stands: what it asks, what it gave, or why it does not go on.

    With `wait_seconds` it waits so long for an end or a question.
    """
    await call.run(given.run_id)
    run = await run_watch.settled(
        call.hf,
        given.run_id,
        seconds=given.wait_seconds,
        progress=call.progress,
        stopping=call.stopping,
    )
    return await view_of(call.hf, run)


@served(title="List runs", is_read_only=True)
async def list_runs(call: McpCall, given: ListRuns) -> ListedRuns:
    """The caller's runs, newest first: of agents and workflows, in any state."""
    is_of_workflow = given.workflow is not None and given.agent is None
    found = await call.hf.runs.list(
        status=given.status,
        agent=WORKFLOW if is_of_workflow else given.agent,
        subject=given.workflow,
        parent_id=given.parent_id,
        owner=call.principal.owner,
        limit=given.limit,
        before=None if given.before is None else await call.run(given.before),
    )
    is_full = len(found) == given.limit
    return ListedRuns(runs=list(map(_listed, found)), next=found[-1].run_id if is_full else "")


@served(title="Cancel a run", is_destructive=True, is_idempotent=True)
async def cancel_run(call: McpCall, given: CancelRun) -> RunView:
    """End a run and all that it waits for; cancelling it again changes nothing.

    One that has completed or failed stays as it is: that is refused.
    """
    await call.run(given.run_id)
    with suppress(RunCancelled):
        await call.hf.runs.cancel(given.run_id, by=call.by, note=given.note)
    return await view_of(call.hf, await call.run(given.run_id))


@served(title="List agents", is_read_only=True)
async def list_agents(call: McpCall, given: ListAgents) -> ListedAgents:
    """The agents that can be started, with what they are for and the input that each takes."""
    found = [call.hf.agent(name) for name in _startable(call)]
    return ListedAgents(
        agents=[
            ListedAgent(
                name=each.name, description=each.description, input_schema=input_schema(each)
            )
            for each in found
        ]
    )


@served(title="Start an agent", begins_runs=True, is_destructive=True, is_open_world=True)
async def start_agent(call: McpCall, given: StartAgent) -> FollowedRun:
    """Start a run of an agent; it goes on however long it takes, also without the caller.

    The result says where it stands after `wait_seconds`. What it asks is answered with answer.
    """
    if given.agent not in _startable(call):
        known = ", ".join(_startable(call)) or "none"
        raise AgentNotFound(f"there is no agent {given.agent!r}; there are: {known}")
    handle = await call.hf.start_named(
        given.agent,
        given.input,
        run_id=call.run_id_for(given.run_id),
        owner=call.principal.name,
    )
    return call.begun(handle.run_id, given.run_id)


def _startable(call: McpCall) -> list[str]:
    """All but those of Holdfast itself: their input is a definition, or another agent's name."""
    return [name for name in call.hf.agents if name != WORKFLOW]


def _listed(run: RunRow) -> ListedRun:
    return ListedRun(
        run_id=run.run_id,
        status=run.status.value,
        agent=run.agent,
        workflow=run.subject if run.agent == WORKFLOW else "",
        created_at=clock.to_datetime(run.created_at),
        parent_id=run.parent_id,
        blocked_reason=run.blocked_reason,
    )


TOOLS: tuple[ServedTool, ...] = (get_run, list_runs, cancel_run, list_agents, start_agent)
