"""Pages of runs and of checkpoints: each row once and in order, whatever narrows the list."""

from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend

LISTS: dict[str, dict[str, Any]] = {
    "all": {},
    "by status": {"status": "ready"},
    "by agent": {"agent": "bot"},
    "by subject": {"agent": "bot", "subject": "tea"},
    "by parent": {"parent_id": "parent"},
    "by owner": {"owner": "ann"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "all": {},
    "of a run": {"run_id": "r"},
    "by agent": {"agent": "bot"},
    "by label": {"label": "nightly"},
}


@pytest.mark.parametrize("wanted", LISTS.values(), ids=LISTS)
@async_test
async def test_runs_that_were_created_in_one_moment_are_listed_by_their_ids(
    backend: Backend, wanted: dict[str, Any]
) -> None:
    async with holdfast.open(backend.url, clock=ManualClock()) as hf:
        await hf.runs.create("parent")
        about = {"agent": "bot", "subject": "tea", "parent_id": "parent", "owner": "ann"}
        for number in range(5):
            await hf.runs.create(f"child-{number}", **about)
        first = await hf.runs.list(limit=2, **wanted)
        rest = await hf.runs.list(before=first[-1], **wanted)
        children = [run.run_id for run in (*first, *rest) if run.parent_id]
        assert children == ["child-4", "child-3", "child-2", "child-1", "child-0"]


@pytest.mark.parametrize("subject", [None, "tea"], ids=["all", "of a subject"])
@async_test
async def test_next_page_of_live_runs_begins_after_the_last_one(
    backend: Backend, subject: str | None
) -> None:
    async with holdfast.open(backend.url, clock=ManualClock()) as hf:
        for number in range(5):
            await hf.runs.create(f"r-{number}", agent="bot", subject="tea")
        await hf.runs.cancel("r-3")
        live = hf._context.store.runs.live
        first = await live("bot", subject, after=(0, ""), limit=2)
        last = first[-1]
        rest = await live("bot", subject, after=(last.created_at, last.run_id), limit=9)
        assert [run.run_id for run in (*first, *rest)] == ["r-0", "r-1", "r-2", "r-4"]


@pytest.mark.parametrize("wanted", SEARCHES.values(), ids=SEARCHES)
@async_test
async def test_next_page_of_a_search_begins_after_the_last_checkpoint(
    backend: Backend, wanted: dict[str, Any]
) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        for _ in range(5):
            await run.checkpoint(agent="bot", label="nightly")
        first = await hf.checkpoints.search(limit=2, **wanted)
        rest = await hf.checkpoints.search(before=first[-1].checkpoint_id, **wanted)
        assert [each.version for each in (*first, *rest)] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("wanted", SEARCHES.values(), ids=SEARCHES)
@async_test
async def test_search_begins_at_a_moment_and_ends_before_one(
    backend: Backend, wanted: dict[str, Any]
) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        run = await hf.runs.open("r")
        moments: list[datetime] = []
        for _ in range(4):
            clock.advance(1)
            await run.checkpoint(agent="bot", label="nightly")
            moments.append(datetime.fromtimestamp(clock.now() / 1e6, UTC))
        found = await hf.checkpoints.search(since=moments[1], until=moments[3], **wanted)
        assert [each.version for each in found] == [3, 2]
