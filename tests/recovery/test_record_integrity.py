"""What is stored is what was told: damage is found, what is final stays, rows can be made anew."""

import hashlib
from typing import Any

import apsw
import msgspec
import psycopg
import pytest

import holdfast
from holdfast.engine.maintenance.erasure import erase_run
from holdfast.errors import CheckpointCorrupted, IndexCorrupted
from holdfast.kernel import indexes
from holdfast.records import CheckpointService, hash_of
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.recovery.test_checkpoint_service import EVERYTHING

REFUSED = (apsw.ConstraintError, psycopg.errors.RestrictViolation)
FINAL_KINDS = "('CHECKPOINT_CREATED', 'CHECKPOINT_UPDATED', 'CHECKPOINT_FINALIZED')"


async def final_one(hf: holdfast.Holdfast, state: Any = EVERYTHING) -> str:
    """Version 1 of a task: two revisions, final. Version 2 is a draft."""
    service = CheckpointService(hf)
    made = await service.create_checkpoint("task", "a", state, summary="some words")
    await service.update_checkpoint(made.checkpoint_id, {"metrics": {"tools_invoked": 99}})
    await service.finalize_checkpoint(made.checkpoint_id, "complete")
    await service.create_checkpoint("task", "a", state)
    return made.checkpoint_id


@pytest.mark.mission("S3-038", "S3-099", "S3-106", "S3-112")
@async_test
async def test_hash_is_that_of_defined_bytes(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        made = await CheckpointService(hf).create_checkpoint("task", "a", EVERYTHING)
        stored = (await hf.checkpoints.load("task"))["holdfast.record"]
    assert stored["compliance"].pop("hash") == made.compliance.hash
    del stored["compliance"]["signature"]
    canonical = msgspec.msgpack.encode(stored, order="deterministic")
    assert hashlib.sha256(canonical).hexdigest() == made.compliance.hash == hash_of(made)


@pytest.mark.mission("S3-090", "S3-108", "S3-119")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET status = 'other' WHERE version = 1",
        "UPDATE records SET final_seq = 0 WHERE version = 1",
        "DELETE FROM records WHERE version = 1",
        "UPDATE checkpoints SET phase = 'other' WHERE version = 1",
        "DELETE FROM checkpoints WHERE version = 1",
        "UPDATE revisions SET seq = 1 WHERE version = 1",
        "DELETE FROM revisions WHERE version = 1",
        f"UPDATE journal SET actor = 'x' WHERE seq < 5 AND kind IN {FINAL_KINDS}",
        f"UPDATE journal SET body = NULL WHERE seq < 5 AND kind IN {FINAL_KINDS}",
        "DELETE FROM journal WHERE kind = 'CHECKPOINT_UPDATED'",
        "DELETE FROM journal WHERE kind = 'CHECKPOINT_FINALIZED'",
        "DELETE FROM journal WHERE seq = 2",
    ],
)
@async_test
async def test_owner_of_the_tables_cannot_change_what_is_final(
    backend: Backend, statement: str
) -> None:
    async with holdfast.open(backend.url) as hf:
        await final_one(hf)
    with backend.raw() as raw:
        with pytest.raises(REFUSED, match="final"):
            raw.execute(statement)
        # Drafts, and other entries, are as they were.
        assert raw.execute("UPDATE checkpoints SET label = 'x' WHERE version = 2") == 1
        assert raw.execute("UPDATE journal SET actor = 'x' WHERE seq = 5") == 1


@async_test
async def test_body_of_a_final_one_that_lies_apart_stays_too(backend: Backend) -> None:
    if backend.name != "sqlite":
        return
    async with holdfast.open(backend.url) as hf:
        await final_one(hf)
    with backend.raw() as raw:
        assert raw.rows("SELECT count(*) FROM bodies") != [(0,)]
        for statement in ("UPDATE bodies SET body = x'00'", "DELETE FROM bodies"):
            with pytest.raises(REFUSED, match="final"):
                raw.execute(statement)


