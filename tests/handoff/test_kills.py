"""Givers, those who choose, and receivers, killed at every step: one owner, and no handoff lost.

Steps 1 to 13 are between the fault points; the three commits are struck before and after as well.
"""

import itertools
from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.agents.sweeping import Sweep
from tests.backends import Backend
from tests.chaos.conftest import seed
from tests.handoff.owners import Owners

__all__ = ["seed"]

GIVER = ("handoff.detected", "handoff.prompted", "handoff.given")
ORCHESTRATOR = ("handoff.received", "handoff.verified", "handoff.selected", "handoff.assigned")
RECEIVER = (
    "handoff.read",
    "handoff.acknowledged",
    "handoff.resumed",
    "handoff.continued",
)
POINTS = (*GIVER, *ORCHESTRATOR, *RECEIVER)
LAST_BEFORE = ("handoff.prompted", "handoff.selected", "handoff.read")
COMMITS = [
    f"{last}>batch.{when}_commit"
    for last, when in itertools.product(LAST_BEFORE, ("before", "after"))
]
# What differs between stores is how a commit ends; that is struck on both.
REPEATED = {*POINTS} - {"handoff.given", "handoff.assigned", "handoff.acknowledged"}
MAKE = "tests.handoff.paying:make"
TURNS = 3


@pytest.mark.mission("S3-059", "S3-065", "S3-144", "S3-154")
@pytest.mark.chaos(backend=["postgres"], point={*REPEATED, *COMMITS[::2]})
@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
@async_test
async def test_whoever_is_killed_the_run_has_one_owner_and_ends(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    async with Sweep(backend.url, tmp_path, seed=0, make=MAKE, turns=TURNS) as sweep:
        await sweep.start(1)
        assert await sweep.kill_at(point, 0)
        await sweep.kill_at(point, 0)
        await sweep.finish()
        assert await sweep.judge_runs() == []
        with backend.raw() as raw:
            owners = Owners(raw, "r0")
    assert owners.problems == []
    assert len(owners.acknowledged) == TURNS - 1
    paid = [(line.run, line.turn) for line in sweep.ledger.lines()]
    assert paid == [("r0", turn) for turn in range(TURNS)]


@pytest.mark.mission("S3-059", "S3-065", "S3-144", "S3-154", "S3-160")
@async_test
async def test_campaign_of_kills_leaves_every_run_one_owner(
    backend: Backend, tmp_path: Path, *, seed: int, is_chaos: bool
) -> None:
    """Workers die at random steps of random handoffs, one after another, until all runs end."""
    wanted = 200 if is_chaos else 12
    async with Sweep(backend.url, tmp_path, seed, make=MAKE, turns=TURNS) as sweep:
        while sweep.kills < wanted:
            counts = (await sweep.hf.info()).runs
            if counts.get("completed", 0) == sum(counts.values()):
                await sweep.start(2)
            await sweep.kill_at(sweep.chance.choice([*POINTS, *COMMITS]), sweep.chance.randrange(2))
        await sweep.finish()
        assert await sweep.judge_runs() == []
        with backend.raw() as raw:
            owners = [Owners(raw, run_id) for run_id in sweep.runs]
    assert [problem for each in owners for problem in each.problems] == []
    handoffs = sum(len(each.acknowledged) for each in owners)
    assert handoffs == len(sweep.runs) * (TURNS - 1)
    paid = sorted((line.run, line.turn) for line in sweep.ledger.lines())
    assert paid == sorted((run_id, turn) for run_id in sweep.runs for turn in range(TURNS))
    print(f"{backend.name}: {sweep.kills} kills, {len(sweep.runs)} runs, {handoffs} handoffs")


def test_every_point_of_the_protocol_is_struck() -> None:
    from holdfast import faults

    assert {*POINTS} == {point for point in faults.POINTS if point.startswith("handoff.")}
