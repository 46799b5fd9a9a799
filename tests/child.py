"""A worker process for tests: `python -m tests.child STORE [LEASE_SECONDS] [SETTING=NUMBER]…`.

Reads one command per line, `[name, args…]`, does it, and prints the outcome as one line of JSON: a
value, or `{"error": class}`. It is driven by tests of races, zombies and crashes.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import holdfast
from holdfast.engine import waits
from holdfast.errors import HoldfastError
from holdfast.faults import install
from holdfast.kernel import runs, signals
from holdfast.kernel.journal import Draft, Kind, Origin
from holdfast.stores.contract import Applied, Commit, Outcome
from holdfast.stores.entry_sealer import seal_all
from holdfast.testing import faults

RUN = "crash"


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

    async def signal(self, run_id: str, name: str, value: Any, signal_id: str) -> list[Any]:
        receipt = await self.hf.signals.send(run_id, name, value, id=signal_id)
        return [receipt.accepted, receipt.seq]

    async def expire_due(self) -> int:
        return await self.hf.waits.expire_due()

    async def begin(self, run_id: str, args: Any) -> str:
        request = holdfast.EffectRequest(tool="charge", args=args, limit_seconds=60)
        (begun,) = await self.held[run_id].begin_effects([request])
        return begun.answer

    async def turns(self) -> str:
        """The first of five stages of one run; each prints what was acknowledged as it goes."""
        run = await self.hf.runs.open(RUN, input={"x": 1})
        say(["opened", run.version])
        for n in range(3):
            run.append("log", {"n": n, "text": "word " * 50})
            run.set("plan", n)
            await run.checkpoint()
            say(["checkpoint", n + 1])
        self.held[RUN] = run
        return "done"

    async def effects(self) -> str:
        """A fresh one, one that is refused because its key is taken, and the first one's result."""
        run, request = self.held[RUN], holdfast.EffectRequest(tool="t", args=RUN)
        (begun,) = await run.begin_effects([request])
        say(["issued", 1])
        (again,) = await run.begin_effects([request])
        say(["refused", again.answer])
        await run.finish_effect(begun, "result")
        say(["completed", 1])
        return "done"

    async def waits(self) -> str:
        """The run suspends; others answer, one of them twice."""
        specs = [holdfast.WaitSpec(wait_id=f"{RUN}-w{n}") for n in range(2)]
        await self.held[RUN].open_waits(specs, suspend=True)
        say(["waiting", 1])
        for n in (0, 0, 1):
            await self.hf.waits.resolve(f"{RUN}-w{n}", n)
            say(["resolved", n + 1])
        return "done"

    async def signals(self) -> str:
        """The run suspends until somebody signals, one of the signals comes twice, one is taken."""
        run = await self.hf.runs.open(RUN)
        say(["held", 1])
        spec = holdfast.WaitSpec(wait_id=f"{RUN}-signal", kind="signal", name="go")
        await run.open_waits([spec], suspend=True)
        say(["awaiting", 1])
        for n in (0, 0, 1):
            await self.hf.signals.send(RUN, "go", {"n": n}, id=f"s{n}")
            say(["signalled", n + 1])
        run = await self.hf.runs.open(RUN)
        say(["held", 2])
        taken = await self.commit(signals.take("s0", b"\xc3"))
        say(["taken" if isinstance(taken, Applied) else "not taken", 1])
        await run.release()
        say(["released", 1])
        return "done"

    async def ending(self) -> str:
        """The run is taken again, and ends in a commit that opens a wait and cancels it.

        No use case makes such a commit yet; the contract of stores allows it, and PostgreSQL needs
        several statements for it.
        """
        await self.hf.runs.open(RUN)
        say(["again", 1])
        spec = holdfast.WaitSpec(wait_id=f"{RUN}-last")
        outcome = await self.commit(
            waits.opening([spec], run_id="", now=self.hf._context.now()).draft,
            Draft(Kind.RUN_COMPLETED, runs.RunFinished()),
        )
        say(["ended" if isinstance(outcome, Applied) else "not ended", 1])
        return "done"

    async def commit(self, *drafts: Draft) -> Outcome:
        """What the run's holder would commit."""
        store = self.hf._context.store
        found = await store.runs.at_head(RUN)
        assert found is not None
        origin = Origin(store.tenant, RUN, self.hf.worker, store.clock.now())
        sealed = seal_all(found.run, found.position, drafts, origin)
        run = None if sealed.run == found.run else sealed.run
        entries, changes = tuple(sealed.entries), tuple(sealed.changes)
        return await store.submit(Commit(store.tenant, RUN, found.position, entries, run, changes))

    async def reindex(self, run_id: str) -> str:
        await self.hf.reindex(run_id)
        return "done"

    async def arm(self, point: str, action: faults.Action, skip: int = 0) -> str:
        faults.arm(point, action, skip=skip)
        return "armed"

    async def count_points(self, stages: list[str]) -> dict[str, dict[str, int]]:
        """How often each stage passes each fault point."""
        counts: dict[str, dict[str, int]] = {}
        for stage in stages:
            passed = Counter[str]()
            install(lambda point, passed=passed: passed.update([point]))
            await getattr(self, stage)()
            install(None)
            counts[stage] = dict(passed)
        return counts

    async def stop_at(self, point: str, skip: int = 0) -> str:
        """Stop this process, as by Ctrl-Z, when it comes to a point; once."""
        passed = Counter[str]()

        def stop(reached: str) -> None:
            passed[reached] += 1
            if reached == point and passed[point] == skip + 1:
                os.kill(os.getpid(), signal.SIGSTOP)

        install(stop)
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


async def main(store: str, settings: holdfast.Settings) -> None:
    loop = asyncio.get_running_loop()
    async with holdfast.open(store, settings=settings) as hf:
        worker = Worker(hf)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, *args = json.loads(line)
            say(await outcome_of(getattr(worker, name), args))


def settings_of(words: list[str]) -> holdfast.Settings:
    pairs = [word.rpartition("=") for word in words]
    given = {name or "lease_seconds": json.loads(value) for name, _, value in pairs}
    return holdfast.Settings(**given)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], settings_of(sys.argv[2:])))
