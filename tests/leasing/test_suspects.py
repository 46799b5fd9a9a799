"""Suspects in one process: tried alone, whichever way the runs beside them would begin."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.engine import sweeper
from holdfast.engine.messages import peers
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.leasing.laborer import settings
from tests.leasing.test_worker_loss import Shop, record_losses

LONG = 3600.0
MOMENT_SECONDS = 1.0


class Stage:
    """Agents that report that they have begun, and wait until their run may end."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._shop = Shop(backend, folder, lease_seconds=LONG)
        self.begun: list[str] = []
        self.may_end: set[str] = set()
        self.tried, self.other = self._agent("tried"), self._agent("other")

    def _agent(self, name: str) -> holdfast.Agent[..., str]:
        @holdfast.agent(name=name, cadence="boundary")
        async def waits(run: holdfast.Run) -> str:
            self.begun.append(run.run_id)
            while run.run_id not in self.may_end:
                await asyncio.sleep(0.01)
            return "done"

        return waits

    @asynccontextmanager
    async def opened(self, *more: str, counted: int = 2) -> AsyncIterator[holdfast.Holdfast]:
        """A store with a run that is a suspect, and more of those."""
        agents = [self.tried, self.other]
        backend = self._shop.backend
        async with holdfast.Holdfast(backend.url, agents=agents, settings=settings(LONG)) as hf:
            suspects = ("suspect", *more)
            for run_id in suspects:
                await hf.start(self.tried, run_id=run_id)
            await record_losses(self._shop, *suspects, counted=counted)
            async with asyncio.timeout(60):
                yield hf

    async def until_begun(self, *run_ids: str) -> None:
        while self.begun != [*run_ids]:
            await asyncio.sleep(0.01)


@pytest.fixture
def stage(backend: Backend, tmp_path: Path) -> Stage:
    return Stage(backend, tmp_path)


@async_test
async def test_run_that_is_asked_for_waits_until_the_trial_of_a_suspect_is_over(
    stage: Stage,
) -> None:
    async with stage.opened() as hf:
        trial = asyncio.create_task(hf.run(stage.tried, run_id="suspect"))
        await stage.until_begun("suspect")
        running = asyncio.create_task(hf.run(stage.other, run_id="o"))
        await asyncio.sleep(MOMENT_SECONDS)
        assert stage.begun == ["suspect"]
        stage.may_end |= {"suspect", "o"}
        assert [await trial, await running] == ["done", "done"]


@async_test
async def test_suspect_that_is_asked_for_waits_for_runs_that_have_not_proven_themselves(
    stage: Stage,
) -> None:
    async with stage.opened() as hf:
        running = asyncio.create_task(hf.run(stage.other, run_id="o"))
        await stage.until_begun("o")
        trial = asyncio.create_task(hf.run(stage.tried, run_id="suspect"))
        await asyncio.sleep(MOMENT_SECONDS)
        assert stage.begun == ["o"]
        stage.may_end |= {"suspect", "o"}
        assert [await trial, await running] == ["done", "done"]


