"""Where workflows live: one file, memory or a server, shared by processes, kept apart by tenant."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import to_datetime
from holdfast.compat.workflow_stores import periodic_cleanup_async
from holdfast.errors import RunNotFound, WaitNotFound
from holdfast.settings import Settings
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Kit
from tests import forked_cli
from tests.backends import Backend
from tests.disks import losing_power
from tests.workflows.checkpointing import HOUR
from tests.workflows.flows import Notes, call, flow, opened, prompt

HERE = "memory://"
MAIN = "from holdfast.cli import main; main()"
MEGABYTE = 1_000_000
FOREIGN = ("psycopg", "redis", "nats", "langgraph", "fastapi", "pydantic")
ALONE = f"""
import asyncio, sys
for name in {FOREIGN!r}:
    sys.modules[name] = None  # as if it were not installed
import holdfast
from holdfast.workflows import Block, Workflow

ask = Block(id="q", type="Prompt", inputs={{"prompt": "?"}})
outputs = {{"said": "{{{{ blocks.q.outputs.response }}}}"}}
made = Workflow(name="main", blocks=[ask], outputs=outputs)

async def main():
    async with holdfast.open() as hf:
        if sys.argv[1] == "run":
            outcome = await hf.workflows.run(made, run_id="r")
        else:
            outcome = await hf.workflows.resume("r", {{"q": sys.argv[1]}})
        sys.stdout.write(f"{{outcome.status}} {{outcome.outputs}}")

