"""Races that the hunters found, replayed step by step: one call is held up between two requests."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

import holdfast
from holdfast.errors import WaitNotFound
from holdfast.testing.store_suite import async_test
from tests.proxy import Group, Proxy

LIMIT_SECONDS = 240.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class Pause:
    """Holds up the first request that fits, until it is over."""

    def __init__(self, word: str) -> None:
        self.is_forgotten = False
        self._word = word
        self._reached = threading.Event()
        self._over = threading.Event()

    def __call__(self, request: Group) -> bool:
        if not self._reached.is_set() and any(self._word in text for text in request.words):
            self._reached.set()
            self.is_forgotten = not self._over.wait(LIMIT_SECONDS)
        return False

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, LIMIT_SECONDS)

    def end(self) -> None:
        self._over.set()


@contextmanager
def paused(url: str, before: str) -> Iterator[tuple[str, Pause]]:
    """The store by a way on which the first request with these words is held up."""
    pause = Pause(before)
    with Proxy(url) as proxy:
        proxy.cut_requests(pause)
        try:
            yield proxy.url(url), pause
        finally:
            pause.end()
        assert not pause.is_forgotten


async def wait_for_waiting(url: str, sessions: int) -> None:
    """Return when so many sessions wait for a lock."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as session:
        while await (await session.execute(WAITING)).fetchone() != (sessions,):
            await asyncio.sleep(0.01)


def damage(url: str, run_id: str) -> None:
    with psycopg.connect(url) as session:
        session.execute("UPDATE runs SET agent = 'damaged' WHERE run_id = %s", [run_id])


@async_test
async def test_reply_that_comes_just_before_its_wait_finds_none(postgres_url: str) -> None:
    with paused(postgres_url, "FROM proven_runs r\nLEFT JOIN workers") as (slow, pause):
        async with holdfast.open(postgres_url) as hf, holdfast.open(slow) as peer:
            run = await hf.runs.open("a")
            early = asyncio.create_task(peer.waits.resolve("w"))
            await pause.reached()  # the runs are locked, and what is decided on is not read yet
            await run.open_waits([holdfast.WaitSpec(wait_id="w")])
            pause.end()
            with pytest.raises(WaitNotFound):
                await early
            assert (await peer.waits.resolve("w")).accepted


@async_test
async def test_rebuild_of_rows_that_are_right_disturbs_nobody(postgres_url: str) -> None:
    with paused(postgres_url, "COMMIT") as (slow, pause):
        async with holdfast.open(postgres_url) as hf, holdfast.open(slow) as operator:
            run = await hf.runs.open("a")
            await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
            rebuild = asyncio.create_task(operator.reindex("a"))
            await pause.reached()
            assert (await hf.waits.resolve("w")).accepted
            await (await hf.runs.open("a")).complete("done")
            pause.end()
            await rebuild
            assert await hf.journal.verify("a") == []


@async_test
async def test_whoever_waits_for_a_run_finds_it_rebuilt(postgres_url: str) -> None:
    with paused(postgres_url, "COMMIT") as (slow, pause):
        async with (
            holdfast.open(postgres_url) as hf,
            holdfast.open(postgres_url) as elsewhere,
            holdfast.open(slow) as operator,
        ):
            ending, answered = [await hf.runs.open(run_id) for run_id in "ab"]
            going_on = await elsewhere.runs.open("c")
            await ending.open_waits([holdfast.WaitSpec(wait_id="left open")])
            await answered.open_waits([holdfast.WaitSpec(wait_id="w")])
            damage(postgres_url, "a")
            rebuild = asyncio.create_task(operator.reindex("a"))
            await pause.reached()
            end = asyncio.create_task(ending.complete("done"))
            reply = asyncio.create_task(hf.waits.resolve("w"))
            await wait_for_waiting(postgres_url, 2)
            going_on.append("log", "turns are not held up")
            await going_on.checkpoint()
            pause.end()
            await asyncio.gather(rebuild, end)
            assert (await reply).accepted
            assert (await hf.waits.get("left open")).status == "cancelled"
            for run_id in "abc":
                assert await hf.journal.verify(run_id) == []


@async_test
async def test_entry_of_an_older_transaction_comes_after_the_one_before_it(
    postgres_url: str,
) -> None:
    with paused(postgres_url, "FROM proven_runs r\nLEFT JOIN workers") as (slow, pause):
        async with holdfast.open(postgres_url) as hf, holdfast.open(slow) as peer:
            run = await hf.runs.open("a")
            sending = asyncio.create_task(peer.signal("a", "news"))
            # It has locked the run, so its transaction has an id: the turn gets a later one.
            await pause.reached()
            await run.record("step", 1)
            pause.end()
            await sending
            events = hf.events("start")
            told = [await anext(events) for _ in range(4)]
    with psycopg.connect(postgres_url) as raw:
        query = "SELECT kind, tx, xmin::text::bigint FROM journal ORDER BY seq"
        (*_, (step, tx, _), (signal, later_tx, xmin)) = raw.execute(query).fetchall()
    assert (step, signal) == ("STEP_RECORDED", "SIGNAL_RECEIVED")
    assert xmin < later_tx == tx
    assert [event.seq for event in told] == [1, 2, 3, 4]
