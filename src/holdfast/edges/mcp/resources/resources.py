"""What clients can read: the record, the transcript and the result of runs, and definitions.

A run of another owner counts as not found, and so does any other address.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast.edges.mcp import failures
from holdfast.edges.mcp.contract import ClientRequest
from holdfast.edges.mcp.resources import addresses, timelines, transcripts
from holdfast.edges.mcp.resources.lines import in_a_line, moment
from holdfast.errors import ConflictError, HoldfastError, MisuseError, NotFoundError
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.workflows.definitions import definition

PAGE: Final = 50
_NOT_FOUND_BEFORE_2026: Final = -32002
_MARKDOWN: Final = "text/markdown"
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"

Context = ServerRequestContext[Any, Any]

TEMPLATES: Final = (
    types.ResourceTemplate(
        uri_template=str(addresses.TIMELINE),
        name="timeline",
        title="Timeline of a run",
        description=f"The record of a run, a line for each entry: the newest {timelines.PAGE}, or "
        "with `after` those that follow the entry of that number. It can be listened to.",
        mime_type=_MARKDOWN,
    ),
    types.ResourceTemplate(
        uri_template=str(addresses.TRANSCRIPT),
        name="transcript",
        title="Transcript of a run",
        description="What was said in a run: its messages and calls, or the blocks of a workflow, "
        "and what people were asked. Long texts are cut; of long ones the end is kept.",
        mime_type=_MARKDOWN,
    ),
    types.ResourceTemplate(
        uri_template=str(addresses.RESULT),
        name="result",
        title="Result of a run",
        description="What a run that has completed gave, whole, however large it is.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        uri_template=str(addresses.WORKFLOW),
        name="workflow",
        title="Definition of a workflow",
        description="The definition of a workflow that can be carried out here.",
    ),
)


async def listed(request: ClientRequest, cursor: str | None) -> types.ListResourcesResult:
    """List the workflows, and timelines of the caller's newest runs; `cursor` continues these."""
    try:
        return await _listed(request, cursor)
    except HoldfastError as error:
        raise _failed(error, None) from error


async def _listed(request: ClientRequest, cursor: str | None) -> types.ListResourcesResult:
    before = None if cursor is None else await _at(request, cursor)
    found = await request.hf.runs.list(owner=request.principal.owner, limit=PAGE, before=before)
    workflows = sorted(await request.catalogue.all()) if cursor is None else []
    return types.ListResourcesResult(
        resources=[
            *(_workflow_resource(name) for name in workflows),
            *map(_run_resource, found),
        ],
        next_cursor=found[-1].run_id if len(found) == PAGE else None,
    )


async def _at(request: ClientRequest, cursor: str) -> RunRow:
    try:
        return await request.run(cursor)
    except (NotFoundError, MisuseError) as error:
        message = "there is no such cursor; list from the beginning"
        raise MCPError(code=types.INVALID_PARAMS, message=message) from error


def _workflow_resource(name: str) -> types.Resource:
    return types.Resource(
        uri=addresses.workflow(name), name=name, title=f"Workflow {name}: its definition"
    )


def _run_resource(run: RunRow) -> types.Resource:
    what = in_a_line(" ".join(filter(None, (run.agent, run.subject))) or "run")
    return types.Resource(
        uri=addresses.timeline(run.run_id),
        name=run.run_id,
        title=f"{what}: timeline",
        description=f"{run.status}, begun {moment(run.created_at)}",
        mime_type=_MARKDOWN,
    )


async def read(
    request: ClientRequest, ctx: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    """Return what is at an address; raises MCPError in the form of the protocol's version."""
    uri = str(params.uri)
    try:
        mime_type, text = await _content(request, uri)
    except (NotFoundError, MisuseError, ConflictError) as error:
        raise not_found(ctx, uri, str(error)) from error
    except HoldfastError as error:
        raise _failed(error, uri) from error
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.ReadResourceResult(contents=[contents])


def not_found(ctx: Context, uri: str, why: str) -> MCPError:
    """The error for what is not there."""
    is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    code = types.INVALID_PARAMS if is_modern else _NOT_FOUND_BEFORE_2026
    return MCPError(code=code, message=f"Resource not found: {why}", data={"uri": uri})


def _failed(error: HoldfastError, uri: str | None) -> MCPError:
    failure = failures.failure_of(error)
    details = {"uri": uri, "type": failure.type, "is_retryable": failure.is_retryable}
    return MCPError(code=types.INTERNAL_ERROR, message=failure.message, data=details)


async def run_at(request: ClientRequest, uri: str) -> RunRow | None:
    """The run whose record, transcript or result is at an address, if the caller may see it."""
    for template in (addresses.TIMELINE, addresses.TRANSCRIPT, addresses.RESULT):
        if (parts := addresses.parts_of(uri, template)) is not None:
            return await request.run(parts["run_id"])
    return None


async def _content(request: ClientRequest, uri: str) -> tuple[str, str]:
    hf = request.hf
    if (parts := addresses.parts_of(uri, addresses.TIMELINE)) is not None:
        run = await request.run(parts["run_id"])
        return _MARKDOWN, await timelines.page_of(hf, run, _after(parts.get("after")))
    if (parts := addresses.parts_of(uri, addresses.TRANSCRIPT)) is not None:
        return _MARKDOWN, await transcripts.page_of(hf, await request.run(parts["run_id"]))
    if (parts := addresses.parts_of(uri, addresses.RESULT)) is not None:
        return _JSON, await _result(request, await request.run(parts["run_id"]))
    if (parts := addresses.parts_of(uri, addresses.WORKFLOW)) is not None:
        return await _definition(request, parts["name"])
    raise NotFoundError("there is nothing at this address; resources/templates/list tells them")


def _after(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise MisuseError(f"after={text!r:.40} is not the number of an entry")
    return int(text)


async def _result(request: ClientRequest, run: RunRow) -> str:
    if run.status is not RunStatus.COMPLETED:
        raise NotFoundError(
            f"run {run.run_id} is {run.status} and has no result; {addresses.timeline(run.run_id)} "
            "tells where it stands"
        )
    return transcripts.as_json(await request.hf.runs.result(run.run_id))


async def _definition(request: ClientRequest, name: str) -> tuple[str, str]:
    source = await request.catalogue.find(name)
    if isinstance(source, Path):
        try:
            text = await asyncio.to_thread(source.read_text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise NotFoundError(f"the file of {name!r} cannot be read: {error.strerror}") from error
        return _YAML, text
    return _JSON, transcripts.as_json(definition.plain(source))
