"""Tools for workflows: which there are, carrying them out, answering what they ask."""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.edges.mcp.contract import (
    FollowedRun,
    McpCall,
    RunId,
    ServedTool,
    WaitSeconds,
    served,
)
from holdfast.errors import RunNotFound, WorkflowInvalid
from holdfast.workflows.checks import definition_reader
from holdfast.workflows.checks.library import Found
from holdfast.workflows.checks.problems import WorkflowProblem
from holdfast.workflows.checks.schema import schema_of
from holdfast.workflows.definitions.definition import Input, Workflow
from holdfast.workflows.definitions.waves import waves_of
from holdfast.workflows.execution.kit import AGENT as WORKFLOW

Name = Annotated[str, Meta(description="The name of a workflow: see list_workflows.")]
Yaml = Annotated[
    str,
    Meta(
        description="A definition as YAML; get_workflow_schema tells its form.",
        max_length=1_000_000,
    ),
]
Inputs = Annotated[dict[str, Any], Meta(description="Its inputs by name.")]
NewId = (
    Annotated[
        str,
        Meta(
            description="An id for the run. Calling again with the same id and inputs starts "
            "nothing new, so a call whose answer was lost can be repeated.",
            min_length=1,
            max_length=255,
        ),
    ]
    | None
)


class ListWorkflows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    search: Annotated[str, Meta(description="Only those with this text.")] = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that can be carried out; one with `problems` must be mended first."""

    name: str
    description: str = ""
    version: str = ""
    inputs: list[str] = []
    problems: int = 0


class ListedWorkflows(msgspec.Struct, frozen=True, kw_only=True):
    workflows: list[Listed]


class GetWorkflowInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name


class BlockInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str
    description: str = ""
    depends_on: list[str] = []


class InputInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    is_required: bool
    description: str = ""
    default: Any = None
    choices: list[Any] | None = None


class WorkflowInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    version: str
    inputs: dict[str, InputInfo]
    outputs: dict[str, str]
    blocks: list[BlockInfo]
    waves: list[list[str]]
    problems: list[WorkflowProblem] = []


class ExecuteWorkflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    inputs: Inputs = {}
    run_id: NewId = None
    wait_seconds: WaitSeconds | UnsetType = UNSET


class ExecuteInlineWorkflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    definition: Yaml
    inputs: Inputs = {}
    run_id: NewId = None
    wait_seconds: WaitSeconds | UnsetType = UNSET


class ResumeWorkflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId
    answers: Annotated[
        dict[str, Any],
        Meta(description="Answers by the names of the questions in `waiting`; none only waits."),
    ] = {}
    wait_seconds: WaitSeconds | UnsetType = UNSET


class ValidateWorkflow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    definition: Yaml


class Validated(msgspec.Struct, frozen=True, kw_only=True):
    is_valid: bool
    name: str
    problems: list[WorkflowProblem]
    warnings: list[WorkflowProblem] = []


class GetWorkflowSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class SchemaOfWorkflows(msgspec.Struct, frozen=True, kw_only=True):
    schema: dict[str, Any]


@served(title="List workflows", is_read_only=True)
async def list_workflows(call: McpCall, given: ListWorkflows) -> ListedWorkflows:
    """The workflows that can be carried out, with what they are for."""
    known = sorted((await call.catalogue.all()).items())
    found = [_listed(name, await call.catalogue.examine(source)) for name, source in known]
    wanted = given.search.lower()
    return ListedWorkflows(
        workflows=[each for each in found if wanted in f"{each.name}\n{each.description}".lower()]
    )


@served(title="Show a workflow", is_read_only=True)
async def get_workflow_info(call: McpCall, given: GetWorkflowInfo) -> WorkflowInfo:
    """A workflow: the inputs that it takes, its blocks, what it gives, and its mistakes."""
    found = await call.catalogue.examine(await call.catalogue.find(given.name))
    return _info(found)


@served(title="Carry out a workflow", begins_runs=True, is_destructive=True, is_open_world=True)
async def execute_workflow(call: McpCall, given: ExecuteWorkflow) -> FollowedRun:
    """Carry out a workflow; it goes on however long it takes, also without the caller.

    The result says where it stands after `wait_seconds`: it has ended, it asks something
    (`waiting`), or it is still running. A question is answered with resume_workflow.
    """
    source = await call.catalogue.find(given.name)
    outcome = await call.hf.workflows.start(
        source, given.inputs, run_id=call.run_id_for(given.run_id), owner=call.principal.name
    )
    return call.begun(outcome.run_id, given.run_id)


@served(
    title="Carry out a workflow of your own",
    begins_runs=True,
    is_destructive=True,
    is_open_world=True,
)
async def execute_inline_workflow(call: McpCall, given: ExecuteInlineWorkflow) -> FollowedRun:
    """Carry out a workflow that is given here as YAML, as execute_workflow does."""
    workflow = await asyncio.to_thread(definition_reader.loads, given.definition)
    outcome = await call.hf.workflows.start(
        workflow, given.inputs, run_id=call.run_id_for(given.run_id), owner=call.principal.name
    )
    return call.begun(outcome.run_id, given.run_id)


@served(title="Answer and go on", begins_runs=True, is_idempotent=True, is_open_world=True)
async def resume_workflow(call: McpCall, given: ResumeWorkflow) -> FollowedRun:
    """Answer what a workflow asks, and wait for what comes of it.

    Either all answers are taken or none. The same answer again changes nothing; if somebody
    else has answered otherwise before, that answer stays and this is refused.
    """
    run = await call.run(given.run_id)
    if run.agent != WORKFLOW:
        raise RunNotFound(
            f"run {run.run_id!r} is no workflow, but a run of agent {run.agent!r}; what it asks "
            "is answered with answer, and list_approvals tells it"
        )
    await call.hf.workflows.answer(given.run_id, given.answers, by=call.by)
    return FollowedRun(given.run_id)


@served(title="Check a workflow", is_read_only=True)
async def validate_workflow(call: McpCall, given: ValidateWorkflow) -> Validated:
    """Every mistake in a definition, with its line and what to do. Nothing is carried out."""
    try:
        workflow = await asyncio.to_thread(definition_reader.loads, given.definition)
    except WorkflowInvalid as error:
        problems = [each for each in error.problems if isinstance(each, WorkflowProblem)]
        return Validated(is_valid=False, name="", problems=problems)
    found = await call.catalogue.examine(workflow)
    return Validated(
        is_valid=not found.problems,
        name=found.name,
        problems=found.problems,
        warnings=found.warnings,
    )


@served(title="Show the form of workflows", is_read_only=True)
async def get_workflow_schema(call: McpCall, given: GetWorkflowSchema) -> SchemaOfWorkflows:
    """The JSON Schema of definitions, for whoever writes one."""
    return SchemaOfWorkflows(schema=schema_of(call.hf.workflows.kit.types.values()))


def _listed(name: str, found: Found) -> Listed:
    workflow = found.definitions.get(found.name)
    if workflow is None:
        return Listed(name=name, problems=len(found.problems))
    return Listed(
        name=name,
        description=workflow.description,
        version=workflow.version,
        inputs=list(workflow.inputs),
        problems=len(found.problems),
    )


def _info(found: Found) -> WorkflowInfo:
    workflow = found.definitions.get(found.name) or Workflow(name=found.name)
    is_whole = not found.problems
    return WorkflowInfo(
        name=workflow.name,
        description=workflow.description,
        version=workflow.version,
        inputs={name: _input(each) for name, each in workflow.inputs.items()},
        outputs={name: each.description for name, each in workflow.output_specs.items()},
        blocks=[
            BlockInfo(
                id=block.id,
                type=block.type,
                description=block.description,
                depends_on=[each.block for each in block.dependencies],
            )
            for block in workflow.blocks
        ],
        waves=waves_of(workflow.blocks) if is_whole else [],
        problems=found.problems,
    )


def _input(declared: Input) -> InputInfo:
    return InputInfo(
        type=declared.type,
        is_required=declared.must_be_given,
        description=declared.description,
        default=None if declared.default is msgspec.UNSET else declared.default,
        choices=declared.choices,
    )


TOOLS: tuple[ServedTool, ...] = (
    list_workflows,
    get_workflow_info,
    execute_workflow,
    resume_workflow,
    validate_workflow,
    get_workflow_schema,
)
INLINE: tuple[ServedTool, ...] = (execute_inline_workflow,)
"""Those that carry out what a client brings along."""
