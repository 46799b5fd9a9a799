"""What an event says, which events are given, and how long one may wait for the next."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import islice

import pytest

import holdfast
from holdfast import sync
from holdfast.errors import MisuseError
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

LIMIT_SECONDS = 60.0
ATTRIBUTES = {
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "sequence",
    "position",
    "data",
}


async def next_of(events: AsyncIterator[holdfast.Event]) -> holdfast.Event:
    return await asyncio.wait_for(anext(events), LIMIT_SECONDS)


@pytest.mark.mission("S3-114", "S3-182", "S3-190")
@async_test
async def test_event_of_a_checkpoint_has_the_attributes_of_cloudevents(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a b", agent="coder", input="a body that nobody is told")
        run = await hf.runs.open("a b")
        run.append("log", 1)
        checkpoint = await run.checkpoint(label="one", agent="tester")
        event = await next_of(hf.events("start", kinds=["CHECKPOINT_CREATED"]))
        told = json.loads(json.dumps(event.to_cloudevent()))
        assert told.keys() == ATTRIBUTES
        assert told["specversion"] == "1.0"
        assert told["id"] == f"a b/{checkpoint.seq}"
        assert told["type"] == "holdfast.CHECKPOINT_CREATED"
        assert told["subject"] == "a b"
        assert told["time"].endswith("Z")
        assert told["data"]["checkpointId"] == str(checkpoint.checkpoint_id)
        assert told["data"]["taskId"] == "a b"
        assert told["data"]["agentId"] == "tester"
        assert told["data"]["label"] == "one"
        assert (event.run_id, event.seq, event.kind) == ("a b", checkpoint.seq, told["type"][9:])
        assert told["source"].startswith("/holdfast/")
        assert "nobody" not in json.dumps(told)


@pytest.mark.mission("S3-188")
@async_test
async def test_event_of_a_damaged_checkpoint_names_it_and_the_error(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        saved = [await saved_by(run, turn) for turn in range(2)]
        await run.release()
        with backend.raw() as raw:
            raw.execute("UPDATE journal SET nonce = ? WHERE seq = ?", bytes(16), saved[1].seq)
        await hf.checkpoints.load_newest_intact("a")
        event = await next_of(hf.events("start", kinds=["CHECKPOINT_CORRUPTED"]))
        assert event.data["checkpointId"] == str(saved[1].checkpoint_id)
        assert event.data["error"]


async def saved_by(run: holdfast.LeasedRun, turn: int) -> holdfast.Checkpoint:
    run.append("log", turn)
    return await run.checkpoint()


@async_test
async def test_kinds_of_a_newer_version_are_passed_on(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a", agent="coder")
        with backend.raw() as raw:
            raw.execute("UPDATE journal SET kind = 'TOMORROW'")
        event = await next_of(hf.events("start"))
        assert event.type == "holdfast.TOMORROW"
        assert event.data.keys() == {"taskId", "agentId", "actor"}
        with backend.raw() as raw:
            raw.execute("UPDATE journal SET kind = 'RUN_CREATED', schema = 99")
        assert (await next_of(hf.events("start"))).data["agentId"] == "coder"


@async_test
async def test_only_what_is_asked_for_is_told_and_none_of_another_tenant(backend: Backend) -> None:
    others = holdfast.Settings(tenant="others")
    async with holdfast.open(backend.url) as hf, holdfast.open(backend.url, settings=others) as hg:
        await hg.runs.create("theirs", agent="coder")
        for name, agent in (("a", "coder"), ("b", "tester"), ("c", "coder")):
            await hf.runs.create(name, agent=agent)
        by_agent = hf.events("start", agents=["coder"])
        assert [(await next_of(by_agent)).run_id for _ in range(2)] == ["a", "c"]
        assert (await next_of(hf.events("start", run_id="b"))).id == "b/1"
        assert (await next_of(hg.events("start"))).run_id == "theirs"
        first = await next_of(hf.events("start"))
        assert (await next_of(hf.events(first.position))).id == "b/1"
        with pytest.raises(MisuseError, match="as lists"):
            hf.events(kinds="RUN_CREATED")


@async_test
async def test_kind_that_is_mistyped_is_refused_and_the_nearest_ones_are_named() -> None:
    near = {
        "RUN_FAILD": "RUN_FAILED",
        "run-failed": "RUN_FAILED",
        "holdfast.RUN_FAILED": "RUN_FAILED",
        "BANANA": r"ever come; docs/reference/entries\.md",
    }
    async with holdfast.open("memory://") as hf:
        for typed, told in near.items():
            with pytest.raises(MisuseError, match=told):
                hf.events(kinds=["RUN_CREATED", typed])
            with pytest.raises(MisuseError, match=told):
                await hf.webhooks.add("transport:events", name="a", kinds=[typed])
        with pytest.raises(MisuseError, match="is no kind"):
            hf.events(kinds=[None])  # pyright: ignore[reportArgumentType] - what nobody should give
        assert await hf.webhooks.list() == []


@async_test
async def test_event_of_another_process_comes_without_waiting_for_the_poll(
    backend: Backend,
) -> None:
    slow = holdfast.Settings(wakeup_poll_seconds=LIMIT_SECONDS * 3)
    async with holdfast.open(backend.url, settings=slow) as hf, holdfast.open(backend.url) as hg:
        events = hf.events()
        waiting = asyncio.create_task(next_of(events))
        # Begun, so that what comes now is told.
        await asyncio.wait([waiting], timeout=0.5)
        await hg.runs.create("a")
        assert (await waiting).id == "a/1"


@async_test
async def test_whoever_follows_may_be_cancelled_at_any_time(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a")
        is_seen = asyncio.Event()

        async def follow() -> None:
            async for _ in hf.events("start"):
                is_seen.set()

        following = asyncio.create_task(follow())
        await is_seen.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following


def test_blocking_face_gives_the_same_events(backend: Backend) -> None:
    with sync.open(backend.url) as hf:
        hf.runs.create("a")
        hf.runs.create("b")
        assert [event.id for event in islice(hf.events("start"), 2)] == ["a/1", "b/1"]
