"""Messages of the outbox: claimed while they are delivered, each alone, and never for nothing."""

import asyncio
from collections.abc import Sequence

import pytest

import holdfast
from holdfast import Settings, WaitSpec
from holdfast.engine.messages.courier import Courier, in_order, one_by_one
from holdfast.engine.messages.queues import Queues
from holdfast.engine.waits import PeerRun
from holdfast.errors import StoreBusy
from holdfast.kernel.messages import OUTBOX, QueuedMessage
from holdfast.kernel.peers import STORE
from holdfast.peers.transports.store_queue import StoreQueue
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.postgres import until
from tests.proxy import Proxy

SHORT = 0.6
OWED = 60


async def owe_replies(hf: holdfast.Holdfast, number: int) -> None:
    """Let runs of peers end, and nobody deliver what they owe."""
    caller = await hf.runs.open("caller")
    specs = [
        WaitSpec(wait_id=f"w{n}", kind="peer", name="p", address=STORE, peer_run=PeerRun("p", n))
        for n in range(number)
    ]
    await caller.open_waits(specs, suspend=True)

    async def end(n: int) -> None:
        await (await hf.runs.open(f"w{n}")).complete(n)

    await asyncio.gather(*(end(n) for n in range(number)))


@async_test
async def test_deliveries_that_take_longer_than_a_claim_come_to_an_end(postgres_url: str) -> None:
    async with holdfast.open(postgres_url) as hf:
        await owe_replies(hf, OWED)
    settings = Settings(lease_seconds=SHORT, pool_connections=2)
    with Proxy(postgres_url) as proxy:
        async with (
            holdfast.open(proxy.url(postgres_url), settings=settings) as one,
            holdfast.open(proxy.url(postgres_url), settings=settings) as other,
            holdfast.open(postgres_url) as onlooker,
        ):
            proxy.delay = 0.02
            delivering = [
                asyncio.create_task(hf.leases.outbox.keep_delivering()) for hf in (one, other)
            ]
            async with asyncio.timeout(20):
                while await Queues(onlooker._context).count(OUTBOX):
                    await asyncio.sleep(0.1)
            for task in delivering:
                task.cancel()
            await asyncio.wait(delivering)
            answers = await onlooker.waits.of_run("caller")
            assert {wait.status for wait in answers} == {"resolved"}


