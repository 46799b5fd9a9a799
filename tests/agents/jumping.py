"""A worker whose clock is set while it works: `python -m tests.agents.jumping STORE FOLDER WHO …`.

WHO names the agent whose runs only this worker takes; LOOK is "steady", or "plain" to go by the
machine's clock as it is; POINT a fault point at which it is killed, or "". It answers with its id,
then works until its stdin is closed.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Key, NotDone, Settings, clock
from holdfast.testing import arm
from tests.agents.ledger import Ledger

LEASE_SECONDS = 6.0  # a machine that is busy with other tests may stand still for a while
LIMIT_SECONDS = 3600.0


class Plain:
    """The machine's clock, jumps and all: what these tests must be able to notice."""

    def now(self) -> int:
        return clock.wall()

    def steady(self) -> int:
        return clock.wall()


def faked(stamps: Path) -> Mapping[str, str] | None:
    """The environment of a process whose clock goes by a file; None where that cannot be done."""
    found = find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    if not library.exists():
        return None
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(stamps),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def agents(folder: Path, who: str) -> list[holdfast.Agent[..., Any]]:
    ledger, gate = Ledger(folder / "ledger"), folder / "gate"

    async def look_for(run: str, *, key: str) -> NotDone:
        ledger.write("verify", run, 0, key)
        return NotDone()

    @holdfast.tool(verify=look_for, limit_seconds=LIMIT_SECONDS)
    async def pay(run: str, *, key: Key) -> str:
        ledger.write("pay", run, 0, key)
        return "paid"

    @holdfast.agent(tools=[pay])
    async def payer(run: holdfast.Run) -> str:
        return await run.call(pay, run.run_id)

    @holdfast.agent(name=who)
    async def holder(run: holdfast.Run) -> str:
        """Keeps its run until the gate is there."""

        async def pass_gate() -> str:
            while not gate.exists():
                await asyncio.sleep(0.02)
            return "passed"

        return await run.step(pass_gate)

    return [payer, holder]


def settings(lease_seconds: float = LEASE_SECONDS) -> Settings:
    return Settings(lease_seconds=lease_seconds, wakeup_poll_seconds=0.1)


async def work(store: str, folder: str, who: str, look: str, point: str) -> None:
    known = agents(Path(folder), who)
    using = Plain() if look == "plain" else None
    chosen = settings()
    if point:
        arm(point, "kill")
        chosen = settings(0.5)  # nobody has to wait long for what it leaves
    async with holdfast.Holdfast(store, agents=known, settings=chosen, clock=using) as hf:
        worker = hf.new_worker(concurrency=4)
        working = asyncio.create_task(worker.run())
        print(json.dumps(hf.worker), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:6]))
