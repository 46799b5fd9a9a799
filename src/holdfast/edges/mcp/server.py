"""The MCP server: tools, resources and tasks for the runs of a Holdfast, over stdio or HTTP.

A request only starts, answers and watches runs. A worker executes them, in this process or in
another. No run is lost if the client disconnects or the server is killed.
"""

import asyncio
import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import mcp_types as types
import msgspec
from mcp.server.auth.provider import TokenVerifier
from mcp.server.auth.settings import AuthSettings
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventStore
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette

from holdfast.agents.definitions.agent import Agent
from holdfast.agents.work.worker import Worker
from holdfast.app import Holdfast
from holdfast.edges.mcp import agent_tools, faces, failures, http, task_views, tasks
from holdfast.edges.mcp.access import principals
from holdfast.edges.mcp.access.keys import checked
from holdfast.edges.mcp.agent_tools import Exposed
from holdfast.edges.mcp.catalogue import Catalogue
from holdfast.edges.mcp.contract import (
    BadArguments,
    ClientRequest,
    FollowedRun,
    McpCall,
    ServedTool,
)
from holdfast.edges.mcp.meta import KEY
from holdfast.edges.mcp.resources import resources
from holdfast.edges.mcp.resources.subscriptions import Subscriptions
from holdfast.edges.mcp.shutdown import Shutdown
from holdfast.edges.mcp.stdio import StdioWire
from holdfast.edges.mcp.tools import INLINE, OWN
from holdfast.errors import HoldfastError, MisuseError

STATE_SECONDS: Final = 7 * 24 * 3600.0
_INSTRUCTIONS: Final = (
    "Runs of workflows and agents here are durable: they go on without you, and wait for answers "
    "as long as it takes. A result with `waiting` asks a person something; ask, then call what its "
    "`next` says. A run that still goes on is looked at with get_run. Give a run_id of your own to "
    "be able to repeat a call whose answer was lost."
)
_log = logging.getLogger("holdfast.mcp")

Context = ServerRequestContext[Any, Any]


