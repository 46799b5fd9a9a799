"""Workers killed at random moments, again and again: what their agents do outside happens once."""

import asyncio
from pathlib import Path

from tests.agents.sweeping import RUNS, Sweep

KILLS = 6  # on each store; with --chaos 2,000 in all
CHAOS_KILLS = 1000
SECONDS_PER_KILL = 10


def test_workers_killed_at_random_moments_repeat_nothing(
    store: str, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    kills = CHAOS_KILLS if is_chaos else KILLS
    sweeping = sweep(store, tmp_path, seed=seed, kills=kills)
    done = asyncio.run(asyncio.wait_for(sweeping, kills * SECONDS_PER_KILL))
    assert done == (kills, []), f"seed {seed}"


async def sweep(store: str, folder: Path, *, seed: int, kills: int) -> tuple[int, list[str]]:
    """Kill so many workers; how many were killed, and what is wrong afterwards."""
    async with Sweep(store, folder, seed=seed) as sweeping:
        await sweeping.start(RUNS)
        for _ in range(kills):
            await sweeping.kill_at_random()
        await sweeping.finish()
        print(f"{kills} kills, {len(sweeping.runs)} runs, {sweeping.unblocked} times unblocked")
        return sweeping.kills, await sweeping.judge()
