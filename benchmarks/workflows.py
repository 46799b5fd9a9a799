"""Workflows: a pause and its end, many at once, very many paused, and what a wave stores.

As a module it is a worker that has nothing to do: `python -m benchmarks.workflows URL`. It says
when it looks for runs; on a line it ends.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence

import holdfast
from benchmarks import idle
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged
from benchmarks.samples import Stopwatch, percentile
from benchmarks.sizes import Sizes
from holdfast.workflows import Block, Input, Kit, Workflow

NAMES = (
    "workflow_pause",
    "workflow_resume",
    "workflows_at_once",
    "workflows_paused_cpu",
    "workflows_paused_memory",
    "workflow_wave_bytes",
)
_SECONDS = 6.0
_CPU_SECONDS_PER_MINUTE = 3.0
_FEW = 20
_OUTPUT_BYTES = 2000
_AT_ONCE = 100


@holdfast.tool
async def pay(n: int) -> int:
    """Do next to nothing."""
    return n + 1


@holdfast.tool
async def produce() -> str:
    """Give what cannot be compressed."""
    return os.urandom(_OUTPUT_BYTES // 2).hex()


def _kit() -> Kit:
    return Kit(tools=[pay, produce])


def _asking() -> Workflow:
    call = {"tool": "pay", "args": {"n": "{{ inputs.n }}"}}
    return Workflow(
        name="asking",
        inputs={"n": Input(type="int")},
        blocks=[
            Block(id="ok", type="Prompt", inputs={"prompt": "May {{ inputs.n }} be paid?"}),
            Block(id="pay", type="Tool", inputs=call, depends_on=["ok"]),
        ],
        outputs={"paid": "{{ blocks.pay.outputs.result }}"},
    )


def _chain(waves: int) -> Workflow:
    """Each block waits for the one before; all that was given stays in the context."""
    blocks = [
        Block(
            id=f"b{n}",
            type="Tool",
            inputs={"tool": "produce"},
            depends_on=[f"b{n - 1}"] if n else [],
        )
        for n in range(waves)
    ]
    return Workflow(name="chain", blocks=blocks)


async def workflows(place: Place, sizes: Sizes) -> list[Row]:
    """The numbers of workflows on one store."""
    return [
        *await _pauses(place, sizes.workflow_pauses),
        await _at_once(place, sizes.workflows),
        *await _paused(place, sizes.paused_workflows),
        await _wave_bytes(place, sizes.workflow_waves),
    ]


async def _pauses(place: Place, many: int) -> list[Row]:
    pausing, resuming = Stopwatch(), Stopwatch()
    async with holdfast.Holdfast(place.new_store(), workflows=_kit()) as hf:
        for n in range(many + 1):
            with pausing:
                outcome = await hf.workflows.run(_asking(), {"n": n}, run_id=f"r{n}")
            assert outcome.status == "waiting", outcome
            with resuming:
                outcome = await hf.workflows.resume(outcome.run_id, {"ok": "yes"})
            assert outcome.outputs == {"paid": n + 1}, outcome
    rows: list[Row] = []
    for name, stopwatch in (("workflow_pause", pausing), ("workflow_resume", resuming)):
        del stopwatch.samples[0]  # what is compiled once
        note = f"p95 {percentile(stopwatch.samples, 95):.1f} ms"
        rows.append(judged(name, stopwatch.median, "ms", note=note))
    return rows


async def _at_once(place: Place, many: int) -> Row:
    """One worker, started and answered from the same process."""
    async with holdfast.Holdfast(place.new_store(), workflows=_kit()) as hf:
        worker = hf.new_worker(concurrency=many)
        working = asyncio.create_task(worker.run())
        since = time.perf_counter()
        await asyncio.gather(_start(hf, range(many)), _answer(hf, many))
        await _see(hf, "completed", many)
        seconds = time.perf_counter() - since
        worker.stop()
        await working
    note = f"{many} of them, two waves, a question and an effect each"
    return judged("workflows_at_once", many / seconds, "workflows/s", note=note)


async def _paused(place: Place, many: int) -> list[Row]:
    url = place.new_store()
    await _pause(url, range(_FEW))
    beside_few = await _idle(url)
    await _pause(url, range(_FEW, many))
    beside_many = await _idle(url)
    spent = beside_many.cpu_seconds / _SECONDS * 60
    few = f"{beside_few.cpu_seconds / _SECONDS * 60:.2f} s beside {_FEW}; {many:,} are paused"
    return [
        judged("workflows_paused_cpu", spent, "s/min", at_most=_CPU_SECONDS_PER_MINUTE, note=few),
        judged(
            "workflows_paused_memory",
            beside_many.resident_bytes / 1e6,
            "MB",
            floor=beside_few.resident_bytes / 1e6,
            at_most=1.1,
            note=f"{beside_many.threads} threads, {beside_few.threads} beside {_FEW}",
        ),
    ]


async def _wave_bytes(place: Place, waves: int) -> Row:
    """What a wave stores in a long workflow, beside what it does in one a fifth as long."""
    empty, short, long = [await _chained(place, n) for n in (0, waves // 5, waves)]
    early, late = (short - empty) / (waves // 5), (long - empty) / waves
    note = f"{waves} waves beside {waves // 5}, {_OUTPUT_BYTES:,} B of new outputs in each"
    return judged(
        "workflow_wave_bytes", late / 1000, "KB", floor=early / 1000, at_most=1.2, note=note
    )


async def _chained(place: Place, waves: int) -> int:
    """What a store takes with ten workflows of so many waves."""
    url = place.new_store()
    async with holdfast.Holdfast(url, workflows=_kit()) as hf:
        if waves:
            outcomes = [await hf.workflows.run(_chain(waves)) for _ in range(10)]
            assert all(each.status == "completed" for each in outcomes)
    place.settle(url)
    return place.stored_bytes(url) // 10


async def _pause(url: str, numbers: Sequence[int]) -> None:
    async with holdfast.Holdfast(url, workflows=_kit()) as hf:
        before = (await hf.info()).runs.get("waiting", 0)
        worker = hf.new_worker(concurrency=_AT_ONCE)
        working = asyncio.create_task(worker.run())
        await _start(hf, numbers)
        await _see(hf, "waiting", before + len(numbers))
        worker.stop()
        await working


async def _start(hf: holdfast.Holdfast, numbers: Sequence[int]) -> None:
    made = _asking()
    for at in range(0, len(numbers), _AT_ONCE):
        some = numbers[at : at + _AT_ONCE]
        await asyncio.gather(*(hf.workflows.start(made, {"n": n}, run_id=f"r{n}") for n in some))


async def _answer(hf: holdfast.Holdfast, many: int) -> None:
    answered = set[str]()
    while len(answered) < many:
        asked = [each.run_id for each in await hf.approvals.list(limit=_AT_ONCE)]
        new = [run_id for run_id in asked if run_id not in answered]
        await asyncio.gather(*(hf.workflows.answer(run_id, {"ok": "yes"}) for run_id in new))
        answered.update(new)
        await asyncio.sleep(0.005)


async def _see(hf: holdfast.Holdfast, status: str, many: int) -> None:
    while (await hf.info()).runs.get(status, 0) < many:
        await asyncio.sleep(0.01)


async def _idle(url: str) -> idle.Usage:
    """What a worker holds that finds nothing to do, and what it spends meanwhile."""
    async with child("benchmarks.workflows", url) as worker:
        await worker.line()
        before = idle.usage(worker.pid)
        await asyncio.sleep(_SECONDS)
        after = idle.usage(worker.pid)
        worker.tell("end")
    return after._replace(cpu_seconds=after.cpu_seconds - before.cpu_seconds)


async def _be_idle(url: str) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), told.set)
    async with holdfast.Holdfast(url, workflows=_kit()) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        assert await hf.leases.next() is None, "all runs wait"
        print("open", flush=True)
        await told.wait()
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(_be_idle(*sys.argv[1:]))
