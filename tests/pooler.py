"""A pooler in front of PostgreSQL that hands out servers per transaction, as PgBouncer may.

It is a bad one on purpose: every transaction of a client goes to the next server, which keeps
neither the client's settings nor its prepared statements, but those of whoever used it before.
"""

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from holdfast.testing.postgres import free_port
from tests.proxy import ENCRYPTION_REQUESTS, Stream, close, read_message, send

LIMIT_SECONDS = 300.0
ENDS_OF_REQUESTS = b"SQF"  # Sync, Query, FunctionCall

T = TypeVar("T")


class Server:
    """A connection to PostgreSQL, and what it said when it was made."""

    def __init__(self, stream: Stream, greeting: bytes) -> None:
        self.stream = stream
        self.greeting = greeting
        self.is_free = asyncio.Lock()


class TransactionPooler:
    """Listens on a loopback port of its own, in a thread of its own, inside a `with`."""

    def __init__(self, url: str, *, servers: int = 3) -> None:
        self._address = urlsplit(url)
        self._port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self._clients: set[asyncio.Task[None]] = set()
        self._servers: list[Server] = []
        self._count = servers
        self.transactions = 0

    @property
    def url(self) -> str:
        """The database, through the pooler."""
        login = self._address.netloc.rpartition("@")[0]
        return urlunsplit(self._address._replace(netloc=f"{login}@127.0.0.1:{self._port}"))

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_SECONDS)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_SECONDS)

    async def _open(self) -> None:
        self._servers = [await self._connect() for _ in range(self._count)]
        self._turns = itertools.cycle(self._servers)
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _close(self) -> None:
        self._listener.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for server in self._servers:
            await close(server.stream)

    async def _connect(self) -> Server:
        """Log in as the URL says, without a password."""
        address = self._address
        stream = await asyncio.open_connection(address.hostname, address.port)
        words = ["user", address.username or "", "database", address.path.removeprefix("/"), ""]
        body = (196608).to_bytes(4) + b"".join(word.encode() + b"\0" for word in words)
        await send(stream, (len(body) + 4).to_bytes(4) + body)
        greeting = b""
        while True:
            kind, _, message = await read_message(stream)
            assert kind != b"E", message
            greeting += message
            if kind == b"Z":
                return Server(stream, greeting)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        client = (reader, writer)
        try:
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                await self._greet(client)
                while True:
                    await self._pass_transaction(client)
        finally:
            self._clients.discard(task)
            await close(client)

    async def _greet(self, client: Stream) -> None:
        while True:
            length = await client[0].readexactly(4)
            body = await client[0].readexactly(int.from_bytes(length) - 4)
            if int.from_bytes(body[:4]) not in ENCRYPTION_REQUESTS:
                return await send(client, self._servers[0].greeting)
            await send(client, b"N")

    async def _pass_transaction(self, client: Stream) -> None:
        """Requests and replies on one server, until a transaction has ended."""
        request = await read_request(client)
        server = next(self._turns)
        async with server.is_free:
            while True:
                await send(server.stream, request)
                if await self._pass_reply(server, client) == b"I":
                    self.transactions += 1
                    return
                request = await read_request(client)

    async def _pass_reply(self, server: Server, client: Stream) -> bytes:
        """Everything up to ReadyForQuery; its status."""
        while True:
            kind, body, message = await read_message(server.stream)
            await send(client, message)
            if kind == b"Z":
                return body


async def read_request(client: Stream) -> bytes:
    """What a client sends up to where it waits for a reply."""
    request = b""
    while True:
        kind, _, message = await read_message(client)
        if kind == b"X":
            raise asyncio.IncompleteReadError(message, None)
        request += message
        if kind in ENDS_OF_REQUESTS:
            return request
