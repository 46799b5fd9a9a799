"""Agents for `victims` that need people: each turn asks, and needs an approval and a signal."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Happened, Key, NotDone
from holdfast.errors import ConflictError
from tests.agents.ledger import Ledger
from tests.agents.sweeping import Sweep
from tests.agents.victims import LIMIT_SECONDS

PAUSE_SECONDS = 0.02


def make(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    return [asker(ledger)]


def asker(ledger: Ledger) -> holdfast.Agent[[int], int]:
    async def find_charge(run: str, turn: int, key: str) -> Happened[str] | NotDone:
        return Happened(f"receipt {turn}") if ledger.has("charge", key) else NotDone()

    @holdfast.tool(verify=find_charge, limit_seconds=LIMIT_SECONDS, approval=True)
    async def charge(run: str, turn: int, *, key: Key) -> str:
        await asyncio.sleep(0.001)
        ledger.write("charge", run, turn, key)
        return f"receipt {turn}"

    @holdfast.agent(name="asker")
    async def agent(run: holdfast.Run, turns: int) -> int:
        done = run.value("done", int, 0)
        while done.get() < turns:
            turn = done.get()
            colour, size = await run.gather(
                run.ask(f"colour {turn}", choices=["red", "blue"]),
                run.ask(f"size {turn}", schema=int),
            )
            assert (colour, size) == ("red", turn), (colour, size)
            assert await run.call(charge, run.run_id, turn) == f"receipt {turn}"
            assert await run.signal("go", int) == turn
            await run.sleep(seconds=PAUSE_SECONDS)
            ledger.write("slept", run.run_id, turn)
            done.set(turn + 1)
            await run.checkpoint()
        return done.get()

    return agent


class AskingSweep(Sweep):
    """Workers are killed, and somebody answers whatever their runs ask."""

    def __init__(self, store: str, folder: Path, seed: int) -> None:
        super().__init__(store, folder, seed, make="tests.agents.askers:make")

    async def start(self, many: int) -> None:
        """Runs, and the signals they will need, before they need them."""
        known = set(self.runs)
        await super().start(many)
        for run_id, turns in self.runs.items():
            if run_id not in known:
                for turn in range(turns):
                    await self.hf.signal(run_id, "go", turn, id=f"go {turn}")

    async def _unblock(self) -> None:
        await super()._unblock()
        for asked in await self.hf.approvals.list():
            with suppress(ConflictError):
                await self._answer(asked)

    async def _answer(self, asked: holdfast.Asked) -> None:
        self.ledger.write(f"asked-{asked.kind}", asked.run_id, 0, asked.wait_id)
        if asked.kind == "approval":
            await self.hf.approvals.approve(asked.wait_id, by="operator")
            return
        what, turn = asked.prompt.split()
        answer = "red" if what == "colour" else int(turn)
        await self.hf.approvals.answer(asked.wait_id, answer, by="operator")

    async def judge(self) -> list[str]:
        found: list[str] = []
        charges = self.ledger.count("charge")
        wanted = {(run, turn) for run, turns in self.runs.items() for turn in range(turns)}
        found += [f"{place} was charged {n} times" for place, n in charges.items() if n != 1]
        found += [f"{place} was never charged" for place in wanted ^ set(charges)]
        found += [f"{place} did not sleep" for place in wanted ^ set(self.ledger.count("slept"))]
        for kind, each in (("asked-question", 2), ("asked-approval", 1)):
            asked = {line.key for line in self.ledger.lines() if line.what == kind}
            if len(asked) != each * len(wanted):
                found.append(f"{len(asked)} times {kind}, and {each * len(wanted)} were needed")
        return found + await self.judge_runs()
