"""Workers killed at random moments, again and again: what their agents do outside happens once."""

from pathlib import Path

from holdfast.testing.store_suite import async_test
from tests.agents.sweeping import RUNS, Sweep

KILLS = 25  # on each store; with --chaos 2,000 in all
CHAOS_KILLS = 1000


@async_test
async def test_workers_killed_at_random_moments_repeat_nothing(
    store: str, tmp_path: Path, seed: int, is_chaos: bool
) -> None:
    kills = CHAOS_KILLS if is_chaos else KILLS
    async with Sweep(store, tmp_path, seed=seed) as sweep:
        await sweep.start(RUNS)
        for _ in range(kills):
            await sweep.kill_at_random()
        await sweep.finish()
        assert await sweep.judge() == [], f"seed {seed}"
        assert sweep.kills == kills
        print(f"{kills} kills, {len(sweep.runs)} runs, {sweep.unblocked} unblocked")