@async_test
async def test_reindex_makes_all_rows_anew(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        final = await final_one(hf)
        service = CheckpointService(hf)
        one = await service.create_checkpoint("other", "a", {})
        latest = await service.get_latest_checkpoint("task")
        assert latest is not None
        await service.link_checkpoints(one.checkpoint_id, latest.checkpoint_id)
        with backend.raw() as raw:
            tables = ("records", "revisions", "checkpoints")
            before = {name: sorted(raw.rows(f"SELECT * FROM {name}")) for name in tables}
        await hf.reindex("task")
        with backend.raw() as raw:
            raw.execute("UPDATE records SET summary = 'damaged' WHERE version = 2")
            assert await hf.journal.verify("task") != []
        await hf.reindex("task")
        await hf.reindex("other")
        with backend.raw() as raw:
            after = {name: sorted(raw.rows(f"SELECT * FROM {name}")) for name in tables}
            if backend.name == "sqlite":
                assert raw.rows("SELECT count(*) FROM removals") == [(0,)]
                # Rows have numbers of their own there.
                before["records"] = sorted(row[1:] for row in before["records"])
                after["records"] = sorted(row[1:] for row in after["records"])
        assert after == before
        assert await hf.journal.verify("task") == []
        found = await service.get_checkpoint(final)
        assert found is not None
        assert found.is_final
        assert len((await service.search_checkpoints({"text": "some words"})).checkpoints) == 1


@async_test
async def test_erasing_a_run_on_the_record_takes_final_ones_too(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        final = await final_one(hf)
        await hf.runs.cancel("task")
        assert await erase_run(hf._context, "task", note="the time is over")  # pyright: ignore[reportPrivateUsage]
        service = CheckpointService(hf)
        assert await service.get_checkpoint(final) is None
        assert (await service.search_checkpoints({"text": "some words"})).checkpoints == ()
        assert await hf.journal.verify("task") == []
        with backend.raw() as raw:
            assert raw.rows("SELECT count(*) FROM records") == [(0,)]
            kind = "WHERE kind = 'CHECKPOINT_CREATED' AND body IS NOT NULL"
            assert raw.rows(f"SELECT count(*) FROM journal {kind}") == [(1,)]


@pytest.mark.mission("S3-072", "S3-073", "S3-085", "S3-123", "S3-126", "S3-158", "S3-188")
@pytest.mark.mission("X-010")
@async_test
async def test_damage_is_told_and_never_returned(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = [await service.create_checkpoint("task", "a", EVERYTHING) for _ in range(3)]
        with backend.raw() as raw:
            if backend.name == "sqlite":
                later = "SELECT id FROM journal WHERE seq > 2"
                damage = f"UPDATE bodies SET body = x'00' WHERE id IN ({later})"
            else:
                damage = "UPDATE journal SET body = '\\x00' WHERE seq > 2"
            assert raw.execute(damage) == 2
        for each in made[1:]:
            with pytest.raises(CheckpointCorrupted, match=each.checkpoint_id):
                await service.get_checkpoint(each.checkpoint_id)
        latest = await service.get_latest_checkpoint("task")
        assert latest is not None
        assert latest.checkpoint_id == made[0].checkpoint_id
        assert latest.skipped == (made[2].checkpoint_id, made[1].checkpoint_id)
        again = await service.get_latest_checkpoint("task")
        assert again == latest
        entries = await hf.journal.read("task", checked=False)
        told = [indexes.facts_of(e) for e in entries if e.kind == "CHECKPOINT_CORRUPTED"]
        assert {str(each.checkpoint_id) for each in told} == set(latest.skipped)
        assert {each.fell_back_to for each in told} == {1}
        with pytest.raises(CheckpointCorrupted):
            await service.get_checkpoint_history("task")
        found = await service.search_checkpoints({})
        assert [each.checkpoint_id for each in found.checkpoints] == [made[0].checkpoint_id]
        assert found.damaged == (made[2].checkpoint_id, made[1].checkpoint_id)
        with pytest.raises(CheckpointCorrupted):
            await service.finalize_checkpoint(made[2].checkpoint_id, "complete")
        # The task can go on all the same.
        await service.create_checkpoint("task", "a", {})


@async_test
async def test_row_that_leads_to_another_record_is_found(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", EVERYTHING)
        for count in (1, 2):
            partial = {"metrics": {"tools_invoked": count}}
            await service.update_checkpoint(made.checkpoint_id, partial)
        with backend.raw() as raw:
            assert raw.execute("UPDATE records SET revised_seq = 3") == 1
        with pytest.raises(IndexCorrupted, match="reindex"):
            await service.get_checkpoint(made.checkpoint_id)
        assert await hf.journal.verify("task") != []
        await hf.reindex("task")
        found = await service.get_checkpoint(made.checkpoint_id)
        assert found is not None
        assert found.metrics.tools_invoked == 2
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM checkpoints") == 1
        with pytest.raises(IndexCorrupted):
            await service.create_checkpoint("task", "a", {})


@async_test
async def test_forged_row_of_a_revision_does_not_stop_an_update(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "a", EVERYTHING)
        with backend.raw() as raw:
            columns, forged = "tenant, run_id, version, revision, seq", "'default', 'task', 1, 2, 9"
            assert raw.execute(f"INSERT INTO revisions ({columns}) VALUES ({forged})") == 1
        for count in (1, 2):
            partial = {"metrics": {"tools_invoked": count}}
            updated = await service.update_checkpoint(made.checkpoint_id, partial)
            assert updated.revision == count + 1
        assert await service.get_checkpoint(made.checkpoint_id) == updated
        with pytest.raises(IndexCorrupted, match="leads to entry 9 for revision 2"):
            await service.get_checkpoint(made.checkpoint_id, revision=2)
        await hf.reindex("task")
        second = await service.get_checkpoint(made.checkpoint_id, revision=2)
        assert second is not None
        assert second.metrics.tools_invoked == 1
        assert await hf.journal.verify("task") == []
