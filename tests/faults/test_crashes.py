"""Every fault point, by exception and by SIGKILL: what was acknowledged is there, nothing is torn.

The oracle reads what the child printed (its acknowledgements) and the bytes in the file through its
own small reader of the journal table; it does not use the code that wrote them.
"""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast
from holdfast import faults
from holdfast.testing.store_suite import async_test
from tests.processes import Child

STORE_POINTS = [p for p in faults.POINTS if not p.startswith(("migration", "reindex"))]
# How many times the point is passed before it strikes: early, in the middle, late.
SKIPS = [0, 3, 6]


def raw_entries(path: Path) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return list(
            connection.execute(
                "SELECT seq, kind, tenant, run_id, at, actor, schema, encoding, key_id, facts,"
                " nonce, coalesce(journal.body, bodies.body), link"
                " FROM journal LEFT JOIN bodies USING (id) ORDER BY run_id, seq"
            )
        )
    finally:
        connection.close()


def check_chain(entries: list[tuple[Any, ...]]) -> None:
    """Gapless, and each link recomputed from the documented formula alone."""
    previous = bytes(32)
    for number, row in enumerate(entries, 1):
        seq, kind, tenant, run_id, at, actor, schema, encoding, key_id, facts, nonce, body, link = (
            row
        )
        assert seq == number
        header = msgspec.msgpack.encode(
            (tenant, run_id, seq, kind, at, actor, schema, encoding, key_id, facts)
        )
        digest = hashlib.sha256(nonce + body).digest()
        assert link == hashlib.sha256(previous + header + digest).digest()
        previous = link


def acknowledged(child: Child) -> dict[str, int]:
    """What the child said was done before it ended, the last of each kind."""
    done: dict[str, int] = {}
    while True:
        try:
            answer = child.answer()
        except EOFError:
            return done
        if answer == "done" or isinstance(answer, dict):
            return done
        done[answer[0]] = answer[1]


def check_acknowledged(entries: list[tuple[Any, ...]], done: dict[str, int]) -> None:
    kinds = [row[1] for row in entries]
    assert kinds.count("CHECKPOINT_CREATED") >= done.get("checkpoint", 0)
    assert kinds.count("EFFECT_ISSUED") >= done.get("issued", 0)
    assert kinds.count("EFFECT_COMPLETED") >= done.get("completed", 0)
    assert kinds.count("WAITS_OPENED") >= done.get("waiting", 0)
    assert kinds.count("WAIT_RESOLVED") >= done.get("resolved", 0)
    assert kinds.count("RUN_COMPLETED") >= done.get("ended", 0)
    # Nothing happened twice, and nothing unasked: at most one step beyond what was acknowledged.
    assert kinds.count("CHECKPOINT_CREATED") <= min(3, done.get("checkpoint", 0) + 1)
    assert kinds.count("EFFECT_ISSUED") <= 1
    assert kinds.count("WAIT_RESOLVED") <= min(2, done.get("resolved", 0) + 1)


async def finish(store: Path) -> None:
    """Another process's view: whole, consistent, and it can go on."""
    async with holdfast.open(str(store)) as hf:
        if "crash" not in [run.run_id for run in await hf.runs.list()]:
            return
        assert await hf.journal.verify("crash") == []
        state = await hf.checkpoints.load("crash")
        assert state.get("log", []) == [
            {"n": n, "text": "word " * 50} for n in range(state.version)
        ]
        run = await hf.runs.get("crash")
        if run.status in ("ready", "running"):
            held = await hf.runs.open("crash", takeover=True)
            held.append("log", "after the crash")
            await held.checkpoint()
            await held.complete("recovered")
        assert await hf.journal.verify("crash") == []


@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("action", ["raise", "kill"])
@pytest.mark.parametrize("point", STORE_POINTS)
@pytest.mark.mission(
    "S0-022",
    "S1-020",
    "S3-045",
    "S3-046",
    "S3-103",
    "S3-199",
    "S3-203",
    "S4-001",
    "S4-035",
    "S4-045",
)
@async_test
async def test_no_fault_loses_what_was_acknowledged_or_tears_a_commit(
    point: str, action: str, skip: int, tmp_path: Path
) -> None:
    store = tmp_path / "crash.db"
    with Child("tests.child", store) as child:
        child.ask(["hello"])
        child.ask(["arm", point, action, skip])
        child.tell(["scenario", "crash"])
        done = acknowledged(child)
        if action == "kill":
            assert child.wait() == -signal.SIGKILL
    entries = raw_entries(store)
    check_chain(entries)
    check_acknowledged(entries, done)
    await finish(store)


MIGRATE = """
import asyncio, sys, holdfast
from holdfast.testing import arm
arm(sys.argv[2], sys.argv[3])
async def main():
    async with holdfast.open(sys.argv[1]):
        pass
asyncio.run(main())
"""


@pytest.mark.parametrize("action", ["raise", "kill"])
@pytest.mark.parametrize("point", ["migration.before_commit", "migration.after_commit"])
@async_test
async def test_fault_during_a_migration_leaves_a_store_that_opens(
    point: str, action: str, tmp_path: Path
) -> None:
    store = tmp_path / "migrate.db"
    ended = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(store), point, action],
        timeout=60,
        check=False,
        stderr=subprocess.DEVNULL,
    )
    assert ended.returncode == (-signal.SIGKILL if action == "kill" else 1)
    async with holdfast.open(str(store)) as hf:
        await hf.runs.create("a")
        assert (await hf.info()).schema == (await hf.info()).newest_schema


@pytest.mark.parametrize("action", ["raise", "kill"])
@async_test
async def test_fault_during_a_reindex_leaves_the_old_rows(action: str, tmp_path: Path) -> None:
    store = tmp_path / "reindex.db"
    async with holdfast.open(str(store)) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        await run.checkpoint()
    with Child("tests.child", store) as child:
        child.ask(["arm", "reindex.before_commit", action])
        child.tell(["reindex", "a"])
        with pytest.raises(EOFError):
            child.answer()
        assert child.wait() == (-signal.SIGKILL if action == "kill" else 1)
    async with holdfast.open(str(store)) as hf:
        assert await hf.journal.verify("a") == []
        assert (await hf.checkpoints.load("a"))["log"] == [1]
