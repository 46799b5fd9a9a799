"""Agents as separate tools: a call begins a run, and its result is that of the tool."""

import inspect
from dataclasses import dataclass
from typing import Any, Final

from holdfast.agents.conversion import type_conversion
from holdfast.agents.definitions.agent import Agent
from holdfast.edges.mcp.contract import FollowedRun, McpCall, ServedTool, Tasks
from holdfast.errors import MisuseError
from holdfast.workflows.execution.kit import AGENT as WORKFLOW

AS_TOOL: Final = "mcp-tool"
"""The subject of runs begun by their agent's own tool: clients get only their results."""


@dataclass(frozen=True)
class Exposed:
    """An agent as a tool, and whether its runs are tasks for clients that know tasks."""

    agent: Agent[..., Any]
    tasks: Tasks = "optional"


def tool_of(exposed: Agent[..., Any] | Exposed) -> ServedTool:
    """The tool that begins runs of an agent."""
    settings = exposed if isinstance(exposed, Exposed) else Exposed(exposed)
    agent = settings.agent
    if agent.name == WORKFLOW:
        raise MisuseError(
            f"{WORKFLOW!r} carries out any definition that it is given, so it is no tool; "
            "execute_workflow is there for workflows that are known"
        )

    async def begin(call: McpCall, given: dict[str, Any]) -> FollowedRun:
        handle = await call.hf.start_named(
            agent.name,
            given,
            run_id=call.run_id_for(None),
            subject=AS_TOOL,
            owner=call.principal.name,
        )
        return call.begun(handle.run_id, None)

    return ServedTool(
        name=agent.name,
        description=agent.description or f"Let the agent {agent.name} work on something.",
        input_schema=input_schema(agent),
        handle=begin,
        read=lambda given: given,
        is_destructive=True,
        is_open_world=True,
        begins_runs=True,
        shows_result=True,
        tasks=settings.tasks,
    )


def input_schema(agent: Agent[..., Any]) -> dict[str, Any]:
    """The JSON Schema of an agent's input, its arguments by name."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    defs: dict[str, Any] = {}
    for name, (kind, default) in agent.input_types.items():
        schema = type_conversion.schema(kind)
        defs |= schema.pop("$defs", {})
        if default is inspect.Parameter.empty:
            required.append(name)
        properties[name] = schema
    found: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    found["additionalProperties"] = False
    return found | ({"$defs": defs} if defs else {})
