"""Connections to MCP servers of others, each for as long as it is used.

A separate task holds a connection, because the SDK must enter and leave it in one task; calls of
many tasks share it. It is closed when it is idle for a while, when its event loop ends, and when
it broke: then the next call makes a new one.
"""

import asyncio
import contextvars
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from holdfast.edges.mcp.client.wires import HttpExchange, Server, exchange
from holdfast.errors import McpUnavailable
from holdfast.telemetry import log

_REFUSING_CODES: Final = frozenset(
    {types.METHOD_NOT_FOUND, types.HEADER_MISMATCH, types.UNSUPPORTED_PROTOCOL_VERSION}
)
"""Errors that say a request was refused, not that it failed: the server gives them before any tool
is asked. -32600, -32602 and -32021 are not among them: a tool may be the one that says so, when it
has half done its work."""
_REFUSING_STATUSES: Final = frozenset({401, 403, 404, 405, 406, 413, 415, 429})
_MOST_PAGES: Final = 100
_ANSWER: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class Unsent(Exception):
    """The server was asked nothing: there is no connection, or none that it knows."""


class ServerRefused(Exception):
    """The server did not do what was asked, and says so."""


class Lost(Exception):
    """The request was sent, and its outcome is not known."""


@dataclass(frozen=True)
class ConnectionOptions:
    """How connections are made and kept."""

    connect_seconds: float
    idle_seconds: float
    mode: str


class McpConnections:
    """The connections to one server: at most one in use for each event loop."""

    def __init__(self, server: Server, limits: ConnectionOptions) -> None:
        self.server = server
        self._limits = limits
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, McpConnection] = (
            WeakKeyDictionary()
        )

    async def tools(self) -> Sequence[types.Tool]:
        """All tools of the server; raises McpUnavailable."""
        connection, _ = self._current()
        with connection.used():
            await connection.client()
            return connection.tools

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, str]
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Call a tool; raises Unsent, Refused or Lost."""
        while True:
            connection, is_new = self._current()
            try:
                return await connection.call(name, arguments, meta)
            except Unsent:
                if is_new:
                    raise  # else it had ended since it was last used

    async def close(self) -> None:
        """Close the connection of this event loop; the next call makes a new one."""
        connection = self._of_loop.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    def _current(self) -> "tuple[McpConnection, bool]":
        loop = asyncio.get_running_loop()
        found = self._of_loop.get(loop)
        if found is not None and found.is_open:
            return found, False
        made = self._of_loop[loop] = McpConnection(self.server, self._limits)
        return made, True


class McpConnection:
    """One connection and the task that holds it."""

    def __init__(self, server: Server, limits: ConnectionOptions) -> None:
        self.is_open = True
        self.tools: list[types.Tool] = []
        self._server = server
        self._limits = limits
        self._users = 0
        self._uses = 0
        self._is_closing = False
        self._changed = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # In a separate context: it outlives the call that needs it first.
        self._task = asyncio.create_task(self._hold(), context=contextvars.Context())

    async def client(self) -> Client:
        """The client, when it is connected; raises McpUnavailable."""
        return await asyncio.shield(self._ready)

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, str]
    ) -> types.CallToolResult | types.InputRequiredResult:
        params = types.CallToolRequestParams.model_validate(
            {"name": name, "arguments": dict(arguments), "_meta": dict(meta)}
        )
        with self.used():
            try:
                session = (await self.client()).session
            except McpUnavailable as error:
                raise Unsent(str(error)) from error
            noted = HttpExchange()
            token = exchange.set(noted)
            try:
                # Not session.call_tool: it may fail after the answer has come.
                return await session.send_request(types.CallToolRequest(params=params), _ANSWER)
            except (MCPError, ValidationError, OSError) as error:
                raise self._failure(error, noted) from error
            finally:
                exchange.reset(token)

    def _failure(self, error: Exception, noted: HttpExchange) -> Exception:
        said = _said(error)
        if isinstance(error, MCPError) and noted.sent and not noted.is_strange:
            if noted.status == 404 and error.code == types.INVALID_REQUEST:
                self._retire()
                return Unsent(f"{self._server.name} has forgotten this connection: {said}")
            if noted.status in _REFUSING_STATUSES or error.code in _REFUSING_CODES:
                return ServerRefused(f"{self._server.name} refused it: {_status(noted)}{said}")
        self._retire()
        if not noted.sent:
            return Unsent(f"nothing was sent to {self._server.name}: {said}")
        return Lost(f"{self._server.name} did not answer: {_status(noted)}{said}")

    @contextmanager
    def used(self) -> Generator[None]:
        """Keep the connection open inside this context."""
        self._users += 1
        self._uses += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self.is_open:
                self._changed.set()

    def _retire(self) -> None:
        """Take no new calls; its present users may finish."""
        self.is_open = False
        self._changed.set()

    async def close(self) -> None:
        self._is_closing = True
        self._retire()
        await asyncio.wait([self._task])

    async def _hold(self) -> None:
        noted = HttpExchange()
        exchange.set(noted)
        wire = self._server.wire()
        error: BaseException | None = None
        try:
            with anyio.fail_after(self._limits.connect_seconds) as limit:
                async with Client(wire.connect(), mode=self._limits.mode, cache=None) as client:
                    self.tools = await _list_all(client)
                    limit.deadline = math.inf
                    self._ready.set_result(client)
                    await self._until_unused()
        except Exception as caught:
            error = caught
        finally:
            self.is_open = False
            if self._ready.done():
                log.debug("the connection to %s has ended", self._server.name, exc_info=error)
            else:
                why = _why(self._server, error, noted, wire.last_words, self._limits)
                self._ready.set_exception(McpUnavailable(why))
                self._ready.exception()  # the caller may be gone

    async def _until_unused(self) -> None:
        seen = 0
        while not self._is_closing and (self._users or (self.is_open and seen != self._uses)):
            seen = self._uses
            self._changed.clear()
            with anyio.move_on_after(self._limits.idle_seconds):
                await self._changed.wait()
        self.is_open = False


async def _list_all(client: Client) -> list[types.Tool]:
    """All tools, page by page. The client needs to have seen them, to call some of them rightly."""
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise ValueError(f"its list of tools has no end: over {_MOST_PAGES} pages")


def _why(
    server: Server,
    error: BaseException | None,
    noted: HttpExchange,
    words: str,
    limits: ConnectionOptions,
) -> str:
    """Why there is no connection, and what to do."""
    cause = _first(error)
    if isinstance(cause, FileNotFoundError | PermissionError):
        return (
            f"{server.name} cannot be started: {_said(cause)}. Is it installed, and to be found "
            "by its name?"
        )
    if noted.status in (401, 403):
        return (
            f"{server.name} answered {noted.status}: it wants to know who asks. Give "
            'headers={"Authorization": "Bearer …"}'
        )
    printed = f"; it printed:\n{words}" if words else ""
    if isinstance(cause, TimeoutError):
        return (
            f"{server.name} did not answer as an MCP server within {limits.connect_seconds:g} s; "
            f"if it is slow to start, give more connect_seconds{printed}"
        )
    if cause is None:
        return f"the connection to {server.name} was given up"
    what = "cannot be reached" if not noted.sent else "does not answer as an MCP server"
    return f"{server.name} {what}: {_status(noted)}{_said(cause)}{printed}"


def _first(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _status(noted: HttpExchange) -> str:
    return f"HTTP {noted.status}: " if noted.status >= 300 else ""


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
