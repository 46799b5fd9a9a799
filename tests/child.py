"""A worker process for tests: `python -m tests.child STORE [LEASE_SECONDS]`.

Reads one command per line, `[name, args…]`, does it, and prints the outcome as one line of JSON: a
value, or `{"error": class}`. It is driven by tests of races, zombies and crashes.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast.errors import HoldfastError
from holdfast.testing import faults


class Worker:
    """The commands; each is a method that awaits one use case."""

    def __init__(self, hf: holdfast.Holdfast) -> None:
        self.hf = hf
        self.held: dict[str, holdfast.LeasedRun] = {}

    async def hello(self) -> str:
        return self.hf.worker

    async def open(self, run_id: str, takeover: bool = False) -> int:
        self.held[run_id] = await self.hf.runs.open(run_id, takeover=takeover)
        return self.held[run_id].run.lease_seq

    async def next(self) -> list[Any] | None:
        run = await self.hf.leases.next()
        if run is None:
            return None
        self.held[run.run_id] = run
        return [run.run_id, run.run.lease_seq]

    async def append(self, run_id: str, item: Any) -> int:
        run = self.held[run_id]
        run.append("log", item)
        try:
            return (await run.checkpoint()).version
        except HoldfastError:
            run.discard()
            raise

    async def append_anew(self, run_id: str, item: Any) -> int:
        """Take the run when nobody holds it, append, give it back; until it is stored."""
        while True:
            try:
                run = await self.hf.runs.open(run_id)
                run.append("log", item)
                version = (await run.checkpoint()).version
                await run.release()
                return version
            except holdfast.errors.LeaseHeld:
                await asyncio.sleep(random.uniform(0, 0.01))

    async def resolve(self, wait_id: str, value: Any) -> list[Any]:
        answer = await self.hf.waits.resolve(wait_id, value, by=str(value))
        return [answer.accepted, answer.settled_by]

    async def expire_due(self) -> int:
        return await self.hf.waits.expire_due()

    async def begin(self, run_id: str, args: Any) -> str:
        request = holdfast.EffectRequest(tool="charge", args=args, limit_seconds=60)
        (begun,) = await self.held[run_id].begin_effects([request])
        return begun.answer

    async def scenario(self, run_id: str) -> str:
        """A bit of everything, in a fixed order; prints what was acknowledged as it goes."""
        run = await self.hf.runs.open(run_id, input={"x": 1}, takeover=True)
        say(["opened", run.version])
        for n in range(3):
            run.append("log", {"n": n, "text": "word " * 50})
            run.set("plan", n)
            await run.checkpoint()
            say(["checkpoint", n + 1])
        (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="t", args=run_id)])
        say(["issued", 1])
        await run.finish_effect(begun, "result")
        say(["completed", 1])
        waits = [holdfast.WaitSpec(wait_id=f"{run_id}-w{n}") for n in range(2)]
        await run.open_waits(waits, suspend=True)
        say(["waiting", 1])
        for n in range(2):
            await self.hf.waits.resolve(f"{run_id}-w{n}", n)
            say(["resolved", n + 1])
        again = await self.hf.runs.open(run_id)
        await again.complete("answer")
        say(["ended", 1])
        return "done"

    async def reindex(self, run_id: str) -> str:
        await self.hf.reindex(run_id)
        return "done"

    async def arm(self, point: str, action: faults.Action, skip: int = 0) -> str:
        faults.arm(point, action, skip=skip)
        return "armed"

    async def clock(self) -> float:
        return time.monotonic()


def say(outcome: Any) -> None:
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


async def outcome_of(work: Callable[..., Awaitable[Any]], args: list[Any]) -> Any:
    try:
        return await work(*args)
    except HoldfastError as error:
        return {"error": type(error).__name__, "message": str(error)}


async def main(store: str, lease_seconds: float) -> None:
    settings = holdfast.Settings(lease_seconds=lease_seconds)
    loop = asyncio.get_running_loop()
    async with holdfast.open(store, settings=settings) as hf:
        worker = Worker(hf)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, *args = json.loads(line)
            say(await outcome_of(getattr(worker, name), args))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60.0))
