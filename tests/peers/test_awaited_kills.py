"""A process that waits for a run and works on its peers, killed before and after every commit.

It leases peers in the commit that begins them, and callers in the commit of the reply. Whoever
waits for the run next gets its result, and every peer has charged once.
"""

import asyncio
import signal
from pathlib import Path

import pytest

import holdfast
from tests.agents.ledger import Ledger
from tests.backends import Backend
from tests.peers import callers
from tests.peers.awaiting import SETTINGS
from tests.peers.sweeping import faults_inside, faults_of_callers, faults_outside, owed
from tests.processes import Child

POINTS = [
    "batch.before_begin",
    "batch.before_commit",
    "batch.after_commit",
    "outbox.before_reply",
    "outbox.after_reply",
]
STEP = 4
"""Without chaos, this is how many commits lie between two kills."""


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_process_that_waits_for_a_run_loses_and_repeats_nothing(
    backend: Backend, tmp_path: Path, point: str, is_chaos: bool
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    is_of_replies = point.startswith("outbox")
    step = 1 if is_chaos or is_of_replies else STEP
    first = 0 if is_chaos or is_of_replies else POINTS.index(point)
    runs: dict[str, int] = {}
    with Child("tests.peers.awaiting", backend.url, ledger.path) as victims:
        for skip in range(first, 1000, step):
            runs[f"{point}-{skip}"] = 1
            ended = victims.ask([f"{point}-{skip}", point, skip])
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
        assert len(runs) > 2, "it is killed several times on its way"
    asyncio.run(finish(backend, ledger, runs))
    with backend.raw() as raw:
        calls = len(callers.ROLES) * len(runs)
        assert faults_outside(ledger, runs) == []
        assert faults_of_callers(raw, runs) == []
        assert faults_inside(raw, runs=calls + len(runs), calls=calls) == []


async def finish(backend: Backend, ledger: Ledger, runs: dict[str, int]) -> None:
    agents = callers.make(ledger)
    async with holdfast.Holdfast(backend.url, agents=agents, settings=SETTINGS) as hf:
        waiting = [hf.run(agents[0], 1, run_id=run_id, timeout=120) for run_id in runs]
        assert await asyncio.gather(*waiting) == [1] * len(runs)
        async with asyncio.timeout(30):
            while _are_owed(backend):  # signs of life, and replies that nobody needs any more
                await asyncio.sleep(await hf.leases.tend())


def _are_owed(backend: Backend) -> int:
    with backend.raw() as raw:
        return owed(raw)
