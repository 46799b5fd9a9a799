"""Runs as tasks: `tasks/get`, `tasks/update` and `tasks/cancel`. A task's id is that of its run.

A caller who may see a run may read it as a task, however it was begun. The methods are there on the
wire of 2026-07-28 only, and for clients that declare the extension in the request.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import ValidationError

from holdfast.edges.mcp import answers, faces, failures, forms
from holdfast.edges.mcp.contract import McpCall
from holdfast.edges.mcp.task_views import EXTENSION, fields_of, require, standing_of
from holdfast.edges.mcp.views import QuestionView, view_of
from holdfast.errors import (
    AlreadyAnswered,
    HoldfastError,
    InvalidIdentifier,
    MisuseError,
    RunEnded,
    RunNotFound,
    WaitNotFound,
)
from holdfast.kernel.runs import RunStatus

Context = ServerRequestContext[Any, Any]


class TaskParams(types.RequestParams):
    """Read leniently, so that a client without the extension gets that error first."""

    task_id: Any = None
    input_responses: Any = None


Verb = Callable[[McpCall, TaskParams], Awaitable[dict[str, Any]]]


def serve(lowlevel: Server[Any], call_of: Callable[[Context], McpCall]) -> None:
    """Add the tasks methods to a server."""
    lowlevel.extensions[EXTENSION] = {}
    for method, verb in _VERBS.items():
        lowlevel.add_request_handler(method, TaskParams, _checked(method, verb, call_of))


def _checked(
    method: str, verb: Verb, call_of: Callable[[Context], McpCall]
) -> Callable[[Context, TaskParams], Awaitable[dict[str, Any]]]:
    async def handle(ctx: Context, params: TaskParams) -> dict[str, Any]:
        call = call_of(ctx)
        if not call.is_modern:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=method)
        require(call)
        _check_name(ctx, params.task_id)
        try:
            return {"resultType": "complete", **await verb(call, params)}
        except (RunNotFound, InvalidIdentifier):
            raise _invalid(f"there is no task {params.task_id!r}") from None
        except HoldfastError as error:
            failure = msgspec.to_builtins(failures.failure_of(error))
            raise MCPError(types.INTERNAL_ERROR, str(error), {"error": failure}) from error

    return handle


def _check_name(ctx: Context, task_id: object) -> None:
    """Over HTTP the header that requests are routed by must name the task."""
    headers = getattr(ctx.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(
            code=types.HEADER_MISMATCH,
            message=f"the header {MCP_NAME_HEADER} is not the taskId of the request",
        )


async def _get(call: McpCall, params: TaskParams) -> dict[str, Any]:
    run = await call.run(params.task_id)
    view = await view_of(call.hf, run)
    standing = standing_of(call, view)
    fields = await fields_of(call.hf, run, standing)
    if standing.requests:
        return fields | {"inputRequests": {key: _dump(v) for key, v in standing.requests.items()}}
    if standing.status != "completed":
        return fields
    has_raised = faces.is_alone(run) and view.status == RunStatus.FAILED
    if has_raised and (error := await failures.raised_by(call.hf, run)) is not None:
        return fields | {"status": "failed", "error": _dump(error)}
    return fields | {"result": _dump(faces.ended(view, is_alone=faces.is_alone(run)))}


async def _update(call: McpCall, params: TaskParams) -> dict[str, Any]:
    """Take the answers to questions that are open; all of them fit, or none is taken.

    Keys that name no open question are ignored: that answer was given before, or it is late.
    """
    run = await call.run(params.task_id)
    responses: object = params.input_responses
    if not isinstance(responses, Mapping):
        raise _invalid("inputResponses must be an object of answers, by the keys of inputRequests")
    given = cast("Mapping[str, Any]", responses)
    view = await view_of(call.hf, run)
    accepted: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for question in view.waiting:
        if question.wait_id in given:
            _read(question, given[question.wait_id], accepted, problems)
    if problems:
        text = "; ".join(f"{key}: {problem}" for key, problem in problems.items())
        raise _invalid(f"no answer was taken, for these do not fit: {text}", {"problems": problems})
    for wait_id, value in accepted.items():
        with suppress(AlreadyAnswered, WaitNotFound):  # an earlier answer stays
            await answers.give(call, wait_id, value)
    return {}


def _read(
    question: QuestionView, response: Any, accepted: dict[str, Any], problems: dict[str, str]
) -> None:
    """Note the answer in a response, or why it is not one. Declining leaves the question open."""
    try:
        elicited = types.ElicitResult.model_validate(response)
        if elicited.action == "accept":
            value = forms.answer_of(question, elicited.content or {})
            answers.check(question, value)
            accepted[question.wait_id] = value
    except ValidationError:
        problems[question.wait_id] = "it must be an object with `action`, and with `content`"
    except MisuseError as refused:  # it does not fit, or cannot be stored
        problems[question.wait_id] = str(refused)


async def _cancel(call: McpCall, params: TaskParams) -> dict[str, Any]:
    """End the run; one that has ended does not change."""
    run = await call.run(params.task_id)
    with suppress(RunEnded):
        await call.hf.runs.cancel(run.run_id, by=call.by, note="the client cancelled its task")
    return {}


_VERBS: Final[dict[str, Verb]] = {
    "tasks/get": _get,
    "tasks/update": _update,
    "tasks/cancel": _cancel,
}


def _dump(model: Any) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _invalid(message: str, data: Any = None) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=message, data=data)
