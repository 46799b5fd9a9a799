"""Runs that wait hold nothing: no thread, no task, hardly any processor time, however many."""

import asyncio
import resource
import threading
from typing import NamedTuple

import holdfast
from holdfast import WaitSpec
from holdfast.testing.store_suite import async_test

_WINDOWS = 6
"""On a busy machine a worker takes a while to come to rest."""


class Window(NamedTuple):
    """What a process had and spent in some seconds."""

    threads: tuple[int, int]
    tasks: tuple[int, int]
    spent: float

    @property
    def is_quiet(self) -> bool:
        is_still = len({*self.threads}) == len({*self.tasks}) == 1
        is_small = self.threads[0] <= 24 and self.tasks[0] <= 16
        return is_still and is_small and self.spent < 0.6  # of 3 seconds


async def _window() -> Window:
    await asyncio.sleep(0.5)
    threads, tasks = threading.active_count(), len(asyncio.all_tasks())
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(3)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    now = threading.active_count(), len(asyncio.all_tasks())
    return Window((threads, now[0]), (tasks, now[1]), spent)


@async_test
async def test_waiting_runs_cost_nothing(store: str, is_chaos: bool) -> None:
    many = 10_000 if is_chaos else 500

    @holdfast.agent
    async def waiter(run: holdfast.Run) -> str:
        return "never entered here"

    async with holdfast.Holdfast(store, agents=[waiter]) as hf:

        async def make(numbers: range) -> None:
            for n in numbers:
                held = await hf.runs.open(f"w{n}", agent="waiter")
                await held.open_waits([WaitSpec(timeout_seconds=86_400)], suspend=True)

        await asyncio.gather(*(make(range(at, many, 100)) for at in range(100)))
        worker = hf.new_worker()
        task = asyncio.create_task(worker.run())
        for _ in range(_WINDOWS):
            seen = await _window()
            if seen.is_quiet:
                break
        assert seen.is_quiet, seen
        info = await hf.info()
        assert info.runs == {"waiting": many}
        worker.stop()
        await task
