"""Damage of every kind to stored bytes: found, named, and never returned as state."""

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import psycopg
import pytest

import holdfast
from holdfast.errors import CheckpointCorrupted, IntegrityError, JournalCorrupted
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend

COLUMNS = ["kind", "at", "actor", "schema", "encoding", "key_id", "facts", "nonce", "body", "link"]
INDEX_COLUMNS = [
    ("runs", "status"),
    ("runs", "agent"),
    ("runs", "result_seq"),
    ("checkpoints", "seq"),
    ("checkpoints", "checkpoint_id"),
    ("checkpoints", "label"),
    ("effects", "status"),
    ("effects", "key"),
    ("waits", "settled_by"),
    ("waits", "status"),
    ("wait_groups", "resolved"),
    ("signals", "name"),
    ("signals", "received_by"),
    ("signals", "taken_seq"),
]


async def make_run(hf: holdfast.Holdfast) -> None:
    run = await hf.runs.open("a", agent="x", input={"q": 1})
    for n in range(3):
        run.append("log", {"n": n, "text": "some text " * 3})
        run.set("plan", {"step": n})
        await run.checkpoint(label=f"v{n}")
    (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="t", args=1)])
    await run.finish_effect(begun, "result")
    await hf.signals.send("a", "go", "value", id="s", by="bob")
    await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
    await hf.waits.resolve("w", "yes", by="alice")


def vandalise(backend: Backend, sql: str, *values: Any) -> None:
    """Change stored rows behind Holdfast's back."""
    with backend.raw() as raw:
        assert raw.execute(sql, *values) > 0


def flips(value: Any) -> list[Any]:
    """Every value that differs from this one in a single byte or character, or by one."""
    if value is None:
        return [b"x"]
    if isinstance(value, UUID):
        return [UUID(bytes=changed) for changed in flips(value.bytes)]
    if isinstance(value, int):
        return [value + 1, value ^ 0x10]
    if isinstance(value, str):
        return [value[:i] + chr(ord(c) ^ 1) + value[i + 1 :] for i, c in enumerate(value)] or ["x"]
    return [
        value[:i] + bytes([byte ^ bit]) + value[i + 1 :]
        for i, byte in enumerate(value)
        for bit in (1, 0x80)
    ]


async def check_is_found(hf: holdfast.Holdfast, seq: int, states: dict[int, Any]) -> None:
    problems = await hf.journal.verify("a")
    assert problems, "the damage was not found"
    assert {seq, seq + 1} & {problem.seq for problem in problems}
    for version, expected in states.items():
        try:
            state = await hf.checkpoints.load("a", version)
        except IntegrityError:
            continue
        assert state.parts == expected, "a state was returned that was never saved"


# One change in so many is tried; on SQLite all of them with --chaos.
STRIDES = {"sqlite": 5, "postgres": 17}


@pytest.mark.mission("S3-004", "S3-202", "S3-196")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.mission("S3-038", "S3-073", "S3-076", "S3-085", "S3-106", "S3-123", "S3-158")
@async_test
async def test_every_flipped_byte_of_the_journal_is_found(
    column: str, backend: Backend, is_chaos: bool
) -> None:
    stride = 1 if is_chaos and backend.name == "sqlite" else STRIDES[backend.name]
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        states = {v: (await hf.checkpoints.load("a", v)).parts for v in (1, 2, 3)}
        with backend.raw() as raw:
            sql = f"UPDATE journal SET {column} = ? WHERE seq = ?"
            for seq, value in raw.rows(f"SELECT seq, {column} FROM journal ORDER BY seq"):
                changes = flips(value)
                for changed in changes[seq % min(stride, len(changes) or 1) :: stride]:
                    raw.execute(sql, changed, seq)
                    await check_is_found(hf, seq, states)
                raw.execute(sql, value, seq)
        assert await hf.journal.verify("a") == []


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE bodies SET body = x'00'",
        "UPDATE bodies SET body = CAST(substr(body, 1, 900) || x'00' AS BLOB)",
        "DELETE FROM bodies",
        "UPDATE journal SET body = (SELECT body FROM bodies WHERE id > journal.id LIMIT 1)",
        "UPDATE bodies SET id = id + 1000",
    ],
)
@async_test
async def test_damage_to_bodies_that_are_stored_apart_is_found(sql: str, tmp_path: Path) -> None:
    """SQLite only: PostgreSQL keeps them in the journal's rows."""
    backend = SQLiteBackend(tmp_path / "t.db")
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        for _ in range(2):
            run.append("log", os.urandom(2000))
            await run.checkpoint()
        state = (await hf.checkpoints.load("a", 1)).parts
        assert state["log"]
        vandalise(backend, sql)
        assert await hf.journal.verify("a")
        with pytest.raises(CheckpointCorrupted):
            await hf.checkpoints.load("a")


