"""Agents that hand over to each other, killed at random moments under load: none is lost.

With --chaos 3,000 recoveries; how long it took until a killed agent was noticed, and until another
went on, is printed.
"""

import asyncio
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from tests.agents.sweeping import Sweep
from tests.backends import Backend, Raw
from tests.handoff.owners import Owners

KILLS, CHAOS_KILLS = 13, 1500  # on each store
RECOVERIES, CHAOS_RECOVERIES = 25, 1500
RUNS, TURNS = 6, 4
SECONDS_PER_KILL = 10
BREAKER_LOSSES = 3
TIMES = """
SELECT kind, at, facts FROM journal
WHERE run_id = ? AND kind IN ('RUN_LEASED', 'LEASE_EXPIRED')
ORDER BY seq
"""


@pytest.mark.mission("S3-008", "S3-082", "S3-161", "S3-166")
def test_agents_killed_while_they_hand_over_are_recovered(
    backend: Backend, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    wanted = CHAOS_RECOVERIES if is_chaos else RECOVERIES
    most = CHAOS_KILLS if is_chaos else KILLS
    killing = kill(backend, tmp_path, seed=seed, recoveries=wanted, kills=most)
    problems = asyncio.run(asyncio.wait_for(killing, most * SECONDS_PER_KILL))
    assert problems == [], f"seed {seed}"


async def kill(
    backend: Backend, folder: Path, *, seed: int, recoveries: int, kills: int
) -> list[str]:
    """Kill workers until so many runs were recovered; everything that is wrong afterwards."""
    make = "tests.handoff.paying:make"
    async with Sweep(backend.url, folder, seed=seed, make=make, turns=TURNS) as sweep:
        await sweep.start(RUNS)
        while sweep.kills < kills:
            await sweep.kill_at_random()
        with backend.raw() as raw:
            while lost(raw) < recoveries:
                await sweep.kill_at_random()
        await sweep.finish()
        found = await sweep.judge_runs()
        with backend.raw() as raw:
            for run_id in sweep.runs:
                found += Owners(raw, run_id).problems
            found += [f"{run} was given up after {times}" for run, times in too_early(raw)]
            told = f"{lost(raw)} recoveries of {len(sweep.runs)} runs, {sweep.unblocked} unblocked"
            print(f"{sweep.kills} kills, {told}")
            tell(raw, sweep.runs, sweep.killed_at)
    paid = sweep.ledger.count("pay")
    found += [f"{place} was paid {n} times" for place, n in paid.items() if n != 1]
    due = {(run, turn) for run in sweep.runs for turn in range(TURNS)}
    return found + [f"{place} was not paid" for place in due - paid.keys()]


def lost(raw: Raw) -> int:
    """How many runs were taken from workers that were killed."""
    return raw.rows("SELECT count(*) FROM journal WHERE kind = 'LEASE_EXPIRED'")[0][0]


def too_early(raw: Raw) -> Iterator[tuple[str, int]]:
    """Runs that were left to people before three workers in a row had died of them."""
    sql = "SELECT run_id, facts FROM journal WHERE kind = 'RECOVERY_FAILED'"
    for run_id, facts in raw.rows(sql):
        attempts = msgspec.msgpack.decode(facts)[3]
        if attempts < BREAKER_LOSSES:
            yield run_id, attempts


def tell(raw: Raw, runs: Iterable[str], killed_at: Mapping[str, float]) -> None:
    """From a kill until it was noticed, and from there until somebody else went on."""
    detected: list[float] = []
    taken: list[float] = []
    for run_id in runs:
        expired_at = 0.0
        for kind, at, facts in raw.rows(TIMES, run_id):
            moment = at / 1e6
            if kind == "LEASE_EXPIRED":
                worker, attempts, *_ = msgspec.msgpack.decode(facts)
                detected.append(moment - killed_at[worker])
                expired_at = moment if attempts == 1 else 0.0  # others are put off on purpose
            elif expired_at:
                taken.append(moment - expired_at)
                expired_at = 0.0
    for what, times in (("kill to detection", detected), ("detection to failover", taken)):
        if len(times) > 1:
            worst = statistics.quantiles(times, n=100)[-1]
            print(f"{what}: median {statistics.median(times):.3f} s, p99 {worst:.3f} s")
