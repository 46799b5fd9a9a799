"""Killing workers of callers and of their peers, and judging what is left by plain SQL."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import apsw

import holdfast
from holdfast.errors import ConflictError
from tests.agents.ledger import Ledger
from tests.agents.sweeping import END_SECONDS, GENTLY, Sweep
from tests.agents.victims import LEASE_SECONDS
from tests.backends import Backend, Raw
from tests.peers.callers import ROLES
from tests.processes import Child

TURNS = 2
CALLS = 3
"""How many peers a caller calls in a turn, without those that these call."""


class PeerSweep(Sweep):
    """Callers and peers in one store."""

    def __init__(self, backend: Backend, folder: Path) -> None:
        make = "tests.peers.callers:make"
        super().__init__(backend.url, folder, 0, make=make, turns=TURNS)
        self._backend = backend

    async def judge(self) -> list[str]:
        with self._backend.raw() as raw:
            runs = (1 + len(ROLES) * TURNS) * len(self.runs)
            return [
                *faults_outside(self.ledger, self.runs),
                *faults_of_callers(raw, self.runs),
                *faults_inside(raw, runs=runs, calls=len(ROLES) * TURNS * len(self.runs)),
                *await self.judge_runs(),
            ]

    async def are_open(self) -> bool:
        """Whether a run has not ended, or owes something."""
        return bool(await self._open_runs())

    async def _open_runs(self) -> int:
        with self._backend.raw() as raw:
            return await super()._open_runs() + owed(raw)


class Side:
    """The workers of one of two stores, one victim at a time."""

    def __init__(
        self,
        backend: Backend,
        ledger: Path,
        make: str,
        transport: str = "",
        *,
        at_once: int = 4,
        lease: float = LEASE_SECONDS,
    ) -> None:
        self.backend = backend
        arguments = (backend.url, ledger, make, transport, at_once, lease)
        self._child = Child("tests.agents.victims", *arguments)
        self.pid = 0

    async def begin(self, point: str = "", skip: int = 0, *how: str) -> None:
        self.pid = await asyncio.to_thread(self._child.ask, [point, skip, *how])

    def is_stopped(self) -> bool:
        """Whether the worker stands still, as the kernel tells."""
        status = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return status.rpartition(")")[2].split()[0] == "T"

    def is_in_the_way(self) -> bool:
        """Whether it was stopped while its heart wrote: a file of SQLite is locked then."""
        try:
            with self.backend.raw() as raw:
                raw.execute("UPDATE runs SET status = status WHERE run_id = ?", "")
        except apsw.BusyError:
            return True
        return False

    async def ended(self) -> int:
        code = await asyncio.to_thread(self._child.ask, "wait")
        self.pid = 0
        return code

    async def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return await self.ended()

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self._child.close()


class ExchangeSweep:
    """Callers in one store, peers in another, and a transport between them."""

    def __init__(self, here: Backend, there: Backend, folder: Path, transport: str) -> None:
        self.ledger = Ledger(folder / "ledger")
        self.runs: dict[str, int] = {}
        makes = ("tests.peers.callers:make_caller", "tests.peers.callers:peers")
        self.sides = [
            Side(backend, folder / "ledger", make, transport)
            for backend, make in zip((here, there), makes, strict=True)
        ]
        self.kills = 0

    async def __aenter__(self) -> "ExchangeSweep":
        return self

    async def __aexit__(self, *_: object) -> None:
        for side in self.sides:
            side.close()

    async def start(self, many: int) -> None:
        url = self.sides[0].backend.url
        async with holdfast.open(self.sides[1].backend.url), holdfast.open(url) as hf:
            for _ in range(many):
                run_id = f"r{len(self.runs)}"
                await hf.runs.create(run_id, agent="caller", input={"turns": TURNS})
                self.runs[run_id] = TURNS

    async def kill_both_at(self, point: str, skip: int) -> None:
        """The worker of each side dies at a point, if it comes there; another takes its place."""
        killed = await asyncio.gather(*(self._kill(side, point, skip) for side in self.sides))
        self.kills += sum(killed)
        for side in self.sides:
            assert await side.stop() in GENTLY
        await self._unblock()

    async def _unblock(self) -> None:
        """Do what an operator does about runs that have lost three workers."""
        for side in self.sides:
            async with holdfast.open(side.backend.url) as hf:
                for run in await hf.runs.list(status="blocked"):
                    assert run.blocked_reason == "breaker", run
                    with suppress(ConflictError):
                        await hf.runs.unblock(run.run_id)

    async def _kill(self, side: Side, point: str, skip: int) -> bool:
        await side.begin(point, skip)
        ended = asyncio.create_task(side.ended())
        while not ended.done() and self.are_open():
            await asyncio.wait([ended], timeout=0.05)
        if not ended.done():
            os.kill(side.pid, signal.SIGTERM)
        is_killed = await ended == -signal.SIGKILL
        await side.begin()
        return is_killed

    async def finish(self) -> None:
        for side in self.sides:
            await side.begin()
        async with asyncio.timeout(END_SECONDS):
            while self.are_open():
                await self._unblock()
                await asyncio.sleep(0.02)
        for side in self.sides:
            assert await side.stop() in GENTLY

    def judge(self) -> list[str]:
        here, there = self.sides
        many = TURNS * len(self.runs)
        with here.backend.raw() as raw, there.backend.raw() as others:
            return [
                *faults_outside(self.ledger, self.runs),
                *faults_of_callers(raw, self.runs),
                *faults_inside(raw, runs=len(self.runs), calls=CALLS * many),
                *faults_inside(others, runs=len(ROLES) * many, calls=many),
            ]

    def are_open(self) -> bool:
        """Whether a run has not ended, or owes something."""
        for side in self.sides:
            with side.backend.raw() as raw:
                alive = raw.rows(
                    "SELECT run_id FROM runs WHERE status NOT IN ('completed', 'failed')"
                )
                if alive or owed(raw):
                    return True
        return False


def owed(raw: Raw) -> int:
    """What runs still owe to each other, or to peers elsewhere."""
    sql = "SELECT count(*) FROM messages WHERE queue IN ('outbox', 'outgoing')"
    ((count,),) = raw.rows(sql)
    return count


def faults_outside(ledger: Ledger, callers: dict[str, int]) -> list[str]:
    """Whether every peer has charged once."""
    charges = ledger.count("charge")
    wanted = {
        (caller, place) for caller, turns in callers.items() for place in range(len(ROLES) * turns)
    }
    found = [f"{place} was charged {n} times" for place, n in charges.items() if n > 1]
    return found + [f"{place} was never charged, or by nobody" for place in wanted ^ set(charges)]


def faults_of_callers(raw: Raw, callers: dict[str, int]) -> list[str]:
    ended = dict(raw.rows("SELECT run_id, status FROM runs WHERE agent = 'caller'"))
    return [
        f"{caller} is {ended.get(caller)}" for caller in callers if ended.get(caller) != "completed"
    ]


def faults_inside(raw: Raw, *, runs: int, calls: int) -> list[str]:
    """What is wrong with the rows of a store after everything has ended."""
    found: list[str] = []
    statuses: Sequence[tuple[str, str]] = raw.rows("SELECT run_id, status FROM runs")
    if len(statuses) != runs:
        found.append(f"there are {len(statuses)} runs, and {runs} were needed")
    alive = [run for run, status in statuses if status not in ("completed", "failed")]
    found += [f"run {run} did not end" for run in alive]
    ends = raw.rows(
        "SELECT run_id, count(*) FROM journal"
        " WHERE kind IN ('RUN_COMPLETED', 'RUN_FAILED', 'RUN_CANCELLED') GROUP BY run_id"
    )
    found += [f"run {run} ended {n} times" for run, n in ends if n != 1]
    waits = raw.rows("SELECT wait_id, status FROM waits")
    if len(waits) != calls:
        found.append(f"there are {len(waits)} calls, and {calls} were needed")
    found += [f"call {wait} is {status}" for wait, status in waits if status != "resolved"]
    answers = raw.rows(
        "SELECT run_id, count(*) FROM journal WHERE kind = 'WAIT_RESOLVED' GROUP BY run_id"
    )
    if sum(n for _, n in answers) != calls:
        found.append(f"there are {sum(n for _, n in answers)} answers to {calls} calls")
    if left := owed(raw):
        found.append(f"{left} messages are left")
    return found
