"""Wake-ups: hints across tasks and processes; polling underneath when one is lost."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from holdfast.wakeups.local import LocalWakeups
from holdfast.wakeups.sqlite import SQLiteWakeups
from tests.processes import Child


@async_test
async def test_ticket_taken_before_a_change_does_not_wait() -> None:
    wakeups = LocalWakeups()
    ticket = wakeups.ticket("run:a")
    wakeups.notify(["run:a"])
    assert await wakeups.wait("run:a", ticket, timeout=60)


@async_test
async def test_waiter_is_woken_and_nothing_is_left_behind() -> None:
    wakeups = LocalWakeups()
    waiting = [
        asyncio.create_task(wakeups.wait("run:a", wakeups.ticket("run:a"), timeout=60))
        for _ in range(100)
    ]
    await asyncio.sleep(0)
    wakeups.notify(["run:a"])
    assert await asyncio.gather(*waiting) == [True] * 100
    assert not wakeups.has_waiters
    assert not await wakeups.wait("run:a", wakeups.ticket("run:a"), timeout=0.001)


@async_test
@pytest.mark.mission("S0-003", "S0-018")
async def test_reply_in_one_process_wakes_a_worker_in_another(store: str) -> None:
    patient = holdfast.Settings(wakeup_poll_seconds=50)
    async with holdfast.open(store, settings=patient) as hf:
        run = await hf.runs.open("a")
        await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        waiting = asyncio.create_task(hf.leases.next(timeout_seconds=40))
        await asyncio.sleep(0)
        with Child("tests.child", store) as peer:
            assert peer.ask(["resolve", "w", "reply"])[0]
            held = await waiting
        assert held is not None
        assert held.run_id == "a"


@async_test
async def test_own_commits_wake_only_whom_they_concern(tmp_path: Path) -> None:
    """A waiter of another topic stays asleep until somebody else commits to the file."""
    path = str(tmp_path / "own.db")
    async with holdfast.open(path) as hf, holdfast.open(path) as other:
        wakeups, looks = hf._context.wakeups, hf._context.store.look_for_foreign_commits
        assert looks is not None
        looks(lambda _: None)  # opening the other one may have written
        ticket = wakeups.ticket("unconcerned")
        waiting = asyncio.create_task(wakeups.wait("unconcerned", ticket, timeout=60))
        for n in range(3):
            await hf.runs.create(f"own-{n}")
            found = asyncio.get_running_loop().create_future()
            looks(found.set_result)
            assert not await found
        assert not waiting.done()
        await other.runs.create("foreign")
        assert await waiting


class Looks:
    """A store that says which batches it has under way, and answers what it is told to."""

    def __init__(self) -> None:
        self.begun = self.ended = self.asked = 0
        self.answer = False

    def __call__(self, then: Callable[[bool], None], /) -> None:
        self.asked += 1
        then(self.answer)


@async_test
async def test_store_is_asked_about_a_change_only_if_it_may_be_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "asked.db")
    async with holdfast.open(path) as other:
        looks = Looks()
        wakeups = SQLiteWakeups(path, looks)
        await wakeups.open()
        waiting = asyncio.create_task(wakeups.wait("a", wakeups.ticket("a"), timeout=60))
        while not looks.asked:  # what was there before may be its own
            await asyncio.sleep(0)
        assert not waiting.done()
        await other.runs.create("foreign")
        assert await waiting
        assert looks.asked == 1
        looks.begun, looks.answer = 1, True  # a batch that does not end
        waiting = asyncio.create_task(wakeups.wait("a", wakeups.ticket("a"), timeout=60))
        await other.runs.create("foreign-too")
        assert await waiting
        assert looks.asked == 2
        await wakeups.close()


@async_test
async def test_lost_hint_costs_one_poll_and_no_more(store: str) -> None:
    quick = holdfast.Settings(wakeup_poll_seconds=0.05)
    async with holdfast.open(store, settings=quick) as hf:
        hf._context.store.on_applied = None
        await hf._context.wakeups.close()
        waiting = asyncio.create_task(hf.leases.next(timeout_seconds=40))
        await asyncio.sleep(0)
        await hf.runs.create("a")
        assert await waiting is not None


@async_test
async def test_tail_follows_another_process(store: str) -> None:
    async with holdfast.open(store) as hf:
        with Child("tests.child", store) as peer:
            peer.ask(["open", "a"])
            seen = 0
            async for entry in hf.journal.tail("a"):
                seen = entry.seq
                if seen == 2:
                    peer.tell(["append", "a", "x"])
                if entry.kind == "CHECKPOINT_CREATED":
                    break
            assert seen == 3
            assert peer.answer() == 1