asyncio.run(main())
"""

made = flow(
    call("a"),
    prompt("q"),
    call("b", depends_on=["a", "q"], args={"what": "{{ blocks.q.outputs.response }}"}),
    outputs={"said": "{{ blocks.b.outputs.result }}"},
)


@pytest.mark.mission("S1-011", "S1-015", "S1-028", "S1-031")
@async_test
async def test_the_same_workflow_runs_in_any_store_though_nobody_prepared_it(
    unopened: Backend,
) -> None:
    notes = Notes()
    async with opened(unopened.url, tools=[notes.tool]) as hf:
        assert (await hf.workflows.run(made, run_id="r")).status == "waiting"
    async with opened(unopened.url, tools=[notes.tool]) as hf:
        outcome = await hf.workflows.resume("r", {"q": "go"})
    assert outcome.outputs == {"said": "go noted"}
    assert notes.done == ["a", "go"]


@pytest.mark.mission("S1-016", "S1-024", "S1-025")
@async_test
async def test_in_memory_is_the_same_without_a_file_and_without_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    kinds: list[list[str]] = []
    with losing_power(here / "flows.db", tmp_path / "disk") as disk:
        for url in (HERE, "flows.db"):
            async with opened(url, tools=[Notes().tool]) as hf:
                await hf.workflows.run(made, run_id="r")
                outcome = await hf.workflows.resume("r", {"q": "go"})
                assert outcome.outputs == {"said": "go noted"}
                kinds.append([entry.kind for entry in await hf.journal.read("r")])
            if url == HERE:
                assert (list(here.iterdir()), disk.opened) == ([], [])
    assert kinds[0] == kinds[1]
    assert here / "flows.db" in disk.opened
    assert disk.syncs > 0


@pytest.mark.mission("S1-022", "S1-027", "S1-028")
def test_one_file_and_the_package_are_enough(tmp_path: Path) -> None:
    def said(word: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", ALONE, word],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "HOLDFAST_STORE"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("run") == "waiting None"
    assert said("fine") == "completed {'said': 'fine'}"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".db"] == ["holdfast.db"]


@pytest.mark.mission("S1-013")
@async_test
async def test_tenants_and_workflows_do_not_reach_each_other(store: str) -> None:
    def of(tenant: str) -> Any:
        settings = Settings(tenant=tenant, wakeup_poll_seconds=0.1)
        return opened(store, settings=settings, tools=[Notes().tool])

    asking = flow(
        call("a"),
        prompt("q", depends_on=["a"]),
        outputs={"said": "{{ blocks.q.outputs.response }}"},
    )
    async with of("one") as one, of("two") as two:
        for run_id in ("r", "s"):
            await one.workflows.run(asking, run_id=run_id)
        assert {saved.run_id for saved in await one.checkpoints.search()} == {"r", "s"}
        asked = {each.run_id: each.wait_id for each in await one.approvals.list()}
        assert await two.workflows.list() == []
        assert await two.checkpoints.search() == []
        assert await two.approvals.list() == []
        for verb in (
            *(two.workflows.status, two.workflows.resume, two.workflows.cancel),
            *(two.workflows.definition, two.checkpoints.load, two.runs.input),
        ):
            with pytest.raises(RunNotFound):
                await verb("r")
        with pytest.raises(WaitNotFound):
            await two.approvals.answer(asked["r"], "theirs", by="eve")
        with pytest.raises(WaitNotFound):
            await one.workflows.resume("r", {asked["s"]: "that of another workflow"})
        await two.workflows.run(asking, run_id="r")
        ended = await two.workflows.resume("r", {"q": "theirs"})
        assert ended.outputs == {"said": "theirs"}
        assert (await one.workflows.status("r")).status == "waiting"
        assert (await one.workflows.resume("r", {"q": "ours"})).outputs == {"said": "ours"}
        assert (await one.workflows.status("s")).status == "waiting"


@pytest.mark.mission("S1-019", "S1-079")
@async_test
async def test_workers_share_the_workflows_of_a_store(store: str) -> None:
    """Each has one at a time, and none goes on before both have begun one."""
    notes, both_there = Notes(), asyncio.Barrier(2)

    @holdfast.tool
    async def meet() -> None:
        await both_there.wait()

    shared = flow(
        call("m", "meet", args={}),
        prompt("q"),
        call("b", depends_on=["m", "q"], args={"what": "{{ blocks.q.outputs.response }}"}),
        outputs={"said": "{{ blocks.b.outputs.result }}"},
    )
    runs = [f"r-{n}" for n in range(6)]
    async with (
        opened(store, tools=[notes.tool, meet]) as here,
        opened(store, tools=[notes.tool, meet]) as there,
    ):
        both = [here.new_worker(concurrency=1), there.new_worker(concurrency=1)]
        working = [asyncio.create_task(worker.run()) for worker in both]
        async with asyncio.timeout(60):
            for run_id in runs:
                await here.workflows.start(shared, run_id=run_id)
            while len(await there.approvals.list()) < len(runs):
                await asyncio.sleep(0.02)
            for run_id in runs:
                await there.workflows.answer(run_id, {"q": run_id}, by="ann")
            while len(await here.workflows.list(status="completed")) < len(runs):
                await asyncio.sleep(0.02)
        for worker in both:
            worker.stop()
        await asyncio.gather(*working)
        outputs = [(await there.workflows.status(run_id)).outputs for run_id in runs]
    assert outputs == [{"said": f"{run_id} noted"} for run_id in runs]
    assert sorted(notes.done) == runs


@pytest.mark.mission("S1-004", "S1-009")
@async_test
async def test_one_that_is_slow_fails_or_asks_holds_up_nobody(store: str) -> None:
    notes, go = Notes(), asyncio.Event()
    notes.fails["a"] = 1

    @holdfast.tool
    async def wait() -> str:
        await go.wait()
        return "went"

    slow = flow(call("w", "wait", args={}), name="slow")
    async with opened(store, tools=[notes.tool, wait]) as hf, asyncio.timeout(60):
        waiting = asyncio.create_task(hf.workflows.run(slow, run_id="slow"))
        failed = await hf.workflows.run(flow(call("a"), name="fails"))
        asks = flow(prompt("q"), call("b", depends_on=["q"]), name="asks")
        asked, *done = await asyncio.gather(
            hf.workflows.run(asks, run_id="asks"),
            *(hf.workflows.run(flow(call("c", args={"what": n}))) for n in range(5)),
        )
        assert (failed.status, asked.status) == ("failed", "waiting")
        assert {outcome.status for outcome in done} == {"completed"}
        assert (await hf.workflows.resume("asks", {"q": "yes"})).status == "completed"
        assert (await hf.workflows.status("slow")).status == "running"
        go.set()
        assert (await waiting).status == "completed"
    assert sorted(map(str, notes.done)) == ["0", "1", "2", "3", "4", "b"]


@pytest.mark.mission("S1-029")
@async_test
async def test_a_workflow_that_waits_holds_no_memory(store: str) -> None:
    @holdfast.tool
    async def large() -> bytes:
        return os.urandom(MEGABYTE)

    large_one = flow(
        call("now", "large", args={}),
        call("before", "large", args={}),
        prompt("q", depends_on=["before"]),
        call("then", "large", args={}, depends_on=["before"]),
        outputs={"all": "{{ blocks }}"},  # so that none is dropped because nobody needs it
    )
    async with opened(store, tools=[large]) as hf:
        await hf.workflows.run(large_one, run_id="first")  # what is loaded once
        tracemalloc.start()
        try:
            before = used_memory()
            for n in range(8):
                await hf.workflows.run(large_one, run_id=f"r-{n}")
            after = used_memory()
        finally:
            tracemalloc.stop()
        assert len(await hf.workflows.list(status="waiting")) == 9
    # Of 24 MB that they made; some may still be on its way out.
    assert after - before < 4 * MEGABYTE


def used_memory() -> int:
    """Without what nobody refers to any more."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.mission("S1-021")
