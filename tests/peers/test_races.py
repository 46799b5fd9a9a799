"""An answer in the same instant as the timeout: one of them counts, whichever, and once.

One worker process completes the peers, another one sweeps and goes on with the callers. Only SQL
judges.
"""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import MICROSECONDS
from tests.agents.ledger import Ledger
from tests.agents.sweeping import GENTLY
from tests.backends import Backend, Raw
from tests.peers.racers import deadlines_beside, make_callers, write
from tests.peers.sweeping import Side, owed

ROUND = 250
ROUNDS, CHAOS_ROUNDS = 1, 20  # on each store
APART_SECONDS = 0.008
START_SECONDS = 0.5
LIMIT_SECONDS = 300.0
LEASE_SECONDS = 10.0
RUNNING = "SELECT count(*) FROM runs WHERE status = 'running' AND agent = 'punctual'"
ALIVE = "SELECT 1 FROM runs WHERE status IN ('ready', 'running', 'waiting', 'blocked') LIMIT 1"
SETTLED = "'WAIT_RESOLVED', 'WAIT_EXPIRED', 'WAIT_CANCELLED'"


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S2-015", "S2-020", "S2-027", "S2-028", "S0-086")
def test_answer_in_the_instant_of_the_timeout_counts_once_or_not_at_all(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    rounds = CHAOS_ROUNDS if is_chaos else ROUNDS
    races = rounds * ROUND
    asyncio.run(race(backend, tmp_path, rounds))
    with backend.raw() as raw:
        waits = Counter(raw.rows("SELECT status, count(*) FROM waits GROUP BY status"))
        settled = raw.rows(
            f"SELECT run_id, count(*) FROM journal WHERE kind IN ({SETTLED}) GROUP BY run_id"
        )
        ends = raw.rows(
            "SELECT run_id, count(*) FROM journal WHERE kind = 'RUN_COMPLETED'"
            " AND run_id IN (SELECT run_id FROM waits) GROUP BY run_id"
        )
        print(dict(waits))
        assert sum(count for _, count in waits) == races
        assert {status for status, _ in waits} <= {"resolved", "expired"}
        assert (len(settled), {count for _, count in settled}) == (races, {1})
        assert (len(ends), {count for _, count in ends}) == (races, {1})
        assert owed(raw) == 0
    answers = asyncio.run(answers_of(backend.url, races))
    told = {"resolved": "answered", "expired": "timed out"}
    assert answers == {told[status]: count for status, count in waits}


async def race(backend: Backend, folder: Path, rounds: int) -> None:
    ledger = folder / "ledger"
    makes = ("tests.peers.racers:make_peers", "tests.peers.racers:make_callers")
    with ExitStack() as ending, backend.raw() as raw:
        sides = [Side(backend, ledger, make, at_once=ROUND, lease=LEASE_SECONDS) for make in makes]
        for side in sides:
            ending.callback(side.close)
        for number in range(rounds):
            await prepare(backend.url, number * ROUND)
            for side in sides:
                await side.begin()
            async with asyncio.timeout(LIMIT_SECONDS):
                while raw.rows(RUNNING) != [(ROUND,)]:
                    await asyncio.sleep(0.05)
                set_deadlines(raw, deadlines_beside(ledger))
                while raw.rows(ALIVE) or owed(raw):
                    await asyncio.sleep(0.05)
            for side in sides:
                assert await side.stop() in GENTLY


def set_deadlines(raw: Raw, path: Path) -> None:
    """Let the waits be due one after another, from now on; their peers read when."""
    rows = raw.rows("SELECT wait_id FROM waits WHERE status = 'open' ORDER BY wait_id")
    first = time.time() + START_SECONDS
    deadlines = {wait: first + n * APART_SECONDS for n, (wait,) in enumerate(rows)}
    for wait, due in deadlines.items():
        moment = int(due * MICROSECONDS)
        # As if the last sign of life had come so long before: an earlier deadline is not believed.
        change = "deadline = ?, progress_at = CAST(? AS BIGINT) - patience"
        raw.execute(f"UPDATE waits SET {change} WHERE wait_id = ?", moment, moment, wait)
    write(path, deadlines)


async def prepare(url: str, first: int) -> None:
    """Callers of one round, each left to its peer."""
    (racer,) = make_callers(Ledger(Path()))
    async with holdfast.Holdfast(url, agents=[racer]) as hf:
        numbers = range(first, first + ROUND)
        await asyncio.gather(*(hf.start(racer, run_id=f"c{n}") for n in numbers))
        worker = hf.new_worker(concurrency=32)
        working = asyncio.create_task(worker.run())
        while (await hf.info()).runs.get("waiting", 0) < ROUND:
            await asyncio.sleep(0.05)
        worker.stop()
        await working


async def answers_of(url: str, races: int) -> Counter[str]:
    async with holdfast.open(url) as hf:
        return Counter([await hf.runs.result(f"c{n}") for n in range(races)])
