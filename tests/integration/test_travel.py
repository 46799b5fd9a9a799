"""The state that a run goes back to is the one that was stored, whatever became of it since."""

import random
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.testing.store_suite import async_test


async def states(hf: holdfast.Holdfast, run_id: str) -> dict[int, dict[str, Any]]:
    found = await hf.checkpoints.history(run_id, limit=1000)
    return {c.version: (await hf.checkpoints.load(run_id, c.version)).parts for c in found}


def own_parts(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what Holdfast says there about going back."""
    return {name: part for name, part in state.items() if not name.startswith("holdfast.")}


@async_test
async def test_parts_keep_their_kind_and_content_whatever_they_are_now(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1, [2], {"a": 3})
        held.append("emptied", 1)
        held.set("list", [1, 2])
        held.set("gone", {"x": b"1"})
        held.append("named", await held.record("step", {"long": "x" * 500}))
        held.set("value", await held.record("step", "y" * 500))
        await held.checkpoint()
        for name in ("log", "list", "gone"):
            held.drop(name)
        held.splice("emptied", 0, 1)
        held.splice("named", 0, 1)
        held.set("value", 0)
        await held.checkpoint()
        held.set("log", "a value now")
        held.append("list", 9)
        await held.checkpoint()
        await held.release()
        before = await states(hf, "r")
        for version in (0, 1, 2, 3, 1, 0, 3):
            expected = before.get(version, {})
            await hf.runs.rewind("r", version)
            found = (await hf.checkpoints.load("r")).parts
            found = own_parts(found)
            assert found == expected
            fork = await hf.runs.fork("r", version)
            copy = (await hf.checkpoints.load(fork.run_id)).parts
            copy = own_parts(copy)
            assert copy == expected
        await hf.runs.rewind("r", 1)
        held = await hf.runs.open("r")
        held.append("log", 4)  # a log yet
        held.set("list", [3])  # a value yet
        await held.checkpoint()
        assert held.state()["log"] == [1, [2], {"a": 3}, 4]
        assert {v: s for v, s in (await states(hf, "r")).items() if v < 4} == before
        assert await hf.journal.verify("r") == []


@async_test
async def test_value_that_is_larger_than_its_log_comes_back_from_a_separate_entry(
    store: str,
) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        held.append("log", "first")
        held.set("plan", "long " * 200)
        await held.checkpoint()
        held.splice("log", 0, 1, ["second"])
        held.set("plan", "short")
        await held.checkpoint()
        await held.release()
        await hf.runs.rewind("r", 1)
        kinds = [entry.kind for entry in await hf.journal.read("r")]
        assert kinds[-3:] == ["RUN_REWOUND", "STATE_VALUES", "CHECKPOINT_CREATED"]
        state = (await hf.checkpoints.load("r")).parts
        assert state == {"log": ["first"], "plan": "long " * 200}


@async_test
async def test_long_run_with_bases_goes_back_and_forth(store: str) -> None:
    chance = random.Random(7)
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        for turn in range(60):
            held.append("log", chance.randbytes(1500).hex())
            held.set("plan", chance.randbytes(1500).hex())
            if turn % 7 == 6:
                held.splice("log", 0, 4)
            await held.checkpoint()
        await held.release()
        kinds = {entry.kind for entry in await hf.journal.read("r")}
        assert "STATE_BASE" in kinds
        before = await states(hf, "r")
        for version in (50, 3, 58, 1):
            await hf.runs.rewind("r", version)
            held = await hf.runs.open("r")
            assert own_parts(held.state()) == before[version]
            held.append("log", "more")
            await held.checkpoint()
            assert held.state()["log"] == [*before[version]["log"], "more"]
            await held.release()
        assert {v: s for v, s in (await states(hf, "r")).items() if v <= 60} == before
        assert await hf.journal.verify("r") == []


@async_test
async def test_new_part_is_of_the_kind_that_the_run_made_it_later(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        held.set("list", [1])
        await held.checkpoint()
        await held.release()
        await hf.runs.fork("r", 0, new_run_id="f", edits={"log": [5], "list": [6], "new": [7]})
        fork = await hf.runs.open("f")
        fork.append("log", 6)
        fork.set("list", [7])
        fork.set("new", [8])
        await fork.checkpoint()
        state = fork.state()
        assert (state["log"], state["list"], state["new"]) == ([5, 6], [7], [8])


@async_test
async def test_version_with_a_tombstone_is_not_gone_back_to(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        for item in range(3):
            held.append("log", item)
            await held.checkpoint()
        await held.release()
        await hf.checkpoints.delete("r", 2)
        with pytest.raises(errors.CheckpointNotFound):
            await hf.runs.rewind("r", 2)
        with pytest.raises(errors.CheckpointNotFound):
            await hf.runs.plan("r", 2)
        await hf.runs.rewind("r", 1)
        assert (await hf.checkpoints.load("r"))["log"] == [0]


@async_test
async def test_run_of_a_worker_that_is_gone_is_rewound_without_a_takeover(store: str) -> None:
    async with holdfast.open(store) as gone:
        held = await gone.runs.open("r")
        held.append("log", 1)
        await held.checkpoint()
    async with holdfast.open(store) as hf:
        rewound = await hf.runs.rewind("r", 1, by="ops", note="its worker is gone")
        assert (rewound.status, rewound.worker, rewound.lease_seq) == ("ready", "", 0)
        assert (await hf.leases.take("r")).version == 2
