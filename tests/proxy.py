"""A proxy in front of PostgreSQL that loses connections at the worst moments, and only there.

It reads PostgreSQL's protocol (version 3, unencrypted) in both directions, so it knows where a
commit is asked for and where it is answered. A *request* is what a client sends up to a Sync or a
simple Query, a *reply* is what the server sends up to a ReadyForQuery; a client may send many
requests before it reads a reply: those behind one that is cut may be done or not. What a function
writes is not seen, and COPY is not understood.
"""

import asyncio
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from holdfast.testing.postgres import free_port

LIMIT_SECONDS = 300.0
ENCRYPTION_REQUESTS = (80877103, 80877104)  # SSL, GSS
HELD_REQUESTS = b"PBDEC"  # Parse, Bind, Describe, Execute, Close: a Sync or a Flush comes later
ANSWERED_REQUESTS = b"SQF"  # Sync, Query, FunctionCall: by one ReadyForQuery each
WRITING_VERBS = ("INSERT", "UPDATE", "DELETE", "MERGE")
WRITING_PARTS = re.compile(r"\b(INSERT|MERGE)\s+INTO\b|\bDELETE\s+FROM\b|[()]\s*UPDATE\b", re.I)
COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

T = TypeVar("T")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class Group:
    """A request with its statements, or a reply with the tags of its completed commands."""

    words: tuple[str, ...]
    commits: bool


Predicate = Callable[[Group], bool]


@dataclass(frozen=True)
class Cut:
    """Which groups are lost together with their connection, and how the client is told."""

    is_lost: Predicate = lambda _: False
    reset: bool = False


def nth_commit(n: int) -> Predicate:
    """True once: for the n-th group that commits, counted from now on."""
    seen = 0

    def is_it(group: Group) -> bool:
        nonlocal seen
        seen += group.commits
        return group.commits and seen == n

    return is_it


def writes(statement: str) -> bool:
    """Whether a statement changes rows, itself or in a part of it: functions are not known."""
    verb = verb_of(statement)
    return verb in WRITING_VERBS or (verb == "WITH" and WRITING_PARTS.search(statement) is not None)


def verb_of(statement: str) -> str:
    return (statement.upper().split() or [""])[0]


class Requests:
    """What one client asks for: it knows which requests will commit something if they succeed."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._in_transaction = False
        self._new: list[str] = []

    def take(self, kind: bytes, body: bytes) -> None:
        if kind == b"P":
            name, statement, _ = body.split(b"\0", 2)
            self._prepared[name] = plain(statement)
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self._new.append(self._prepared.get(name, ""))
        elif kind == b"Q":
            parts = plain(body[:-1]).split(";")
            self._new += [part.strip() for part in parts if part.strip()]

    def flush(self) -> Group:
        """What has been asked for since the last time."""
        statements = tuple(self._new)
        self._new.clear()
        commits = [self._commits(statement) for statement in statements]
        return Group(statements, any(commits))

    def _commits(self, statement: str) -> bool:
        verb, *rest = statement.upper().split() or [""]
        if verb in ("BEGIN", "START"):
            self._in_transaction = True
        elif verb in ("COMMIT", "END"):
            self._in_transaction = False
            return True
        elif verb in ("ROLLBACK", "ABORT") and "TO" not in rest:
            self._in_transaction = False
        return writes(statement) and not self._in_transaction


class Reply:
    """What the server answers to one request: it knows whether that tells of a commit."""

    def __init__(self) -> None:
        self._outcomes: list[str] = []

    def take(self, kind: bytes, body: bytes) -> None:
        if kind == b"C":
            self._outcomes.append(body[:-1].decode())
        elif kind in b"EIs":  # ErrorResponse, EmptyQueryResponse, PortalSuspended
            self._outcomes.append("ERROR" if kind == b"E" else "")

    def finish(self, statements: Iterable[str], status: bytes) -> Group:
        """All of it, when it ends with this status: `I` is outside of a transaction."""
        written = committed = False
        for outcome, statement in zip(self._outcomes, chain(statements, repeat("")), strict=False):
            if outcome in ("COMMIT", "ROLLBACK", "ERROR"):
                committed |= outcome == "COMMIT"
                written = False
            else:
                written |= verb_of(outcome) in WRITING_VERBS or writes(statement)
        return Group(tuple(self._outcomes), committed or (written and status == b"I"))


@dataclass
class Link:
    """One client's connection, and the statements of its requests that are not answered yet."""

    client: Stream
    task: "asyncio.Task[None]"
    reset: bool = False
    asked: deque[list[str]] = field(default_factory=deque[list[str]])


