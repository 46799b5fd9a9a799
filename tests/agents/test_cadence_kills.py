"""Workers of each cadence, killed: no effect is repeated or lost, and no more is paid again than
docs/concepts/cadence.md says. The ledger that counts shares no code with Holdfast."""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.agents.ledger import Ledger
from tests.agents.paced import CADENCES, EVERY
from tests.agents.sweeping import Sweep

POINTS = ["model.after_call", "tool.before_call", "batch.before_commit", "batch.after_commit"]
RUNS = 3
TURNS = 10
LOST_TURNS = {"turn": 1, "tool": 1, "every": EVERY, "boundary": TURNS}
"""What a kill may cost a run that is under way: so many replies."""


@pytest.mark.mission("X-002")
@pytest.mark.chaos(backend=["postgres"], cadence={*CADENCES} - {"boundary"})
@pytest.mark.parametrize("cadence", [name for name in CADENCES if name != "turn"])
@async_test
async def test_killed_workers_repeat_no_effect(store: str, tmp_path: Path, cadence: str) -> None:
    make = f"tests.agents.paced:spends_{cadence}"
    async with Sweep(store, tmp_path, seed=0, make=make, turns=5) as sweep:
        await sweep.start(RUNS)
        assert await sweep.kill_at("tool.after_call", 1)
        for skip, point in enumerate(POINTS):
            await sweep.kill_at(point, 2 + skip)
        await sweep.finish()
        assert sweep.kills >= 3
        # Each turn has an intent, which takes the reply along: so one reply may be lost.
        assert await sweep.judge() == []


@pytest.mark.chaos(backend=["postgres"], cadence={*CADENCES} - {"every"})
@pytest.mark.parametrize("cadence", list(CADENCES))
@async_test
async def test_killed_workers_pay_no_more_again_than_is_said(
    store: str, tmp_path: Path, cadence: str
) -> None:
    make = f"tests.agents.paced:talks_{cadence}"
    async with Sweep(store, tmp_path, seed=0, make=make, turns=TURNS) as sweep:
        await sweep.start(RUNS)
        for point, skip in (
            ("model.after_call", 2 * RUNS),
            ("model.after_call", 4 * RUNS + 1),
            ("batch.before_commit", 5),
            ("batch.after_commit", 4),
        ):
            await sweep.kill_at(point, skip)
        await sweep.finish()
        assert sweep.kills >= 2
        at_stake = sweep.kills * RUNS * LOST_TURNS[cadence]
        assert 0 < again(sweep.ledger, "model") <= at_stake
        if cadence == "tool":
            assert again(sweep.ledger, "look") <= sweep.kills * RUNS
        for run_id in sweep.runs:
            assert await sweep.hf.runs.result(run_id) == TURNS
            assert await sweep.hf.journal.verify(run_id) == []


def again(ledger: Ledger, what: str) -> int:
    """How often something was done that had been done before."""
    return sum(times - 1 for times in ledger.count(what).values())
