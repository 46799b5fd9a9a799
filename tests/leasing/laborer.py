"""A worker in a process of its own: `python -m tests.leasing.laborer STORE FOLDER LEASE [STOP_AT]`.

It answers with its worker id, then works until its stdin is closed. With STOP_AT it stops itself by
SIGSTOP when it first comes to that fault point.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import apsw

import holdfast
from holdfast import Settings, faults

LOOKED = "leases.after_look"


def agents(folder: Path) -> list[holdfast.Agent[..., Any]]:
    @holdfast.agent
    async def plod(run: holdfast.Run, turns: int) -> int:
        """Some short turns."""
        done = run.value("done", int, 0)
        while done.get() < turns:
            await asyncio.sleep(0.01)
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    @holdfast.agent
    async def linger(run: holdfast.Run) -> str:
        """A turn, and one that ends when the gate is there; some have only that one."""
        if not run.run_id.endswith("-slow"):
            passes = run.value("passes", int, 0)
            passes.set(passes.get() + 1)
            await run.checkpoint()
        (folder / f"lingers-{run.run_id}").touch()
        while not (folder / "gate").exists():
            await asyncio.sleep(0.02)
        return "done"

    return [plod, linger, *villains(folder)]


def villains(folder: Path) -> list[holdfast.Agent[..., Any]]:
    @holdfast.agent
    async def wedge(run: holdfast.Run) -> str:
        """Holds the event loop for ever, when the others are under way."""
        while len([*folder.glob("lingers-*")]) < 3:
            await asyncio.sleep(0.02)
        (folder / f"wedged-{os.getpid()}").touch()
        time.sleep(3600)
        return "never"

    @holdfast.agent
    async def devour(run: holdfast.Run) -> str:
        """Is killed as a process is that uses up the memory: without a word."""
        while not (folder / "gate").exists():
            if len([*folder.glob("lingers-*")]) >= 50:
                (folder / f"killed-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(0.02)
        return "never"

    @holdfast.agent
    async def nap(run: holdfast.Run) -> str:
        """Holds the event loop for some leases of a second, once."""
        if not (folder / "napped").exists():
            (folder / "napped").touch()
            await asyncio.sleep(0.3)
            time.sleep(4)
        return "awake"

    @holdfast.agent
    async def succumb(run: holdfast.Run) -> str:
        """Is killed when it has lived for one lease and a half, as by a slow leak of memory."""
        await asyncio.sleep(1.5)
        (folder / f"killed-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    return [wedge, devour, nap, succumb]


def settings(lease_seconds: float) -> Settings:
    return Settings(lease_seconds=lease_seconds, wakeup_poll_seconds=0.2)


class StopOnce:
    """Stops this process at a fault point, once."""

    def __init__(self, point: str, store: str) -> None:
        self._point = point
        self._store = store

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._point = ""
            if "://" not in self._store:
                self._let_the_heart_finish_its_beat()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _let_the_heart_finish_its_beat(self) -> None:
        """Else the file may be locked by a process that stands still, and nobody could beat.

        With the store's own library: another copy of SQLite in one process would drop its locks.
        """
        connection = apsw.Connection(self._store)
        connection.set_busy_timeout(60_000)
        connection.execute("BEGIN IMMEDIATE")
        connection.close()


async def main() -> None:
    store, folder, lease, *stop_at = sys.argv[1:]
    if stop_at:
        faults.install(StopOnce(stop_at[0], store))
    found = agents(Path(folder))
    async with holdfast.Holdfast(store, agents=found, settings=settings(float(lease))) as hf:
        worker = hf.new_worker(concurrency=100)
        working = asyncio.create_task(worker.run())
        print(json.dumps(hf.worker), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
