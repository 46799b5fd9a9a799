"""Whoever waits for a connection to PostgreSQL keeps its place, and fails only if nothing moves."""

import asyncio
import time

import pytest
from psycopg_pool import PoolTimeout

import holdfast
from holdfast.errors import StoreBusy, StoreClosed, StoreUnavailable
from holdfast.stores.postgres.pool_queue import PoolQueue, PoolStalled
from holdfast.testing.store_suite import async_test
from tests.postgres import until
from tests.proxy import Proxy


def connections_of(hf: holdfast.Holdfast):
    return hf._context.store._connections  # type: ignore[attr-defined]


def waiting_in(hf: holdfast.Holdfast) -> int:
    return sum(not turn.done() for turn in connections_of(hf)._queue._waiting)


def few(connections: int = 1, **given: float) -> holdfast.Settings:
    return holdfast.Settings(pool_connections=connections, **given)  # type: ignore[arg-type]


@async_test
async def test_long_queue_that_moves_is_waited_for_however_long_it_takes(postgres_url: str) -> None:
    async with holdfast.open(postgres_url, settings=few(busy_timeout_seconds=2.0)) as hf:

        async def work() -> None:
            async with connections_of(hf).lent():
                await asyncio.sleep(0.05)

        # Three seconds for the last one, which is more than the limit.
        await asyncio.gather(*(work() for _ in range(60)))


@async_test
async def test_a_thousand_creates_on_one_connection_all_succeed(postgres_url: str) -> None:
    settings = few(busy_timeout_seconds=8.0, lease_seconds=120.0)
    with Proxy(postgres_url) as proxy:
        proxy.delay = 0.003
        async with holdfast.open(proxy.url(postgres_url), settings=settings) as hf:
            # Each reads, writes and reads again on its own.
            made = await asyncio.gather(*(hf.runs.open(f"r{n}") for n in range(1000)))
            assert len(made) == 1000


@async_test
async def test_waiters_are_served_in_the_order_they_came(postgres_url: str) -> None:
    async with holdfast.open(postgres_url, settings=few()) as hf:
        served: list[int] = []

        async def work(number: int) -> None:
            async with connections_of(hf).lent():
                served.append(number)

        waiting: list[asyncio.Task[None]] = []
        async with connections_of(hf).lent():
            for number in range(6):
                waiting.append(asyncio.create_task(work(number)))
                # Some came before the others were asked to wait any longer.
                await asyncio.sleep(0.1)
        await asyncio.gather(*waiting)
        assert served == sorted(served)


@async_test
async def test_pool_whose_connections_are_all_stuck_is_busy(postgres_url: str) -> None:
    async with holdfast.open(postgres_url, settings=few(2, busy_timeout_seconds=4.0)) as hf:
        await hf.runs.create("a")
        async with connections_of(hf).lent(), connections_of(hf).lent():
            outcomes = await asyncio.gather(
                *(connections_of(hf).read(lambda _: asyncio.sleep(0)) for _ in range(5)),
                return_exceptions=True,
            )
        assert [type(each) for each in outcomes] == [StoreBusy] * 5
        assert "raise pool_connections" in str(outcomes[0])
        assert (await hf.runs.get("a")).run_id == "a"


@async_test
async def test_waiter_that_is_cancelled_gives_up_its_place_and_nobody_elses(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url, settings=few()) as hf:
        await hf.runs.create("a")
        for moments in range(10):
            async with connections_of(hf).lent():
                looking = [asyncio.create_task(hf.runs.get("a")) for _ in range(4)]
                await until(lambda: waiting_in(hf) == 4)
                looking[1].cancel()
            for _ in range(moments):
                await asyncio.sleep(0)
            looking[0].cancel()
            outcomes = await asyncio.gather(*looking, return_exceptions=True)
            assert isinstance(outcomes[1], asyncio.CancelledError)
            assert [run.run_id for run in outcomes[2:]] == ["a", "a"]  # type: ignore[union-attr]
        await until(lambda: connections_of(hf)._queue._free == 1)


@async_test
async def test_waiters_are_told_when_the_store_is_closed(postgres_url: str) -> None:
    async with holdfast.open(postgres_url, settings=few()) as hf:
        await hf.runs.create("a")
        connections = connections_of(hf)
        release = asyncio.Event()

        async def hold() -> None:
            async with connections.lent():
                await release.wait()

        holding = asyncio.create_task(hold())
        await until(lambda: connections._queue._free == 0)
        looking = [asyncio.create_task(hf.runs.get("a")) for _ in range(3)]
        await until(lambda: waiting_in(hf) == 3)
        closing = asyncio.create_task(connections.close())
        outcomes = await asyncio.gather(*looking, return_exceptions=True)
        assert [type(each) for each in outcomes] == [StoreClosed] * 3
        release.set()
        await asyncio.gather(closing, holding)


@async_test
async def test_waiter_whose_time_ends_while_the_store_closes_is_told_of_that(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url, settings=few()) as hf:
        connections = connections_of(hf)
        closing: list[asyncio.Task[None]] = []

        async def time_out(timeout: float) -> None:
            closing.append(asyncio.create_task(connections.close()))
            await until(lambda: connections._pool is None)
            raise PoolTimeout("no connection in time")

        connections._pool.getconn = time_out
        connections._queue.limit = 0.0
        with pytest.raises(StoreClosed):
            async with connections.lent():
                pass
        await asyncio.gather(*closing)


@async_test
async def test_waiters_get_new_connections_when_those_in_use_are_lost(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        async with holdfast.open(proxy.url(postgres_url), settings=few(2)) as hf:
            await hf.runs.create("a")
            proxy.stall()
            looking = [asyncio.create_task(hf.runs.get("a")) for _ in range(50)]
            await until(lambda: waiting_in(hf) == 48)
            proxy.cut_now()
            proxy.resume()
            assert {run.run_id for run in await asyncio.gather(*looking)} == {"a"}


@async_test
async def test_everybody_in_the_queue_is_told_that_the_server_is_away(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        settings = few(2, busy_timeout_seconds=4.0)
        async with holdfast.open(proxy.url(postgres_url), settings=settings) as hf:
            await hf.runs.create("a")
            proxy.refuse()
            proxy.cut_now()
            looking = [hf.runs.get("a") for _ in range(20)]
            outcomes = await asyncio.gather(*looking, return_exceptions=True)
            assert {type(each) for each in outcomes} == {StoreUnavailable}
            proxy.accept()
            assert (await hf.runs.get("a")).run_id == "a"


@async_test
async def test_event_loop_that_was_held_for_longer_than_the_limit_is_no_stall() -> None:
    queue = PoolQueue(1, limit_seconds=0.2)
    await queue.enter()
    waiter = asyncio.create_task(queue.enter())
    await asyncio.sleep(0)
    time.sleep(0.5)
    await asyncio.sleep(0.005)  # the waiter's limit is over
    queue.leave()
    await waiter


@async_test
async def test_waiter_gives_up_when_several_looks_after_the_limit_saw_nothing_move() -> None:
    queue = PoolQueue(1, limit_seconds=0.05)
    await queue.enter()
    with pytest.raises(PoolStalled):
        await queue.enter()
