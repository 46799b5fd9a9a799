"""Leases: one holder at a time, however late the others wake up."""

import asyncio
from unittest import mock

import pytest

from holdfast.engine.effects import EffectRequest
from holdfast.engine.waits import WaitSpec
from holdfast.errors import Fenced, LeaseHeld, SchemaMismatch
from holdfast.kernel import journal
from holdfast.kernel.runs import RunStatus
from holdfast.settings import Settings
from holdfast.testing.clocks import ManualClock, outlive
from holdfast.testing.store_suite.backend import Backend, async_test


class LeasesSuite:
    """What a store guarantees about leases."""

    @async_test
    async def test_run_is_given_to_one_of_many_workers(self, backend: Backend) -> None:
        async with backend.open() as hf:
            for n in range(10):
                await hf.runs.create(f"run-{n}")
            workers = [hf.another_worker() for _ in range(25)]
            held = await asyncio.gather(*(worker.leases.next() for worker in workers))
            got = [run.run_id for run in held if run is not None]
            assert sorted(got) == [f"run-{n}" for n in range(10)]

    @async_test
    async def test_longest_waiting_run_is_given_first_and_agents_are_respected(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            for name, agent in (("old", "x"), ("mid", "y"), ("new", "x")):
                await hf.runs.create(name, agent=agent)
                clock.advance(1)
            first = await hf.leases.next(agents=["y"])
            second = await hf.leases.next()
            assert first is not None
            assert second is not None
            assert (first.run_id, second.run_id) == ("mid", "old")
            assert await hf.leases.next(agents=["z"]) is None

    @async_test
    async def test_living_holder_is_not_disturbed_without_takeover(self, backend: Backend) -> None:
        async with backend.open() as hf:
            first = await hf.runs.open("a")
            other = hf.another_worker()
            with pytest.raises(LeaseHeld, match="takeover"):
                await other.runs.open("a")
            first.append("log", 1)
            await first.checkpoint()

    @async_test
    async def test_takeover_fences_the_former_holder(self, backend: Backend) -> None:
        async with backend.open() as hf:
            first = await hf.runs.open("a")
            first.append("log", "mine")
            second = await hf.another_worker().runs.open("a", takeover=True)
            with pytest.raises(Fenced, match="its new holder goes on"):
                await first.checkpoint()
            second.append("log", "theirs")
            await second.checkpoint()
            first.discard()
            with pytest.raises(Fenced):
                await first.complete()
            assert (await hf.checkpoints.load("a"))["log"] == ["theirs"]

    @async_test
    async def test_worker_that_leases_its_own_run_again_fences_its_old_task(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            old = await hf.runs.open("a")
            new = await hf.runs.open("a")
            old.append("log", 1)
            with pytest.raises(Fenced):
                await old.checkpoint()
            new.append("log", 2)
            await new.checkpoint()

    @async_test
    async def test_expired_lease_makes_the_run_ready_and_fences(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            lost = await hf.runs.open("a")
            other = hf.another_worker()
            assert await outlive(other, clock, lease_seconds=29) == 0
            clock.advance(2)
            assert await other.leases.expire_lost() == 1
            run = await hf.runs.get("a")
            assert (run.status, run.attempts, run.worker) == (RunStatus.READY, 1, "")
            lost.append("log", 1)
            with pytest.raises(Fenced, match="expired"):
                await lost.checkpoint()
            held = await other.leases.next()
            assert held is not None

    @async_test
    async def test_renewed_lease_does_not_expire(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            await hf.runs.open("a")
            other = hf.another_worker()
            for _ in range(5):
                assert await outlive(other, clock, lease_seconds=25) == 0
                await hf.leases.renew()
            assert await other.leases.expire_lost() == 0

    @async_test
    async def test_run_that_keeps_losing_workers_is_blocked(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            await hf.runs.create("a")
            for _ in range(3):
                assert await hf.another_worker().leases.next() is not None
                assert await outlive(hf, clock, lease_seconds=30) == 1
                clock.advance(4)  # it is tried after a pause if this happens again
            run = await hf.runs.get("a")
            assert (run.status, run.blocked_reason) == (RunStatus.BLOCKED, "breaker")
            await hf.runs.unblock("a", by="ops")
            assert (await hf.runs.get("a")).attempts == 0

    @async_test
    async def test_progress_resets_the_count_of_lost_workers(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            await hf.runs.create("a")
            for _ in range(5):
                held = await hf.another_worker().leases.next()
                assert held is not None
                held.append("log", 1)
                await held.checkpoint()
                assert await outlive(hf, clock, lease_seconds=30) == 1
            assert (await hf.runs.get("a")).attempts == 1

    @pytest.mark.parametrize("result", ["step", "call"])
    @async_test
    async def test_recorded_result_resets_the_count_of_lost_workers(
        self, backend: Backend, result: str
    ) -> None:
        """The next worker does not repeat what has a result: it comes further each time."""
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            await hf.runs.create("a")
            for n in range(4):
                held = await hf.another_worker().leases.next()
                assert held is not None
                if result == "step":
                    await held.record("step", n)
                else:
                    request = EffectRequest(tool="charge", args={"cents": n}, limit_seconds=30)
                    (begun,) = await held.begin_effects([request])
                    await held.finish_effect(begun, "charged")
                assert await outlive(hf, clock, lease_seconds=30) == 1
            run = await hf.runs.get("a")
            assert (run.status, run.attempts, run.lost) == (RunStatus.READY, 1, 1)

    @async_test
    async def test_intents_and_earlier_results_do_not_reset_the_count_of_lost_workers(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock, settings=Settings(lease_seconds=30)) as hf:
            await hf.runs.create("a")
            for n in range(3):
                held = await hf.another_worker().leases.next()
                assert held is not None
                if n == 0:
                    await held.record("step", n)
                request = EffectRequest(tool="charge", args={"cents": n}, limit_seconds=30)
                await held.begin_effects([request])
                assert await outlive(hf, clock, lease_seconds=30) == 1
                clock.advance(4)  # it is tried after a pause if this happens again
            assert (await hf.runs.get("a")).blocked_reason == "breaker"

    @async_test
    async def test_released_run_waits_for_its_delay(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            await run.release(delay_seconds=60)
            assert await hf.leases.next() is None
            clock.advance(60)
            again = await hf.leases.next()
            assert again is not None
            assert (await hf.journal.verify("a")) == []

    @async_test
    async def test_worker_that_closed_leaves_its_runs_to_be_taken_at_once(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            leaver = hf.another_worker()
            await leaver.runs.open("a")
            assert {w.worker: w.held for w in await hf.leases.workers()} == {leaver.worker: 1}
            await leaver.leases.close()
            held = await hf.runs.open("a")
            assert held.run.worker == hf.worker

    @async_test
    async def test_sweeping_goes_on_while_there_is_always_a_run_to_give_out(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("waiting")
            await run.open_waits([WaitSpec(wait_id="w", timeout_seconds=1)], suspend=True)
            clock.advance(2)
            for n in range(5):
                await hf.runs.create(f"ready-{n}")
            assert await hf.leases.next() is not None
            assert (await hf.runs.get("waiting")).status is RunStatus.READY

    @async_test
    async def test_waiting_for_a_run_ends_when_one_becomes_ready(self, backend: Backend) -> None:
        async with backend.open() as hf:
            waiting = asyncio.create_task(hf.another_worker().leases.next(timeout_seconds=30))
            await asyncio.sleep(0)
            await hf.runs.create("a")
            held = await waiting
            assert held is not None
            assert held.run_id == "a"

    @async_test
    async def test_run_with_entries_of_a_newer_version_is_left_to_newer_workers(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            await hf.runs.create("old")
            with mock.patch.object(journal, "SCHEMA", journal.SCHEMA + 1):
                run = await hf.runs.open("new")
                run.append("log", 1)
                await run.checkpoint()
                await run.open_waits([WaitSpec(wait_id="w")], suspend=True)
            with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here"):
                await hf.waits.resolve("w", 1)
            with mock.patch.object(journal, "SCHEMA", journal.SCHEMA + 1):
                await hf.waits.resolve("w", 1)
            leased = await hf.leases.next()
            assert leased is not None
            assert leased.run_id == "old"
            assert await hf.leases.next() is None
            with pytest.raises(SchemaMismatch, match="run new has entries of schema"):
                await hf.runs.open("new")
            with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here"):
                await hf.checkpoints.load("new")
            with pytest.raises(SchemaMismatch, match="Upgrade Holdfast here"):
                await hf.journal.verify("new")
            assert (await hf.runs.get("new")).status is RunStatus.READY
            with mock.patch.object(journal, "SCHEMA", journal.SCHEMA + 1):
                newest = await hf.leases.next()
                assert newest is not None
                assert newest.state()["log"] == [1]
                assert await hf.journal.verify("new") == []
