"""Workers of callers and of peers, killed at every fault point on the way of a call.

Every peer runs to its end once, every caller gets one right answer, and nothing is left over; the
ledger and the SQL that judge share no code with Holdfast.
"""

from pathlib import Path

import pytest

from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.peers.sweeping import ExchangeSweep, PeerSweep

COMMITS = ["batch.before_begin", "batch.before_commit", "batch.after_commit"]
OUTBOX = ["outbox.before_take", "outbox.after_take", "outbox.after_delivery", "outbox.after_ack"]
RELAY = ["relay.before_publish", "relay.after_publish"]
RECEIVER = ["receiver.before_commit", "receiver.after_commit"]
SKIPS = (0, 3)
CHAOS_SKIPS = range(24)


@pytest.mark.mission("S0-001", "S0-002", "S0-003", "S0-020", "S0-021", "S0-022")
@pytest.mark.parametrize("point", [*COMMITS, *OUTBOX, "tool.after_call"])
@async_test
async def test_workers_killed_on_the_way_of_a_call_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, point: str, is_chaos: bool
) -> None:
    async with PeerSweep(backend, tmp_path) as sweep:
        for skip in CHAOS_SKIPS if is_chaos else SKIPS:
            if not await sweep._open_runs():
                await sweep.start(2)
            await sweep.kill_at(point, skip)
        await sweep.finish()
        assert await sweep.judge() == []
        assert sweep.kills >= 2


@pytest.mark.mission("S0-001", "S0-010", "S0-020")
@pytest.mark.parametrize("side", [0, 1], ids=["caller", "peer"])
@pytest.mark.parametrize("point", [*RELAY, *RECEIVER])
@async_test
async def test_workers_killed_beside_the_transport_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, point: str, side: int, is_chaos: bool
) -> None:
    there = SQLiteBackend(tmp_path / "elsewhere.db")
    transport = f"sqlite:///{tmp_path}/between.db"
    async with ExchangeSweep(backend, there, tmp_path, transport) as sweep:
        await sweep.start(2)
        for skip in CHAOS_SKIPS if is_chaos else SKIPS[:1]:
            await sweep.kill_at(side, point, skip)
        await sweep.finish()
        assert sweep.judge() == []
        assert sweep.kills >= 1
