"""Transports when their servers die, and what is particular to each of them."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import RetentionPolicy, StreamConfig

import holdfast
from holdfast.clock import SystemClock, seconds
from holdfast.engine.messages.queues import Queues
from holdfast.errors import InvalidSetting, MisuseError, StoreClosed, TransportUnavailable
from holdfast.kernel.messages import OUTBOX, MessageStatus
from holdfast.peers import Transport, open_transport
from holdfast.peers.transports.jetstream_names import locate_nats, token
from holdfast.peers.transports.store_queue import StoreQueue
from holdfast.settings import Settings, shown_transport
from holdfast.testing.clocks import ManualClock
from holdfast.testing.nats import NatsServer, nats_server
from holdfast.testing.store_suite import async_test
from holdfast.testing.transport_suite import Consumer
from tests.backends import Backend
from tests.conftest import OwnPostgres
from tests.flowing import KEYS, send_and_receive_while


def queues_of(hf: holdfast.Holdfast) -> Queues:
    """What the engine has, without a transport."""
    return Queues(hf._context)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path / "nats") as server:
        yield server


def test_broker_killed_while_messages_flow_loses_none(
    broker: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="holdfast")
    received = asyncio.run(
        send_and_receive_while(broker.restart, lambda: open_transport(broker.url))
    )
    assert set(received) == KEYS
    told = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    assert len(told) == 2, "one line for each connection"
    assert all("was lost; it is made again" in line for line in told)


def test_postgres_killed_while_messages_flow_loses_none(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    settings = Settings(busy_timeout_seconds=60)

    def restart() -> None:
        server.kill()
        server.restart()

    received = asyncio.run(
        send_and_receive_while(restart, lambda: open_transport(server.url(), settings=settings))
    )
    assert set(received) == KEYS


@async_test
async def test_broker_that_stays_away_is_told_of_and_nothing_is_lost(broker: NatsServer) -> None:
    transport = open_transport(f"{broker.url}?patience=1")
    await transport.open()
    await transport.publish("inbox", b"before", key="one")
    broker.kill()
    with pytest.raises(TransportUnavailable, match=r"did not do what was asked in 1 s"):
        await transport.publish("inbox", b"during", key="two")
    with pytest.raises(TransportUnavailable, match="no server answered"):
        await open_transport(f"{broker.url}?patience=0.5").open()
    broker.start()
    while True:
        try:
            # What the client kept back may have been sent by now: either way it is there once.
            await transport.publish("inbox", b"during", key="two")
            break
        except TransportUnavailable:
            continue
    async with Consumer(transport, "inbox") as consumer:
        assert {(await consumer.next()).key for _ in range(2)} == {"one", "two"}
    await transport.close()


@async_test
async def test_request_that_is_refused_is_repeated_after_a_pause(broker: NatsServer) -> None:
    transport = open_transport(f"{broker.url}?patience=2")
    await transport.open()
    client = await nats.connect(broker.url)
    await client.jetstream().delete_stream("HOLDFAST")
    asked: list[str] = []

    async def refuse(message: Msg) -> None:
        """Answer as a stream that has no leader."""
        asked.append(message.subject)
        await message.respond(b'{"error": {"code": 503, "err_code": 10008}}')

    await client.subscribe("holdfast.queue.>", cb=refuse)
    await client.flush()
    with pytest.raises(TransportUnavailable, match="did not do what was asked in 2 s"):
        await transport.publish("inbox", b"", key="one")
    assert 2 <= len(asked) <= 20
    await client.close()
    await transport.close()


@async_test
async def test_request_under_way_when_the_transport_is_closed_says_so(broker: NatsServer) -> None:
    transport = open_transport(broker.url)
    await transport.open()
    os.kill(broker.pid, signal.SIGSTOP)  # it answers nobody any more
    publishing = asyncio.create_task(transport.publish("inbox", b"", key="one"))
    await asyncio.sleep(0)
    await transport.close()
    with pytest.raises(StoreClosed, match="the transport was closed meanwhile"):
        await publishing


@async_test
async def test_server_without_schedules_delivers_late_messages_late_too(broker: NatsServer) -> None:
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(
        StreamConfig(
            name="OLD",
            subjects=["old.queue.>", "old.later.>"],
            retention=RetentionPolicy.WORK_QUEUE,
        )
    )
    await client.close()
    transport = open_transport(f"{broker.url}?stream=OLD&prefix=old")
    await transport.open()
    due_at = SystemClock().now() + seconds(1)
    await transport.publish("inbox", b"late", key="late", not_before=due_at)
    async with Consumer(transport, "inbox") as consumer:
        got = await consumer.next()
        assert SystemClock().now() >= due_at
        assert (got.key, await got.ack()) == ("late", True)
    await transport.close()


@async_test
async def test_body_of_a_large_message_goes_with_it(broker: NatsServer) -> None:
    transport = open_transport(broker.url)
    await transport.open()
    for key in ("acked", "cancelled"):
        await transport.publish("inbox", b"x" * 2_000_000, key=key)
    assert not await transport.publish("inbox", b"x" * 2_000_000, key="acked")
    assert await transport.cancel("inbox", "cancelled")
    async with Consumer(transport, "inbox") as consumer:
        assert await (await consumer.next()).ack()
    await transport.close()
    client = await nats.connect(broker.url)
    found = await client.jetstream().stream_info("OBJ_HOLDFAST_BODIES")
    assert found.state.messages == 0
    await client.close()


def test_nats_url_says_where_and_how() -> None:
    at = locate_nats("tls://me:s%40cret@a:1,b:2?replicas=3&stream=X&prefix=y&patience=2.5")
    assert at.servers == ("tls://a:1", "tls://b:2")
    assert (at.user, at.password, at.replicas, at.stream) == ("me", "s@cret", 3, "X")
    assert (at.prefix, at.patience, at.dead_stream) == ("y", 2.5, "X_DEAD")
    assert "cret" not in repr(at)
    assert "cret" not in at.shown
    assert locate_nats("nats://token@a").connecting() == {"token": "token"}
    for login in ("nats://me:s%40cret@a:1,b:2", "nats://me:s%40cret@a:1,nats://b:2"):
        url = f"{login}?replicas=3&creds=/etc/x"
        assert locate_nats(Settings(transport=url).transport).servers == (
            "nats://a:1",
            "nats://b:2",
        )
        assert shown_transport(url) == "nats://a:1,nats://b:2?replicas=3&creds=/etc/x"
    several = locate_nats("nats://me:s%40cret@a:1,nats://me:s%40cret@b:2,nats://c:3?replicas=3")
    assert several.servers == ("nats://a:1", "nats://b:2", "nats://c:3")
    assert (several.user, several.password, several.replicas) == ("me", "s@cret", 3)


@pytest.mark.parametrize(
    "url",
    [
        "nats://",
        "nats://host/path",
        "nats://u:secret@host?replicas=no",
        "nats://u:secret@host?replicas=0",
        "nats://u:secret@host?strem=X",
        "nats://u:secret@host?stream=a.b",
        "nats://u:secret@host,tls://u:secret@other",
        "nats://u:secret@host,nats://me:secret@other",
    ],
)
def test_nats_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        open_transport(url)
    assert "secret" not in str(refused.value)


def test_tokens_of_different_names_differ() -> None:
    odd = ["a.b", "a=2eb", "a b", "a*", ">", "é", "e", "x" * 200, "x" * 201, "." * 255]
    tokens = {token(name) for name in odd}
    assert len(tokens) == len(odd)
    assert all(len(each) <= 120 and not set(each) & set(" .*>/\\") for each in tokens)


# Queues of a store, below the transport.


@async_test
async def test_ordering_is_kept_by_many_consumers(store: str) -> None:
    """Whoever takes, the next of an ordering comes after the one before it is settled."""
    transports = [open_transport(store) for _ in range(3)]
    for transport in transports:
        await transport.open()
    for n in range(30):
        await transports[0].publish("inbox", b"%d" % n, key=f"k{n}", ordering=f"run-{n % 3}")
    in_hand: set[str] = set()
    done: list[int] = []
    everything = asyncio.Event()

    async def consume(transport: Transport) -> None:
        async for delivery in transport.consume("inbox", lease=30):
            number = int(delivery.body)
            ordering = f"run-{number % 3}"
            assert ordering not in in_hand
            in_hand.add(ordering)
            await asyncio.sleep(0)
            in_hand.remove(ordering)
            done.append(number)
            assert await delivery.ack()
            if len(done) == 30:
                everything.set()

    consuming = [asyncio.create_task(consume(each)) for each in transports for _ in range(2)]
    await everything.wait()
    for transport in transports:
        await transport.close()
    await asyncio.gather(*consuming)
    for rest in range(3):
        assert [n for n in done if n % 3 == rest] == list(range(rest, 30, 3))


@async_test
async def test_earlier_message_of_an_ordering_holds_back_later_ones(backend: Backend) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        queues = queues_of(hf)
        for key in ("a1", "b1", "a2", "a3", "b2"):
            await queues.publish("q", key=key, ordering=key[0])
        taken = await queues.take("q", lease=10, limit=3)
        assert [message.message_id for message in taken] == ["a1", "b1", "a2"]
        assert await queues.take("q", lease=10, limit=3) == []
        a1, b1, a2 = taken
        assert await queues.ack(b1)
        assert [m.message_id for m in await queues.take("q", lease=10, limit=3)] == ["b2"]
        assert await queues.dead(a1, "no")
        assert await queues.retry(a2, delay=5)
        assert await queues.take("q", lease=10, limit=3) == []
        clock.advance(5)
        assert [m.message_id for m in await queues.take("q", lease=10, limit=3)] == ["a2", "a3"]


@async_test
async def test_message_that_is_held_back_is_not_due_before_the_claim_of_the_earlier_one_ends(
    backend: Backend,
) -> None:
    """A consumer that waits for it would else ask again and again."""
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        queues = queues_of(hf)
        for key in ("a1", "a2"):
            await queues.publish("q", key=key, ordering="a")
        (taken,) = await queues.take("q", lease=10)
        assert taken.message_id == "a1"
        assert await queues.next_due("q") == clock.now() + seconds(10)


@async_test
async def test_delivery_that_was_lost_moves_nothing(backend: Backend) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        queues, others = queues_of(hf), queues_of(hf.another_worker())
        await queues.publish("q", b"body", key="one")
        (first,) = await queues.take("q", lease=10)
        assert await others.take("q", lease=10) == []
        clock.advance(10)
        assert await queues.extend(first, lease=10), "nobody else has it yet"
        assert await others.take("q", lease=10) == []
        clock.advance(10)
        (second,) = await others.take("q", lease=10)
        assert (second.attempts, second.worker != first.worker) == (2, True)
        assert not await queues.extend(first, lease=10)
        assert not await queues.ack(first)
        assert not await queues.retry(first)
        assert not await queues.dead(first, "mine")
        assert await others.ack(second)
        assert await others.ack(second), "twice is the same as once"
        assert await queues.count("q") == {"done": 1}


@async_test
async def test_done_messages_are_purged_after_their_keys_have_served(backend: Backend) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        queues = queues_of(hf)
        for key in ("one", "two", "three"):
            await queues.publish("q", key=key)
        for message in await queues.take("q", lease=10, limit=2):
            assert await queues.ack(message)
        clock.advance(299)
        assert not await queues.publish("q", key="one")
        clock.advance(1)
        (last,) = await queues.take("q", lease=10)
        assert await queues.ack(last)
        assert await queues.count("q") == {"done": 1}
        assert await queues.publish("q", key="one")


@async_test
async def test_outbox_forgets_what_is_done_at_once(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues = queues_of(hf)
        await queues.publish(OUTBOX, key="one")
        (message,) = await queues.take(OUTBOX, lease=10)
        assert message.status is MessageStatus.READY
        assert await queues.ack(message)
        assert await queues.count(OUTBOX) == {}
        assert await queues.next_due(OUTBOX) is None


@async_test
async def test_moves_of_one_message_at_once_are_made_one_after_another(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues = queues_of(hf)
        for n in range(20):
            await queues.publish("q", key=f"k{n}")
        taken = await queues.take("q", lease=30, limit=20)
        moves = [
            move
            for message in taken
            for move in (queues.extend(message, lease=30), queues.ack(message))
        ]
        moved = await asyncio.gather(*moves, *(queues.retry(message) for message in taken))
        assert moved == [True] * 40 + [False] * 20
        assert await queues.count("q") == {"done": 20}


@async_test
async def test_store_of_an_open_holdfast_carries_messages(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        transport = open_transport("store:", context=hf._context)
        with pytest.raises(StoreClosed):
            await transport.publish("q", b"", key="one")
        await transport.open()
        await transport.publish("q", b"", key="one")
        async with Consumer(transport, "q") as consumer:
            assert await (await consumer.next()).ack()
        await transport.close()
        await hf.runs.create("still open")
    with pytest.raises(MisuseError, match="none was given"):
        open_transport("store:")


@async_test
async def test_consumer_whose_store_is_closed_beneath_it_is_told(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        transport = open_transport("store:", context=hf._context)
        await transport.open()
    async with Consumer(transport, "q") as consumer:
        with pytest.raises(StoreClosed):
            await consumer.next()
    await transport.close()


@async_test
async def test_transport_keeps_nothing_of_consumers_that_have_ended(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        transport = StoreQueue(hf._context)
        await transport.open()
        for key in ("one", "two"):
            await transport.publish("q", b"", key=key)
            async with Consumer(transport, "q", prefetch=2) as consumer:
                assert await (await consumer.next()).ack()
        assert transport._prefetched == {"q": []}
        await transport.close()
