"""Runs whose versions a framework names: their saves, their effects, and whose they are."""

import pytest

import holdfast
from holdfast import EffectRequest
from holdfast.engine.marked.marked_run import VersionChange
from holdfast.engine.marked.marks import Marks
from holdfast.errors import IllegalMove, InputDiffers
from holdfast.kernel.effects import EffectStatus
from holdfast.kernel.marks import Mark
from holdfast.testing.store_suite import async_test

PAY = EffectRequest(tool="pay", args={"cents": 5})


@async_test
async def test_save_returns_the_number_of_its_version(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await Marks(hf._context, hf.leases, "framework").open("thread")
        for number in (1, 2):
            mark = Mark("", f"n{number}")
            saved = await run.save(mark, lambda _, n=number: VersionChange({}, {"state": n}))
            assert saved == number
            assert (await hf.checkpoints.load("thread", saved))["state"] == number


@async_test
async def test_outcome_that_somebody_else_recorded_first_stays(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await Marks(hf._context, hf.leases, "framework").open("thread")
        (begun,) = await run.begin_effects([PAY])
        await hf.effects.settle(begun.effect.effect_id, "completed", result="seen at the bank")
        with pytest.raises(IllegalMove, match="was settled meanwhile; its outcome stays"):
            await run.settle_effect(begun, EffectStatus.NOT_DONE, note="it came too late")
        (again,) = await run.begin_effects([PAY])
        assert (again.answer, again.result) == ("done", "seen at the bank")


@async_test
async def test_run_of_an_agent_is_not_opened_as_a_thread(store: str) -> None:
    async with holdfast.open(store) as hf:
        await hf.runs.create("refund-7", agent="support")
        before = await hf.journal.read("refund-7")
        marks = Marks(hf._context, hf.leases, "framework")
        with pytest.raises(InputDiffers, match="is a run of agent 'support', not a thread of"):
            await marks.open("refund-7")
        with pytest.raises(InputDiffers, match="choose another id"):
            await marks.open_copy("copy", "refund-7")
        assert await hf.journal.read("refund-7") == before
        assert [run.run_id for run in await hf.runs.list()] == ["refund-7"]
