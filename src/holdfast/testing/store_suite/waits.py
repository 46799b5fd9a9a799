"""Waits: each settled exactly once, groups closed exactly once, in one commit with the wake-up."""

import asyncio

import pytest

from holdfast.engine.waits import WaitSpec
from holdfast.errors import MisuseError, WaitExists, WaitNotFound
from holdfast.kernel.runs import RunStatus
from holdfast.kernel.waits import WaitStatus
from holdfast.stores.contract import LateDecision, Snapshot, Sweep
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test
from holdfast.testing.store_suite.mark_commits import store_of


def _waits(count: int, timeout: float | None = None) -> list[WaitSpec]:
    return [
        WaitSpec(wait_id=f"w{n}", name=f"peer-{n}", timeout_seconds=timeout) for n in range(count)
    ]


class WaitsSuite:
    """What a store guarantees about waits."""

    @async_test
    async def test_last_reply_wakes_the_run_with_all_results(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits(_waits(3), suspend=True)
            assert (await hf.runs.get("a")).status is RunStatus.WAITING
            for n in (2, 0):
                answer = await hf.waits.resolve(f"w{n}", {"from": n}, by=f"peer-{n}")
                assert answer.accepted
                assert await hf.leases.next() is None
            await hf.waits.resolve("w1", {"from": 1})
            held = await hf.leases.next()
            assert held is not None
            results = await held.results(group)
            assert [result.value for result in results] == [{"from": n} for n in range(3)]
            assert results[0].settled_by == "peer-0"

    @async_test
    async def test_second_answer_is_told_who_was_first(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits(_waits(1), suspend=True)
            first = await hf.waits.resolve("w0", "", by="alice")
            second = await hf.waits.resolve("w0", "other", by="bob")
            assert first.accepted
            assert (second.accepted, second.settled_by) == (False, "alice")
            assert (second.completed, second.total) == (1, 1)
            assert (await hf.waits.get("w0")).duplicates == 1
            (result,) = await hf.waits.results("a", group)
            assert result.value == ""
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_many_racing_answers_have_one_winner(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits(_waits(1), suspend=True)
            answers = await asyncio.gather(
                *(hf.waits.resolve("w0", n, by=f"p{n}") for n in range(200))
            )
            winners = [answer.settled_by for answer in answers if answer.accepted]
            assert len(winners) == 1
            assert {answer.settled_by for answer in answers} == set(winners)
            (result,) = await hf.waits.results("a", group)
            assert f"p{result.value}" == winners[0]
            assert (await hf.waits.get("w0")).duplicates == 199

    @async_test
    async def test_overdue_waits_expire_in_order_and_count_as_settled(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            await run.checkpoint()
            clock.advance(50)  # a deadline counts from the moment in which the wait is opened
            group = await run.open_waits(
                [
                    WaitSpec(wait_id="slow", timeout_seconds=100),
                    WaitSpec(wait_id="soon", timeout_seconds=10),
                    WaitSpec(wait_id="ever"),
                ],
                suspend=True,
            )
            clock.advance(9)
            assert await hf.waits.expire_due() == 0
            clock.advance(1)
            assert await hf.waits.expire_due() == 1
            assert (await hf.waits.get("soon")).status is WaitStatus.EXPIRED
            clock.advance(90)
            assert await hf.waits.expire_due() == 1
            late = await hf.waits.resolve("soon", "late", by="peer")
            assert (late.accepted, late.status) == (False, WaitStatus.EXPIRED)
            await hf.waits.resolve("ever", "ok")
            held = await hf.leases.next()
            assert held is not None
            statuses = {result.wait_id: result.status for result in await held.results(group)}
            assert statuses == {"slow": "expired", "soon": "expired", "ever": "resolved"}

    @pytest.mark.parametrize("agents", [(), ("bot",)], ids=["all agents", "one agent"])
    @async_test
    async def test_sweep_finds_only_the_waits_that_are_due(
        self, backend: Backend, agents: tuple[str, ...]
    ) -> None:
        """A run whose waits have time left is not even read: there may be many of them."""

        def names(snapshot: Snapshot) -> LateDecision:
            return LateDecision(sorted(snapshot.indexes.waits))

        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            for run_id, timeout in (("a", 10), ("b", 100), ("c", None)):
                run = await hf.runs.open(run_id, agent="bot")
                spec = WaitSpec(wait_id=f"w-{run_id}", kind="peer", timeout_seconds=timeout)
                await run.open_waits([spec], suspend=True)
            clock.advance(10)
            store = store_of(hf)
            sweep = Sweep(store.tenant, "due_waits", "sweeper", 10, names, agents)
            assert await store.submit(sweep) == [("a", ["w-a"])]

    @async_test
    async def test_sign_of_life_moves_the_deadline_of_an_open_wait(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            await run.open_waits(_waits(1, timeout=10), suspend=True)
            clock.advance(9)
            assert await hf.waits.extend("w0", timeout_seconds=10)
            clock.advance(9)
            assert await hf.waits.expire_due() == 0
            clock.advance(1)
            assert await hf.waits.expire_due() == 1
            assert not await hf.waits.extend("w0", timeout_seconds=10)
            with pytest.raises(MisuseError, match="either"):
                await hf.waits.extend("w0")

    @async_test
    async def test_any_takes_the_first_and_cancels_the_rest(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits(_waits(3), mode="any", suspend=True)
            await hf.waits.resolve("w1", "first")
            assert (await hf.runs.get("a")).status is RunStatus.READY
            late = await hf.waits.resolve("w2", "late")
            assert (late.accepted, late.status) == (False, WaitStatus.CANCELLED)
            results = {r.wait_id: r.status for r in await hf.waits.results("a", group)}
            assert results == {"w0": "cancelled", "w1": "resolved", "w2": "cancelled"}

    @async_test
    async def test_number_that_cannot_be_reached_fails_at_once(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits(_waits(3), mode=2, suspend=True)
            await hf.waits.cancel("w0", by="ops")
            assert (await hf.runs.get("a")).status is RunStatus.WAITING
            await hf.waits.cancel("w1", by="ops")
            assert (await hf.runs.get("a")).status is RunStatus.READY
            assert (await hf.waits.get("w2")).status is WaitStatus.CANCELLED
            for mode in (0, 4, "most"):
                with pytest.raises(MisuseError):
                    await (await hf.runs.open("b")).open_waits(_waits(3), mode=mode)

    @async_test
    async def test_reply_that_comes_before_the_run_suspends_is_not_lost(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits(_waits(1))
            await hf.waits.resolve("w0", "early")
            assert not await run.suspend(group)
            (result,) = await run.results(group)
            assert result.value == "early"
            await run.complete(result.value)
            second = await hf.runs.open("b")
            group = await second.open_waits([WaitSpec(wait_id="x")])
            assert await second.suspend(group)
            assert (await hf.runs.get("b")).status is RunStatus.WAITING

    @async_test
    async def test_cancelling_a_run_cancels_its_waits(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits(_waits(2), suspend=True)
            await hf.runs.cancel("a")
            answer = await hf.waits.resolve("w0", "late")
            assert (answer.accepted, answer.status) == (False, WaitStatus.CANCELLED)
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_wait_ids_are_used_once(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits(_waits(1))
            before = await hf.journal.read("a")
            with pytest.raises(WaitExists):
                await run.open_waits([WaitSpec(wait_id="new"), WaitSpec(wait_id="w0")])
            with pytest.raises(MisuseError, match="same id"):
                await run.open_waits([WaitSpec(wait_id="n"), WaitSpec(wait_id="n")])
            assert await hf.journal.read("a") == before
            with pytest.raises(WaitNotFound):
                await hf.waits.get("new")
            with pytest.raises(WaitNotFound):
                await hf.waits.resolve("none")
            await run.open_waits([WaitSpec(wait_id="new")])

    @async_test
    async def test_two_thousand_deadlines_in_one_moment_expire_once_each(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            specs = [WaitSpec(wait_id=f"w{n:05}", timeout_seconds=1) for n in range(2_000)]
            await run.open_waits(specs, suspend=True)
            clock.advance(1)
            workers = [hf, hf.another_worker(), hf.another_worker()]
            expired = 0
            while batch := await asyncio.gather(*(w.waits.expire_due(limit=300) for w in workers)):
                expired += sum(batch)
                if not sum(batch):
                    break
            assert expired == 2_000
            assert (await hf.runs.get("a")).status is RunStatus.READY