OTHER_STATUS = {"ready": "running", "completed": "unknown", "resolved": "expired"}


@pytest.mark.parametrize(("table", "column"), INDEX_COLUMNS)
@async_test
async def test_index_rows_that_tell_otherwise_are_found_and_rebuilt(
    table: str, column: str, backend: Backend
) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        where = "WHERE version = 1" if table == "checkpoints" else ""
        with backend.raw() as raw:
            ((value,),) = raw.rows(f"SELECT {column} FROM {table} {where}")
            changed = OTHER_STATUS[value] if column == "status" else flips(value)[0]
            raw.execute(f"UPDATE {table} SET {column} = ? {where}", changed)
        problems = await hf.journal.verify("a")
        assert any("is not what the journal says" in problem.what for problem in problems)
        await hf.reindex("a")
        assert await hf.journal.verify("a") == []


STATEMENTS = {
    "delete first": ("DELETE FROM journal WHERE seq = 1", 1),
    "delete middle": ("DELETE FROM journal WHERE seq = 4", 4),
    "delete last": ("DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal)", 0),
    "delete all": ("DELETE FROM journal", 1),
    "null a body": ("UPDATE journal SET body = NULL WHERE seq = 4", 4),
    "another's body": (
        "UPDATE journal SET body = (SELECT body FROM journal WHERE seq = 3) WHERE seq = 4",
        4,
    ),
    "swap two": (
        "UPDATE journal SET seq = CASE seq WHEN 3 THEN 1004 ELSE 1003 END WHERE seq IN (3, 4);"
        "UPDATE journal SET seq = seq - 1000 WHERE seq > 1000",
        3,
    ),
    "move to another run": ("UPDATE journal SET run_id = 'b' WHERE seq = 5", 5),
    "move to another tenant": ("UPDATE journal SET tenant = 'evil' WHERE seq = 5", 5),
    "another actor": ("UPDATE journal SET actor = 'mallory' WHERE kind = 'WAIT_RESOLVED'", 0),
}


@pytest.mark.parametrize("name", STATEMENTS)
@async_test
async def test_entries_deleted_moved_or_swapped_are_found(name: str, backend: Backend) -> None:
    sql, seq = STATEMENTS[name]
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        states = {v: (await hf.checkpoints.load("a", v)).parts for v in (1, 2, 3)}
        last = len(await hf.journal.read("a"))
        vandalise(backend, sql)
        problems = await hf.journal.verify("a")
        assert problems
        if seq:
            assert {seq, seq + 1} & {problem.seq for problem in problems}
        for version, expected in states.items():
            try:
                state = await hf.checkpoints.load("a", version)
            except (IntegrityError, holdfast.errors.RunNotFound):
                continue
            assert state.parts == expected
        assert last >= 10


