"""What was acknowledged is on the disk: looked at there, at each acknowledgement.

On SQLite the power fails after each one, and the store must have all that anybody could read. On
PostgreSQL nobody but the commit itself may flush the write-ahead log, and it must be flushed.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCall
from holdfast.compat.loops.checkpointer import Checkpointer
from holdfast.compat.workflow_stores import StoredCheckpoints
from holdfast.engine.messages.queues import Queues
from holdfast.stores.sqlite import connection
from holdfast.testing.store_suite import async_test
from tests.backends import PostgresRaw, SQLiteRaw
from tests.disks import Disk, losing_power
from tests.postgres import Spare, pooled, save
from tests.workflows.checkpointing import state

STORED = (
    "SELECT 'entry', run_id, seq, hex(link) FROM journal"
    " UNION ALL SELECT 'message', status, attempts, message_id FROM messages"
    " UNION ALL SELECT 'wait', status, duplicates, wait_id FROM waits"
    " UNION ALL SELECT 'deadline', status, deadline, wait_id FROM waits ORDER BY 1, 2, 3, 4"
)


async def acknowledgements(hf: holdfast.Holdfast) -> AsyncIterator[str]:
    """Do everything that is acknowledged, and stop after each."""
    await hf.runs.create("created")
    yield "a run is created"
    run = await hf.runs.open("a")
    yield "a run is leased"
    await save(run, 1)
    yield "a turn is saved"
    (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="pay", args=1)])
    yield "an intent is recorded"
    await run.finish_effect(begun, "paid")
    yield "an outcome is recorded"
    await asyncio.gather(save(run, 2), *(hf.runs.create(f"c-{n}") for n in range(3)))
    yield "several commits are one batch"
    await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
    yield "a run waits"
    await hf.waits.extend("w", timeout_seconds=60)
    yield "a deadline is moved"
    await hf.waits.resolve("w", 1)
    yield "a wait is resolved"
    await hf.signals.send("a", "go", {}, id="s")
    yield "a signal is sent"
    queues = Queues(hf._context)
    await queues.publish("q", b"body", key="k")
    yield "a message is published"
    (message,) = await queues.take(
        "q", lease=60
    )  # which is a claim: if lost, it is delivered again
    await queues.ack(message)
    yield "a message is acknowledged"
    await StoredCheckpoints(hf).save(state())
    yield "a checkpoint of a workflow is saved"
    await (await hf.runs.open("a")).complete("done")
    yield "a run ends"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def disk(path: Path, tmp_path: Path) -> Iterator[Disk]:
    with losing_power(path, tmp_path / "disk") as disk:
        yield disk


@pytest.mark.mission("S1-020", "S1-045", "S3-081")
@pytest.mark.parametrize("filesystem", ["ext4", "virtiofs"])
@async_test
async def test_power_loss_after_an_acknowledgement_loses_nothing(
    disk: Disk, path: Path, filesystem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local disk, and on a shared mount, where the journal mode is DELETE."""
    monkeypatch.setattr(connection, "filesystem_of", lambda *_: filesystem)
    async with holdfast.open(str(path)) as hf:
        with SQLiteRaw(str(path)) as raw:
            before: list[Any] = []
            async for said in acknowledgements(hf):
                stored = raw.rows(STORED)
                assert stored != before, f"{said}, and nothing was stored"
                assert disk.rows_after_power_loss(STORED) == stored, f"{said}: lost with the power"
                before = stored


@pytest.mark.mission("S4-034", "S4-045")
@async_test
async def test_power_loss_after_a_call_of_a_checkpointer_loses_nothing(
    disk: Disk, path: Path
) -> None:
    def stored(what: str) -> list[Any]:
        return [row for (row,) in disk.rows_after_power_loss(what)]

    async with Checkpointer(path) as checkpointer:
        await checkpointer.start_session("s")
        assert stored("SELECT run_id FROM runs") == ["s"]
        for version in (1, 2):
            assert await checkpointer.save_checkpoint("s", [{}] * version, None, 0.0) == version
            assert stored("SELECT max(version) FROM checkpoints") == [version]
        await checkpointer.record_tool_call_issued("s", "c", "pay", {}, "k")
        assert stored("SELECT status FROM effects") == ["issued"]
        await checkpointer.record_tool_call_result("s", "c", "paid", True)
        assert stored("SELECT status FROM effects") == ["completed"]
        await checkpointer.end_session("s")
        assert stored("SELECT status FROM runs") == ["completed"]


@async_test
async def test_tool_is_called_when_its_intent_and_the_reply_before_it_are_on_disk(
    disk: Disk, path: Path
) -> None:
    """A reply is staged: it is on disk before anything that follows from it."""
    found: list[str] = []

    @holdfast.tool
    async def pay(cents: int) -> str:
        kinds = disk.rows_after_power_loss("SELECT kind FROM journal ORDER BY seq")
        found.extend(kind for (kind,) in kinds)
        return f"paid {cents}"

    async def model(talk: Any) -> Message:
        return Message.assistant(tool_calls=[ToolCall("c1", "pay", {"cents": 5})])

    @holdfast.agent(tools=[pay])
    async def payer(run: holdfast.Run) -> str:
        reply = await run.model(model, run.log("transcript", Message))
        await run.tools(reply.tool_calls)
        return "done"

    async with holdfast.Holdfast(str(path), agents=[payer]) as hf:
        assert await hf.run(payer, run_id="r") == "done"
    assert found[-2:] == ["STEP_RECORDED", "EFFECT_ISSUED"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.mission("S1-020", "S1-045")
@async_test
async def test_acknowledged_commit_has_flushed_the_log_itself(spare: Spare) -> None:
    """Though the database says `synchronous_commit = off`, and sessions lose their settings."""
    with PostgresRaw(spare.server.url()) as raw:
        raw.execute(f"ALTER DATABASE {spare.database} SET synchronous_commit = off")
        # It flushes what others have left to it, so it could hide that a commit did not.
        writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        ((pid,),) = raw.rows(writer)
        async with holdfast.open(spare.url) as hf:
            with stopped(pid):
                await check_flushes(hf, raw)


async def check_flushes(hf: holdfast.Holdfast, raw: PostgresRaw) -> None:
    begun = written(raw)
    async for said in acknowledgements(hf):
        ((flushed,),) = raw.rows("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        assert flushed > begun, f"{said}: its commit is not in the log on disk"
        for session in pooled(hf):
            session.pgconn.exec_(b"RESET ALL")
        begun = written(raw)


def written(raw: PostgresRaw) -> int:
    """Where the log ends: what is committed later comes after it."""
    ((place,),) = raw.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    return place
