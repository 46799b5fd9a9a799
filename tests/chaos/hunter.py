"""One process of the hunt for deadlocks: `python -m tests.chaos.hunter STORE SEED SECONDS`.

Its tasks do everything that Holdfast can do to a few runs, keys and wait ids that all processes
share. It prints a line now and then, and at the end what became of the calls.
"""

import asyncio
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg

import holdfast
from holdfast.errors import ConflictError, IndexCorrupted, RunEnded, RunExists, WaitNotFound

RUNS = 10
KEYS = 8
WAITS = 12
TASKS = 8
POOL_SECONDS = 2.0  # then other keys and wait ids are in use
SURPRISES = 5
DAMAGE = """
UPDATE checkpoints SET label = 'damaged'
WHERE run_id = %s AND version = (SELECT max(version) FROM checkpoints c
                                 WHERE c.run_id = checkpoints.run_id)
"""


class Hunter:
    """Tasks that make random calls, and what they were answered."""

    def __init__(self, hf: holdfast.Holdfast, store: str, seed: int) -> None:
        self.hf = hf
        self.random = random.Random(seed)
        self.answers: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.acknowledged: dict[str, list[str]] = {}
        self._store = store
        self._seed = seed
        self._workers = [hf, hf.another_worker(), hf.another_worker()]
        self._generations = [0] * RUNS
        self._created: set[str] = set()
        self._markers = 0

    async def hunt(self, until: float) -> None:
        await asyncio.gather(*(self._task(until) for _ in range(TASKS)))

    async def _task(self, until: float) -> None:
        calls, weights = list(CALLS), list(CALLS.values())
        while time.monotonic() < until:
            (call,) = self.random.choices(calls, weights)
            number = self.random.randrange(RUNS)
            try:
                await call(self, await self._run_id(number))
                self.answers[f"{call.__name__} ok"] += 1
            except ConflictError as error:
                self.answers[f"{call.__name__} {type(error).__name__}"] += 1
            except Exception as error:
                self.answers[f"{call.__name__} {type(error).__name__}"] += 1
                if isinstance(error, IndexCorrupted) and names_damage(error):
                    continue
                if len(self.surprises) < SURPRISES:
                    self.surprises.append(f"{call.__name__}: {traceback.format_exc()}")

    async def _run_id(self, number: int) -> str:
        """A hot run that exists; one that has ended is followed by another."""
        run_id = f"hot-{number}.{self._generations[number]}"
        if run_id not in self._created:
            with suppress(RunExists):
                await self.hf.runs.create(run_id)
            self._created.add(run_id)
        return run_id

    def _ended(self, run_id: str) -> None:
        number, generation = map(int, run_id.removeprefix("hot-").split("."))
        self._generations[number] = max(self._generations[number], generation + 1)

    async def work(self, run_id: str) -> None:
        """Take the run, perhaps from somebody, do a few things, and leave it somehow."""
        worker = self.random.choice(self._workers)
        try:
            run = await worker.runs.open(run_id, takeover=self.random.random() < 0.8)
            for _ in range(self.random.randint(1, 4)):
                await self.random.choice((self._turn, self._turn, self._effects, self._waits))(run)
            await self._leave(run)
        except RunEnded:
            self._ended(run_id)
            raise

    async def lease_next(self, _: str) -> None:
        run = await self.random.choice(self._workers).leases.next()
        if run is not None:
            await self._turn(run)
            await run.release()

    async def _turn(self, run: holdfast.LeasedRun) -> None:
        self._markers += 1
        marker = f"{self._seed}-{self._markers}"
        run.append("log", marker)
        await run.checkpoint()
        self.acknowledged.setdefault(run.run_id, []).append(marker)

    async def _effects(self, run: holdfast.LeasedRun) -> None:
        """Keys are shared between runs, and most come free again."""
        keys = self._some("key", KEYS)
        begun = await run.begin_effects(
            [holdfast.EffectRequest(tool="t", key=key, limit_seconds=0.1) for key in keys]
        )
        for effect in begun:
            outcome = self.random.random()
            if effect.answer != "fresh":
                continue
            if outcome < 0.6:
                await run.abandon_effect(effect)
            elif outcome < 0.8:
                await run.finish_effect(effect, "result")
            elif outcome < 0.9:
                await run.doubt_effect(effect)

    async def _waits(self, run: holdfast.LeasedRun) -> None:
        specs = [
            holdfast.WaitSpec(wait_id=wait_id, timeout_seconds=self.random.uniform(0.0, 0.5))
            for wait_id in self._some("wait", WAITS)
        ]
        mode = self.random.choice(["all", "any"])
        await run.open_waits(specs, mode=mode, suspend=self.random.random() < 0.4)

    async def _leave(self, run: holdfast.LeasedRun) -> None:
        way = self.random.random()
        if way < 0.5:
            await run.release()
        elif way < 0.55:
            await run.complete("done")

    async def answer_wait(self, _: str) -> None:
        with suppress(WaitNotFound):  # ids are drawn before anybody opens them
            (wait_id,) = self._some("wait", WAITS, most=1)
            way = self.random.random()
            if way < 0.7:
                await self.hf.waits.resolve(wait_id, "answer")
            elif way < 0.85:
                await self.hf.waits.cancel(wait_id)
            else:
                await self.hf.waits.extend(wait_id, timeout_seconds=0.2)

    async def settle_effect(self, _: str) -> None:
        status = self.random.choice(["issued", "unknown"])
        for effect in await self.hf.effects.unsettled(status=status, limit=2):
            await self.hf.effects.settle(effect.effect_id, "not_done")

    async def cancel(self, run_id: str) -> None:
        await self.hf.runs.cancel(run_id)
        self._ended(run_id)

    async def block(self, run_id: str) -> None:
        await self.hf.runs.block(run_id, "budget")
        await self.hf.runs.unblock(run_id)

    async def sweep(self, _: str) -> None:
        await self.hf.waits.expire_due(limit=self.random.randint(1, 20))
        await self.hf.leases.expire_lost(limit=self.random.randint(1, 20))

    async def vanish(self, _: str) -> None:
        """A worker stops counting as alive: its runs are lost, and swept."""
        self._workers.append(self.hf.another_worker())
        await self._workers.pop(0).leases.close()

    async def reindex(self, run_id: str) -> None:
        await self.hf.reindex(run_id)

    async def mend(self, run_id: str) -> None:
        """Damage a row, so that a rebuild has something to write."""
        if is_damaged(run_id):
            async with await psycopg.AsyncConnection.connect(self._store) as session:
                await session.execute(DAMAGE, [run_id])
        await self.hf.reindex(run_id)

    async def verify(self, run_id: str) -> None:
        problems = await self.hf.journal.verify(run_id)
        assert is_damaged(run_id) or problems == [], problems

    def _some(self, name: str, many: int, *, most: int = 3) -> list[str]:
        """Different ones, in any order, of those in use at this moment in every process."""
        pool = int(time.monotonic() / POOL_SECONDS)
        chosen = self.random.sample(range(many), self.random.randint(1, most))
        return [f"{name}-{pool}-{n}" for n in chosen]


