"""Workers of a schedule killed at every point where something is stored: one start per tick."""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.agents.scheduled import Ticking

COMMITS = (1, 3, 6, 10)
POINTS = {
    "batch.before_begin": COMMITS,
    "batch.before_commit": COMMITS,
    "batch.after_commit": COMMITS,
    "batch.before_acknowledge": COMMITS,
    "tool.before_call": (0, 1),
}


@pytest.mark.chaos(backend=["postgres"], point={*POINTS} - {"batch.after_commit"})
@pytest.mark.parametrize("point", POINTS)
@async_test
async def test_workers_killed_at_a_fault_point_start_one_run_per_tick(
    store: str, tmp_path: Path, point: str
) -> None:
    async with Ticking(store, tmp_path) as ticking:
        for skip in POINTS[point]:  # alone, so that every commit of a tick is its own
            await ticking.kill_at(point, skip)
        await ticking.kill_at(point, 1, beside=3)
        await ticking.finish()
        assert await ticking.judge() == []
