"""Whoever is cancelled while PostgreSQL owes an answer ends, whatever the answer is in the end.

The driver stops the query then; if that ends in an error, it raises the error and not the
cancellation. What tries again after errors would never end.
"""

import asyncio

import pytest
from psycopg.pq import TransactionStatus

import holdfast
from holdfast.testing.store_suite import async_test
from holdfast.wakeups.postgres import PostgresWakeups
from tests.postgres import pooled, until
from tests.proxy import Proxy

ONE_CONNECTION = holdfast.Settings(pool_connections=1)


async def lose_connections(proxy: Proxy) -> None:
    """Once what was cancelled before has heard of it, and cannot tell the server so."""
    for _ in range(5):
        await asyncio.sleep(0)
    proxy.cut_now()


@async_test
async def test_call_that_is_cancelled_when_its_connection_is_lost_is_not_made_again(
    postgres_url: str,
) -> None:
    with Proxy(postgres_url) as proxy:
        async with holdfast.open(proxy.url(postgres_url)) as hf:
            await hf.runs.create("a")
            states = [connection.info for connection in pooled(hf)]
            proxy.stall()
            proxy.refuse()
            looking = asyncio.create_task(hf.runs.get("a"))
            await until(
                lambda: any(it.transaction_status == TransactionStatus.ACTIVE for it in states)
            )
            looking.cancel()
            await lose_connections(proxy)
            await asyncio.wait([looking])
            assert looking.cancelled()
            proxy.resume()
            proxy.accept()
            assert (await hf.runs.get("a")).run_id == "a"


@async_test
async def test_time_limit_of_a_call_holds_when_its_connection_is_lost(postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy:
        async with holdfast.open(proxy.url(postgres_url)) as hf:
            await hf.runs.create("a")
            proxy.stall()
            proxy.refuse()
            asyncio.get_running_loop().call_later(0.2, proxy.cut_now)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await hf.runs.get("a")
            proxy.resume()
            proxy.accept()
            assert (await hf.runs.get("a")).run_id == "a"


@async_test
async def test_call_that_is_cancelled_when_it_gets_a_connection_ends(postgres_url: str) -> None:
    """Whatever the moments between the two."""
    async with holdfast.open(postgres_url, settings=ONE_CONNECTION) as hf:
        await hf.runs.create("a")
        connections = hf._context.store._connections  # type: ignore[attr-defined]

        async def look_on_and_on() -> None:
            while True:
                await hf.runs.get("a")

        for moments in range(15):
            async with connections.lent():
                looking = asyncio.create_task(look_on_and_on())
                await until(lambda: len(connections._queue._waiting) == 1)
            for _ in range(moments):
                await asyncio.sleep(0)
            looking.cancel()
            await asyncio.wait([looking])
            assert looking.cancelled()
        assert (await hf.runs.get("a")).run_id == "a"


@async_test
async def test_wake_ups_end_though_their_connection_is_lost_while_they_are_closed(
    postgres_url: str,
) -> None:
    with Proxy(postgres_url) as proxy:
        wakeups = PostgresWakeups(proxy.url(postgres_url))
        await wakeups.open()
        await until(lambda: wakeups._pid != 0)
        proxy.stall()
        proxy.refuse()
        wakeups.notify(["run:a"])
        await until(lambda: not wakeups._unsent)
        listening = wakeups._task
        closing = asyncio.create_task(wakeups.close())
        await lose_connections(proxy)
        await closing
        assert listening is not None
        assert listening.done()
