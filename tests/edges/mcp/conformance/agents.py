"""What pauses or takes long: agents and a workflow of Holdfast, exposed as tools."""

import msgspec
from mcp_types import INTERNAL_ERROR

from holdfast import Run, agent
from holdfast.edges.mcp import Exposed, FollowedRun, McpCall, ProtocolError, ServedTool
from holdfast.errors import ToolError
from holdfast.workflows import Block, Workflow
from tests.edges.mcp.conformance.fixture import Given


class Named(msgspec.Struct):
    name: str


class Coloured(msgspec.Struct):
    color: str


class Confirmed(msgspec.Struct):
    confirm: bool


class Agreed(msgspec.Struct):
    ok: bool


async def _name(run: Run) -> str:
    return (await run.ask("What is your name?", schema=Named, name="user_name")).name


@agent(name="test_input_required_result_elicitation")
async def eliciting(run: Run) -> str:
    """Ask for a name, and greet."""
    return f"Hello, {await _name(run)}!"


@agent(name="test_streaming_elicitation")
async def streaming(run: Run) -> str:
    """Ask for a name, and greet."""
    return f"Hello, {await _name(run)}!"


@agent(name="test_input_required_result_request_state")
async def pointing(run: Run) -> str:
    """Ask to confirm: the state that comes back points at this run."""
    await run.ask("Please confirm", schema=Agreed, name="confirm")
    return "state-ok"


@agent(name="test_input_required_result_tampered_state")
async def sealing(run: Run) -> str:
    """Ask to confirm, and never be answered by a state that was forged."""
    await run.ask("Please confirm", schema=Agreed, name="confirm")
    return "state-ok"


@agent(name="test_input_required_result_multi_round")
async def asking_twice(run: Run) -> str:
    """Ask for a name, and then for a colour."""
    named = await run.ask("Step 1: What is your name?", schema=Named, name="step1")
    told = await run.ask("Step 2: What is your favorite color?", schema=Coloured, name="step2")
    return f"{named.name} likes {told.color}."


@agent
async def slow_compute(run: Run, seconds: float, label: str = "") -> str:
    """Sleep, and then be done."""
    if seconds:
        await run.sleep(seconds=seconds)
    return f"{label} took {seconds} s"


@agent
async def failing_job(run: Run) -> str:
    """Fail as a tool does, after a second."""
    await run.sleep(seconds=1)
    raise ToolError("the job did not work out")


@agent
async def protocol_error_job(run: Run) -> str:
    """Break."""
    raise ProtocolError(INTERNAL_ERROR, "the job broke")


@agent
async def confirm_delete(run: Run, filename: str) -> str:
    """Ask before a file is deleted."""
    told = await run.ask(f"Delete {filename}?", schema=Confirmed, name="confirm")
    return f"{filename} was {'deleted' if told.confirm else 'kept'}"


@agent(name="test_tool_with_task")
async def asking_first(run: Run) -> str:
    """Ask for a name before a work that takes long."""
    name = await _name(run)
    await run.sleep(seconds=1)
    return f"Hello, {name}!"


EXPOSED = [
    eliciting,
    streaming,
    pointing,
    sealing,
    asking_twice,
    slow_compute,
    Exposed(failing_job, tasks="required"),
    protocol_error_job,
    confirm_delete,
    Exposed(asking_first, tasks="after_input"),
]
AGENTS = [each.agent if isinstance(each, Exposed) else each for each in EXPOSED]

_ENTRY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "confirm": {"type": "boolean"}},
    "required": ["name"],
}
_TWO = Workflow(
    name="multi_input",
    blocks=[
        Block(id=each, type="Prompt", inputs={"prompt": f"The {each} name?", "schema": _ENTRY})
        for each in ("first", "second")
    ],
    outputs={
        "first": "{{ blocks.first.outputs.response.name }}",
        "second": "{{ blocks.second.outputs.response.name }}",
    },
)


async def _multi_input(call: McpCall, given: Given) -> FollowedRun:
    begun = await call.hf.workflows.start(_TWO, owner=call.principal.name)
    return FollowedRun(begun.run_id)


MULTI_INPUT = ServedTool(
    name="multi_input",
    description="Ask two things at the same time.",
    input_schema={"type": "object", "properties": {}},
    handle=_multi_input,
    read=lambda given: given,
    begins_runs=True,
    shows_result=True,
)
