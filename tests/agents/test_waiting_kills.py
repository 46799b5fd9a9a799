"""Agents that ask, need approval, wait for signals and sleep, killed at every fault point.

Every question is asked once, every call is made once, whoever dies; the ledger that counts shares
no code with Holdfast.
"""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.agents.askers import AskingSweep
from tests.agents.test_kill_sweep import POINTS, REPEATED

BESIDE_MODELS = [point for point in POINTS if point != "model.after_call"]


@pytest.mark.mission("S1-002", "S1-004", "S1-030")
@pytest.mark.chaos(backend=["postgres"], point=REPEATED)
@pytest.mark.parametrize("point", BESIDE_MODELS)
@async_test
async def test_workers_killed_at_a_fault_point_ask_nothing_twice(
    store: str, tmp_path: Path, point: str
) -> None:
    async with AskingSweep(store, tmp_path, seed=0) as sweep:
        await sweep.start(2)
        await sweep.kill_at("tool.after_call", 0)
        for skip in (0, 4):
            await sweep.kill_at(point, skip)
        await sweep.finish()
        assert await sweep.judge() == []
        assert sweep.kills >= 2
