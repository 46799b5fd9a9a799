"""A mesh of agents in several worker processes, killed all the time; judged by plain SQL."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import holdfast
from holdfast.engine.messages.replies import PeerReply
from holdfast.errors import ConflictError
from tests.agents.ledger import Ledger
from tests.backends import Backend
from tests.peers.sweeping import owed
from tests.processes import Child

AGENTS = "tests.peers.members"
ALIVE = "SELECT run_id FROM runs WHERE status NOT IN ('completed', 'failed')"


class Counts(NamedTuple):
    """What came of it, as the rows tell."""

    answers: int
    results: int
    duplicates: int
    late: int
    kills: int
    seconds: float


class Member:
    """One worker process after another on one store."""

    def __init__(self, backend: Backend, ledger: Path, make: str, transport: str) -> None:
        arguments = [transport] if transport else []
        made = f"{AGENTS}:{make}"
        self._child = Child("tests.peers.members", backend.url, ledger, made, *arguments)
        self._pid = 0

    async def begin(self) -> None:
        self._pid = await asyncio.to_thread(self._child.ask, ["", 0])

    async def end(self, how: signal.Signals) -> int:
        os.kill(self._pid, how)
        code = await asyncio.to_thread(self._child.ask, "wait")
        self._pid = 0
        return code

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        self._child.close()


class Mesh:
    """Tasks whose parts are done by peers: in the same store, or in another one."""

    def __init__(
        self,
        folder: Path,
        here: Backend,
        there: Backend | None = None,
        *,
        transport: str = "",
        seed: int,
    ) -> None:
        self.stores = [here] if there is None else [here, there]
        makes = ["make"] * 3 if there is None else ["make_task", "make_part", "make_part"]
        stores = [here, there or here, there or here]
        ledger = folder / "ledger"
        self.ledger = Ledger(ledger)
        self.kills = 0
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._replayed: set[str] = set()
        self.tasks = self.parts = 0
        self._members = [
            Member(store, ledger, make, transport)
            for store, make in zip(stores, makes, strict=True)
        ]
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Mesh":
        self.views = [
            await self._open.enter_async_context(holdfast.open(store.url)) for store in self.stores
        ]
        for member in self._members:
            self._open.callback(member.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def start(self, tasks: int, parts: int) -> None:
        self.tasks, self.parts = tasks, parts
        create = self.views[0].runs.create
        for number in range(tasks):
            await create(f"t{number}", agent="task", input={"parts": parts})
        await asyncio.gather(*(member.begin() for member in self._members))

    async def work(self, *, kills: int | None, pause: float, limit: float) -> None:
        """Let it go on until everything has ended; None: kill workers all the time."""
        async with asyncio.timeout(limit):
            killing = asyncio.create_task(self._keep_killing(kills, pause))
            try:
                while self.are_open():
                    await self._tend()
                    await asyncio.sleep(0.05)
            finally:
                killing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await killing
        for member in self._members:
            await member.end(signal.SIGTERM)

    async def _keep_killing(self, kills: int | None, pause: float) -> None:
        while kills is None or self.kills < kills:
            await asyncio.sleep(self._chance.uniform(0.3, 1.0) * pause)
            await asyncio.shield(self._kill(self._chance.choice(self._members)))

    async def _kill(self, member: Member) -> None:
        assert await member.end(signal.SIGKILL) == -signal.SIGKILL
        self.kills += 1
        await member.begin()

    async def _tend(self) -> None:
        """Do what an operator does about blocked runs; in one store, tell every reply again."""
        for view in self.views:
            for run in await view.runs.list(status="blocked"):
                assert run.blocked_reason == "breaker", run
                with contextlib.suppress(ConflictError):
                    await view.runs.unblock(run.run_id)
        if len(self.views) == 1:
            await self._replay()

    async def _replay(self) -> None:
        with self.stores[0].raw() as raw:
            rows = raw.rows("SELECT run_id FROM runs WHERE agent = 'part' AND status = 'completed'")
        new = [run_id for (run_id,) in rows if run_id not in self._replayed]
        self._chance.shuffle(new)
        for run_id in new:
            value = await self.views[0].runs.result(run_id)
            reply = PeerReply(status="completed", value=value)
            await self.views[0].waits.resolve(run_id, reply, by="replay")
            self._replayed.add(run_id)

    def are_open(self) -> bool:
        for store in self.stores:
            with store.raw() as raw:
                if raw.rows(f"{ALIVE} LIMIT 1") or owed(raw):
                    return True
        return False

    def faults(self) -> list[str]:
        """Everything that is wrong, in words."""
        calls = self.tasks * self.parts
        with self.stores[0].raw() as raw, self.stores[-1].raw() as others:
            found = [f"{run} did not end" for (run,) in (*raw.rows(ALIVE), *others.rows(ALIVE))]
            found += _not("completed", raw, "task", self.tasks)
            found += _not("completed", others, "part", calls)
            waits = Counter(status for (status,) in raw.rows("SELECT status FROM waits"))
            if waits != {"resolved": calls}:
                found.append(f"calls ended as {waits}")
            named = Counter(_wait_of(facts) for facts in _facts(raw, "WAIT_RESOLVED"))
            found += [f"{wait} was answered {n} times" for wait, n in named.items() if n != 1]
            if len(named) != calls:
                found.append(f"{len(named)} of {calls} calls were answered")
            if left := owed(raw) + owed(others):
                found.append(f"{left} messages are left")
        charges = self.ledger.count("charge")
        wanted = {(f"t{n}", place) for n in range(self.tasks) for place in range(self.parts)}
        found += [f"{place} was charged {n} times" for place, n in charges.items() if n != 1]
        return found + [f"{place} was never charged" for place in wanted ^ set(charges)]

    async def wrong_answers(self) -> list[str]:
        found: list[str] = []
        for number in range(self.tasks):
            wanted = [f"t{number}/{place}" for place in range(self.parts)]
            if (told := await self.views[0].runs.result(f"t{number}")) != wanted:
                found.append(f"t{number} ended with {told}")
        return found

    def counts(self) -> Counts:
        with self.stores[0].raw() as raw:
            answers = len(_facts(raw, "RUN_COMPLETED", agent="task"))
            results = len(_facts(raw, "WAIT_RESOLVED"))
            ((duplicates,),) = raw.rows("SELECT sum(duplicates) FROM waits")
            ((late,),) = raw.rows("SELECT count(*) FROM waits WHERE duplicates > 0")
        seconds = round(time.monotonic() - self._began, 1)
        return Counts(answers, results, int(duplicates or 0), late, self.kills, seconds)


def _not(status: str, raw: Any, agent: str, wanted: int) -> list[str]:
    found = Counter(s for (s,) in raw.rows("SELECT status FROM runs WHERE agent = ?", agent))
    return [] if found == {status: wanted} else [f"runs of {agent}: {found}, {wanted} were needed"]


def _facts(raw: Any, kind: str, *, agent: str = "task") -> Sequence[bytes]:
    rows = raw.rows(
        "SELECT j.facts FROM journal j JOIN runs r ON r.run_id = j.run_id"
        " WHERE j.kind = ? AND r.agent = ?",
        kind,
        agent,
    )
    return [bytes(facts) for (facts,) in rows]


def _wait_of(facts: bytes) -> str:
    return msgspec.msgpack.decode(facts)[0]