@async_test
async def test_worker_begins_no_run_that_it_takes_after_a_trial_has_begun_here(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.opened() as hf:
        sweep: Callable[..., Any] = sweeper.swept
        is_taking, may_take = asyncio.Event(), asyncio.Event()

        async def late(*given: Any) -> Any:
            swept = await sweep(*given)
            if given[1].find == "ready_runs" and swept:
                is_taking.set()
                await may_take.wait()
            return swept

        monkeypatch.setattr(sweeper, "swept", late)
        worker = hf.new_worker(agents=["other"])
        await hf.start(stage.other, run_id="o")
        working = asyncio.create_task(worker.run())
        await is_taking.wait()
        trial = asyncio.create_task(hf.run(stage.tried, run_id="suspect"))
        await stage.until_begun("suspect")
        may_take.set()
        while "RUN_RELEASED" not in [entry.kind for entry in await hf.journal.read("o")]:
            assert stage.begun == ["suspect"]
            await asyncio.sleep(0.01)
        await asyncio.sleep(MOMENT_SECONDS)
        assert stage.begun == ["suspect"]
        stage.may_end |= {"suspect", "o"}
        assert await trial == "done"
        async for _ in hf.runs.watch("o"):
            pass
        worker.stop()
        await working


@async_test
async def test_request_of_a_peer_elsewhere_waits_for_a_trial_too(stage: Stage) -> None:
    async with stage.opened() as hf:
        trial = asyncio.create_task(hf.run(stage.tried, run_id="suspect"))
        await stage.until_begun("suspect")
        created = await peers.creation(hf._context, agent="other", given=None, reply_to="q")
        assert not await asyncio.wait_for(hf._work.take_in("o", created, None), 5)
        assert stage.begun == ["suspect"]
        stage.may_end |= {"suspect", "o"}
        assert await trial == "done"
        assert await hf._work.take_in("o", created, None)


@async_test
async def test_lease_that_nobody_worked_under_leaves_the_losses_as_they_were(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.opened() as hf:

        async def away(*_: object) -> None:
            raise errors.StoreUnavailable("for a moment")

        before = await hf.runs.get("suspect")
        with monkeypatch.context() as patched:
            patched.setattr(hf.leases, "_state_of", away)
            with pytest.raises(errors.StoreUnavailable):
                await hf.leases.next()
        await hf.leases.tend()
        after = await hf.runs.get("suspect")
        assert after.status == "ready"
        assert (after.attempts, after.lost, after.losses) == (2, 2, before.losses)


@async_test
async def test_run_that_is_released_because_of_a_trial_keeps_its_losses(stage: Stage) -> None:
    async with stage.opened() as hf:
        held = await hf.leases.next()
        assert held is not None
        await hf.leases.orphans.release(held, note="another is tried")
        after = await hf.runs.get("suspect")
        assert (after.status, after.lost) == ("ready", 2)
        assert after.losses.count("beside") == 2
        held = await hf.leases.next(timeout_seconds=20)
        assert held is not None
        await held.release()
        after = await hf.runs.get("suspect")
        assert (after.lost, after.losses) == (0, "[]")


@async_test
async def test_run_whose_losses_were_forgotten_is_no_suspect_for_anybody(stage: Stage) -> None:
    async with stage.opened("second", counted=1) as hf:
        context = hf._context
        assert await context.store.runs.find_suspect(["tried"], context.now()) is None
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        while sorted(stage.begun) != ["second", "suspect"]:
            await asyncio.sleep(0.01)
        assert {row.trying_run for row in await hf.leases.workers()} == {""}
        stage.may_end |= {"suspect", "second"}
        worker.stop()
        await working


@async_test
async def test_row_does_not_name_a_suspect_that_was_none_when_it_was_taken(stage: Stage) -> None:
    async with stage.opened(counted=1) as hf:
        await hf.leases.take_suspect("suspect")
        assert {row.trying_run for row in await hf.leases.workers()} == {""}


async def checkpoint(held: holdfast.LeasedRun) -> None:
    held.set("turn", 1)
    await held.checkpoint()


async def release(held: holdfast.LeasedRun) -> None:
    await held.release()


@pytest.mark.parametrize("end", [checkpoint, release])
@async_test
async def test_suspect_that_is_taken_as_the_next_run_is_named_until_its_trial_is_over(
    stage: Stage, end: Callable[[holdfast.LeasedRun], Awaitable[None]]
) -> None:
    async with stage.opened() as hf:

        async def tried() -> set[str]:
            return {row.trying_run for row in await hf.leases.workers()}

        held = await hf.leases.next()
        assert held is not None
        assert await tried() == {"suspect"}
        await end(held)
        await hf.leases.renew()
        assert await tried() == {""}


@async_test
async def test_suspects_are_taken_as_the_next_run_one_after_another(stage: Stage) -> None:
    async with stage.opened("second", "third") as hf:
        taken: list[str] = []
        for _ in range(3):
            found = await asyncio.gather(*(hf.leases.next() for _ in range(4)))
            (held,) = (each for each in found if each is not None)
            taken.append(held.run_id)
            assert await hf.leases.next(timeout_seconds=0.3) is None
            assert {row.trying_run for row in await hf.leases.workers()} == {held.run_id}
            await checkpoint(held)
            while hf.leases.trials.suspect:
                await asyncio.sleep(0.01)
        assert sorted(taken) == ["second", "suspect", "third"]
        kinds = [entry.kind for entry in await hf.journal.read("suspect")]
        assert kinds.count("LEASE_EXPIRED") == 1


@async_test
async def test_suspect_is_not_the_next_run_of_a_worker_that_holds_an_unproven_one(
    stage: Stage,
) -> None:
    async with stage.opened() as hf:
        held = await hf.runs.open("beside")
        assert await hf.leases.next(timeout_seconds=0.3) is None
        assert "RUN_RELEASED" not in [entry.kind for entry in await hf.journal.read("suspect")]
        await checkpoint(held)
        suspect = await hf.leases.next(timeout_seconds=10)
        assert suspect is not None
        assert suspect.run_id == "suspect"


@async_test
async def test_run_that_is_asked_for_waits_for_the_trial_of_the_next_run(stage: Stage) -> None:
    async with stage.opened() as hf:
        held = await hf.leases.next()
        assert held is not None
        running = asyncio.create_task(hf.run(stage.other, run_id="o"))
        await asyncio.sleep(MOMENT_SECONDS)
        assert stage.begun == []
        await held.release()
        stage.may_end.add("o")
        assert await running == "done"


@async_test
async def test_trial_of_the_next_run_ends_when_its_lease_is_lost(stage: Stage) -> None:
    async with stage.opened() as hf:
        held = await hf.leases.next()
        assert held is not None
        await hf.runs.cancel("suspect")
        await hf.start(stage.other, run_id="o")
        after = await hf.leases.next(timeout_seconds=20)
        assert after is not None
        assert (held.run_id, after.run_id) == ("suspect", "o")
