"""A worker with nothing to do: what it takes up while many runs wait, and while few do.

As a module it is that worker: `python -m benchmarks.idle URL`. It says when it has imported all
there is; on a line it opens the store and waits for a run; on another it ends.
"""

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import holdfast
from benchmarks.contract import Place
from benchmarks.processes import child
from benchmarks.report import Row, judged

NAMES = ("memory", "threads", "connections", "cpu")
_SECONDS = 4.0
_CPU_PERCENT = 5


class Usage(NamedTuple):
    """What a process takes up."""

    resident_bytes: int
    threads: int
    cpu_seconds: float


class _Idle(NamedTuple):
    """A worker that waits: what it grew by when it opened the store, and what it uses."""

    grown_mb: float
    threads: int
    connections: int
    cpu_percent: float


async def compare(prefix: str, place: Place, many: str, few: str) -> list[Row]:
    """What waiting takes with many and with few waiting runs; it should be the same."""
    ours, floor = await _idle(place, many), await _idle(place, few)
    more = max(0.0, ours.grown_mb - floor.grown_mb)
    memory = f"{more:.2f} MB more than with few"
    cpu = f"{floor.cpu_percent:.1f} % with few"
    counts = [
        judged(f"{prefix}_{what}", getattr(ours, what), what, floor=getattr(floor, what), at_most=1)
        for what in ("threads", "connections")
    ]
    return [
        judged(
            f"{prefix}_memory",
            ours.grown_mb,
            "MB",
            floor=floor.grown_mb,
            at_most=1.2,
            note=memory,
        ),
        *counts,
        judged(f"{prefix}_cpu", ours.cpu_percent, "% of a core", at_most=_CPU_PERCENT, note=cpu),
    ]


async def _idle(place: Place, url: str) -> _Idle:
    async with child("benchmarks.idle", url) as worker:
        await worker.line()
        before = usage(worker.pid)
        worker.tell("open")
        await worker.line()
        opened = usage(worker.pid)
        await asyncio.sleep(_SECONDS)
        after = usage(worker.pid)
        connections = place.connections(url, worker.pid)
        worker.tell("end")
    return _Idle(
        grown_mb=(after.resident_bytes - before.resident_bytes) / 1e6,
        threads=after.threads,
        connections=connections,
        cpu_percent=(after.cpu_seconds - opened.cpu_seconds) / _SECONDS * 100,
    )


def usage(pid: int) -> Usage:
    """What a process takes up now."""
    process = Path(f"/proc/{pid}")
    told = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    spent = [int(task.read_text().split()[0]) for task in process.glob("task/*/schedstat")]
    resident = int(told["VmRSS"].split()[0]) * 1024
    return Usage(resident, int(told["Threads"]), sum(spent) / 1e9)


async def _be_idle(url: str) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: sys.stdin.readline() and told.set())
    print("imported", flush=True)
    await told.wait()
    told.clear()
    async with holdfast.open(url) as hf:
        assert await hf.leases.next() is None, "all runs wait"
        looking = asyncio.create_task(hf.leases.next(timeout_seconds=60))
        print("open", flush=True)
        await told.wait()
        looking.cancel()
        await asyncio.wait([looking])


if __name__ == "__main__":
    asyncio.run(_be_idle(*sys.argv[1:]))
