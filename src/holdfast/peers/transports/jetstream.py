"""The transport of agents that share no store: queues on NATS JetStream.

One work-queue stream holds the queues, each with one durable consumer that its workers share; dead
messages are in a separate stream. The server cannot take part in our commits, so what is sent
comes from an outbox, and what is received is acknowledged after it was committed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RawStreamMsg
from nats.js.errors import NotFoundError

from holdfast import clock, names
from holdfast.clock import MICROSECONDS, SystemClock, steady
from holdfast.engine.messages.queues import encode_headers
from holdfast.errors import StoreClosed
from holdfast.peers.transports.contract import NO_HEADERS, DeadLetter
from holdfast.peers.transports.jetstream_bodies import LARGEST_IN_MESSAGE, Bodies
from holdfast.peers.transports.jetstream_link import REQUEST_SECONDS, JetStreamLink
from holdfast.peers.transports.jetstream_names import NatsLocation, message_id, token
from holdfast.telemetry import log

# A request under way when a server dies is silent until its own time is over (nats.py #504).
FETCH_SECONDS: Final = 2.0
_ENVELOPE: Final = "Holdfast"
_LOOKED_THROUGH: Final = 10_000
_BODY_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.1


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a message says beside its body; `large` names a body that lies elsewhere."""

    key: str
    headers: dict[str, str] = {}
    large: str = ""
    not_before: int = 0
    reason: str = ""
    attempt: int = 0

    def header(self) -> dict[str, str]:
        """As a header of NATS: one line of ASCII, whatever is in it."""
        return {_ENVELOPE: json.dumps(msgspec.to_builtins(self))}


def envelope_of(message: Msg | RawStreamMsg) -> Envelope:
    """What a message says; one that is not ours has an empty key."""
    headers = cast("dict[str, str]", message.headers or {})  # pyright: ignore[reportUnknownMemberType] - untyped there
    try:
        return msgspec.json.decode(headers.get(_ENVELOPE, ""), type=Envelope)
    except msgspec.MsgspecError:
        return Envelope(key="")


@dataclass
class JetStreamDelivery:
    """A message of a queue, claimed by this process."""

    _transport: "JetStreamTransport"
    _message: Msg
    _envelope: Envelope
    queue: str
    body: bytes
    _lease: float
    _lost_at: int

    @property
    def key(self) -> str:
        return self._envelope.key

    @property
    def headers(self) -> Mapping[str, str]:
        return self._envelope.headers

    @property
    def attempt(self) -> int:
        return self._message.metadata.num_delivered

    async def ack(self) -> bool:
        """The server accepts a late one too, and rightly: the message is processed."""
        is_held = self._is_held()
        is_heard = await self._transport.tell(self._message, b"+ACK")
        if is_heard:
            await self._transport.bodies.drop(self._envelope.large)
        return is_held and is_heard

    async def retry(self, delay: float = 0.0, note: str = "") -> None:
        if note:
            log.debug("message %s of %s is given back: %s", self.key, self.queue, note)
        await self._transport.tell(self._message, _not_acked(delay))

    async def extend(self) -> bool:
        if not self._is_held():
            return False
        lost_at = steady() + clock.seconds(self._lease)
        is_heard = await self._transport.tell(self._message, b"+WPI")
        self._lost_at = lost_at if is_heard else 0
        return is_heard

    async def dead(self, reason: str) -> None:
        await self._transport.bury(self.queue, self._message, self._envelope, reason)

    def _is_held(self) -> bool:
        return steady() < self._lost_at


