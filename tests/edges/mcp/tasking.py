"""A client with the tasks extension: what it asks of tasks, and a way to follow one to its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

import mcp_types as types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import ConfigDict

import holdfast

TASKS = "io.modelcontextprotocol/tasks"
LIMIT_SECONDS = 240.0
_KEEPS_ALL = ConfigDict(**types.Result.model_config, extra="allow")


class Created(types.Result):
    """A task as the answer to a call; unknown fields are kept, so that tests see them."""

    model_config = _KEEPS_ALL
    result_type: Literal["task"] = "task"
    task_id: str


class Reply(types.Result):
    model_config = _KEEPS_ALL


class TaskRequest(types.Request[dict[str, Any], str]):
    name_param: ClassVar[str | None] = "taskId"


class WithTasks(ClientExtension):
    """Follows a task to its end by itself, and answers whatever it asks with the same content."""

    identifier = TASKS

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self._content = content
        self.followed: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        self.followed.append(created.task_id)
        session = context.session
        seen = await until(session, created.task_id, "input_required", "completed")
        if seen["status"] == "input_required":
            answers = dict.fromkeys(seen["inputRequests"], accepted(**(self._content or {})))
            await update(session, created.task_id, answers)
            seen = await until(session, created.task_id, "completed")
        return types.CallToolResult.model_validate(seen["result"])


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def shows_forms(context: Any, params: Any) -> types.ElicitResult:
    """Makes a client declare that it shows forms; with tasks it is never asked this way."""
    raise AssertionError("a client with tasks is asked through its task")


def tasked(server: Any, *, has_forms: bool = True, **options: Any) -> Client:
    if has_forms:
        options["elicitation_callback"] = shows_forms
    return Client(server, extensions=[WithTasks()], **options)


@asynccontextmanager
async def working(hf: holdfast.Holdfast) -> AsyncIterator[None]:
    """A worker, for tests that begin runs before anybody works on them."""
    worker = hf.new_worker()
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


async def begun(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The task that a call gives, as it is on the wire."""
    found = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(found, Created), found
    return found.model_dump(by_alias=True, mode="json", exclude={"meta"})


async def ask(session: Any, method: str, task_id: object, **more: Any) -> dict[str, Any]:
    request = TaskRequest(method=method, params={"taskId": task_id, **more})
    session = getattr(session, "session", session)
    found = await session.send_request(request, Reply)
    return found.model_dump(by_alias=True, mode="json", exclude={"meta"})


async def get(session: Any, task_id: str) -> dict[str, Any]:
    return await ask(session, "tasks/get", task_id)


async def update(session: Any, task_id: str, responses: Any) -> dict[str, Any]:
    return await ask(session, "tasks/update", task_id, inputResponses=responses)


async def until(session: Any, task_id: str, *statuses: str) -> dict[str, Any]:
    """The task as soon as it is in one of the statuses."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while (seen := await get(session, task_id))["status"] not in statuses:
            await asyncio.sleep(0.02)
    return seen