class McpServer:
    """A server over an open Holdfast: `async with hf, McpServer(hf) as server:`.

    `workflows` is a folder of definitions, in addition to those of the Kit. Each agent in `expose`
    becomes a separate tool; `tools` are further tools. With `inline`, clients may send workflows
    that run any command. `keys` seal the state that a client sends back with a form; replicas need
    the same keys. Without `keys`, the key ends with the process. With `works=False`, this server
    runs no worker, so another process must.
    """

    def __init__(
        self,
        hf: Holdfast,
        *,
        name: str = "holdfast",
        workflows: str | Path | None = None,
        expose: Iterable[Agent[..., Any] | Exposed] = (),
        tools: Iterable[ServedTool] = (),
        inline: bool = True,
        keys: Sequence[bytes | str] = (),
        state_seconds: float = STATE_SECONDS,
        works: bool = True,
        concurrency: int = 8,
    ) -> None:
        self._hf = hf
        self._works = works
        self._concurrency = concurrency
        self.stopping = Shutdown()
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self._catalogue = Catalogue(hf.workflows.kit, workflows)
        own = [*OWN, *(INLINE if inline else ())]
        exposed = [agent_tools.tool_of(each) for each in expose]
        for tool in exposed:
            hf.agent(tool.name)  # raises AgentNotFound now rather than at a call
        self._listening = Subscriptions(hf)
        self.stopping.when_wanted.append(self._listening.close)
        self._tools = _by_name([*own, *exposed, *tools])
        self.lowlevel: Server[Any] = Server(
            name,
            version=importlib.metadata.version("holdfast"),
            title="Holdfast",
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=self._schema_of,
            on_list_tools=self._list_tools,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_resource_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe_resource,
            on_unsubscribe_resource=self._unsubscribe_resource,
            on_subscriptions_listen=self._listen,
        )
        # Added separately: it may return a task, which the type of `on_call_tool` does not allow.
        self.lowlevel.add_request_handler(
            "tools/call", types.CallToolRequestParams, self._call_tool
        )
        tasks.serve(self.lowlevel, self._call_of)
        self.lowlevel.middleware.append(self.stopping.count)
        self.lowlevel.middleware.append(
            RequestStateBoundary(_security(keys, state_seconds), default_audience=name)
        )

    async def __aenter__(self) -> Self:
        if self._works:
            self._hf.workflows.work_here()
            self._worker = self._hf.new_worker(concurrency=self._concurrency)
            self._working = asyncio.create_task(self._worker.run())
            self._working.add_done_callback(_tell_if_broken)
            self.stopping.when_wanted.append(self._hand_back)
            self.stopping.when_at_once.append(self._working.cancel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.begin()
        try:
            if self._working is not None and self._worker is not None:
                # After a signal, wait for turns without a limit: a second signal ends the wait.
                # Without a signal (the client closed stdin), wait for `shutdown_seconds`.
                patience = None if self.stopping.signals else self._worker.shutdown_seconds
                await asyncio.wait({self._working}, timeout=patience)
                self._working.cancel()
                with suppress(asyncio.CancelledError, HoldfastError):
                    await self._working
        finally:
            self.stopping.ignore()

    def _hand_back(self) -> None:
        if self._worker is not None:
            self._worker.stop(note="the MCP server is stopping")

    async def serve_stdio(self, wire: StdioWire | None = None) -> None:
        """Serve one client over stdin and stdout until it disconnects or a signal arrives.

        All other output of this process then goes to stderr. `wire` is the result of an earlier
        `StdioWire.take()`.
        """
        taken = wire or StdioWire.take()
        self.stopping.listen()
        ending = asyncio.create_task(self._end(taken))
        try:
            async with stdio_server(*taken.open()) as (incoming, outgoing):
                await self.lowlevel.run(
                    incoming, outgoing, self.lowlevel.create_initialization_options()
                )
        finally:
            ending.cancel()
            self.stopping.begin()

    async def _end(self, wire: StdioWire) -> None:
        await self.stopping.answered()
        wire.end()

    def http_app(
        self,
        *,
        host: str = http.LOOPBACK,
        verifier: TokenVerifier | None = None,
        auth: AuthSettings | None = None,
        allowed_hosts: Sequence[str] = (),
        events: EventStore | None = None,
    ) -> Starlette:
        """Return the server as an ASGI application with /mcp and /healthz.

        /healthz needs no token. Raises MisuseError if `host` is not a loopback address and there is
        no `verifier`.
        """
        door = http.Door(
            host=host, verifier=verifier, auth=auth, allowed_hosts=allowed_hosts, events=events
        )
        return http.app_of(self.lowlevel, self._hf, door)

    async def serve_http(
        self,
        host: str = http.LOOPBACK,
        port: int = 8000,
        *,
        verifier: TokenVerifier | None = None,
        auth: AuthSettings | None = None,
        allowed_hosts: Sequence[str] = (),
        on_serving: Callable[[str], None] = lambda url: _log.info("serving on %s", url),
    ) -> None:
        """Serve over HTTP until SIGTERM or Ctrl-C; call `on_serving` with the URL.

        Port 0 selects a free port. After the signal, waiting calls return the current status, and
        the worker releases its runs at the end of their turns. A second signal stops calls and
        turns at once.
        """
        door = http.Door(host=host, verifier=verifier, auth=auth, allowed_hosts=allowed_hosts)
        app = http.app_of(self.lowlevel, self._hf, door)
        self.stopping.listen()
        await http.serve(app, door, port, self.stopping, on_serving)

    def _schema_of(self, name: str) -> Mapping[str, Any] | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.input_schema

    async def _list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[each.listed for each in self._tools.values()])

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> faces.Reply:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        try:
            return await self._called(self._call_of(ctx, params), tool, params.arguments or {})
        except (HoldfastError, BadArguments) as error:
            return failures.result_of(failures.failure_of(error))

    async def _called(
        self, call: McpCall, tool: ServedTool, given: Mapping[str, Any]
    ) -> faces.Reply:
        if tool.tasks == "required":
            task_views.require(call)
        arguments = tool.arguments_of(given)
        wait_seconds = getattr(arguments, "wait_seconds", msgspec.UNSET)
        seconds = None if wait_seconds is msgspec.UNSET else float(wait_seconds)
        if tool.begins_runs and call.request_state is not None:
            return await faces.go_on(call, tool, seconds)
        result = await tool.handle(call, arguments)
        if isinstance(result, FollowedRun):
            return await faces.begin(call, tool, result, seconds)
        if isinstance(result, types.CallToolResult | types.InputRequiredResult):
            return result
        return faces.result_of(result)

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return await resources.listed(self._request(), params.cursor if params else None)

    async def _list_resource_templates(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))

    async def _read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await resources.read(self._request(), ctx, params)

    async def _subscribe_resource(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        return await self._listening.subscribe(self._request(), ctx, params)

    async def _unsubscribe_resource(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        return await self._listening.unsubscribe(ctx, params)

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        return await self._listening.listen(self._request(), ctx, params)

    def _request(self) -> ClientRequest:
        return ClientRequest(self._hf, self._catalogue, principals.present())

    def _call_of(self, ctx: Context, params: types.CallToolRequestParams | None = None) -> McpCall:
        session = ctx.session
        client = session.client_params
        return McpCall(
            hf=self._hf,
            catalogue=self._catalogue,
            principal=principals.present(),
            client=client.client_info.name if client else "unknown",
            progress=session.report_progress,
            stopping=self.stopping,
            is_modern=ctx.protocol_version in MODERN_PROTOCOL_VERSIONS,
            capabilities=session.client_capabilities or types.ClientCapabilities(),
            request_state=params.request_state if params else None,
            responses=(params.input_responses if params else None) or {},
            tool=params.name if params else "",
            key=str((ctx.meta or {}).get(KEY) or ""),
        )


def _by_name(tools: Iterable[ServedTool]) -> dict[str, ServedTool]:
    found: dict[str, ServedTool] = {}
    for tool in tools:
        if tool.name in found:
            raise MisuseError(f"there are two tools named {tool.name!r}; rename the agent or tool")
        found[tool.name] = tool
    return found


def _security(keys: Sequence[bytes | str], seconds: float) -> RequestStateSecurity:
    if not keys:
        return RequestStateSecurity.ephemeral(ttl=seconds)
    checked(keys)
    return RequestStateSecurity(keys=list(keys), ttl=seconds)


def _tell_if_broken(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the worker broke; runs wait for another one", exc_info=error)
