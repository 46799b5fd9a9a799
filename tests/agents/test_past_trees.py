"""Whatever tree of runs did, and however one goes back, nothing is paid again.

The lines that the tools write are judged by `trees`, which shares no code with Holdfast. `make
chaos` plays 2,000 cases, `make test` 100; each is made from a seed and its number alone.
"""

import asyncio
import random
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.errors import IntegrityError
from tests.agents import trees
from tests.agents.crashing import advance
from tests.agents.planting import Garden, answer, work
from tests.backends import Backend

SIZE = 5
PARTS = 10
CHAOS_PARTS = 200
WAYS = ("fork", "rewind", "takeover", "recovery")
SETTINGS = Settings(lease_seconds=60, wakeup_poll_seconds=5)


class Case:
    """One tree, and one way to go back in it."""

    def __init__(self, backend: Backend, seed: int, number: int) -> None:
        self.backend = backend
        self.way = WAYS[number % len(WAYS)]
        self.number = number
        self.chance = random.Random(f"{seed}/{number}")
        self.run_id = f"t{number}"
        self.program = trees.program(self.chance, self.run_id)
        self.garden = Garden()
        self.is_whole = False

    def open(self) -> holdfast.Holdfast:
        garden = self.garden
        hf = garden.hf = holdfast.Holdfast(
            self.backend.url, agents=garden.agents, workflows=garden.kit, settings=SETTINGS
        )
        return hf

    async def play(self) -> list[str]:
        """What is wrong with what was paid."""
        async with self.open() as hf:
            await hf._work.create(
                self.garden.node, self.garden.node.input_of((self.program,), {}), self.run_id
            )
            if self.way == "takeover":
                self.garden.crash_in = self.chance.randint(0, 8)
            await work(hf, crashes=self.way == "takeover")
            self.garden.crash_in = -1
            if self.chance.random() < 0.5 and not self.garden.crashed:
                await answer(hf, ["below"])
            if self.way == "recovery":
                await self._damage(hf)
        async with self.open() as hf:
            runs = [self.run_id]
            for _ in range(self.chance.randint(1, 2)):
                self.garden.is_broken &= self.chance.random() < 0.3
                await self._go_back(hf, runs)
                await work(hf)
            self.garden.is_broken = False
            await self._finish(hf, runs)
            started = [await self._is_whole(hf, run_id) for run_id in self.garden.started.values()]
            ends = any([await self._is_whole(hf, run_id) for run_id in runs])
            self.is_whole = ends and all(started)
            await self._clean(hf)
        assert self.is_whole or self.way == "recovery", "nothing keeps it from going on to its end"
        wanted = trees.expected(self.program)
        return trees.faults(self.garden.lines, wanted, is_whole=self.is_whole)

    async def _go_back(self, hf: holdfast.Holdfast, runs: list[str]) -> None:
        run_id = self.chance.choice(runs)
        run = await hf.runs.get(run_id)
        if self.way == "recovery":
            return await self._recover(hf)
        if self.way == "takeover" and self.garden.crashed and self.chance.random() < 0.5:
            for crashed in self.garden.crashed:
                if (await hf.runs.get(crashed)).status == "running":
                    await advance(hf, crashed)
            return None
        history = await hf.checkpoints.history(run_id, limit=1000)
        version = self.chance.randint(0, history[0].version if history else 0)
        if self.way == "fork" or run.status in ("completed", "failed", "cancelled"):
            runs.append(f"{self.run_id}-{len(runs)}")
            await hf.runs.fork(run_id, version, new_run_id=runs[-1])
        else:
            await hf.runs.rewind(run_id, version, takeover=True, by="ann")
        return None

    async def _damage(self, hf: holdfast.Holdfast) -> None:
        """Flip a bit of one entry of one run of the tree: of each in turn."""
        below = await self._tree(hf)
        entries = [(run, seq) for run in below for seq in self._seqs(run)]
        run_id, seq = entries[(self.number // len(WAYS)) % len(entries)]
        where = "WHERE run_id = ? AND seq = ?"
        with self.backend.raw() as raw:
            (row,) = raw.rows(f"SELECT body, facts, link FROM journal {where}", run_id, seq)
            stored_in = dict(zip(("body", "facts", "link"), row, strict=True))
            # The body of most, as it is the largest part.
            column = self.chance.choice(["body", "body", "facts", "link"])
            column = column if stored_in[column] else "link"
            stored = stored_in[column]
            changed = bytearray(stored)
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
            raw.execute(f"UPDATE journal SET {column} = ? {where}", bytes(changed), run_id, seq)

    def _seqs(self, run_id: str) -> list[int]:
        with self.backend.raw() as raw:
            found = raw.rows("SELECT seq FROM journal WHERE run_id = ? ORDER BY seq", run_id)
        return [seq for (seq,) in found]

    async def _tree(self, hf: holdfast.Holdfast) -> list[str]:
        found, ahead = [], [self.run_id]
        while ahead:
            found.append(ahead.pop())
            ahead += [run.run_id for run in await hf.runs.list(parent_id=found[-1], limit=1000)]
        return found

    async def _recover(self, hf: holdfast.Holdfast) -> None:
        await answer(hf, ["below", "end"])
        for run_id in await self._tree(hf):
            run = await hf.runs.get(run_id)
            if run.status == "blocked" and run.blocked_reason == "corruption":
                await hf.recoveries.execute(run_id, accept_gap=True, by="ann")
        await work(hf)

    async def _finish(self, hf: holdfast.Holdfast, runs: list[str]) -> None:
        """Let everything end; what failed before its code was mended is forked once more."""
        await self._wake(hf)
        await answer(hf, ["below", "end"])
        for run_id in list(runs):
            if (await hf.runs.get(run_id)).status == "failed":
                history = await hf.checkpoints.history(run_id, limit=1)
                runs.append(f"{self.run_id}-{len(runs)}")
                newest = history[0].version if history else 0
                try:
                    await hf.runs.fork(run_id, newest, new_run_id=runs[-1])
                except IntegrityError:  # its input is damaged: nobody can help
                    assert self.way == "recovery"
                    runs.pop()
        await answer(hf, ["below", "end"])

    async def _wake(self, hf: holdfast.Holdfast) -> None:
        for run in await hf.runs.list(status="running", limit=1000):
            await advance(hf, run.run_id)

    async def _is_whole(self, hf: holdfast.Holdfast, run_id: str) -> bool:
        return (await hf.runs.get(run_id)).status == "completed"

    async def _clean(self, hf: holdfast.Holdfast) -> None:
        """Leave nothing that the next case would find."""
        for status in ("ready", "running", "waiting", "blocked"):
            for run in await hf.runs.list(status=status, limit=1000):
                await hf.runs.cancel(run.run_id, by="ann")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    given = request.config.getoption("--chaos-seed")
    chosen = 11 if given is None else given
    print(f"--chaos-seed {chosen}")
    return chosen


async def play_part(backend: Backend, seed: int, part: int) -> None:
    for number in range(part * SIZE, (part + 1) * SIZE):
        case = Case(backend, seed, number)
        told = f"case {number} ({case.way}) of --chaos-seed {seed}"
        try:
            found = await case.play()
        except Exception as error:
            error.add_note(told)
            raise
        assert not found, f"{told}: {found}"


@pytest.mark.time_limit(600)
@pytest.mark.chaos(part=range(PARTS, CHAOS_PARTS))
@pytest.mark.parametrize("part", range(CHAOS_PARTS))
def test_nothing_is_paid_again_in_any_tree_that_goes_back(
    backend: Backend, seed: int, part: int
) -> None:
    asyncio.run(play_part(backend, seed, part))


def test_judge_finds_what_is_wrong() -> None:
    tree: Any = [[["pay", "args", "x"], ["pay", "args", "x"], ["peer", [[["pay", "args", "x"]]]]]]
    wanted = trees.expected(tree)
    assert wanted == {("args", "x"): 2}
    right = [("args", "x", "k1"), ("args", "x", "k2")]
    assert trees.faults(right, wanted, is_whole=True) == []
    assert trees.faults(right[:1], wanted, is_whole=False) == []
    assert trees.faults(right[:1], wanted, is_whole=True)
    assert trees.faults([*right, ("args", "x", "k3")], wanted, is_whole=True)
    assert trees.faults([*right, right[0]], wanted, is_whole=True)
