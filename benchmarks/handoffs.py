"""Handoffs and recovery: how long a run is nobody's.

As a module it is another worker: `python -m benchmarks.handoffs URL AGENT` until a line comes.
"""

import asyncio
import os
import signal
import statistics
import sys
import time
from typing import Any

import holdfast
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged, tenfold
from benchmarks.samples import Stopwatch, percentile
from benchmarks.saves import save
from benchmarks.sizes import Sizes
from benchmarks.turns import TurnMaker
from holdfast import Entry, HandoffPolicy, Settings

NAMES = (
    "handoff_one_process",
    "handoff_two_processes",
    "recovery",
    "checkpoints_at_once",
    "sustained_p99",
)
_LEASE_SECONDS = 1.0
_LIMIT = 500


async def reply(what: str) -> str:
    """A model that answers at once."""
    return what


async def stuck() -> str:
    """A model that does not answer while its process lives; whoever comes later is answered."""
    if os.environ.get("HOLDFAST_BENCH_STUCK"):
        await asyncio.sleep(600)
    return "done"


@holdfast.agent(handoff=HandoffPolicy(to="receiver"))
async def giver(run: holdfast.Run) -> None:
    """Works for a turn, and hands over."""
    await run.model(reply, "given")
    run.hand_over()
    await run.checkpoint()


@holdfast.agent
async def receiver(run: holdfast.Run) -> str:
    """Goes on."""
    return await run.model(reply, "taken")


@holdfast.agent
async def victim(run: holdfast.Run) -> str:
    """Dies in its first life."""
    return await run.model(stuck)


_AGENTS = {"giver": giver, "receiver": receiver, "victim": victim}


def _open(url: str, *names: str) -> holdfast.Holdfast:
    settings = Settings(lease_seconds=_LEASE_SECONDS)
    return holdfast.Holdfast(url, agents=[_AGENTS[name] for name in names], settings=settings)


async def handoffs(place: Place, sizes: Sizes) -> list[Row]:
    """All numbers of one store."""
    return [
        await _handoffs(place, sizes.handoffs, NAMES[0], ("giver", "receiver")),
        await _handoffs(place, sizes.handoffs, NAMES[1], ("giver",)),
        await _recoveries(place, sizes.recoveries),
        await _at_once(place, sizes.sessions),
        await _sustained(place, sizes.sustained_seconds),
    ]


async def _handoffs(place: Place, many: int, name: str, here: tuple[str, ...]) -> Row:
    """From AGENT_HANDOFF to the receiver's acknowledgement, one run after the other."""
    url = place.new_store()
    taken: list[float] = []
    replied: list[float] = []
    async with _open(url, *here) as hf, child("benchmarks.handoffs", url, "receiver") as other:
        await other.line()
        if len(here) > 1:
            other.tell("")  # it is not needed
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        for number in range(many + 1):
            run_id = f"r{number}"
            await hf.start(giver, run_id=run_id)
            entries = await _until(hf, run_id, "RUN_COMPLETED")
            given = _at(entries, "AGENT_HANDOFF")
            taken.append((_at(entries, "HANDOFF_ACKNOWLEDGED") - given) / 1000)
            replied.append((_at(entries, "STEP_RECORDED", last=True) - given) / 1000)
        worker.stop()
        await working
        other.tell("")
    taken, replied = taken[1:], replied[1:]
    p99, median = percentile(taken, 99), statistics.median(taken)
    note = (
        f"p99 of {many}, limit {_LIMIT} ms, {_LIMIT / p99:.1f} times to spare; median "
        f"{median:.1f} ms, {statistics.median(replied):.1f} ms to the first reply, "
        f"slowest {max(replied):.0f} ms"
    )
    return judged(name, p99, "ms", at_most=_LIMIT / 10, note=note)


async def _recoveries(place: Place, many: int) -> Row:
    """From kill -9 of a worker in a call to RECOVERY_COMPLETED by another."""
    url = place.new_store()
    taken: list[float] = []
    for number in range(many):
        run_id = f"r{number}"
        async with _open(url, "victim") as hf:
            await hf.start(victim, run_id=run_id)
            async with child("benchmarks.handoffs", url, "victim") as other:
                await other.line()
                await _until(hf, run_id, "RUN_LEASED")
                worker = hf.new_worker()
                working = asyncio.create_task(worker.run())
                since = time.time()
                os.kill(other.pid, signal.SIGKILL)
                entries = await _until(hf, run_id, "RUN_COMPLETED")
                taken.append(_at(entries, "RECOVERY_COMPLETED") / 1e6 - since)
                worker.stop()
                await working
    median, worst = statistics.median(taken), max(taken)
    note = f"with leases of {_LEASE_SECONDS:g} s; the slowest {worst:.2f} s"
    return judged("recovery", median, "s", at_most=2 * _LEASE_SECONDS, note=note)


async def _at_once(place: Place, many: int) -> Row:
    """Each of many sessions stores a checkpoint at the same moment; how long each waits."""
    turns = TurnMaker().turns(many)
    taken: list[float] = []
    async with holdfast.open(place.new_store()) as hf:
        runs = await asyncio.gather(*(hf.runs.open(f"r{n}", agent="a") for n in range(many)))

        async def one(number: int) -> None:
            since = time.perf_counter()
            await save(runs[number], turns[number])
            taken.append((time.perf_counter() - since) * 1000)

        since = time.perf_counter()
        await asyncio.gather(*map(one, range(many)))
        seconds = time.perf_counter() - since
    note = (
        f"{many} at once in {seconds * 1000:.0f} ms; each waits p99 {percentile(taken, 99):.0f} ms"
    )
    return judged("checkpoints_at_once", many / seconds, "checkpoints/s", note=note)


async def _sustained(place: Place, seconds: float) -> Row:
    """One session saves without a pause; the p99 of each tenth of the time."""
    turns = TurnMaker().turns(500)
    parts = [Stopwatch() for _ in range(10)]
    async with holdfast.open(place.new_store()) as hf:
        run = await hf.runs.open("r", agent="a")
        number, since = 0, time.monotonic()
        while (passed := time.monotonic() - since) < seconds:
            with parts[min(9, int(passed / seconds * 10))]:
                await save(run, turns[number % 500])
            number += 1
    whole = Stopwatch()
    whole.samples = [sample for part in parts for sample in part.samples]
    row = tenfold("sustained_p99", whole, limit=100)
    over_time = ", ".join(f"{percentile(part.samples, 99):.1f}" for part in parts)
    return judged(
        row.name,
        percentile(whole.samples, 99),
        "ms",
        at_most=10,
        note=f"{row.note}; {number} saves in {seconds:g} s, p99 of each tenth: {over_time} ms",
    )


async def _until(hf: holdfast.Holdfast, run_id: str, kind: str) -> list[Entry]:
    async with asyncio.timeout(60):
        while True:
            entries: Any = await hf.journal.read(run_id)
            if any(entry.kind == kind for entry in entries):
                return entries
            await asyncio.sleep(0.01)


def _at(entries: list[Entry], kind: str, *, last: bool = False) -> int:
    found = [entry.at for entry in entries if entry.kind == kind]
    return found[-1 if last else 0]


async def _work(url: str, agent: str) -> None:
    os.environ["HOLDFAST_BENCH_STUCK"] = "yes"
    async with _open(url, agent) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(_work(*sys.argv[1:]))
