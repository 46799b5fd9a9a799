"""Threads of LangGraph: their losses are counted like those of any run, and a take proves life."""

import subprocess
import sys

import pytest

import holdfast
from holdfast import BlockedReason
from holdfast.engine.marked.marks import Marks
from holdfast.errors import RunBlocked
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.leasing.laborer import settings


def hold_and_die(backend: Backend) -> None:
    command = [sys.executable, "-m", "tests.leasing.thread_holder", backend.url, "thread"]
    assert subprocess.run(command, timeout=60).returncode == -9


@async_test
async def test_loss_of_a_thread_is_counted_and_its_recovery_recorded(backend: Backend) -> None:
    hold_and_die(backend)
    async with holdfast.open(backend.url, settings=settings(60)) as hf:
        run = await Marks(hf._context, hf.leases, "langgraph").open("thread")
        token = await run.hold()
        found = await hf.runs.get("thread")
        assert (found.status, found.lost, found.losses.count("alone")) == ("running", 1, 1)
        assert not found.is_recovering
        kinds = [entry.kind for entry in await hf.journal.read("thread")]
        assert kinds[-4:] == [
            *["LEASE_EXPIRED", "RECOVERY_INITIATED"],
            *["RUN_LEASED", "RECOVERY_COMPLETED"],
        ]
        await run.release(token)


@async_test
async def test_thread_that_kills_every_process_is_blocked(backend: Backend) -> None:
    for _ in range(3):
        hold_and_die(backend)
    async with holdfast.open(backend.url, settings=settings(60)) as hf:
        run = await Marks(hf._context, hf.leases, "langgraph").open("thread")
        with pytest.raises(RunBlocked):
            await run.hold()
        assert (await hf.runs.get("thread")).blocked_reason == BlockedReason.BREAKER


@async_test
async def test_taking_a_thread_renews_a_row_that_has_expired(backend: Backend) -> None:
    async with holdfast.open(backend.url, settings=settings(3600)) as hf:
        await hf.leases.stay_alive()
        with backend.raw() as raw:
            raw.execute("UPDATE workers SET expires_at = 1")
            run = await Marks(hf._context, hf.leases, "langgraph").open("thread")
            token = await run.hold()
            assert raw.rows("SELECT expires_at > 1, beats FROM workers") == [(True, 2)]
        await run.release(token)
