"""Servers that only may be read, and servers that must not lose what a replica does not have."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import OutcomeUnknown, StoreNotPermitted
from holdfast.testing.store_suite import async_test
from tests.backends import PostgresRaw
from tests.postgres import (
    IMPATIENT,
    LIMIT_SECONDS,
    Replicated,
    Spare,
    check_whole,
    pooled,
    save,
    until,
)
from tests.proxy import Group, Proxy


@async_test
async def test_standby_is_read_and_says_that_it_is_one_when_it_is_written(
    replicated: Replicated,
) -> None:
    async with holdfast.open(replicated.url) as hf:
        run = await hf.runs.open("a")
        await save(run, 1)
        await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
    with PostgresRaw(replicated.url) as raw:
        written = raw.rows("SELECT * FROM runs")
        await until(lambda: rows_of(replicated.standby_url, "runs") == written)
    async with holdfast.open(replicated.standby_url, settings=IMPATIENT) as hf:
        await check_whole(hf, "a", [1])
        for work in (
            lambda: hf.runs.create("b"),
            lambda: hf.waits.resolve("w"),
            lambda: hf.runs.cancel("a"),
            lambda: hf.runs.open("a"),
            hf.leases.next,
        ):
            with pytest.raises(StoreNotPermitted, match="standby; name the primary"):
                await work()


@async_test
async def test_standby_without_the_schema_says_that_it_is_one(replicated: Replicated) -> None:
    with PostgresRaw(replicated.server.url()) as raw, PostgresRaw(replicated.standby.url()) as copy:
        sql = "SELECT oid FROM pg_database WHERE datname = ?"
        made = raw.rows(sql, replicated.database)
        await until(lambda: copy.rows(sql, replicated.database) == made)
    with pytest.raises(StoreNotPermitted, match="standby; name the primary"):
        async with holdfast.open(replicated.standby_url):
            pass


def rows_of(url: str, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table; none while there is no such database or table yet."""
    try:
        with PostgresRaw(url) as raw:
            return raw.rows(f"SELECT * FROM {table}")
    except psycopg.Error:
        return []


@async_test
async def test_what_is_acknowledged_is_on_disk_though_the_database_says_otherwise(
    spare: Spare,
) -> None:
    """`synchronous_commit = off` for everybody, and sessions that lose their settings."""
    with PostgresRaw(spare.server.url()) as raw:
        raw.execute(f"ALTER DATABASE {spare.database} SET synchronous_commit = off")
    async with holdfast.open(spare.url) as hf:
        run = await hf.runs.open("a")
        waiting = await hf.runs.open("b")
        await waiting.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        await check_survives_a_crash(spare, hf, save(run, 1))
        assert (await hf.checkpoints.load("a")).version == 1
        both = asyncio.gather(save(run, 2), *(hf.runs.create(f"c-{n}") for n in range(3)))
        await check_survives_a_crash(spare, hf, both)
        assert (await hf.checkpoints.load("a")).version == 2
        assert (await hf.runs.get("c-2")).run_id == "c-2"
        await check_survives_a_crash(spare, hf, hf.waits.resolve("w", 1))
        assert (await hf.waits.get("w")).status == "resolved"


async def check_survives_a_crash(spare: Spare, hf: holdfast.Holdfast, work: Awaitable[Any]) -> None:
    for connection in pooled(hf):
        connection.pgconn.exec_(b"RESET ALL")
    await work
    spare.server.kill()
    spare.server.restart()


def waiting_for_standby(raw: PostgresRaw) -> list[int]:
    found = raw.rows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return [pid for (pid,) in found]


