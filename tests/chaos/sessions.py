"""Agents that go on by themselves whatever happens to the server, and what they were told.

A session holds a run: turns, effects, and waits that two outsiders answer at once. A roamer takes
whatever run is ready. When a call says that the store is away, it is simply made again.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import holdfast
from holdfast.errors import IllegalMove, OutcomeUnknown, UnavailableError

T = TypeVar("T")
ROAMED = "roamed"


@dataclass
class Ledger:
    """What was acknowledged, and what calls raised."""

    markers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    keys: set[str] = field(default_factory=set)
    settlers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    accepted: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    acknowledged: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __str__(self) -> str:
        return f"done: {dict(self.done)}; raised: {dict(self.raised)}"

    async def note(self, what: str) -> None:
        """Count an acknowledged call."""
        self.done[what] += 1
        async with self.acknowledged:
            self.acknowledged.notify_all()

    async def reach(self, more: int) -> None:
        """Wait until so many more calls were acknowledged."""
        goal = self.done.total() + more
        async with self.acknowledged:
            await self.acknowledged.wait_for(lambda: self.done.total() >= goal)

    def told(self) -> dict[str, list[str]]:
        """The markers acknowledged up to now, by run."""
        return {run_id: list(markers) for run_id, markers in self.markers.items()}


IsStored = Callable[[str, str], Awaitable[bool]]


class Agents:
    """Sessions and roamers of one store, until they are stopped; each ends what it is doing."""

    def __init__(
        self, hf: holdfast.Holdfast, name: str, ledger: Ledger, *, is_stored: IsStored | None = None
    ) -> None:
        self.hf = hf
        self._name = name
        self._ledger = ledger
        self._is_stored = is_stored
        self._is_stopped = False
        self._outsiders: list[Callable[[str], Awaitable[None]]] = []

    def stop(self) -> None:
        self._is_stopped = True

    def answered_by(self, *outsiders: "Agents") -> None:
        """Who answers the waits of these sessions, all at once."""
        self._outsiders = [outsider.answer for outsider in outsiders]

    async def session(self, number: int, seed: int) -> None:
        """Work on one run of its own."""
        chance = random.Random(seed)
        run_id = f"{self._name}-{number}"
        run = await self._take(run_id)
        step = 0
        while not self._is_stopped:
            step += 1
            kind = chance.random()
            if kind < 0.7:
                await self._turn(run, f"{run_id}.{step}")
            elif kind < 0.85:
                await self._effect(run, f"{run_id}.{step}")
            elif kind < 0.95:
                await self._wait(run, f"{run_id}.{step}")
                run = await self._take(run_id)
            else:
                run = await self._take(run_id)

    async def roam(self, name: str) -> None:
        """Work on whatever run is ready."""
        step = 0
        while not self._is_stopped:
            run = await self._next()
            if run is None:
                continue
            for _ in range(2):
                step += 1
                await self._turn(run, f"{self._name}-{name}.{step}")
            await self._leave(run.release)
            await self._ledger.note("released")

    async def answer(self, wait_id: str) -> None:
        """Reply to a wait; whoever is first, everybody is told the same."""
        answer = await self._persist(
            lambda: self.hf.waits.resolve(wait_id, self._name, by=self._name)
        )
        self._ledger.settlers[wait_id].add(answer.settled_by)
        self._ledger.accepted[wait_id] += answer.accepted
        await self._ledger.note("answered")

    async def _take(self, run_id: str) -> holdfast.LeasedRun:
        run = await self._persist(lambda: self.hf.runs.open(run_id))
        await self._ledger.note("taken")
        return run

    async def _next(self) -> holdfast.LeasedRun | None:
        """The next run that is ready; what was leased while the server went away comes again."""
        try:
            run = await self.hf.leases.next(agents=[ROAMED], timeout_seconds=0.2)
        except UnavailableError as error:
            self._ledger.raised[type(error).__name__] += 1
            return None
        if run is not None:
            await self._ledger.note("leased")
        return run

    async def _turn(self, run: holdfast.LeasedRun, marker: str) -> None:
        run.append("log", marker)
        await self._persist(run.checkpoint, (run.run_id, marker))
        self._ledger.markers[run.run_id].append(marker)
        await self._ledger.note("turn")

    async def _effect(self, run: holdfast.LeasedRun, key: str) -> None:
        request = holdfast.EffectRequest(tool="pay", key=key)
        (begun,) = await self._persist(lambda: run.begin_effects([request]))
        assert begun.answer == "fresh", f"{key} is {begun.answer}: nobody else has issued it"
        await self._persist(lambda: run.finish_effect(begun, key))
        self._ledger.keys.add(key)
        await self._ledger.note("effect")

    async def _wait(self, run: holdfast.LeasedRun, wait_id: str) -> None:
        spec = holdfast.WaitSpec(wait_id=wait_id)
        await self._leave(lambda: run.open_waits([spec], suspend=True))
        await self._ledger.note("suspended")
        await asyncio.gather(*(answer(wait_id) for answer in self._outsiders))

    async def _leave(self, give_up: Callable[[], Awaitable[object]]) -> None:
        """Give up the lease: that it is gone when this is tried again means that it worked."""
        is_unknown = False
        while True:
            try:
                await give_up()
                return
            except OutcomeUnknown:
                is_unknown = True
                self._ledger.raised["OutcomeUnknown"] += 1
            except UnavailableError as error:
                self._ledger.raised[type(error).__name__] += 1
            except IllegalMove:
                assert is_unknown, "the run was given up, and nobody was told"
                return

    async def _persist(
        self, call: Callable[[], Awaitable[T]], marker: tuple[str, str] | None = None
    ) -> T:
        """Make a call again until the store answers it."""
        while True:
            try:
                return await call()
            except UnavailableError as error:
                self._ledger.raised[type(error).__name__] += 1
                if isinstance(error, OutcomeUnknown) and marker and self._is_stored:
                    is_stored = await self._is_stored(*marker)
                    self._ledger.raised["and stored" if is_stored else "and not stored"] += 1


SESSIONS = 3
ROAMED_RUNS = 3


async def disturbed(
    url: str,
    disturb: Callable[[], Awaitable[None]],
    ledger: Ledger,
    *,
    seed: int,
    patience_seconds: float = 0.3,
    is_stored: IsStored | None = None,
) -> None:
    """Have agents work, some of them patient and some not, until `disturb` is done with them."""
    hurried = holdfast.Settings(busy_timeout_seconds=patience_seconds)
    async with holdfast.open(url) as one, holdfast.open(url, settings=hurried) as other:
        for number in range(ROAMED_RUNS):
            await one.runs.create(f"roamed-{number}", agent=ROAMED)
        patient = Agents(one, "patient", ledger)
        impatient = Agents(other, "impatient", ledger, is_stored=is_stored)
        try:
            async with asyncio.TaskGroup() as tasks:
                for agents in (patient, impatient):
                    agents.answered_by(patient, impatient)
                    tasks.create_task(agents.roam("roamer"))
                    for number in range(SESSIONS):
                        tasks.create_task(agents.session(number, seed + number))
                await disturb()
                patient.stop()
                impatient.stop()
        except BaseException as error:
            error.add_note(f"seed {seed}; {ledger}")
            raise
