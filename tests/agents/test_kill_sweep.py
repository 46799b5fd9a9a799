"""Agents killed at every fault point: what they do outside happens once.

The ledger that counts shares no code with Holdfast. Random moments are in tests/chaos.
"""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.agents.sweeping import Sweep

AGENT_POINTS = ["model.after_call", "tool.before_call", "tool.after_call", "tool.before_verify"]
POINTS = [
    "batch.before_begin",
    "batch.before_commit",
    "batch.after_commit",
    "batch.before_acknowledge",
    *AGENT_POINTS,
]
# What a worker repeats of these it repeats on every store; tests/faults strikes all on both.
REPEATED = {*POINTS} - {"batch.after_commit", "tool.after_call"}


@pytest.mark.mission("S0-004", "S0-112", "S4-001", "S4-003", "S4-046")
@pytest.mark.chaos(backend=["postgres"], point=REPEATED)
@pytest.mark.parametrize("point", POINTS)
@async_test
async def test_workers_killed_at_a_fault_point_repeat_nothing(
    store: str, tmp_path: Path, point: str
) -> None:
    async with Sweep(store, tmp_path, seed=0) as sweep:
        await sweep.start(2)
        # Whoever comes after a call that nobody saw the end of is killed as well.
        assert await sweep.kill_at("tool.after_call", 0)
        assert await sweep.kill_at(point, 0)
        await sweep.kill_at(point, 3)
        await sweep.finish()
        assert await sweep.judge() == []