class Proxy:
    """A proxy on a loopback port of its own, run by a thread of its own, inside a `with`.

    Its methods may be called from any thread; what they ask for holds when they return.
    """

    def __init__(self, url: str) -> None:
        """`url` names any database of the server that is to be reached."""
        address = urlsplit(url)
        self.port = free_port()
        self.commits_seen = 0
        self.cuts = 0
        self.delay = 0.0
        """Seconds that each request waits on its way; one that is set holds from now on."""
        self._target = (address.hostname or "127.0.0.1", address.port or 5432)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._passing = asyncio.Event()
        self._links: list[Link] = []
        self._request_cut = Cut()
        self._reply_cut = Cut()

    def __enter__(self) -> Self:
        self._thread.start()
        self.resume()
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._do(self._cut_all(reset=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self._loop.close()

    def url(self, base: str) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(base)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}"))

    def cut_at_commit(self, n: int = 1, *, reset: bool = False) -> None:
        """Lose the n-th reply from now on that tells of a commit: the server has committed."""
        self.cut_replies(nth_commit(n), reset=reset)

    def cut_before_commit(self, n: int = 1, *, reset: bool = False) -> None:
        """Lose the n-th request from now on that would commit: the server does not commit."""
        self.cut_requests(nth_commit(n), reset=reset)

    def cut_replies(self, is_lost: Predicate, *, reset: bool = False) -> None:
        """Cut the connection of each reply of which `is_lost` is true, and pass nothing of it on.

        The predicate is called in the proxy's thread. The client sees an end of file, or a reset.
        """
        self._reply_cut = Cut(is_lost, reset)

    def cut_requests(self, is_lost: Predicate, *, reset: bool = False) -> None:
        """Cut the connection of each request of which `is_lost` is true; the server gets no end."""
        self._request_cut = Cut(is_lost, reset)

    def cut_now(self, *, reset: bool = False) -> None:
        """Cut every connection that is open."""
        self.cuts += self._do(self._cut_all(reset))

    def stall(self) -> None:
        """Pass nothing on, in either direction; connections stay open."""
        self._do(self._let_pass(False))

    def resume(self) -> None:
        """Pass on what has come during a stall, and all that comes."""
        self._do(self._let_pass(True))

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        self._do(self._stop_listening())

    def accept(self) -> None:
        """Take new connections, on the same port as ever."""
        self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_SECONDS)

    async def _let_pass(self, passing: bool) -> None:
        if passing:
            self._passing.set()
        else:
            self._passing.clear()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut_all(self, reset: bool) -> int:
        links = list(self._links)
        for link in links:
            link.reset = reset
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)
        return len(links)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from its first byte to its last."""
        task = asyncio.current_task()
        assert task is not None
        link = Link((reader, writer), task)
        self._links.append(link)
        try:
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                server = await asyncio.open_connection(*self._target)
                try:
                    await self._pass_on(link, server)
                finally:
                    await close(server)
        finally:
            self._links.remove(link)
            await close(link.client, reset=link.reset)

    async def _pass_on(self, link: Link, server: Stream) -> None:
        """Everything between the two, until one of them ends or the connection is cut."""
        for _, writer in (link.client, server):
            writer.transport.set_write_buffer_limits(high=0)  # what is sent has left the proxy
        await self._introduce(link, server)
        pumps = {
            asyncio.create_task(self._pass_requests(link, server)),
            asyncio.create_task(self._pass_replies(link, server)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _introduce(self, link: Link, server: Stream) -> None:
        """Pass on the first message, which has no type; encryption is declined before it."""
        while True:
            length = await link.client[0].readexactly(4)
            body = await link.client[0].readexactly(int.from_bytes(length) - 4)
            await self._passing.wait()
            if int.from_bytes(body[:4]) not in ENCRYPTION_REQUESTS:
                return await send(server, length + body)
            await send(link.client, b"N")

    async def _pass_requests(self, link: Link, server: Stream) -> None:
        requests, held, asked = Requests(), bytearray(), list[str]()
        while True:
            kind, body, message = await read_message(link.client)
            held += message
            requests.take(kind, body)
            if kind in HELD_REQUESTS:
                continue
            group = requests.flush()
            if self._is_cut(link, group, self._request_cut):
                return
            await asyncio.sleep(self.delay)
            await self._passing.wait()
            asked += group.words
            if kind in ANSWERED_REQUESTS:
                link.asked.append(asked)
                asked = []
            await send(server, held)
            held = bytearray()

    async def _pass_replies(self, link: Link, server: Stream) -> None:
        reply, held = Reply(), bytearray()
        while True:
            try:
                kind, body, message = await read_message(server)
            except (asyncio.IncompleteReadError, OSError):
                await self._passing.wait()
                return await send(link.client, held)
            held += message
            reply.take(kind, body)
            if kind == b"Z":
                asked = link.asked.popleft() if link.asked else []
                group, reply = reply.finish(asked, body), Reply()
                self.commits_seen += group.commits
                if self._is_cut(link, group, self._reply_cut):
                    return
            elif link.asked:
                continue
            await self._passing.wait()
            await send(link.client, held)
            held = bytearray()

    def _is_cut(self, link: Link, group: Group, cut: Cut) -> bool:
        if not cut.is_lost(group):
            return False
        self.cuts += 1
        link.reset = cut.reset
        return True


def plain(statement: bytes) -> str:
    """A statement's text without comments."""
    return COMMENTS.sub(" ", statement.decode(errors="replace")).strip()


async def read_message(stream: Stream) -> tuple[bytes, bytes, bytes]:
    """The type, the content and all the bytes of the next message."""
    head = await stream[0].readexactly(5)
    body = await stream[0].readexactly(int.from_bytes(head[1:]) - 4)
    return head[:1], body, head + body


async def send(stream: Stream, message: bytes | bytearray) -> None:
    stream[1].write(message)
    await stream[1].drain()


async def close(stream: Stream, *, reset: bool = False) -> None:
    if reset:
        at_once = struct.pack("ii", 1, 0)
        sock: socket.socket = stream[1].get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    stream[1].transport.abort()
    with suppress(OSError):
        await stream[1].wait_closed()