@async_test
async def test_workflows_are_found_by_name_status_and_time(store: str) -> None:
    clock = ManualClock()
    async with holdfast.open(store, clock=clock, workflows=Kit(tools=[Notes().tool])) as hf:
        await hf.workflows.run(flow(call("a"), name="done"), run_id="old")
        clock.advance(HOUR)
        since = to_datetime(clock.now())
        await hf.workflows.run(flow(call("a"), name="done"), run_id="new")
        await hf.workflows.run(flow(call("a"), prompt("q", depends_on=["a"]), name="asks"))
        assert [run.run_id for run in await hf.workflows.list("done")] == ["new", "old"]
        assert await hf.workflows.list("asks", status="completed") == []
        assert len(await hf.workflows.list(status="waiting")) == 1
        found = await hf.checkpoints.search(phase="wave 1 of 1", since=since)
        assert [checkpoint.run_id for checkpoint in found] == ["new"]
        assert len(await hf.checkpoints.search(until=since)) == 1


@pytest.mark.mission("S1-057")
@async_test
async def test_state_is_json_at_the_command_line(store: str) -> None:
    async with opened(store, tools=[Notes().tool]) as hf:
        await hf.workflows.run(made, run_id="r")
        await hf.workflows.resume("r", {"q": "go"})

    def told(*words: str) -> Any:
        done = forked_cli.run(*words, "--store", store, "-o", "json", env=os.environ)
        return json.loads(done.stdout)

    state = await asyncio.to_thread(told, "checkpoints", "show", "r", "2")
    assert state["state"]["block.q"]["outputs"] == {"response": "go"}
    shown = await asyncio.to_thread(told, "workflows", "show", "r")
    assert shown["blocks"]["b"]["outputs"] == {"result": "go noted"}
    whole = await asyncio.to_thread(told, "journal", "show", "r", "--bodies")
    assert [entry["seq"] for entry in whole] == list(range(1, len(whole) + 1))
    (answered,) = [entry["body"] for entry in whole if entry["kind"] == "WAIT_RESOLVED"]
    assert answered == "go"


@pytest.mark.mission("S1-059")
@async_test
async def test_every_entry_of_a_workflow_tells_its_schema(backend: Backend) -> None:
    async with opened(backend.url, tools=[Notes().tool]) as hf:
        await hf.workflows.run(made, run_id="r")
        await hf.workflows.resume("r", {"q": "go"})
    with backend.raw() as raw:
        schemas = raw.rows("SELECT DISTINCT schema FROM journal")
    assert schemas == [(1,)]


@pytest.mark.mission("S1-005", "S1-010")
@async_test
async def test_what_workflows_held_is_erased_by_a_task_and_nobody_is_asked(
    backend: Backend,
) -> None:
    @holdfast.tool
    async def large() -> bytes:
        return os.urandom(MEGABYTE)

    clock = ManualClock()
    kit = Kit(tools=[large])
    async with holdfast.open(backend.url, clock=clock, workflows=kit) as hf:
        await hf.workflows.run(flow(call("a", "large", args={})), run_id="ended")
        await hf.workflows.run(flow(prompt("q")), run_id="asks")
        clock.advance(25 * HOUR)
        used = room(backend)
        cleaning = asyncio.create_task(periodic_cleanup_async(hf.workflows))
        async with asyncio.timeout(60):
            while await hf.journal.erased("ended") == []:
                await asyncio.sleep(0.01)
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)
        assert await hf.journal.verify("ended") == []
        assert await hf.journal.erased("asks") == []
        assert (await hf.workflows.resume("asks", {"q": "late"})).status == "completed"
    with backend.raw() as raw:
        left = [len(body or b"") for _, _, _, run, *_, body, _ in raw.entries() if run == "ended"]
    assert max(left) <= 8
    assert room(backend) < used - MEGABYTE


def room(backend: Backend) -> int:
    """How many bytes of a store hold something; the others are used again."""
    with backend.raw() as raw:
        if backend.name == "postgres":
            ((size,),) = raw.rows("SELECT sum(pg_column_size(body)) FROM journal")
            return size
        pages, free, size = (
            raw.rows(f"PRAGMA {what}")[0][0]
            for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size
