"""Errors between the lease of a run and its first line of code: no run and no worker is lost."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import BlockedReason, Settings
from holdfast.engine.leases import orphans
from holdfast.engine.leases.leases import Leases
from holdfast.errors import (
    JournalCorrupted,
    OutcomeUnknown,
    RunBlocked,
    StoreNotPermitted,
    StoreUnavailable,
)
from holdfast.stores.contract import RunHead
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds
from tests.agents.test_exits import SOON, blocked
from tests.backends import Backend
from tests.processes import Child


@holdfast.agent
async def fine(run: holdfast.Run) -> str:
    return "fine"


def fail_to_load(
    monkeypatch: pytest.MonkeyPatch, run_id: str, error: Exception, *, times: int = 1000
) -> None:
    """Let loading a run fail after it was leased."""
    load: Callable[..., Any] = Leases._state_of
    left = times

    async def failing(self: Leases, leased: RunHead) -> Any:
        nonlocal left
        if leased.run.run_id == run_id and left:
            left -= 1
            raise error
        return await load(self, leased)

    monkeypatch.setattr(Leases, "_state_of", failing)


@async_test
async def test_run_that_cannot_be_loaded_is_blocked_and_others_go_on(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, agents=[fine], settings=SOON) as hf:
        await hf.start(fine, run_id="bad")
        await hf.start(fine, run_id="good")
        fail_to_load(monkeypatch, "bad", MemoryError("too large"))
        working = asyncio.create_task((worker := hf.new_worker()).run())
        async with asyncio.timeout(30):
            run = await blocked(hf, "bad")
            async for _ in hf.runs.watch("good"):
                pass
        assert not working.done()
        worker.stop()
        await working
        assert run.blocked_reason == BlockedReason.BREAKER
        assert Counter(await kinds(hf, "bad"))["RUN_LEASED"] == 3
        assert "too large" in await hf.runs.note("bad")
        assert await hf.runs.result("good") == "fine"


@async_test
async def test_failure_to_load_a_run_by_its_id_counts_too(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, agents=[fine]) as hf:
        await hf.start(fine, run_id="r")
        fail_to_load(monkeypatch, "r", MemoryError("too large"))
        async with asyncio.timeout(30):
            for _ in range(3):
                with pytest.raises(MemoryError):
                    await hf.run(fine, run_id="r")
            with pytest.raises(RunBlocked, match="too large"):
                await hf.run(fine, run_id="r")


AWAY = [StoreNotPermitted("no rights"), StoreUnavailable("away"), KeyError("a mistake")]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("by_id", [False, True])
@async_test
async def test_lease_is_given_back_when_its_run_could_not_be_loaded(
    store: str, monkeypatch: pytest.MonkeyPatch, error: Exception, by_id: bool
) -> None:
    async with holdfast.Holdfast(store, settings=SOON) as hf:
        await hf.runs.create("r")
        fail_to_load(monkeypatch, "r", error, times=1)
        with pytest.raises(type(error)):
            await (hf.leases.take("r") if by_id else hf.leases.next())
        held = await hf.leases.next(timeout_seconds=20)
        assert held is not None
        await held.complete("done")


@async_test
async def test_worker_survives_an_error_while_it_takes_runs(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, agents=[fine], settings=SOON) as hf:
        take: Callable[..., Any] = hf.leases._take_ready
        errors = [ZeroDivisionError("a mistake of our own")]

        async def failing(*args: Any, **options: Any) -> Any:
            if errors:
                raise errors.pop()
            return await take(*args, **options)

        monkeypatch.setattr(hf.leases, "_take_ready", failing)
        await hf.start(fine, run_id="r")
        working = asyncio.create_task((worker := hf.new_worker()).run())
        async with asyncio.timeout(30):
            async for _ in hf.runs.watch("r"):
                pass
        worker.stop()
        await working
        assert await hf.runs.result("r") == "fine"


@async_test
async def test_run_whose_creation_was_stored_and_not_answered_is_resumed(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is created and leased in one commit, so it looks as if somebody here worked on it."""
    async with holdfast.Holdfast(backend.url, agents=[fine], settings=SOON) as hf:
        lease = Leases._lease
        answers_lost = 1

        async def unheard(self: Leases, *args: Any) -> Any:
            nonlocal answers_lost
            answer = await lease(self, *args)
            if answers_lost:
                answers_lost -= 1
                raise OutcomeUnknown("the connection was lost")
            return answer

        monkeypatch.setattr(Leases, "_lease", unheard)
        with pytest.raises(OutcomeUnknown):
            await hf.run(fine, run_id="r")
        assert (await hf.runs.get("r")).status == "running"
        assert await hf.run(fine, run_id="r", timeout=60) == "fine"
        found = await kinds(hf, "r")
        first = ["RUN_CREATED", "RUN_LEASED", "RUN_RELEASED", "RUN_LEASED", "RUN_COMPLETED"]
        assert found == first


