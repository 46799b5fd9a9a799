"""Notify clients of runs whose record has grown, whichever process wrote to it.

A client listens to addresses while its stream is open, or on the older wire until it disconnects.
A lost watch costs only notifications: reads always return what is stored.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError

from holdfast.app import Holdfast
from holdfast.edges.mcp.contract import ClientRequest
from holdfast.edges.mcp.resources import addresses, resources
from holdfast.edges.mcp.resources.resources import Context
from holdfast.errors import MisuseError, NotFoundError, UnavailableError
from holdfast.kernel.runs import ENDED, RunRow
from holdfast.telemetry import log

MOST_STREAMS: Final = 1000
MOST_WATCHES: Final = 1000
MOST_OF_ONE: Final = 100
"""How many one principal may have. Each is a few small queries in a second."""
_LOOK_SECONDS: Final = 1.0
_IS_HEARD: Final = "io.holdfast/is-heard"

Tell = Callable[[str], Awaitable[None]]


class Subscriptions:
    """Who listens to what. Each separate stream has its own bus: no client hears of others."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._streams: set[ListenHandler] = set()
        self._watches: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._whose: Counter[str] = Counter()

    async def listen(
        self, request: ClientRequest, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream, until its client closes it. What the caller cannot see is left out."""
        if len(self._streams) >= MOST_STREAMS:
            raise _too_many("streams", MOST_STREAMS)
        runs = await _seen(request, params.notifications.resource_subscriptions or [])
        bus = InMemorySubscriptionBus()
        handler = ListenHandler(bus)

        async def tell(uri: str) -> None:
            await bus.publish(ResourceUpdated(uri=uri))

        honored = params.notifications.model_copy(update={"resource_subscriptions": [*runs]})
        self._streams.add(handler)
        try:
            for uri, run in runs.items():
                await self._watch((id(handler), uri), run, tell, request.principal.name)
            return await handler(ctx, params.model_copy(update={"notifications": honored}))
        finally:
            self._streams.discard(handler)
            self._stop(id(handler))

    async def subscribe(
        self, request: ClientRequest, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        """Notify a client of the older wire of an address, for as long as it is connected."""
        uri = str(params.uri)
        try:
            run = await resources.run_at(request, uri)
        except (NotFoundError, MisuseError) as error:
            raise resources.not_found(ctx, uri, str(error)) from error
        if run is None and addresses.parts_of(uri, addresses.WORKFLOW) is None:
            raise resources.not_found(ctx, uri, "there is nothing at this address")
        connection = _connection_of(ctx)
        if _IS_HEARD not in connection.state:
            connection.state[_IS_HEARD] = True
            connection.exit_stack.callback(self._stop, id(connection))
        if run is not None and (id(connection), uri) not in self._watches:
            tell, whose = connection.send_resource_updated, request.principal.name
            await self._watch((id(connection), uri), run, tell, whose)
        return types.EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        """Stop notifying the client of an address."""
        self._end((id(_connection_of(ctx)), str(params.uri)))
        return types.EmptyResult()

    def close(self) -> None:
        """End every stream and watch."""
        for handler in self._streams:
            handler.close()
        for key in list(self._watches):
            self._end(key)

    async def _watch(self, key: tuple[int, str], run: RunRow, tell: Tell, whose: str) -> None:
        if len(self._watches) >= MOST_WATCHES:
            raise _too_many("addresses", MOST_WATCHES)
        if whose and self._whose[whose] >= MOST_OF_ONE:
            raise _too_many("addresses of yours", MOST_OF_ONE)
        begun = asyncio.Event()
        task = asyncio.create_task(_tell_of_growth(self._hf, key[1], run, tell, begun))
        # Known before anything is awaited: a client that asks twice at once gets one.
        self._watches[key] = task
        self._whose[whose] += 1
        task.add_done_callback(lambda _: self._ended(key, task, whose))
        await begun.wait()

    def _ended(self, key: tuple[int, str], task: "asyncio.Task[None]", whose: str) -> None:
        self._end(key, task)
        self._whose[whose] -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("news of %s ended: %s", key[1], error)

    def _stop(self, listener: int) -> None:
        for key in list(self._watches):
            if key[0] == listener:
                self._end(key)

    def _end(self, key: tuple[int, str], ended: "asyncio.Task[None] | None" = None) -> None:
        """Forget a watch: the one that ended by itself, or any that is there."""
        task = self._watches.get(key)
        if task is not None and ended in (None, task):
            del self._watches[key]
            task.cancel()


def _too_many(what: str, most: int) -> MCPError:
    message = f"{most} {what} are listened to already; read again now and then, or listen later"
    return MCPError(code=types.INTERNAL_ERROR, message=message)


async def _seen(request: ClientRequest, uris: list[str]) -> dict[str, RunRow]:
    """The runs at addresses, of those that the caller may see."""
    found: dict[str, RunRow] = {}
    for uri in map(str, uris[:MOST_OF_ONE]):
        with suppress(NotFoundError, MisuseError):
            if (run := await resources.run_at(request, uri)) is not None:
                found[uri] = run
    return found


async def _tell_of_growth(
    hf: Holdfast, uri: str, run: RunRow, tell: Tell, begun: asyncio.Event
) -> None:
    """Notify whenever the record has grown; for a result, when it is there."""
    try:
        seen = await hf.journal.head(run.run_id)
    finally:
        begun.set()
    is_result = addresses.parts_of(uri, addresses.RESULT) is not None
    while run.status not in ENDED:
        try:
            run = await hf.runs.changed(run, timeout=_LOOK_SECONDS)
            head = await hf.journal.head(run.run_id)
        except UnavailableError:
            await asyncio.sleep(_LOOK_SECONDS)
            continue
        if head > seen and (not is_result or run.status in ENDED):
            await tell(uri)
        seen = head


def _connection_of(ctx: Context) -> Connection:
    """The connection that a request came over: it outlives the request."""
    session: Any = ctx.session  # which shows its connection to no handler in another way
    return session._connection
