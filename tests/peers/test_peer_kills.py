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
POINTS = [*COMMITS, *OUTBOX, "tool.after_call"]
CHAOS_SKIPS = range(24)


@pytest.mark.mission("S0-001", "S0-002", "S0-003", "S0-020", "S0-021", "S0-022")
@async_test
async def test_workers_killed_on_the_way_of_a_call_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    async with PeerSweep(backend, tmp_path) as sweep:
        for skip in CHAOS_SKIPS if is_chaos else (0,):
            for point in POINTS:
                if not await sweep.are_open():
                    await sweep.start(2)
                await sweep.kill_at(point, skip)
        await sweep.finish()
        assert await sweep.judge() == []
        assert sweep.kills >= len(POINTS) - 1
        print(f"{sweep.kills} kills, {len(sweep.runs)} callers, {sweep.unblocked} times unblocked")


@pytest.mark.mission("S0-001", "S0-010", "S0-020")
@async_test
async def test_workers_killed_beside_the_transport_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    there = SQLiteBackend(tmp_path / "elsewhere.db")
    transport = f"sqlite:///{tmp_path}/between.db"
    async with ExchangeSweep(backend, there, tmp_path, transport) as sweep:
        for skip in CHAOS_SKIPS if is_chaos else (0,):
            for point in [*RELAY, *RECEIVER]:
                if not sweep.runs or not sweep.are_open():
                    await sweep.start(1)
                await sweep.kill_both_at(point, skip)
        await sweep.finish()
        assert sweep.judge() == []
        assert sweep.kills >= len([*RELAY, *RECEIVER])
        print(f"{sweep.kills} kills, {len(sweep.runs)} callers")
