"""A process whose agents spool: what they say they have stored, and do outside, is in a ledger.

`python -m tests.spoolers URL SPOOL LEDGER RUNS TURNS POINT SKIP`: it starts or resumes that many
runs, and prints their results. With a POINT it dies there. A run that is alone (`RUNS` is 1) has an
outage of its own from its second turn on until it wants to change something outside.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import holdfast
from holdfast import Happened, Key, NotDone
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.settings import Settings
from holdfast.testing import faults
from tests.agents.ledger import Ledger
from tests.outages import Outage, spooling

CHARGED = 3
POINTS = {
    "spool.before_write": (0, 1),
    "spool.after_write": (0, 1),
    "spool.after_sync": (0, 1),
    "spool.before_submit": (0, 3),
    "spool.after_submit": (0, 3),
    "spool.before_cut": (0,),
    "spool.after_cut": (0,),
}
EVIDENCE = "spool.after_evidence"
"""Every so many turns something is changed outside."""


_current: ContextVar[holdfast.Run] = ContextVar("current")


class Agents:
    def __init__(self, ledger: Ledger, outage: list[Outage]) -> None:
        self._ledger = ledger
        self._outage = outage
        self._is_over = not outage

        async def look(run_id: str, turn: int, key: str) -> Happened[str] | NotDone:
            return Happened("paid") if ledger.has("charge", key) else NotDone()

        @holdfast.tool(verify=look, limit_seconds=2)
        async def charge(run_id: str, turn: int, *, key: Key) -> str:
            is_away = any(outage.is_away for outage in self._outage)
            if _current.get().is_spooled:
                ledger.write("early", run_id, turn, key, by=os.getpid())
            ledger.write("away" if is_away else "charge", run_id, turn, key, by=os.getpid())
            return "paid"

        @holdfast.agent(tools=[charge])
        async def spooler(run: holdfast.Run, turns: int) -> list[str]:
            _current.set(run)
            done = run.log("done", str)
            while len(done) < turns:
                turn = len(done)
                self._begin_outage(turn)
                done.append(await run.model(self._model, run.run_id, turn))
                if turn % CHARGED == CHARGED - 1:
                    self._end_outage_soon()
                    await run.call(charge, run.run_id, turn)
                saved = await run.checkpoint()
                assert saved is not None
                what = "spooled" if saved.is_spooled else "stored"
                ledger.write(what, run.run_id, turn, saved.checkpoint_id.hex, by=os.getpid())
            return list(done)

        self.spooler = spooler

    async def _model(self, run_id: str, turn: int) -> str:
        self._ledger.write("model", run_id, turn)
        await asyncio.sleep(0.02)
        return f"reply {turn}"

    def _begin_outage(self, turn: int) -> None:
        if not self._is_over and turn:
            self._outage[0].is_away = True

    def _end_outage_soon(self) -> None:
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().call_later(0.2, self._end_outage)

    def _end_outage(self) -> None:
        self._outage[0].is_away = False


@asynccontextmanager
async def _opened(url: str, settings: Settings) -> AsyncGenerator[holdfast.Holdfast]:
    """A Holdfast, as soon as the store is there; that it is away at the end harms nobody."""
    while True:
        hf = holdfast.Holdfast(url, settings=settings)
        try:
            await hf.__aenter__()
            break
        except UnavailableError:
            await asyncio.sleep(0.1)
    try:
        yield hf
    finally:
        with suppress(UnavailableError):
            await hf.__aexit__(None, None, None)


async def main(
    url: str, spool: str, path: str, count: str, turns: str, point: str = "", skip: str = "0"
) -> None:
    outage: list[Outage] = []
    ledger = Ledger(Path(path))
    if point:
        faults.arm(point, "kill", skip=int(skip))
    settings = spooling(Path(spool), lease_seconds=1, busy_timeout_seconds=0.3)
    runs = [f"r{number}" for number in range(int(count))]
    async with _opened(url, settings) as hf:
        if len(runs) == 1:
            outage.append(Outage(hf))
        agents = Agents(ledger, outage)

        async def follow(run_id: str) -> list[str]:
            while True:
                try:
                    return await hf.run(agents.spooler, int(turns), run_id=run_id)
                except HoldfastError as error:
                    print(json.dumps(["again", run_id, repr(error)]), flush=True)
                    await asyncio.sleep(0.1)

        print(json.dumps("open"), flush=True)
        print(json.dumps(await asyncio.gather(*map(follow, runs))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