@async_test
async def test_callers_that_start_one_run_at_once_share_it(store: str) -> None:
    async with (
        holdfast.Holdfast(store, agents=[fine]) as one,
        holdfast.Holdfast(store, agents=[fine]) as other,
    ):
        starting = [hf.run(fine, run_id="r", timeout=60) for hf in (one, other, one, other)]
        assert await asyncio.gather(*starting) == ["fine"] * 4
        found = await kinds(one, "r")
        assert (found.count("RUN_CREATED"), found.count("RUN_COMPLETED")) == (1, 1)


@async_test
async def test_run_that_nobody_waits_for_and_that_cannot_be_released_is_released_later(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, settings=SOON) as hf:
        await hf.runs.create("r")
        state_of, may_go_on, is_loading = Leases._state_of, asyncio.Event(), asyncio.Event()

        async def slow(self: Leases, *args: Any) -> Any:
            is_loading.set()
            await may_go_on.wait()
            return await state_of(self, *args)

        async def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(Leases, "_state_of", slow)
            patched.setattr(orphans, "release_unused", away)
            taking = asyncio.create_task(hf.leases.next())
            await is_loading.wait()
            taking.cancel()
            await asyncio.wait([taking])
            may_go_on.set()
            while hf.leases._taking:
                await asyncio.sleep(0.01)
        assert await hf.leases.next(timeout_seconds=20) is not None


@async_test
async def test_orphan_that_is_damaged_stops_nobody(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, settings=SOON) as hf:
        for name in ("damaged", "other"):
            held = await hf.runs.open(name)
            hf.leases.orphans.abandon(held)
        release: Callable[..., Any] = orphans.release_unused

        async def failing(context: Any, stray: Any, *, note: str) -> None:
            if stray.run_id == "damaged":
                raise JournalCorrupted("its last entry is damaged")
            await release(context, stray, note=note)

        monkeypatch.setattr(orphans, "release_unused", failing)
        held = await hf.leases.next(timeout_seconds=20)
        assert held is not None
        assert held.run_id == "other"
        assert (await hf.runs.get("damaged")).blocked_reason == BlockedReason.CORRUPTION


@async_test
async def test_heart_of_a_process_without_a_worker_survives_any_error(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.Holdfast(store, settings=Settings(lease_seconds=0.3)) as hf:
        renew, errors = hf.leases.renew, [ZeroDivisionError("a mistake of our own")]
        has_beaten = asyncio.Event()

        async def failing() -> None:
            if errors:
                raise errors.pop()
            await renew()
            has_beaten.set()

        monkeypatch.setattr(hf.leases, "renew", failing)
        await hf.runs.open("r")
        async with asyncio.timeout(20):
            await has_beaten.wait()


async def losses_of(store: str, run_id: str) -> tuple[int, str]:
    async with holdfast.open(store) as hf:
        run = await hf.runs.get(run_id)
        return run.lost, run.status


@pytest.mark.parametrize("when", ["open", "loading"])
def test_run_that_kills_each_process_that_opens_it_is_blocked(store: str, when: str) -> None:
    """Nobody sweeps: whoever opens the run finds its worker lost."""
    for deaths in range(3):
        with Child("tests.leasing.opener", store, "r", when) as child:
            assert child.wait() == -signal.SIGKILL
        assert asyncio.run(losses_of(store, "r")) == (deaths, "running")
    with Child("tests.leasing.opener", store, "r") as child:
        assert child.answer() == "IllegalMove"
    assert asyncio.run(losses_of(store, "r")) == (3, "blocked")


def test_death_while_a_worker_loads_a_run_counts(store: str) -> None:
    with Child("tests.leasing.opener", store, "r", "loading") as child:
        assert child.wait() == -signal.SIGKILL
    asyncio.run(find_loss(store))
    assert asyncio.run(losses_of(store, "r")) == (1, "ready")


async def find_loss(store: str) -> None:
    async with holdfast.open(store) as hf, asyncio.timeout(30):
        while not await hf.leases.expire_lost():
            await asyncio.sleep(0.05)


@async_test
async def test_takeover_of_a_lost_workers_run_and_a_second_take_count_no_loss(store: str) -> None:
    async with holdfast.open(store) as hf, holdfast.open(store) as other:
        await hf.runs.open("r")
        await hf.runs.open("r")
        await other.runs.open("r", takeover=True)
        assert "LEASE_EXPIRED" not in await kinds(hf, "r")


@async_test
async def test_run_whose_newest_version_lost_its_row_resumes_from_what_the_journal_says(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        for n in range(2):
            held.append("log", n)
            await held.checkpoint()
        await held.release()
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM checkpoints WHERE version = 2") == 1
    async with holdfast.open(backend.url) as hf:
        taken = await hf.leases.next(timeout_seconds=20)
        assert taken is not None
        assert (taken.version, taken.part("log")) == (2, [0, 1])
