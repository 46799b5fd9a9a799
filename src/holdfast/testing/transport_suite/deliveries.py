"""Delivering: to one consumer at a time, again if it was not acknowledged, never after it was."""

import asyncio

import pytest

from holdfast.errors import MisuseError
from holdfast.testing.store_suite.backend import async_test
from holdfast.testing.transport_suite.carrier import Carrier, Consumer, opened

SHORT = 3.0  # long enough that a busy machine acknowledges or extends within it


class DeliveringSuite:
    """What a transport guarantees to those who receive."""

    @async_test
    async def test_message_comes_to_a_consumer_that_waits_for_it(self, carrier: Carrier) -> None:
        async with (
            opened(carrier) as sender,
            opened(carrier) as receiver,
            Consumer(receiver, "inbox") as consumer,
        ):
            asked = consumer.ask()
            await sender.publish("inbox", b"hello", key="one")
            assert (await asked).body == b"hello"

    @async_test
    async def test_message_whose_lease_is_lost_is_delivered_again(self, carrier: Carrier) -> None:
        async with opened(carrier) as here, opened(carrier) as there:
            await here.publish("inbox", b"once", key="one")
            async with Consumer(here, "inbox", lease=SHORT) as first:
                lost = await first.next()
                async with Consumer(there, "inbox", lease=SHORT) as second:
                    again = await second.next()
                    assert (again.key, again.attempt, again.body) == ("one", 2, b"once")
                    assert await again.ack()
                    await lost.ack()
                    # Nothing is left: the next one that comes is the next one sent.
                    await here.publish("inbox", b"", key="two")
                    assert (await second.next()).key == "two"

    @async_test
    async def test_extended_lease_keeps_the_message(self, carrier: Carrier) -> None:
        async with opened(carrier) as here, opened(carrier) as there:
            await here.publish("inbox", b"", key="one")
            async with (
                Consumer(here, "inbox", lease=SHORT) as first,
                Consumer(there, "inbox", lease=SHORT) as second,
            ):
                kept = await first.next()
                asked = second.ask()
                for _ in range(6):
                    assert await kept.extend()
                    done, _ = await asyncio.wait([asked], timeout=SHORT / 4)
                    assert not done
                assert await kept.ack()
                await here.publish("inbox", b"", key="two")
                assert (await second.next()).key == "two"

    @async_test
    async def test_message_given_back_comes_again(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            await transport.publish("inbox", b"x", key="one")
            async with Consumer(transport, "inbox") as consumer:
                for attempt in (1, 2, 3):
                    got = await consumer.next()
                    assert (got.key, got.attempt) == ("one", attempt)
                    await got.retry(note="not yet")
                got = await consumer.next()
                await got.retry(0.5)
                asked = consumer.ask()
                await transport.publish("inbox", b"", key="meanwhile")
                between = await asked
                assert (between.key, await between.ack()) == ("meanwhile", True)
                got = await consumer.next()
                assert (got.key, got.attempt, await got.ack()) == ("one", 5, True)

    @async_test
    async def test_message_given_back_comes_before_those_sent_after_it(
        self, carrier: Carrier
    ) -> None:
        async with opened(carrier) as transport:
            for key in ("one", "two"):
                await transport.publish("inbox", b"", key=key, ordering="run")
            async with Consumer(transport, "inbox") as consumer:
                await (await consumer.next()).retry()
                for key, attempt in (("one", 2), ("two", 1)):
                    got = await consumer.next()
                    assert (got.key, got.attempt, await got.ack()) == (key, attempt, True)

    @async_test
    async def test_consumers_share_the_messages(self, carrier: Carrier) -> None:
        got: list[str] = []

        async with opened(carrier) as here, opened(carrier) as there:
            for n in range(60):
                await here.publish("inbox", b"", key=f"k{n}")
            everything = asyncio.Event()

            async def consume(consumer: Consumer) -> int:
                count = 0
                while not everything.is_set():
                    asked = consumer.ask()
                    ended = asyncio.ensure_future(everything.wait())
                    await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
                    ended.cancel()
                    if not asked.done():
                        break
                    delivery = asked.result()
                    got.append(delivery.key)
                    assert delivery.attempt == 1
                    assert await delivery.ack()
                    count += 1
                    if len(got) == 60:
                        everything.set()
                return count

            async with (
                Consumer(here, "inbox", prefetch=3) as first,
                Consumer(here, "inbox") as second,
                Consumer(there, "inbox") as third,
            ):
                counts = await asyncio.gather(*map(consume, (first, second, third)))
            assert sum(counts) == 60
            assert sorted(got) == sorted(f"k{n}" for n in range(60))

    @async_test
    async def test_acknowledging_twice_is_harmless(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            await transport.publish("inbox", b"", key="one")
            async with Consumer(transport, "inbox") as consumer:
                got = await consumer.next()
                assert await got.ack()
                await got.ack()
                await got.retry()
                await transport.publish("inbox", b"", key="two")
                assert (await consumer.next()).key == "two"

    @async_test
    async def test_dead_message_is_kept_with_its_reason(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            await transport.publish("inbox", b"bad", key="one", headers={"a": "b"})
            await transport.publish("inbox", b"good", key="two")
            async with Consumer(transport, "inbox") as consumer:
                got = await consumer.next()
                await got.dead("cannot be read: ünïcode\nand a line")
                assert (await consumer.next()).key == "two"
                (letter,) = await transport.dead_letters("inbox")
                assert (letter.queue, letter.key, letter.body) == ("inbox", "one", b"bad")
                assert letter.reason == "cannot be read: ünïcode\nand a line"
                assert (letter.headers, letter.attempt) == ({"a": "b"}, 1)
                assert await transport.dead_letters("other") == []
                assert not await transport.publish("inbox", b"again", key="one")

    @async_test
    async def test_dead_message_can_be_put_back(self, carrier: Carrier) -> None:
        async with opened(carrier) as transport:
            for key in ("one", "two"):
                await transport.publish("inbox", key.encode(), key=key, headers={"a": key})
            async with Consumer(transport, "inbox") as consumer:
                for _ in range(2):
                    await (await consumer.next()).dead("no")
                assert [d.key for d in await transport.dead_letters("inbox")] == ["one", "two"]
                assert len(await transport.dead_letters("inbox", limit=1)) == 1
                assert await transport.requeue("inbox", "one")
                assert not await transport.requeue("inbox", "one")
                assert not await transport.requeue("inbox", "never sent")
                got = await consumer.next()
                assert (got.key, got.body, got.attempt) == ("one", b"one", 1)
                assert (dict(got.headers), await got.ack()) == ({"a": "one"}, True)
                assert [d.key for d in await transport.dead_letters("inbox")] == ["two"]

    @async_test
    async def test_closing_ends_consumers(self, carrier: Carrier) -> None:
        transport = carrier.transport()
        await transport.open()
        consumer = Consumer(transport, "inbox")
        await transport.publish("inbox", b"", key="one")
        assert await (await consumer.next()).ack()
        asked = consumer.ask()
        await transport.close()
        with pytest.raises(StopAsyncIteration):
            await asked
        with pytest.raises(MisuseError):
            await transport.publish("inbox", b"", key="two")

    @async_test
    async def test_what_was_fetched_ahead_is_given_back_on_close(self, carrier: Carrier) -> None:
        async with opened(carrier) as here:
            for n in range(3):
                await here.publish("inbox", b"", key=f"k{n}")
            there = carrier.transport()
            await there.open()
            ahead = Consumer(there, "inbox", prefetch=3)
            assert await (await ahead.next()).ack()
            await there.close()
            async with Consumer(here, "inbox") as consumer:
                got = {(await consumer.next()).key for _ in range(2)}
                assert got == {"k1", "k2"}
