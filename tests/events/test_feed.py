"""The feed of all entries: each once, in order for each run, whoever writes at the same time."""

import asyncio
import json
import random
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.errors import MisuseError
from holdfast.kernel.events import FeedPosition
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.events.judging import ids_on_record, judge, until
from tests.processes import Child

WRITERS = 4
TURNS = 40
START = FeedPosition(0)


async def read_all(hf: holdfast.Holdfast, after: FeedPosition = START, limit: int = 7) -> list[str]:
    store = hf._context.store  # pyright: ignore[reportPrivateUsage] - the contract itself is tested
    told: list[str] = []
    while page := await store.journal.feed(after, limit):
        told += [f"{each.position.run_id}/{each.position.seq}" for each in page]
        after = page[-1].position
    return told


@async_test
async def test_feed_gives_every_entry_of_the_tenant_once_and_in_order(backend: Backend) -> None:
    others = holdfast.Settings(tenant="others")
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url, settings=others) as hg:
        for each in (hf, hg):
            await asyncio.gather(*(write(each, f"run-{n}", 5) for n in range(6)))
        judge(await read_all(hf), ids_on_record(backend))
        judge(await read_all(hg), ids_on_record(backend, "others"))


async def write(hf: holdfast.Holdfast, name: str, turns: int) -> None:
    run = await hf.runs.open(name)
    for turn in range(turns):
        run.append("log", turn)
        await run.checkpoint()
    await run.complete()


@pytest.mark.mission("S3-109", "S3-190")
def test_reader_that_is_killed_again_and_again_is_told_of_each_entry_once(
    backend: Backend, tmp_path: Path
) -> None:
    path = tmp_path / "told.jsonl"
    names = [f"run-{n}" for n in range(WRITERS)]
    asyncio.run(create(backend.url, names))
    writers = [
        Child("tests.events.writer", backend.url, name, ",".join(names), TURNS) for name in names
    ]
    random_ = random.Random(7)
    for _ in range(6):
        read_for_a_while(backend, path, count_lines(path) + random_.randrange(1, 120))
    for writer in writers:
        assert writer.wait() == 0
        writer.close()
    read_for_a_while(backend, path, len(ids_on_record(backend)))
    judge([json.loads(line)["id"] for line in whole_lines(path)], ids_on_record(backend))


def read_for_a_while(backend: Backend, path: Path, events: int) -> None:
    """Let a reader note so many events, or all that there are, and kill it."""
    with Child("tests.events.reader", backend.url, path):
        until(lambda: count_lines(path) >= events or all_told(backend, path), "reading")


async def create(url: str, names: list[str]) -> None:
    async with holdfast.open(url) as hf:
        for name in names:
            await hf.runs.create(name)


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def count_lines(path: Path) -> int:
    return len(whole_lines(path))


def all_told(backend: Backend, path: Path) -> bool:
    return count_lines(path) >= len(ids_on_record(backend)) > WRITERS


@async_test
async def test_entry_of_a_transaction_that_began_earlier_and_ends_later_is_not_missed(
    postgres_url: str,
) -> None:
    async with holdfast.open(postgres_url) as hf:
        run = await hf.runs.open("a")
        before = await read_all(hf)
        async with await psycopg.AsyncConnection.connect(postgres_url) as slow:
            await slow.execute("SELECT pg_current_xact_id()")
            await run.record("step", 1)
            assert await read_all(hf) == before
            # As a store's transaction would, with an id from before that of the step.
            await slow.execute(
                "INSERT INTO journal SELECT tenant, 'b', 1, kind, at, actor, schema, encoding, "
                "key_id, facts, nonce, body, erased_digest, link, stored_at, "
                "(SELECT tx_base FROM identity) + pg_current_xact_id()::text::bigint "
                "FROM journal WHERE seq = 1"
            )
            await slow.commit()
        assert await read_all(hf) == [*before, "b/1", "a/3"]


@async_test
async def test_store_in_another_cluster_goes_on_after_what_it_has(postgres_url: str) -> None:
    async with holdfast.open(postgres_url) as hf:
        run = await hf.runs.open("a")
        await run.release()
        store = hf._context.store  # pyright: ignore[reportPrivateUsage] - the contract itself is tested
        last = (await store.journal.feed(START, 100))[-1].position
    with psycopg.connect(postgres_url) as raw:
        # What the transactions of the cluster were called that it was taken from.
        raw.execute("UPDATE journal SET tx = tx + 1000000000000")
        raw.execute("UPDATE identity SET cluster = 'another', tx_base = 0")
    async with holdfast.open(postgres_url) as hf:
        await hf.runs.create("b")
        after = last._replace(at=last.at + 1000000000000)
        assert await read_all(hf, after) == ["b/1"]
        assert (await read_all(hf))[-1] == "b/1"


@async_test
async def test_position_that_is_none_of_this_store_is_refused(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a")
        event = await anext(hf.events("start"))
        _, store, at, seq, run_id = event.position.split(":")
        for wrong, why in (
            ("yesterday", "is no position"),
            (f"1:{store}:x:{seq}:{run_id}", "is no position"),
            (f"1:00000000:{at}:{seq}:{run_id}", "another store"),
            (f"1:{store}:{int(at) + 10**15}:{seq}:{run_id}", "an older copy"),
        ):
            with pytest.raises(MisuseError, match=why):
                await anext(hf.events(wrong))
