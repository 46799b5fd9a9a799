"""Wires to MCP servers of others: a command's pipes, or streamable HTTP.

The SDK's error for a failed request does not say whether it was sent. So each wire notes
that, and what came back, in the `Exchange` of the sender.
"""

import asyncio
import os
import shlex
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self, TextIO
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client import Transport
from mcp.client._transport import TransportStreams, WriteStream
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from holdfast.errors import MisuseError
from holdfast.telemetry import log

_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.LocalProtocolError,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
)
_LARGEST_EVENT: Final = 16 * 2**20
_LAST_LINES: Final = 10
_LONGEST_LINE: Final = 2_000
_LAST_SECONDS: Final = 0.5
_WHOLE: Final = "application/json"
_ANSWERS: Final = (_WHOLE, "text/event-stream")
_BROKEN: Final = -32000


@dataclass
class HttpExchange:
    """What is known of one request: whether any of it was sent, and how HTTP answered.

    `is_strange`: the answer was not one that the protocol knows.
    """

    sent: bool = False
    status: int = 0
    is_strange: bool = False


exchange: Final[ContextVar[HttpExchange | None]] = ContextVar("holdfast_mcp_exchange", default=None)


class ServerWire(Protocol):
    """One way to a server, to be connected once."""

    @property
    def last_words(self) -> str:
        """What the server printed before it went away; empty if that cannot be known."""
        ...

    def connect(self) -> Transport: ...


class Server(Protocol):
    """Where a server is."""

    @property
    def name(self) -> str:
        """The server's name for people, without secrets."""
        ...

    def wire(self) -> ServerWire: ...


def server_of(
    target: str | Sequence[str] | StdioServerParameters,
    *,
    headers: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
) -> Server:
    """The server that a URL or a command names; raises MisuseError."""
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        if env:
            raise MisuseError("env is for commands; a server at a URL has its own")
        return HttpServer(target, dict(headers or {}))
    if headers:
        raise MisuseError("headers are for servers at a URL; give a command its env")
    if isinstance(target, StdioServerParameters):
        known = {**(target.env or {}), **(env or {})}
        return CommandServer(target.model_copy(update={"env": known}))
    words = shlex.split(target) if isinstance(target, str) else list(target)
    if not words or not all(isinstance(word, str) for word in words):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(
            f"{target!r} names no MCP server; give its URL, or the words of the command that "
            "starts it"
        )
    return CommandServer(
        StdioServerParameters(command=words[0], args=words[1:], env=dict(env or {}))
    )


@dataclass(frozen=True)
class HttpServer:
    url: str
    headers: Mapping[str, str] = field(repr=False)
    last_words: str = ""

    def wire(self) -> ServerWire:
        return self

    @property
    def name(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[TransportStreams]:
        # The caller decides how long to wait for an answer.
        timeout = httpx2.Timeout(30.0, read=None)
        async with (
            _NotingClient(headers=dict(self.headers), timeout=timeout) as client,
            streamable_http_client(
                self.url, http_client=client, max_sse_event_size=_LARGEST_EVENT
            ) as streams,
        ):
            yield streams


class _NotingClient(httpx2.AsyncClient):
    """Notes the outcome of requests; one that breaks fails alone, not the whole connection."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        noted = exchange.get() or HttpExchange()
        was_sent, noted.sent = noted.sent, True
        try:
            answer = await super().send(request, **options)
            if _kind_of(answer).startswith(_WHOLE):
                await answer.aread()  # if it breaks off where the SDK reads it, all calls are lost
        except httpx2.TransportError as error:
            noted.sent = was_sent or not isinstance(error, _UNSENT)
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failed = {"jsonrpc": "2.0", "id": None, "error": {"code": _BROKEN, "message": said}}
            return httpx2.Response(503, json=failed, request=request)
        if request.method != "POST":
            return answer  # it was asked again for an answer: the call's outcome is not known
        noted.status = answer.status_code
        is_known = _kind_of(answer).startswith(_ANSWERS)
        is_fine = answer.status_code == 200 and is_known
        noted.is_strange = answer.status_code < 400 and not is_fine
        return answer


def _kind_of(answer: httpx2.Response) -> str:
    return answer.headers.get("content-type", "").lower()


@dataclass(frozen=True)
class CommandServer:
    parameters: StdioServerParameters = field(repr=False)

    @property
    def name(self) -> str:
        return f"`{shlex.join([self.parameters.command, *self.parameters.args])}`"

    def wire(self) -> ServerWire:
        return _Pipes(self.parameters, _Stderr(self.name))


@dataclass(frozen=True)
class _Pipes:
    parameters: StdioServerParameters
    stderr: "_Stderr"

    @property
    def last_words(self) -> str:
        return "\n".join(self.stderr.lines)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[TransportStreams]:
        async with (
            self.stderr.opened() as file,
            stdio_client(self.parameters, errlog=file) as (read, write),
        ):
            file.close()  # the command has it now: when it ends, so does what it prints
            yield read, _NotingStream(write)


class _NotingStream:
    """Notes that a message was handed over: from then on the server may have it."""

    def __init__(self, stream: WriteStream[SessionMessage]) -> None:
        self._stream = stream

    async def send(self, item: SessionMessage, /) -> None:
        noted = exchange.get() or HttpExchange()
        noted.sent = True
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            noted.sent = False
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class _Stderr(asyncio.Protocol):
    """What a command prints beside its answers: logged, and the last lines kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rest = b""
        self._ended = asyncio.Event()
        self.lines: deque[str] = deque(maxlen=_LAST_LINES)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[TextIO]:
        """A file for the command; when this is left, what was printed has been read."""
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        with os.fdopen(writing, "w") as file:
            transport, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(reading, "rb"))
            try:
                yield file
            finally:
                file.close()
                with anyio.move_on_after(_LAST_SECONDS, shield=True):
                    await self._ended.wait()  # a child of the command may hold the file longer
                transport.close()

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines:
            self._keep(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._keep(self._rest)
        self._ended.set()

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()[:_LONGEST_LINE]
        if text:
            log.debug("%s: %s", self._name, text)
            self.lines.append(text)