@pytest.mark.mission("S3-081")
@pytest.mark.parametrize("writer", ["turn", "answer"])
@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
@async_test
async def test_commit_is_not_acknowledged_before_the_standby_has_it(
    function: str, writer: str, replicated: Replicated
) -> None:
    """Though an operator ends the wait for it, and the commit is there for all to see."""
    patient = holdfast.Settings(busy_timeout_seconds=LIMIT_SECONDS)
    url = replicated.url
    with PostgresRaw(url) as raw, PostgresRaw(url) as operator:
        async with holdfast.open(url, settings=patient) as hf:
            run = await hf.runs.open("a")
            await run.open_waits([holdfast.WaitSpec(wait_id="w")])
            with replicated.standby_away():
                work = save(run, 1) if writer == "turn" else hf.waits.resolve("w", 1)
                saving = asyncio.create_task(work)
                await until(lambda: bool(waiting_for_standby(raw)))
                stored = len(raw.entries())
                operator.rows(f"SELECT {function}(?)", waiting_for_standby(raw)[0])
                await until(lambda: len(raw.entries()) > stored)
                # Something else waits for the standby now, before the answer is given.
                await until(lambda: bool(waiting_for_standby(raw)) or saving.done())
                assert not saving.done()
            await saving
            with PostgresRaw(replicated.standby_url) as copy:
                await until(lambda: copy.entries() == raw.entries())
            assert await hf.journal.verify("a") == []


@async_test
async def test_commit_waits_for_the_standby_again_though_its_session_lost_its_settings(
    replicated: Replicated,
) -> None:
    """An operator ended the first wait, and the database says `synchronous_commit = off`."""
    # A heartbeat would wait for the standby too.
    patient = holdfast.Settings(busy_timeout_seconds=LIMIT_SECONDS, lease_seconds=600)
    with PostgresRaw(replicated.url) as raw, PostgresRaw(replicated.url) as operator:
        operator.execute(f"ALTER DATABASE {replicated.database} SET synchronous_commit = off")
        async with holdfast.open(replicated.url, settings=patient) as hf:
            run = await hf.runs.open("a")
            for connection in pooled(hf):
                connection.pgconn.exec_(b"RESET ALL")
            stored = len(raw.entries())
            with replicated.standby_away():
                saving = asyncio.create_task(save(run, 1))
                await until(lambda: bool(waiting_for_standby(raw)))
                operator.rows("SELECT pg_cancel_backend(?)", waiting_for_standby(raw)[0])
                await until(lambda: len(raw.entries()) > stored)
                await until(lambda: bool(waiting_for_standby(raw)) or saving.done())
                assert not saving.done()
            await saving
            with PostgresRaw(replicated.standby_url) as copy:
                await until(lambda: copy.entries() == raw.entries())


@async_test
async def test_batch_whose_answer_was_lost_while_it_waits_for_the_standby_stays_unknown(
    replicated: Replicated,
) -> None:
    """It is sent again and waits for itself; nobody may take that for a lock of a stranger."""
    with Proxy(replicated.url) as proxy, PostgresRaw(replicated.url) as raw:
        async with holdfast.open(proxy.url(replicated.url), settings=IMPATIENT) as hf:
            runs = [await hf.runs.open(name) for name in ("a", "b")]
            # After a batch of several the next one gathers too: what follows is one batch.
            await asyncio.gather(*(hf.runs.create(f"other-{n}") for n in range(3)))
            with replicated.standby_away():
                saving = [asyncio.create_task(save(run, 1)) for run in runs]
                await until(lambda: bool(waiting_for_standby(raw)))
                proxy.cut_now()
                outcomes = await asyncio.gather(*saving, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 2
            for run in runs:
                assert (await run.checkpoint()).version == 1
                await save(run, 2)
                await check_whole(hf, run.run_id, [1, 2])


@async_test
async def test_replicas_are_asked_once_about_a_commit_whose_answer_was_lost(
    postgres_url: str,
) -> None:
    """Each commit after it waits for them itself: to ask again would double the commits."""
    asked: list[str] = []

    def note(request: Group) -> bool:
        asked.extend(words for words in request.words if "'replicated?'" in words)
        return False

    quiet = holdfast.Settings(lease_seconds=600)  # a heartbeat is a commit too
    with Proxy(postgres_url) as proxy:
        proxy.cut_requests(note)
        async with holdfast.open(proxy.url(postgres_url), settings=quiet) as hf:
            run = await hf.runs.open("a")
            proxy.cut_at_commit()
            await save(run, 1)
            assert (proxy.cuts, len(asked)) == (1, 1)
            await save(run, 2)
            await save(run, 3)
            assert len(asked) == 1
            await check_whole(hf, "a", [1, 2, 3])