class JetStreamTransport:
    """Queues on the servers that a URL names."""

    def __init__(self, location: NatsLocation, *, max_body_bytes: int) -> None:
        self._at = location
        self._link = JetStreamLink(location)
        self._max_body_bytes = max_body_bytes
        self._clock = SystemClock()
        self._closed = asyncio.Event()
        self._closed.set()
        self._fetched: list[list[Msg]] = []
        self.bodies = Bodies(self._link)

    async def open(self) -> None:
        await self._link.open()
        self._closed.clear()

    async def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        for fetched in self._fetched:
            await self._give_back(fetched)
        await self._link.close()

    async def publish(
        self,
        queue: str,
        body: bytes,
        *,
        key: str,
        headers: Mapping[str, str] = NO_HEADERS,
        not_before: int | None = None,
        ordering: str = "",
    ) -> bool:
        """Messages of a queue are always in order, so `ordering` has no effect."""
        self._check()
        names.check(queue, what="queue")
        names.check(key, what="key")
        encode_headers(headers)
        names.check_size(body, most=self._max_body_bytes, what="the message")
        is_late = not_before is not None and not_before > self._clock.now()
        envelope = Envelope(
            key=key, headers=dict(headers), not_before=(not_before or 0) if is_late else 0
        )
        return await self._send(queue, body, envelope, message_id(queue, key))

    async def consume(
        self, queue: str, *, lease: float, prefetch: int = 1
    ) -> AsyncIterator[JetStreamDelivery]:
        self._check()
        names.check(queue, what="queue")
        fetched: list[Msg] = []
        self._fetched.append(fetched)
        subscription: JetStreamContext.PullSubscription | None = None
        try:
            while not self._closed.is_set():
                try:
                    subscription = subscription or await self._subscribe(queue, lease)
                    fetched += await self._fetch(subscription, prefetch)
                except (nats.errors.Error, StoreClosed, OSError) as error:
                    subscription = await self._after(error, subscription)
                    continue
                lost_at = steady() + clock.seconds(lease)
                while fetched and not self._closed.is_set():
                    message = fetched.pop(0)
                    if steady() < lost_at:
                        delivery = await self._delivery(queue, message, lease, lost_at)
                        if delivery is not None:
                            yield delivery
        finally:
            await self._give_back(fetched)
            self._fetched = [each for each in self._fetched if each is not fetched]
            await _unsubscribed(subscription)

    async def cancel(self, queue: str, key: str) -> bool:
        self._check()
        later = self._at.later(queue, key)
        with contextlib.suppress(NotFoundError):
            found = await self._link.asked(
                lambda: self._link.js.get_last_msg(self._at.stream, later)
            )
            return await self._deleted(self._at.stream, found)
        delivered = await self._delivered_upto(queue)
        subject = self._at.queue(queue)
        async for found in self._stored(self._at.stream, subject, after=delivered):
            if envelope_of(found).key == key:
                return await self._deleted(self._at.stream, found)
        return False

    async def dead_letters(self, queue: str, *, limit: int = 100) -> list[DeadLetter]:
        self._check()
        letters: list[DeadLetter] = []
        if not names.check_count(limit, what="limit"):
            return letters
        async for found in self._stored(self._at.dead_stream, self._at.dead(queue)):
            envelope = envelope_of(found)
            letters.append(
                DeadLetter(
                    queue=queue,
                    key=envelope.key,
                    reason=envelope.reason,
                    body=await self._body(found, envelope) or b"",
                    headers=envelope.headers,
                    attempt=envelope.attempt,
                )
            )
            if len(letters) == limit:
                break
        return letters

    async def requeue(self, queue: str, key: str) -> bool:
        self._check()
        async for found in self._stored(self._at.dead_stream, self._at.dead(queue)):
            envelope = envelope_of(found)
            if envelope.key != key:
                continue
            again = msgspec.structs.replace(envelope, reason="", attempt=0, not_before=0)
            # A new id: that of the message itself is already used.
            id_ = f"again:{found.seq}:{message_id(queue, key)}"
            await self._published(self._at.queue(queue), found.data or b"", again.header(), id_)
            await self._drop(self._at.dead_stream, found)
            return True
        return False

    async def bury(self, queue: str, message: Msg, envelope: Envelope, reason: str) -> None:
        """Copy a message to those that are dead, then end its life: it may be there twice."""
        self._check()
        dead = msgspec.structs.replace(
            envelope, reason=reason, attempt=message.metadata.num_delivered
        )
        id_ = f"dead:{message.metadata.sequence.stream}:{message_id(queue, envelope.key)}"
        await self._published(self._at.dead(queue), message.data, dead.header(), id_)
        await self.tell(message, b"+TERM")

    async def tell(self, message: Msg, what: bytes) -> bool:
        """Report the outcome of a delivery; False if the server knows of no such delivery."""
        self._check()
        return await self._link.report(message.reply, what)

    async def _send(self, queue: str, body: bytes, envelope: Envelope, id_: str) -> bool:
        headers: dict[str, str] = {}
        subject = self._at.queue(queue)
        if envelope.not_before and self._link.has_schedules:
            headers = {"Nats-Schedule-Target": subject, "Nats-Schedule": _at(envelope.not_before)}
            subject = self._at.later(queue, envelope.key)
        if len(body) > LARGEST_IN_MESSAGE:
            envelope = msgspec.structs.replace(envelope, large=await self.bodies.put(body))
            body = b""
        is_new = await self._published(subject, body, headers | envelope.header(), id_)
        if not is_new:
            await self.bodies.drop(envelope.large)
        return is_new

    async def _published(
        self, subject: str, body: bytes, headers: dict[str, str], id_: str
    ) -> bool:
        headers = {**headers, "Nats-Msg-Id": id_}
        acknowledged = await self._link.asked(
            lambda: self._link.js.publish(subject, body, timeout=REQUEST_SECONDS, headers=headers)
        )
        return not acknowledged.duplicate

    async def _subscribe(self, queue: str, lease: float) -> JetStreamContext.PullSubscription:
        name = token(queue)
        wanted = ConsumerConfig(
            durable_name=name,
            filter_subject=self._at.queue(queue),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=lease,
            max_deliver=-1,
        )
        await self._link.make_consumer(wanted)
        return await self._link.js.pull_subscribe_bind(consumer=name, stream=self._at.stream)

    async def _fetch(
        self, subscription: JetStreamContext.PullSubscription, number: int
    ) -> list[Msg]:
        """Fetch messages, waiting a little if there are none; closing ends it."""
        fetching = asyncio.ensure_future(subscription.fetch(number, timeout=FETCH_SECONDS))
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait([fetching, closing], return_when=asyncio.FIRST_COMPLETED)
            return fetching.result() if fetching.done() else []
        except nats.errors.TimeoutError:
            return []
        finally:
            fetching.cancel()
            closing.cancel()
            # Else the loop reports an error at its end that was never retrieved.
            await asyncio.gather(fetching, closing, return_exceptions=True)

    async def _after(
        self, error: Exception, subscription: JetStreamContext.PullSubscription | None
    ) -> None:
        """After an error of the server, pause before the retry, unless this is closed."""
        if not self._closed.is_set():
            log.debug("NATS at %s, consuming: %s", self._at.shown, error)
            await _unsubscribed(subscription)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), _PAUSE_SECONDS)

    async def _delivery(
        self, queue: str, message: Msg, lease: float, lost_at: int
    ) -> JetStreamDelivery | None:
        """Return a message for its consumer; None if it is too early, or has lost its body."""
        envelope = envelope_of(message)
        early = envelope.not_before - self._clock.now()
        if early > 0 and not self._link.has_schedules:
            await self.tell(message, _not_acked(early / MICROSECONDS))
            return None
        body = await self._body(message, envelope)
        if body is None:
            # Another consumer may just have acknowledged it; if not, retries cannot help.
            if message.metadata.num_delivered >= _BODY_ATTEMPTS:
                await self.bury(queue, message, envelope, "its body is gone from the object store")
            else:
                await self.tell(message, _not_acked(lease))
            return None
        return JetStreamDelivery(self, message, envelope, queue, body, lease, lost_at)

    async def _body(self, message: Msg | RawStreamMsg, envelope: Envelope) -> bytes | None:
        return await self.bodies.get(envelope.large) if envelope.large else message.data or b""

    async def _give_back(self, fetched: list[Msg]) -> None:
        while fetched:
            with contextlib.suppress(nats.errors.Error, StoreClosed):
                await self._link.report(fetched.pop().reply, _not_acked(0))

    async def _stored(
        self, stream: str, subject: str, *, after: int = 0
    ) -> AsyncIterator[RawStreamMsg]:
        """The messages of a subject that are stored, in order."""
        seq = after
        for _ in range(_LOOKED_THROUGH):
            wanted = seq + 1
            try:
                found = await self._link.asked(
                    lambda wanted=wanted: self._link.js.get_msg(
                        stream, seq=wanted, subject=subject, next=True
                    )
                )
            except NotFoundError:
                return
            assert found.seq is not None, "every stored message has one"
            seq = found.seq
            yield found

    async def _delivered_upto(self, queue: str) -> int:
        try:
            consumer = await self._link.asked(
                lambda: self._link.js.consumer_info(self._at.stream, token(queue))
            )
        except NotFoundError:
            return 0
        return consumer.delivered.stream_seq if consumer.delivered is not None else 0

    async def _deleted(self, stream: str, found: RawStreamMsg) -> bool:
        """Delete a stored message and its body; False if somebody was faster."""
        is_deleted = await self._drop(stream, found)
        await self.bodies.drop(envelope_of(found).large)
        return is_deleted

    async def _drop(self, stream: str, found: RawStreamMsg) -> bool:
        seq = found.seq
        assert seq is not None, "every stored message has one"
        try:
            return await self._link.asked(lambda: self._link.js.delete_msg(stream, seq))
        except NotFoundError:
            return False

    def _check(self) -> None:
        if self._closed.is_set():
            raise StoreClosed("the transport is not open; await its open() first")


async def _unsubscribed(subscription: JetStreamContext.PullSubscription | None) -> None:
    """Unsubscribe, so that the server delivers to others; ignore one that does not answer."""
    if subscription is not None:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()


def _not_acked(delay: float) -> bytes:
    if not delay:
        return b"-NAK"
    return b'-NAK {"delay": %d}' % (clock.seconds(delay) * 1000)


def _at(moment: int) -> str:
    """When a scheduled message is due, as the server reads it."""
    return f"@at {clock.to_datetime(moment):%Y-%m-%dT%H:%M:%S.%fZ}"
