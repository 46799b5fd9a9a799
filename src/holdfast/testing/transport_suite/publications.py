"""Publishing: a key counts once, nothing comes too early, and what is sent arrives as it was."""

import asyncio

import pytest

from holdfast.clock import SystemClock, seconds
from holdfast.errors import InvalidIdentifier, MisuseError
from holdfast.testing.store_suite.backend import async_test
from holdfast.testing.transport_suite.carrier import Carrier, Consumer, opened

ODD_NAMES = (
    "agents.billing",
    "with space",
    "stars.*.and.>",
    "ünïcode/ŝlash",
    "$JS.API.>",
    "q" * 255,
    "Upper",
    "upper",
)


class PublishingSuite:
    """What a transport guarantees to those who send."""

    @async_test
    async def test_message_arrives_as_it_was_sent(self, carrier: Carrier) -> None:
        headers = {"kind": "request", "ünïcode": "wért\r\nNats-Msg-Id: x\0", "empty": ""}
        async with opened(carrier) as sender, opened(carrier) as receiver:
            assert await sender.publish("inbox", b"\x00\xff body", key="k 1", headers=headers)
            async with Consumer(receiver, "inbox") as consumer:
                got = await consumer.next()
                assert (got.queue, got.key, got.body) == ("inbox", "k 1", b"\x00\xff body")
                assert dict(got.headers) == headers
                assert got.attempt == 1
                assert await got.ack()

    @async_test
    async def test_key_is_published_once_in_its_queue(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            assert await transport.publish("inbox", b"first", key="one")
            assert not await transport.publish("inbox", b"second", key="one")
            assert await transport.publish("other", b"elsewhere", key="one")
            async with Consumer(transport, "inbox") as consumer:
                got = await consumer.next()
                assert got.body == b"first"
                assert await got.ack()
                assert not await transport.publish("inbox", b"third", key="one")
                assert await transport.publish("inbox", b"next", key="two")
                assert (await consumer.next()).key == "two"

    @async_test
    async def test_key_published_at_once_by_many_counts_once(self, carrier: Carrier) -> None:
        async with opened(carrier) as here, opened(carrier) as there:
            sent = [
                transport.publish("inbox", b"", key=f"k{n % 5}")
                for n in range(20)
                for transport in (here, there)
            ]
            assert sum(await asyncio.gather(*sent)) == 5
            async with Consumer(here, "inbox", prefetch=10) as consumer:
                got = [await consumer.next() for _ in range(5)]
                assert {each.key for each in got} == {f"k{n}" for n in range(5)}
                assert all([await each.ack() for each in got])

    @async_test
    async def test_messages_come_in_the_order_they_were_sent(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            for n in range(20):
                await transport.publish("inbox", b"%d" % n, key=f"k{n}", ordering="run")
            async with Consumer(transport, "inbox", prefetch=7) as consumer:
                got: list[bytes] = []
                for _ in range(20):
                    delivery = await consumer.next()
                    got.append(delivery.body)
                    assert await delivery.ack()
            assert got == [b"%d" % n for n in range(20)]

    @async_test
    async def test_message_is_not_delivered_before_its_time(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            due_at = SystemClock().now() + seconds(1.5)
            await transport.publish("inbox", b"late", key="late", not_before=due_at)
            await transport.publish("inbox", b"now", key="now", not_before=1)
            async with Consumer(transport, "inbox") as consumer:
                got = await consumer.next()
                assert (got.key, await got.ack()) == ("now", True)
                got = await consumer.next()
                assert got.key == "late"
                assert SystemClock().now() >= due_at - seconds(0.1)
                assert (got.body, got.attempt, await got.ack()) == (b"late", 1, True)

    @async_test
    async def test_cancelled_message_is_not_delivered(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            later = SystemClock().now() + seconds(3600)
            for key in ("one", "two"):
                await transport.publish("inbox", b"", key=key)
            await transport.publish("inbox", b"", key="later", not_before=later)
            assert await transport.cancel("inbox", "one")
            assert await transport.cancel("inbox", "later")
            assert not await transport.cancel("inbox", "one")
            assert not await transport.cancel("inbox", "never sent")
            async with Consumer(transport, "inbox") as consumer:
                got = await consumer.next()
                assert got.key == "two"
                assert not await transport.cancel("inbox", "two")
                assert await got.ack()
            assert not await transport.cancel("inbox", "two")

    @async_test
    async def test_large_message_arrives_whole(self, carrier: Carrier) -> None:
        body = bytes(range(256)) * 8192
        async with opened(carrier) as sender, opened(carrier) as receiver:
            assert await sender.publish("inbox", body, key="big", headers={"a": "b"})
            assert not await sender.publish("inbox", body, key="big")
            async with Consumer(receiver, "inbox") as consumer:
                got = await consumer.next()
                assert got.body == body
                await got.retry()
                again = await consumer.next()
                assert (again.body == body, again.attempt) == (True, 2)
                assert dict(again.headers) == {"a": "b"}
                assert await again.ack()

    @async_test
    async def test_queues_with_odd_names_are_apart(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            for name in ODD_NAMES:
                assert await transport.publish(name, name.encode(), key=name)
            for name in reversed(ODD_NAMES):
                async with Consumer(transport, name) as consumer:
                    got = await consumer.next()
                    assert (got.queue, got.key, got.body) == (name, name, name.encode())
                    assert await got.ack()

    @async_test
    async def test_what_cannot_be_sent_is_refused(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            for bad in ("", "new\nline", "x" * 256):
                with pytest.raises(InvalidIdentifier):
                    await transport.publish(bad, b"", key="k")
                with pytest.raises(InvalidIdentifier):
                    await transport.publish("inbox", b"", key=bad)
            with pytest.raises(MisuseError):
                await transport.publish("inbox", b"", key="k", headers={"n": 1})  # pyright: ignore[reportArgumentType] - what is wrong with it
            assert await transport.publish("inbox", b"", key="k")
