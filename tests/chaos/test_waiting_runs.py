"""Runs that wait hold nothing: no thread, no task, hardly any processor time, however many."""

import asyncio
import resource
import threading

import holdfast
from holdfast import WaitSpec
from holdfast.testing.store_suite import async_test


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
        await asyncio.sleep(0.5)
        threads, tasks = threading.active_count(), len(asyncio.all_tasks())
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert threading.active_count() == threads <= 24
        assert len(asyncio.all_tasks()) == tasks <= 16
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert spent < 0.6  # of 3 seconds
        info = await hf.info()
        assert info.runs == {"waiting": many}
        worker.stop()
        await task