@async_test
@pytest.mark.mission("S3-126", "S3-188", "X-010")
async def test_newest_intact_state_is_given_with_what_was_skipped_on_record(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        second = await hf.checkpoints.load("a", 2)
        skipped = (await hf.checkpoints.history("a"))[0]
        vandalise(backend, "UPDATE journal SET body = ? WHERE seq = ?", b"\0", skipped.seq)
        with pytest.raises(CheckpointCorrupted, match="version 3 of run a"):
            await hf.checkpoints.load("a")
        newest = await hf.checkpoints.load_newest_intact("a")
        assert (newest.version, newest.parts) == (2, second.parts)
        assert newest.skipped == (skipped.checkpoint_id,)
        last = (await hf.journal.read("a", checked=False))[-1]
        assert last.kind == "CHECKPOINT_CORRUPTED"


@async_test
async def test_damage_is_recorded_once_however_often_it_is_met(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        skipped = (await hf.checkpoints.history("a"))[0]
        vandalise(backend, "UPDATE journal SET body = ? WHERE seq = ?", b"\0", skipped.seq)
        for _ in range(3):
            assert (await hf.checkpoints.load_newest_intact("a")).version == 2
        entries = await hf.journal.read("a", checked=False)
        assert [entry.kind for entry in entries].count("CHECKPOINT_CORRUPTED") == 1


@async_test
async def test_lost_index_row_does_not_lose_the_turn_it_named(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        vandalise(backend, "DELETE FROM checkpoints WHERE version = 3")
        assert (await hf.checkpoints.load("a")).version == 3
        assert len(await hf.journal.verify("a")) == 1
        run = await hf.runs.open("a")
        run.append("log", "next")
        assert (await run.checkpoint()).version == 4
        assert await hf.journal.verify("a")
        await hf.reindex("a")
        assert await hf.journal.verify("a") == []
        assert len((await hf.checkpoints.load("a"))["log"]) == 4


@pytest.mark.parametrize("sql", ["DELETE FROM journal WHERE seq = 1", "DELETE FROM journal"])
@async_test
async def test_reindex_leaves_the_rows_when_there_is_no_whole_journal(
    sql: str, backend: Backend
) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        vandalise(backend, sql)
        with pytest.raises(JournalCorrupted, match="left"):
            await hf.reindex("a")
        assert (await hf.runs.get("a")).run_id == "a"
        assert await hf.journal.verify("a")


@async_test
async def test_run_without_a_journal_cannot_be_gone_on_with(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        await hf.runs.create("healthy")
        vandalise(backend, "DELETE FROM journal WHERE run_id = 'a'")
        outcomes = await asyncio.gather(
            hf.runs.open("a"), hf.runs.cancel("healthy"), return_exceptions=True
        )
        assert isinstance(outcomes[0], IntegrityError)
        assert (await hf.runs.get("healthy")).status == "cancelled"


@async_test
async def test_index_row_that_contradicts_the_journal_stops_its_own_write_only(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        for name in ("a", "b"):
            run = await hf.runs.open(name)
            await run.open_waits([holdfast.WaitSpec(wait_id=f"w-{name}")], suspend=True)
        # The row says that the wait is of a group that is not there.
        vandalise(backend, "UPDATE waits SET group_id = 'x' WHERE wait_id = 'w-a'")
        outcomes = await asyncio.gather(
            hf.waits.resolve("w-a", 1), hf.waits.resolve("w-b", 1), return_exceptions=True
        )
        assert isinstance(outcomes[0], IntegrityError)
        assert not isinstance(outcomes[1], BaseException)
        assert outcomes[1].accepted


@pytest.mark.parametrize(
    ("column", "value"), [("body", "abc"), ("link", 5), ("seq", "abc"), ("at", b"abc")]
)
@async_test
async def test_values_of_another_type_cannot_be_put_into_a_column(
    column: str, value: Any, backend: Backend
) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        with backend.raw() as raw:
            kind = {bytes: "bytea", str: "text", int: "bigint"}[type(value)]
            placeholder = "?" if backend.name == "sqlite" else f"?::{kind}"
            with pytest.raises((apsw.ConstraintError, psycopg.errors.DatatypeMismatch)):
                raw.execute(f"UPDATE journal SET {column} = {placeholder}", value)
        assert await hf.journal.verify("a") == []


@async_test
async def test_status_that_cannot_be_is_said(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        vandalise(backend, "UPDATE runs SET status = 'bogus'")
        with pytest.raises(IntegrityError, match="bogus"):
            await hf.runs.get("a")


@async_test
async def test_reading_the_journal_stops_at_the_damage_unless_told_otherwise(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        vandalise(backend, "UPDATE journal SET actor = 'mallory' WHERE seq = 5")
        assert len(await hf.journal.read("a", limit=4)) == 4
        for after in (0, 3, 4):
            with pytest.raises(JournalCorrupted, match="entry 5"):
                await hf.journal.read("a", after=after)
        assert [e.seq for e in await hf.journal.read("a", after=4, limit=2, checked=False)] == [
            5,
            6,
        ]
        assert [e.seq for e in await hf.journal.read("a", after=6, limit=2)] == [7, 8]


@async_test
async def test_damaged_result_of_an_effect_is_not_used(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await make_run(hf)
        sql = "UPDATE journal SET body = ? WHERE kind = 'EFFECT_COMPLETED'"
        vandalise(backend, sql, b"\xa1a")
        run = await hf.runs.open("a")
        with pytest.raises(IntegrityError, match="damaged"):
            await run.begin_effects([holdfast.EffectRequest(tool="t", args=1)])


@async_test
async def test_writer_does_not_go_on_from_a_damaged_stretch(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        await hf.another_worker().runs.open("a", takeover=True)
        vandalise(backend, "UPDATE journal SET actor = 'mallory' WHERE seq = 3")
        with pytest.raises(JournalCorrupted, match="entry 3"):
            await run.checkpoint()
