"""Rows of waits are changed behind Holdfast's back: none is believed, and no wait ends early."""

from typing import Any

import pytest

import holdfast
from holdfast import WaitSpec, clock
from holdfast.engine import sweeper
from holdfast.errors import (
    IndexCorrupted,
    JournalCorrupted,
    MisuseError,
    RunWaiting,
    WaitNotFound,
)
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.recovery.test_index_attacks import columns

HINTS = {
    "duplicates": "a count of replies that came too late; nothing is decided by it",
    "progress_at": "when a peer last gave a sign of life, which is not in the journal",
    "progress": "what a peer said last, which is not in the journal",
    "claimed_by": "who is about to answer: it keeps others away for a moment, and settles nothing",
    "claimed_until": "until when",
}


async def play(hf: holdfast.Holdfast) -> None:
    run = await hf.runs.open("r")
    specs = [WaitSpec(wait_id=name, name="n", timeout_seconds=3600) for name in ("w0", "w1")]
    await run.open_waits(specs, suspend=True)
    await hf.waits.resolve("w0", "answer", by="ann")


@pytest.mark.mission("S3-085")
@async_test
async def test_no_column_of_a_wait_is_believed(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await play(hf)
        truth = {name: await hf.waits.get(name) for name in ("w0", "w1")}
        tried = 0
        with backend.raw() as raw:
            raw.execute("CREATE TEMP TABLE saved AS SELECT * FROM waits")
            wanted = [c for c in columns(raw, backend) if c[0] == "waits" and c[1] not in HINTS]
            for _, column, is_number in wanted:
                change = f"{column} = {column} + 7" if is_number else f"{column} = 'forged'"
                values = (
                    [change]
                    if column != "status"
                    else [
                        f"status = '{status}'"
                        for status in ("open", "resolved", "expired", "cancelled")
                    ]
                )
                for value in values:
                    for name in truth:
                        raw.execute(f"UPDATE waits SET {value} WHERE wait_id = '{name}'")
                        assert await outcomes(hf, name) in ("error", truth[name]), (value, name)
                        tried += 1
                        raw.execute("DELETE FROM waits")
                        raw.execute("INSERT INTO waits SELECT * FROM saved")
            raw.execute(
                "UPDATE waits SET status = 'open', result_seq = 0, settled_at = 0, "
                "settled_by = '' WHERE wait_id = 'w0'"
            )
            assert await outcomes(hf, "w0") == "error"
            assert await hf.journal.verify("r") != []
        assert tried > 25


async def outcomes(hf: holdfast.Holdfast, name: str) -> Any:
    """What both ways to read a wait say, if it is the same."""
    found: list[Any] = []
    for ask in (hf.waits.get(name), hf.waits.of_run("r")):
        try:
            read = await ask
        except (IndexCorrupted, holdfast.errors.IntegrityError, WaitNotFound):
            found.append("error")
            continue
        if isinstance(read, list):
            read = next((each for each in read if each.wait_id == name), "error")
        found.append(read)
    return found[0] if found[0] == found[1] or found[1] == "error" else found


@async_test
async def test_damaged_entry_is_not_taken_for_a_damaged_row(backend: Backend) -> None:
    """To make the rows anew would not help."""
    async with holdfast.open(backend.url) as hf:
        await play(hf)
        with backend.raw() as raw:
            where = "WHERE kind = 'WAITS_OPENED'"
            ((facts,),) = raw.rows(f"SELECT facts FROM journal {where}")
            changed = bytes(facts).replace(b"w1", b"w2")
            assert raw.execute(f"UPDATE journal SET facts = ? {where}", changed) == 1
        with pytest.raises(JournalCorrupted, match="runs recover r --plan"):
            await hf.waits.get("w1")


@async_test
async def test_sign_of_life_from_before_the_wait_moves_no_deadline(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await play(hf)
        with backend.raw() as raw:
            forged = "UPDATE waits SET deadline = 1, progress_at = 1 WHERE wait_id = 'w1'"
            assert raw.execute(forged) == 1
        assert await sweeper.expire_due_waits(hf._context, limit=10) == 0
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "corruption")


@pytest.mark.parametrize("kind", ["approval", "question", "timer", "peer", "handoff", "signal"])
@async_test
async def test_forged_sign_of_life_moves_no_deadline_forward(backend: Backend, kind: str) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        opened = WaitSpec(kind=kind, name="n", wait_id="w", timeout_seconds=600)
        await held.open_waits([opened], suspend=True)
        with backend.raw() as raw:
            forged = "deadline = opened_at + 1, progress_at = opened_at + 2"
            assert raw.execute(f"UPDATE waits SET {forged} WHERE wait_id = 'w'") == 1
        assert await sweeper.expire_due_waits(hf._context, limit=10) == 0
        assert (await hf.runs.get("r")).blocked_reason == "corruption"
        await hf.reindex("r")
        assert await hf.journal.verify("r") == []
        assert (await hf.waits.get("w")).deadline > clock.seconds(500)


@holdfast.agent
async def helper(run: holdfast.Run, what: str) -> str:
    return what


@holdfast.agent(peers=[helper])
async def caller(run: holdfast.Run, limit: float | None) -> str:
    return await run.peer(helper, "x", timeout=0.1, queue_timeout=limit)


@pytest.mark.parametrize("limit", [None, 3600.0], ids=["no limit", "an hour"])
@async_test
async def test_call_that_nobody_has_taken_is_not_ended_by_a_sign_of_life(
    backend: Backend, limit: float | None
) -> None:
    async with holdfast.Holdfast(backend.url, agents=[caller]) as hf:
        with pytest.raises(RunWaiting):
            await (await hf.start(caller, limit, run_id="r")).result(timeout=0.5)
        (wait,) = await hf.waits.of_run("r")
        assert await hf.waits.extend(wait.wait_id, timeout_seconds=0.01)
        assert (await hf.waits.get(wait.wait_id)).deadline == wait.deadline
        with backend.raw() as raw:
            forged = "progress_at = opened_at, deadline = opened_at + patience"
            assert raw.execute(f"UPDATE waits SET {forged}") == 1
        assert await sweeper.expire_due_waits(hf._context, limit=10) == 0
        assert (await hf.runs.get("r")).blocked_reason == "corruption"


@async_test
async def test_sign_of_life_takes_no_deadline_away(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        opened = WaitSpec(kind="peer", name="n", wait_id="w", timeout_seconds=600)
        await held.open_waits([opened], suspend=True)
        with backend.raw() as raw:
            assert raw.execute("UPDATE waits SET deadline = 0, progress_at = opened_at + 1") == 1
        with pytest.raises(IndexCorrupted):
            await hf.waits.get("w")
        await hf.reindex("r")
        assert (await hf.waits.get("w")).deadline > clock.seconds(500)


@async_test
async def test_deadline_of_a_question_does_not_move(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        asked = WaitSpec(kind="approval", name="n", wait_id="w", timeout_seconds=600)
        await held.open_waits([asked], suspend=True)
        before = await hf.waits.get("w")
        with pytest.raises(MisuseError, match="does not move"):
            await hf.waits.extend("w", timeout_seconds=1)
        assert await hf.waits.get("w") == before


@async_test
async def test_wait_does_not_end_by_a_deadline_that_was_never_set(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await play(hf)
        with backend.raw() as raw:
            assert raw.execute("UPDATE waits SET deadline = 1 WHERE wait_id = 'w1'") == 1
        assert await sweeper.expire_due_waits(hf._context, limit=10) == 0
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "corruption")
        kinds = [entry.kind for entry in await hf.journal.read("r")]
        assert "WAIT_EXPIRED" not in kinds
        assert await hf.journal.verify("r") != []
        await hf.reindex("r")
        assert await hf.journal.verify("r") == []
        assert (await hf.waits.get("w1")).deadline > 1


@async_test
async def test_run_ends_though_a_forged_row_reopens_a_wait_whose_peer_is_told_already(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        call = WaitSpec(kind="peer", name="n", wait_id="w", address="queue:elsewhere")
        await held.open_waits([call], suspend=True)
        await hf.waits.cancel("w", by="ann")
        with backend.raw() as raw:
            forged = "status = 'open', result_seq = 0, settled_by = '', settled_at = 0"
            assert raw.execute(f"UPDATE waits SET {forged}") == 1
            await hf.runs.cancel("r", by="ann")
            assert (await hf.runs.get("r")).status == "cancelled"
            owed = raw.rows("SELECT message_id FROM messages ORDER BY message_id")
            assert owed == [("w/cancel",), ("w/request",)]
        await hf.reindex("r")
        assert await hf.journal.verify("r") == []
