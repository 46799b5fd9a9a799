"""Availability: clients probe a store while its workers, and its database, are killed.

As a module it is a worker: `python -m benchmarks.availability URL` until a line comes.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import holdfast
from benchmarks.contract import Place
from benchmarks.processes import Child, child
from benchmarks.report import Row, judged
from benchmarks.saves import Turn, save
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker

NAMES = ("availability",)
_CLIENTS = 20
_WORKERS = 2
_LIMIT_SECONDS = 30.0
_WORKER_LIVES_SECONDS = 3.0
_DATABASE_LIVES_SECONDS = 10.0


@holdfast.agent
async def answer(run: holdfast.Run, question: int) -> int:
    """Two turns."""
    await run.checkpoint()
    return question


class Prober:
    """Does operations one after another, and counts those that failed or took too long."""

    def __init__(self, hf: holdfast.Holdfast, turns: list[Turn], many: int) -> None:
        self._hf = hf
        self._turns = turns
        self._left = many
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.slowest = 0.0

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    async def probe(self, client: int) -> None:
        run = await self._hf.runs.open(f"client-{client}", agent="a")
        number = 0
        while not self.is_over:
            number += 1
            name = f"{client}-{number}"
            turn = self._turns[number % len(self._turns)]
            await self._try("save", save(run, turn))
            await self._try("read", self._hf.runs.get(run.run_id))
            await self._try("load", self._hf.checkpoints.history(run.run_id, limit=10))
            await self._try("create", self._hf.runs.create(f"created-{name}"))
            if number % 25 == 0:
                await self._try("run", self._ask(name))

    async def _ask(self, name: str) -> object:
        handle = await self._hf.start(answer, len(name), run_id=f"asked-{name}")
        async for _ in self._hf.runs.watch(handle.run_id):
            pass
        return await handle.result()

    async def _try(self, kind: str, operation: Awaitable[object]) -> None:
        self._left -= 1
        self.done[kind] += 1
        since = time.monotonic()
        try:
            async with asyncio.timeout(_LIMIT_SECONDS):
                await operation
        except Exception as error:
            self.failed[f"{kind}: {type(error).__name__}"] += 1
        self.slowest = max(self.slowest, time.monotonic() - since)


async def availability(place: Place, sizes: Sizes) -> list[Row]:
    """The part of all operations that succeeded."""
    url = place.new_store()
    async with holdfast.Holdfast(url, agents=[answer]) as hf, AsyncExitStack() as stack:
        prober = Prober(hf, TurnMaker().turns(100), sizes.probes)
        workers = asyncio.create_task(_kill_workers(url, stack, prober))
        databases = asyncio.create_task(_kill_databases(place, prober))
        await asyncio.gather(*(prober.probe(client) for client in range(_CLIENTS)))
        killed, outages = await workers, await databases
    many, failed = prober.done.total(), prober.failed.total()
    told = ", ".join(f"{count} of {what}" for what, count in sorted(prober.failed.items()))
    note = (
        f"{many} operations of {_CLIENTS} clients, {failed} failed or took over "
        f"{_LIMIT_SECONDS:g} s{f' ({told})' if told else ''}; {killed} workers and {outages} "
        f"databases were killed meanwhile; the slowest took {prober.slowest:.1f} s"
    )
    return [judged(NAMES[0], 100 * (1 - failed / many), "%", at_least=99.99, note=note)]


async def _kill_workers(url: str, stack: AsyncExitStack, prober: Prober) -> int:
    killed = 0
    living: list[Child] = []
    while not prober.is_over:
        while len(living) < _WORKERS:
            living.append(await stack.enter_async_context(child("benchmarks.availability", url)))
            await living[-1].line()
        await asyncio.sleep(_WORKER_LIVES_SECONDS)
        os.kill(living.pop(0).pid, signal.SIGKILL)
        killed += 1
    for left in living:
        left.tell("")
    return killed


async def _kill_databases(place: Place, prober: Prober) -> int:
    outages = 0
    while not prober.is_over:
        await asyncio.sleep(_DATABASE_LIVES_SECONDS)
        if prober.is_over or not await asyncio.to_thread(place.break_down):
            break
        outages += 1
    return outages


async def _work(url: str) -> None:
    async with holdfast.Holdfast(url, agents=[answer]) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