def is_damaged(run_id: str) -> bool:
    """Whether this is one of the runs whose rows are damaged now and then."""
    return int(run_id.removeprefix("hot-").split(".")[0]) % 2 == 0


def names_damage(error: IndexCorrupted) -> bool:
    """Whether it is one of those runs whose row was found to be wrong."""
    return any(is_damaged(word) for word in str(error).split() if word.startswith("hot-"))


Call = Callable[[Hunter, str], Awaitable[None]]
CALLS: dict[Call, int] = {
    Hunter.work: 40,
    Hunter.lease_next: 10,
    Hunter.answer_wait: 20,
    Hunter.settle_effect: 6,
    Hunter.cancel: 2,
    Hunter.block: 3,
    Hunter.sweep: 8,
    Hunter.vanish: 1,
    Hunter.reindex: 3,
    Hunter.mend: 3,
    Hunter.verify: 2,
}


async def main(store: str, seed: int, seconds: float) -> None:
    async with holdfast.open(store) as hf:
        hunter = Hunter(hf, store, seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await hunter.hunt(min(end, time.monotonic() + 5))
            say({})
        say(
            {
                "answers": hunter.answers,
                "surprises": hunter.surprises,
                "acknowledged": hunter.acknowledged,
            }
        )


def say(outcome: Any) -> None:
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
