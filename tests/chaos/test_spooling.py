"""PostgreSQL goes away under load, in all ways, with spooling agents in several processes.

Some of them are killed and started again, and leases run out, so that runs are taken over. Judged
by the ledger, the rows and the bytes of the spools.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.telemetry import BATCH_COMMITTED
from holdfast.testing.postgres import PostgresServer
from holdfast.testing.store_suite import async_test
from tests.agents.ledger import Ledger
from tests.agents.test_spool_kills import Spooling
from tests.backends import PostgresBackend
from tests.chaos.servers import freeze, kill, kill_all, thaw
from tests.conftest import OwnPostgres
from tests.processes import Child

PROCESSES = 3
RUNS = 6
LIMIT_SECONDS = 240
FIRST_SPOOLED_SECONDS = 20


Ways = tuple[Callable[[PostgresServer], None], Callable[[PostgresServer], None]]
WAYS: list[Ways] = [
    (kill, PostgresServer.restart),
    (freeze, thaw),
    (PostgresServer.stop, PostgresServer.restart),
    (kill_all, PostgresServer.restart),
]


class Outages:
    """Takes a server away again and again, and kills processes meanwhile."""

    def __init__(self, server: PostgresServer, spooling: Spooling, *, turns: int, seed: int):
        self._server = server
        self._spooling = spooling
        self._turns = turns
        self._chance = random.Random(seed)
        self._children = [self._start() for _ in range(PROCESSES)]
        self.kills = 0

    def strike(self, nth: int) -> None:
        self._progress(self._chance.randint(10, 30))
        go, come = WAYS[nth % len(WAYS)]
        go(self._server)
        self._note("down", nth)
        time.sleep(self._chance.choice((0.5, 1.5)))
        if go is not freeze:
            self._wait_for_a_first_spooled_line()
        if nth % 2:
            self._kill_one()
        self._note("up", nth)
        come(self._server)
        while len(self._children) < PROCESSES:
            self._children.append(self._start())

    def finish(self) -> None:
        """Wait for all processes; each must come to the same results."""
        wanted = [f"reply {turn}" for turn in range(self._turns)]
        for child in self._children:
            with child:
                assert self._spooling.results(child) == [wanted] * RUNS
                assert child.process.wait() == 0

    def _start(self) -> Child:
        return self._spooling.start(runs=RUNS, turns=self._turns)

    def _kill_one(self) -> None:
        victim = self._children.pop(self._chance.randrange(PROCESSES))
        victim.process.kill()
        victim.process.wait()
        victim.__exit__(None, None, None)
        self.kills += 1

    def _progress(self, lines: int) -> None:
        ledger = self._spooling.ledger
        wanted, until = len(ledger.lines()) + lines, time.monotonic() + LIMIT_SECONDS
        while len(ledger.lines()) < wanted and time.monotonic() < until:
            time.sleep(0.01)

    def _wait_for_a_first_spooled_line(self) -> None:
        """Let slow processes come to a checkpoint; if all are about to charge, none is spooled."""
        until = time.monotonic() + FIRST_SPOOLED_SECONDS
        while not self._spooling.ledger.count("spooled") and time.monotonic() < until:
            time.sleep(0.01)

    def _note(self, what: str, nth: int) -> None:
        self._spooling.ledger.write(what, "-", nth)


def charged_while_away(ledger: Ledger) -> list[str]:
    """Calls that changed something after their run was spooled, before the store was back.

    Both by one process: what another one spools after it has lost the run is nothing to its holder.
    """
    found: list[str] = []
    is_away, spooled = False, set[tuple[str, str]]()
    for line in ledger.lines():
        if line.what in ("down", "up"):
            is_away, spooled = line.what == "down", set[tuple[str, str]]()
        elif is_away and line.what == "spooled":
            spooled.add((line.run, line.by))
        elif is_away and line.what == "charge" and (line.run, line.by) in spooled:
            found.append(f"{line} was made while its run was spooled")
    return found


@pytest.mark.mission("S3-084", "S3-163", "S3-203")
def test_nothing_that_spooling_agents_said_is_lost_when_the_database_goes_away(
    own_postgres: OwnPostgres, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    outages, turns = (40, 900) if is_chaos else (4, 60)
    server = own_postgres()
    spooling = Spooling(PostgresBackend(server.url()), tmp_path)
    striking = Outages(server, spooling, turns=turns, seed=seed)
    for nth in range(outages):
        striking.strike(nth)
    striking.finish()
    told = Counter(line.what for line in spooling.ledger.lines())
    evidence = len([*spooling.spool.rglob("evidence/*")])
    print(f"seed {seed}: {told}, {striking.kills} kills, {evidence} kept as evidence")
    assert spooling.judge(RUNS, turns) == [], seed
    assert charged_while_away(spooling.ledger) == [], seed
    assert told["spooled"], seed


@pytest.mark.mission("S3-194")
@async_test
async def test_database_that_stands_still_for_a_moment_delays_commits_and_groups_them(
    own_postgres: OwnPostgres,
) -> None:
    batches: list[int] = []
    server = own_postgres()

    def count(name: str, amount: int) -> None:
        if name == BATCH_COMMITTED:
            batches.append(amount)

    async with holdfast.open(server.url(), telemetry=count) as hf:
        runs = [await hf.runs.open(f"r{number}") for number in range(50)]
        for turn in range(4):
            for run in runs:
                run.append("log", turn)
            batches.clear()
            freeze(server)
            asyncio.get_running_loop().call_later(0.3, thaw, server)
            saved = await asyncio.gather(*(run.checkpoint() for run in runs))
            assert [row.version for row in saved] == [turn + 1] * 50
            assert max(batches) > 10
    with PostgresBackend(server.url()).raw() as raw:
        assert raw.rows("SELECT count(*), max(version) FROM checkpoints") == [(200, 4)]
