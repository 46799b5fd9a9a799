"""What a real system of this kind got wrong, each as it would be seen by a user."""

import asyncio
import tempfile
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import HoldfastError, RunEnded
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block, Input
from tests.proxy import Proxy
from tests.workflows.flows import Notes, call, flow, opened, prompt


class Blocking:
    """A tool that tells when it runs, and runs until it is let go or ended."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = asyncio.Event()

        @holdfast.tool(effect="read")
        async def hang() -> str:
            self.began.set()
            try:
                await self.go.wait()
            finally:
                self.ended.set()
            return "went"

        self.tool = hang


@async_test
async def test_cancelling_running_workflows_leaves_the_worker_well(store: str) -> None:
    notes, blocking = Notes(), Blocking()
    made = flow(call("a", "hang", args={}), call("b", depends_on=["a"]))
    async with opened(store, tools=[blocking.tool, notes.tool]) as hf:
        worker = hf.new_worker(concurrency=2)
        working = asyncio.create_task(worker.run())
        for n in range(3):
            blocking.began.clear()
            blocking.ended.clear()
            await hf.workflows.start(made, run_id=f"cancelled-{n}")
            async with asyncio.timeout(60):
                await blocking.began.wait()
                await hf.workflows.cancel(f"cancelled-{n}", by="ann")
                await blocking.ended.wait()
            assert (await hf.workflows.status(f"cancelled-{n}")).status == "cancelled"
        blocking.go.set()
        await hf.workflows.start(made, run_id="after")
        async with asyncio.timeout(60):
            async for run in hf.runs.watch("after"):
                if run.status == "completed":
                    break
        worker.stop()
        await working
    assert notes.done == ["b"]


@async_test
async def test_a_workflow_cancelled_before_a_worker_came_never_runs(store: str) -> None:
    notes = Notes()
    async with opened(store, tools=[notes.tool]) as hf:
        await hf.workflows.start(flow(call("a")), run_id="r")
        await hf.workflows.cancel("r")
        outcome = await hf.workflows.resume("r")
        assert (outcome.status, notes.done) == ("cancelled", [])
        with pytest.raises(RunEnded):
            await hf.workflows.cancel("r")


@pytest.mark.mission("S1-002", "S1-018")
@async_test
async def test_queued_workflows_are_worked_on_after_a_restart(store: str) -> None:
    notes = Notes()
    async with opened(store, tools=[notes.tool]) as hf:
        for n in range(3):
            await hf.workflows.start(flow(call("a", args={"what": n})), run_id=f"r-{n}")
    async with opened(store, tools=[notes.tool]) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            while len(await hf.workflows.list(status="completed")) < 3:
                await asyncio.sleep(0.02)
        worker.stop()
        await working
    assert sorted(notes.done) == [0, 1, 2]


@pytest.mark.mission("S1-002")
@async_test
async def test_a_workflow_goes_on_though_all_connections_to_its_store_are_cut(
    postgres_url: str,
) -> None:
    notes = Notes()

    @holdfast.tool
    async def cut(answers: bool) -> None:
        """Cut those that are open, and the one that will carry what became of this call."""
        proxy.cut_now(reset=True)
        if answers:
            proxy.cut_at_commit()
        else:
            proxy.cut_before_commit()

    made = flow(
        call("a"),
        call("question", "cut", args={"answers": False}, depends_on=["a"]),
        call("answer", "cut", args={"answers": True}, depends_on=["question"]),
        call("b", depends_on=["answer"]),
    )
    with Proxy(postgres_url) as proxy:
        async with opened(proxy.url(postgres_url), tools=[notes.tool, cut]) as hf:
            assert (await hf.workflows.run(made, run_id="r")).status == "completed"
            assert await hf.journal.verify("r") == []
        assert proxy.cuts >= 4
    assert notes.done == ["a", "b"]


@async_test
async def test_a_cancelled_paused_workflow_takes_its_nested_ones_with_it(store: str) -> None:
    child = flow(prompt("q"), name="child")
    made = flow(
        Block(id="n", type="Workflow", for_each=[1, 2], inputs={"workflow": "child"}), prompt("top")
    )
    async with opened(store, definitions=[child]) as hf:
        await hf.workflows.run(made, run_id="r")
        await hf.workflows.cancel("r", by="ann")
        async with asyncio.timeout(60):
            while len(await hf.workflows.list(nested=True, status="cancelled")) < 3:
                await hf.runs.get("r")
                await hf.waits.expire_due()
                worker = hf.new_worker()
                working = asyncio.create_task(worker.run())
                await asyncio.sleep(0.1)
                worker.stop()
                await working
        assert await hf.approvals.list() == []


@pytest.mark.mission("S1-004")
@async_test
async def test_any_number_of_paused_workflows_is_kept(store: str) -> None:
    """A limit on history deletes none that waits, and listing finds each by its name."""
    made = flow(prompt("q"))
    async with opened(store) as hf:
        started = [hf.workflows.run(made, run_id=f"r-{n}") for n in range(30)]
        outcomes = await asyncio.gather(*started)
        assert {outcome.status for outcome in outcomes} == {"waiting"}
        assert len(await hf.workflows.list("main", status="waiting")) == 30
        outcome = await hf.workflows.resume("r-0", {"q": "still here"})
        assert outcome.status == "completed"


@pytest.mark.mission("S1-003", "S1-012", "S1-058")
@async_test
async def test_values_come_back_as_they_were_or_are_refused(store: str) -> None:
    """Nothing is silently made a text of."""
    got: list[Any] = []

    @holdfast.tool
    async def give(kind: str) -> Any:
        values = {
            "decimal": Decimal("1.10"),
            "nested": {"a": [None, {"b": [1, 2.5, True, "é"]}]},
            "bytes": b"\x00\xff",
            "delta": timedelta(1),
        }
        return values[kind]

    @holdfast.tool
    async def take(value: Any) -> None:
        got.append(value)

    made = flow(
        call("give", "give", args={"kind": "{{ inputs.kind }}"}),
        prompt("pause", depends_on=["give"]),
        call(
            "take",
            "take",
            args={"value": "{{ blocks.give.outputs.result }}"},
            depends_on=["pause", "give"],
        ),
        inputs={"kind": Input()},
    )
    for kind in ("nested", "bytes"):
        async with opened(store, tools=[give, take]) as hf:
            await hf.workflows.run(made, {"kind": kind}, run_id=kind)
        async with opened(store, tools=[give, take]) as hf:
            paused = await hf.workflows.status(kind)
            assert paused.waves == [["give"], ["pause"], ["take"]]
            assert (paused.completed_waves, list(paused.blocks)) == (1, ["give"])
            assert [(each.block, each.prompt) for each in paused.waiting] == [("pause", "pause?")]
            assert (await hf.runs.input(kind))["start"]["inputs"] == {"kind": kind}
            assert (await hf.workflows.resume(kind, {"pause": "ok"})).status == "completed"
    assert got == [{"a": [None, {"b": [1, 2.5, True, "é"]}]}, b"\x00\xff"]


@async_test
async def test_input_that_is_no_data_is_refused_and_nothing_is_started() -> None:
    made = flow(prompt("q"), inputs={"x": Input(type="any")})
    async with opened("memory://") as hf:
        with pytest.raises(HoldfastError, match="set"):
            await hf.workflows.run(made, {"x": {1, 2}})
        assert await hf.workflows.list() == []


@async_test
async def test_nothing_of_a_workflow_is_left_in_the_folder_for_temporary_files(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    notes = Notes()
    async with opened(store, tools=[notes.tool]) as hf:
        await hf.workflows.run(flow(prompt("q"), call("a", depends_on=["q"])), run_id="r")
        await hf.workflows.resume("r", {"q": "yes"})
    assert notes.done == ["a"]
    assert list(scratch.iterdir()) == []