@async_test
async def test_courier_whose_messages_could_not_be_split_claims_again(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues, delivered = Queues(hf._context), set[str]()
        fails = [True]

        def split(messages: Sequence[QueuedMessage]) -> list[list[QueuedMessage]]:
            if fails and fails.pop():
                raise ValueError("an order that cannot be read")
            return one_by_one(messages)

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            for message in messages:
                delivered.add(message.message_id)
                await queues.ack(message)

        courier = Courier(queues, "q", deliver, lease=SHORT, split=split)
        for n in range(OWED):
            await queues.publish("q", key=f"k{n}")
        with pytest.raises(ValueError, match="cannot be read"):
            await courier.deliver_due()
        async with asyncio.timeout(20):
            while len(delivered) < OWED:  # until the claims of the first are over
                await courier.deliver_due()
                await asyncio.sleep(0.05)


@async_test
async def test_slow_message_stays_claimed_and_holds_up_nobody(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url) as other:
        queues, others = Queues(hf._context), Queues(other._context)
        may_end, delivered = asyncio.Event(), list[str]()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            for message in messages:
                if message.message_id == "slow":
                    await may_end.wait()
                delivered.append(message.message_id)
                await queues.ack(message)

        courier = Courier(queues, "q", deliver, lease=SHORT, split=one_by_one)
        for key in ("slow", "a", "b"):
            await queues.publish("q", key=key)
        delivering = asyncio.create_task(courier.keep_delivering(0.1))
        await until(lambda: sorted(delivered) == ["a", "b"])
        taken_at = hf._context.now()
        while hf._context.now() < taken_at + 3 * SHORT * 1_000_000:
            assert await others.take("q", lease=SHORT, limit=9) == []
            await asyncio.sleep(SHORT / 10)
        await queues.publish("q", key="c")
        await until(lambda: "c" in delivered)
        may_end.set()
        await until(lambda: "slow" in delivered)
        delivering.cancel()
        await asyncio.wait([delivering])
        assert sorted(delivered) == ["a", "b", "c", "slow"]


@async_test
async def test_message_that_fails_backs_off_alone(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues, tried = Queues(hf._context), list[str]()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            for message in messages:
                tried.append(message.message_id)
                if message.message_id == "bad":
                    raise StoreBusy("its run is locked")
                await queues.ack(message)

        courier = Courier(queues, "q", deliver, lease=60.0, split=one_by_one)
        for n in range(100):
            await queues.publish("q", key="bad" if n == 50 else f"k{n}")
        assert await courier.deliver_due() == 100
        assert len(tried) == len(set(tried)) == 100
        assert (await queues.count("q"))["ready"] == 1


@async_test
async def test_courier_claims_many_messages_at_once_or_none(backend: Backend) -> None:
    """A claim for one message costs as much as one for many, so it waits until many fit."""
    limits: list[int] = []

    class RecordingQueues(Queues):
        async def take(self, queue: str, *, lease: float, limit: int = 1) -> list[QueuedMessage]:
            limits.append(limit)
            return await super().take(queue, lease=lease, limit=limit)

    async with holdfast.open(backend.url) as hf:
        queues, may_end = RecordingQueues(hf._context), asyncio.Semaphore(0)
        delivered = asyncio.Queue[str]()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            for message in messages:
                await may_end.acquire()
                await queues.ack(message)
                delivered.put_nowait(message.message_id)

        courier = Courier(queues, "q", deliver, lease=60.0, split=one_by_one)
        await asyncio.gather(*(queues.publish("q", key=f"k{n}") for n in range(80)))
        delivering = asyncio.create_task(courier.deliver_due())
        for _ in range(80):
            may_end.release()
            await delivered.get()
        assert await delivering == 80
    assert len(limits) > 1
    assert min(limits) >= 16


@async_test
async def test_claim_covers_no_more_than_can_be_delivered_within_it(backend: Backend) -> None:
    """Slow deliveries let a courier claim fewer messages at once, and quick ones more again."""
    async with holdfast.open(backend.url) as hf:
        queues, pause = Queues(hf._context), 0.6 * SHORT
        working, peaks = 0, list[int]()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            nonlocal working
            working += len(messages)
            peaks.append(working)
            await asyncio.sleep(pause)
            for message in messages:
                await queues.ack(message)
            working -= len(messages)

        courier = Courier(queues, "q", deliver, lease=SHORT, split=one_by_one)
        await asyncio.gather(*(queues.publish("q", key=f"slow-{n}") for n in range(150)))
        assert await courier.deliver_due() == 150
        assert max(peaks) == 64
        assert max(peaks[-8:]) <= 8
        pause = 0.0
        await asyncio.gather(*(queues.publish("q", key=f"quick-{n}") for n in range(60)))
        await courier.deliver_due()
        pause, peaks = 0.6 * SHORT, []
        await asyncio.gather(*(queues.publish("q", key=f"last-{n}") for n in range(60)))
        await courier.deliver_due()
        assert max(peaks) > 8


@async_test
async def test_messages_of_one_ordering_are_delivered_one_after_another(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues, delivered = Queues(hf._context), list[str]()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            for message in messages:
                await asyncio.sleep(0)
                delivered.append(message.message_id)
                await queues.ack(message)

        courier = Courier(queues, "q", deliver, lease=60.0, split=in_order)
        for n in range(40):
            await queues.publish("q", key=f"{n % 2}-{n:02}", ordering=str(n % 2))
        assert await courier.deliver_due() == 40
        for which in ("0", "1"):
            of_one = [key for key in delivered if key.startswith(which)]
            assert of_one == sorted(of_one)
            assert len(of_one) == 20


@async_test
async def test_what_was_delivered_is_forgotten_though_its_claim_was_lost(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url) as other:
        queues, others = Queues(hf._context), Queues(other._context)
        await queues.publish(OUTBOX, key="owed")
        (message,) = await queues.take(OUTBOX, lease=0.001)
        again: list[QueuedMessage] = []
        while not again:
            again = await others.take(OUTBOX, lease=60)
        assert await queues.ack(message)
        assert not await others.ack(again[0])
        assert await queues.count(OUTBOX) == {}


@async_test
async def test_stopped_courier_leaves_what_others_here_deliver(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        queues, may_end, begun = Queues(hf._context), asyncio.Event(), asyncio.Event()

        async def deliver(messages: Sequence[QueuedMessage]) -> None:
            begun.set()
            await may_end.wait()
            for message in messages:
                await queues.ack(message)

        courier = Courier(queues, "q", deliver, lease=60.0, split=one_by_one)
        await queues.publish("q", key="a")
        delivering = asyncio.create_task(courier.deliver_due())
        await begun.wait()
        keeping = asyncio.create_task(courier.keep_delivering(0.1))
        await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait([keeping])
        may_end.set()
        assert await delivering == 1
        assert (await queues.count("q")).get("ready", 0) == 0


@async_test
async def test_messages_fetched_ahead_stay_claimed_until_they_are_asked_for(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url) as other:
        transport, others = StoreQueue(hf._context), Queues(other._context)
        await transport.open()
        for key in ("a", "b", "c"):
            await transport.publish("q", b"", key=key)
        consuming = transport.consume("q", lease=SHORT, prefetch=3)
        first = await anext(consuming)
        begun_at = hf._context.now()
        while hf._context.now() < begun_at + 3 * SHORT * 1_000_000:
            assert await first.extend()
            assert await others.take("q", lease=60, limit=9) == []
            await asyncio.sleep(SHORT / 10)
        rest = [await anext(consuming), await anext(consuming)]
        assert [(each.key, each.attempt) for each in rest] == [("b", 1), ("c", 1)]
        await consuming.aclose()
        await transport.close()
