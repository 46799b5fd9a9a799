"""Many workflows at once, and very many that are paused."""

import asyncio
import os
import resource
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.settings import Settings
from holdfast.workflows import Input, Kit, Workflow
from tests.backends import Backend
from tests.workflows.flows import call, flow, prompt

MANY = 120
CHAOS_MANY = 500
FEW = 3
PAUSED = 300
CHAOS_PAUSED = 10_000
POLLS = 10
POOL = 20  # connections are opened when they are first needed: how many there are is chance
LIMIT_SECONDS = 900
SETTINGS = Settings(wakeup_poll_seconds=0.05, sweep_seconds=0.1)
TABLES = ("runs", "journal", "checkpoints", "effects", "waits", "messages")


def asking() -> Workflow:
    return flow(
        prompt("ok", "May {{ inputs.n }}?"),
        call("pay", "pay", depends_on=["ok"], args={"n": "{{ blocks.ok.outputs.response }}"}),
        inputs={"n": Input(type="int")},
        outputs={"paid": "{{ blocks.pay.outputs.result }}"},
    )


class Till:
    """A tool that counts what was paid."""

    def __init__(self) -> None:
        self.paid = Counter[int]()

        @holdfast.tool
        async def pay(n: int) -> int:
            self.paid[n] += 1
            await asyncio.sleep(0)
            return n

        self.kit = Kit(tools=[pay])


class Held(NamedTuple):
    """What a process holds on to."""

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> "Held":
        files = len(os.listdir("/proc/self/fd"))
        names = [each.name for each in threading.enumerate()]
        own = [name for name in names if not name.startswith("asyncio_")]  # the loop's are few
        return cls(len(asyncio.all_tasks()), len(own), files)

    def more_than(self, before: "Held") -> int:
        """By how much the one that has grown most has grown."""
        return max(now - then for now, then in zip(self, before, strict=True))


async def start_all(hf: holdfast.Holdfast, numbers: Sequence[int]) -> None:
    made = asking()
    for at in range(0, len(numbers), 100):
        some = numbers[at : at + 100]
        await asyncio.gather(*(hf.workflows.start(made, {"n": n}, run_id=f"r{n}") for n in some))


async def see(hf: holdfast.Holdfast, status: str, many: int) -> None:
    """Wait until so many runs have come to a status."""
    while (await hf.info()).runs.get(status, 0) < many:
        await asyncio.sleep(0.02)


async def answer_all(hf: holdfast.Holdfast, many: int) -> None:
    """Answer every question when it is asked: with the number of its run."""
    answered = set[str]()
    while len(answered) < many:
        for asked in await hf.approvals.list(limit=200):
            if asked.run_id not in answered:
                await hf.workflows.answer(asked.run_id, {"ok": int(asked.run_id[1:])})
                answered.add(asked.run_id)
        await asyncio.sleep(0.01)


@pytest.mark.mission("S1-004")
@pytest.mark.chaos(backend=["postgres"])
def test_many_workflows_at_once_each_pay_once_and_leave_nothing(
    backend: Backend, is_chaos: bool
) -> None:
    """Five hundred of them with --chaos."""
    many = CHAOS_MANY if is_chaos else MANY
    asyncio.run(asyncio.wait_for(work_on_many(backend.url, many), LIMIT_SECONDS))


async def work_on_many(store: str, many: int) -> None:
    till, before = Till(), Held.now()
    async with holdfast.Holdfast(store, settings=SETTINGS, workflows=till.kit) as hf:
        worker = hf.new_worker(concurrency=many)
        working = asyncio.create_task(worker.run())
        await asyncio.gather(start_all(hf, range(many)), answer_all(hf, many))
        await see(hf, "completed", many)
        worker.stop()
        await working
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("holdfast")]
        assert (await hf.info()).runs == {"completed": many}
        outcomes = [await hf.workflows.status(f"r{n}") for n in range(0, many, 50)]
        assert [outcome.outputs for outcome in outcomes] == [
            {"paid": n} for n in range(0, many, 50)
        ]
    assert till.paid == Counter(range(many))
    assert Held.now().more_than(before) <= 0


@pytest.mark.mission("S1-029")
@pytest.mark.chaos(backend=["postgres"])
def test_paused_workflows_cost_a_worker_nothing(backend: Backend, is_chaos: bool) -> None:
    many = CHAOS_PAUSED if is_chaos else PAUSED
    asyncio.run(asyncio.wait_for(stand_beside(backend, many), LIMIT_SECONDS))


async def stand_beside(backend: Backend, many: int) -> None:
    await pause(backend, range(FEW))
    beside_few = await idle(backend)
    await pause(backend, range(FEW, many))
    assert (await idle(backend)).more_than(beside_few) < POOL


async def pause(backend: Backend, numbers: Sequence[int]) -> None:
    """Bring workflows to their question."""
    async with holdfast.Holdfast(backend.url, settings=SETTINGS, workflows=Till().kit) as hf:
        before = (await hf.info()).runs.get("waiting", 0)
        await start_all(hf, numbers)
        worker = hf.new_worker(concurrency=100)
        working = asyncio.create_task(worker.run())
        await see(hf, "waiting", before + len(numbers))
        worker.stop()
        await working


async def idle(backend: Backend) -> Held:
    """What a worker holds that finds nothing to do, however often it looks; no row is touched."""
    async with holdfast.Holdfast(backend.url, settings=SETTINGS, workflows=Till().kit) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        assert await hf.leases.next() is None
        before = rows_of(backend)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(POLLS):
            assert await hf.leases.next(timeout_seconds=SETTINGS.wakeup_poll_seconds) is None
            assert await hf.waits.expire_due() == 0
        held = Held.now()
        assert rows_of(backend) == before
        assert worker.advanced == 0
        now = resource.getrusage(resource.RUSAGE_SELF)
        print(f"{held}, {now.ru_utime - spent.ru_utime:.3f} s, {now.ru_maxrss / 1024:.0f} MB")
        worker.stop()
        await working
    return held


def rows_of(backend: Backend) -> dict[str, list[Any]]:
    """All rows but those of workers, as a stranger sees them."""
    with backend.raw() as raw:
        return {table: sorted(map(repr, raw.rows(f"SELECT * FROM {table}"))) for table in TABLES}
