"""Workers of callers and of peers, killed at every fault point on the way of a call.

Every peer runs to its end once, every caller gets one right answer, and nothing is left over; the
ledger and the SQL that judge share no code with Holdfast.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.agents.sweeping import GENTLY
from tests.backends import Backend, SQLiteBackend
from tests.peers.sweeping import ExchangeSweep, PeerSweep, Side

COMMITS = ["batch.before_begin", "batch.before_commit", "batch.after_commit"]
OUTBOX = ["outbox.before_take", "outbox.after_take", "outbox.after_delivery", "outbox.after_ack"]
REPLIES = ["outbox.before_reply", "outbox.after_reply"]
RELAY = ["relay.before_publish", "relay.after_publish"]
RECEIVER = ["receiver.before_commit", "receiver.after_commit"]
POINTS = [*COMMITS, *OUTBOX, *REPLIES, "tool.after_call"]
CHAOS_SKIPS = range(24)
STOPS = [("batch.before_begin", 3), ("batch.after_commit", 3)] * 5
FROZEN = 2  # are enough: some are in the way of everybody, by chance, and are killed
CHAOS_STOPS = [
    (point, skip)
    for point in ("batch.before_begin", "batch.after_commit", *OUTBOX, *REPLIES)
    for skip in range(12)
]
LIMIT_SECONDS = 300.0


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S0-003", "S0-020", "S0-021", "S0-022", "X-004")
def test_workers_killed_on_the_way_of_a_call_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    asyncio.run(kill_at_all_points(backend, tmp_path, is_chaos=is_chaos))


async def kill_at_all_points(backend: Backend, tmp_path: Path, *, is_chaos: bool) -> None:
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


@pytest.mark.mission("S0-075", "S0-106")
def test_workers_that_stand_still_on_the_way_of_a_call_change_nothing_later(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    asyncio.run(stop_and_go_on(backend, tmp_path, is_chaos=is_chaos))


async def stop_and_go_on(backend: Backend, tmp_path: Path, *, is_chaos: bool) -> None:
    """The answer comes before, while and after the caller is left: its worker stands still then."""
    async with PeerSweep(backend, tmp_path) as sweep:
        zombie = Side(backend, tmp_path / "ledger", "tests.peers.callers:make")
        frozen = 0
        for point, skip in CHAOS_STOPS if is_chaos else STOPS:
            if frozen == FROZEN and not is_chaos:
                break
            await sweep.start(1)
            await zombie.begin(point, skip, "stop")
            async with asyncio.timeout(LIMIT_SECONDS):
                while not zombie.is_stopped() and await sweep.are_open():
                    await asyncio.sleep(0.01)
            if not zombie.is_in_the_way():
                await sweep.finish()
                os.kill(zombie.pid, signal.SIGCONT)
                assert await zombie.stop() in GENTLY
                frozen += 1
            else:
                os.kill(zombie.pid, signal.SIGKILL)
                await zombie.ended()
                await sweep.finish()
        zombie.close()
        assert await sweep.judge() == []
        assert frozen


@pytest.mark.chaos(backend=["postgres"])
@pytest.mark.mission("S0-010", "S0-020")
def test_workers_killed_beside_the_transport_lose_and_repeat_nothing(
    backend: Backend, tmp_path: Path, is_chaos: bool
) -> None:
    asyncio.run(kill_beside_the_transport(backend, tmp_path, is_chaos=is_chaos))


async def kill_beside_the_transport(backend: Backend, tmp_path: Path, *, is_chaos: bool) -> None:
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
