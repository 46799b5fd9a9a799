"""The connection to NATS: it reconnects for ever, and retries requests for a while.

The client does not repeat a request that was lost with a connection, or made while a stream had no
leader. So every request here can be repeated: publishing has an id, and acknowledging twice is the
same as once.
"""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError
from nats.js.object_store import ObjectStore

from holdfast.errors import HoldfastError, StoreClosed, StoreNotPermitted, TransportUnavailable
from holdfast.peers.transports.jetstream_client import NoTls, SecureClient, is_refusal
from holdfast.peers.transports.jetstream_names import NatsLocation
from holdfast.telemetry import log

T = TypeVar("T")
REQUEST_SECONDS: Final = 2.0
DEDUPLICATED_SECONDS: Final = 300
_HEARD_SECONDS: Final = 1.0
_UNHEARD: Final = 3
# More than one, for a cluster some of whose servers are set up otherwise, or not yet.
_REFUSALS_A_SERVER: Final = 2
_OFF_FOR_SERVER, _OFF_FOR_ACCOUNT = 10076, 10039


class JetStreamLink:
    """A connection to the servers of one location, with our streams on them."""

    def __init__(self, location: NatsLocation) -> None:
        self.location = location
        self.has_schedules = False
        self._client: SecureClient | None = None
        self._js: JetStreamContext | None = None
        self._bodies: ObjectStore | None = None
        self._refusals: list[Exception] = []
        self._is_refused = asyncio.Event()

    @property
    def client(self) -> Client:
        if self._client is None:
            raise StoreClosed("the transport is not open; await its open() first")
        return self._client

    @property
    def js(self) -> JetStreamContext:
        if self._js is None:
            raise StoreClosed("the transport is not open; await its open() first")
        return self._js

    async def open(self) -> None:
        """Connect, and make the streams if they are missing."""
        self._refusals, self._is_refused = [], asyncio.Event()
        options = self.location.connecting()
        self._client = await self._connected(SecureClient(), options)
        self._js = self._untyped(self._client).jetstream(timeout=REQUEST_SECONDS)
        try:
            await self._make_streams()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        client, self._client, self._js, self._bodies = self._client, None, None, None
        if client is not None:
            await client.close()

    async def asked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it is answered, or the timeout has passed; return the answer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.location.patience
        pause = 0.05
        while True:
            try:
                return await work()
            except NotFoundError:
                raise
            except APIError as error:
                if self._is_without_jetstream(error):
                    raise self._has_no_jetstream() from error
                if not _may_pass(error):
                    raise
                reason: Exception = error
            except (nats.errors.Error, OSError) as error:
                if self._client is None:
                    raise StoreClosed("the transport was closed meanwhile") from error
                if isinstance(error, nats.errors.MaxPayloadError):
                    raise
                reason = error
            if loop.time() + pause > until:
                raise self._unavailable(str(reason) or type(reason).__name__) from reason
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 1.0)

    async def report(self, subject: str, payload: bytes) -> bool:
        """Report the outcome of a delivery; False if the server knows of no such delivery.

        A server that was killed may have lost its deliveries. Then it does not answer, and
        delivers the message again.
        """
        return await self.asked(lambda: self._is_heard(subject, payload))

    async def _is_heard(self, subject: str, payload: bytes) -> bool:
        for _ in range(_UNHEARD):
            was_connected = self.client.is_connected
            try:
                await self.client.request(subject, payload, timeout=_HEARD_SECONDS)
            except nats.errors.TimeoutError:
                if not (was_connected and self.client.is_connected):
                    raise
            else:
                return True
        return False

    async def bodies(self) -> ObjectStore:
        """The bucket of large bodies, made when it is first needed."""
        if self._bodies is None:
            self._bodies = await self.asked(self._make_bucket)
        return self._bodies

    async def make_consumer(self, wanted: ConsumerConfig) -> None:
        """Make a consumer of the queues' stream, or change it to what is wanted now."""
        await self._untyped(self.js).add_consumer(self.location.stream, wanted)

    async def _connected(self, client: SecureClient, options: dict[str, Any]) -> SecureClient:
        """Return the client, connected; raises the servers' error if they refuse us."""
        connecting = asyncio.ensure_future(self._connect(client, options))
        refused = asyncio.ensure_future(self._is_refused.wait())
        try:
            await asyncio.wait(
                [connecting, refused],
                timeout=self.location.patience,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if connecting.done():
                connecting.result()
                return client
        finally:
            is_connected = connecting.done()
            for task in (connecting, refused):
                task.cancel()
            await asyncio.gather(connecting, refused, return_exceptions=True)
            if not is_connected:
                await client.close()
        raise self._kept_out()

    async def _connect(self, client: SecureClient, options: dict[str, Any]) -> None:
        await self._untyped(client).connect(
            list(self.location.servers),
            name="holdfast",
            connect_timeout=2,
            reconnect_time_wait=0.25,
            max_reconnect_attempts=-1,
            ping_interval=5,
            max_outstanding_pings=2,
            error_cb=self._note,
            disconnected_cb=self._lost,
            reconnected_cb=self._found,
            **options,
        )

    async def _note(self, error: Exception) -> None:
        log.debug("NATS at %s: %s", self.location.shown, error)
        if self._client is None and (is_refusal(error) or isinstance(error, NoTls | ssl.SSLError)):
            self._refusals.append(error)
            if isinstance(error, ssl.SSLError):
                # The client waits forever for the end of what never was a connection: no 2nd try.
                self._refusals.append(error)
            if len(self._refusals) >= _REFUSALS_A_SERVER * len(self.location.servers):
                self._is_refused.set()

    async def _lost(self) -> None:
        if self._client is not None:
            log.warning(
                "the connection to NATS at %s was lost; it is made again, and nothing is lost",
                self.location.shown,
            )

    async def _found(self) -> None:
        log.info("NATS at %s is reached again", self.location.shown)

    async def _make_streams(self) -> None:
        at = self.location
        work = StreamConfig(
            name=at.stream,
            subjects=[f"{at.prefix}.queue.>", f"{at.prefix}.later.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            num_replicas=at.replicas,
            duplicate_window=DEDUPLICATED_SECONDS,
            allow_msg_schedules=True,
        )
        dead = StreamConfig(
            name=at.dead_stream,
            subjects=[f"{at.prefix}.dead.>"],
            retention=RetentionPolicy.LIMITS,
            num_replicas=at.replicas,
            duplicate_window=DEDUPLICATED_SECONDS,
        )
        made = await self.asked(lambda: self._stream(work))
        self.has_schedules = bool(made.allow_msg_schedules)
        await self.asked(lambda: self._stream(dead))

    async def _stream(self, wanted: StreamConfig) -> StreamConfig:
        """Return a stream's configuration on the server; an existing one is used unchanged."""
        assert wanted.name is not None, "given above"
        try:
            found = await self.js.stream_info(wanted.name)
        except NotFoundError:
            found = await self._untyped(self.js).add_stream(wanted)
        return found.config

    async def _make_bucket(self) -> ObjectStore:
        at = self.location
        return await self._untyped(self.js).create_object_store(at.bodies, replicas=at.replicas)

    @staticmethod
    def _untyped(client: Any) -> Any:
        """Return an object whose method parameters have no types in the client's library."""
        return client

    def _is_without_jetstream(self, error: APIError) -> bool:
        if error.err_code in (_OFF_FOR_SERVER, _OFF_FOR_ACCOUNT):
            return True
        # No server answers. Behind a server without JetStream another may, so ask first.
        is_silent = isinstance(error, ServiceUnavailableError) and error.err_code is None
        return is_silent and self._client is not None and not self._client.has_jetstream

    def _has_no_jetstream(self) -> TransportUnavailable:
        return TransportUnavailable(
            f"NATS at {self.location.shown} answers, and its JetStream is off: start it with "
            "nats-server -js -sd DIR, and let the account use it"
        )

    def _kept_out(self) -> HoldfastError:
        """Return the error of the servers that answered, or that none did."""
        if not self._refusals:
            return self._unavailable("no server answered")
        at, error = self.location.shown, self._refusals[-1]
        if is_refusal(error):
            return StoreNotPermitted(
                f"NATS at {at}: the server refuses these credentials; check user, password, "
                "token or ?creds= of the transport's URL"
            )
        if isinstance(error, NoTls):
            return TransportUnavailable(
                f"NATS at {at}: the server does not speak TLS, so nothing was sent; set up its "
                "tls {…} block, or write nats:// without ca= if clear text will do"
            )
        return TransportUnavailable(
            f"NATS at {at}: the server's certificate is not accepted ({error}); name the file of "
            "those to trust with ?ca="
        )

    def _unavailable(self, reason: str) -> TransportUnavailable:
        return TransportUnavailable(
            f"NATS at {self.location.shown} did not do what was asked in "
            f"{self.location.patience:g} s ({reason}); nothing that was acknowledged is lost, try "
            "again"
        )


def _may_pass(error: APIError) -> bool:
    """Return whether a retry may succeed: the server has no leader, or is not ready."""
    return error.code is None or error.code >= 500
