"""Erased bodies are gone, on the record, and never taken for damage, nor damage for them."""

import asyncio
import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

import holdfast
from holdfast.engine.effects import EffectRequest
from holdfast.engine.marked.marked_run import VersionChange
from holdfast.engine.marked.marks import Marks
from holdfast.engine.reading.log_views import LogView
from holdfast.engine.waits import WaitSpec
from holdfast.errors import (
    BodyErased,
    CheckpointCorrupted,
    CheckpointNotFound,
    JournalCorrupted,
)
from holdfast.kernel.marks import Mark
from holdfast.stores.contract import Applied, Conflict, Refused
from holdfast.testing.store_suite import async_test
from holdfast.testing.store_suite.mark_commits import (
    commit,
    commit_late,
    commit_of,
    erased,
    saved,
    store_of,
    written,
)
from tests import forked_cli
from tests.backends import Backend

SECRET = "the secret of order 7 "


def cli(url: str, *args: str) -> "subprocess.CompletedProcess[str]":
    return forked_cli.run(*args, "--store", url, env=os.environ)


@async_test
async def test_erased_bodies_leave_digests_and_a_whole_chain(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a", input=SECRET)
        for size in (1, 50):
            run.append("log", SECRET * size)
            await run.checkpoint()
        with backend.raw() as raw:
            digests = {r[0]: hashlib.sha256(r[10] + r[11]).digest() for r in raw.entries()}
        await commit_late(hf, "a", erased((1, 1), (3, 3)))
        await commit_late(hf, "a", erased((1, 4)))
        assert await hf.journal.erased("a") == [(1, 1), (3, 3), (1, 4)]
        entries = await hf.journal.read("a")
        assert [entry.seq for entry in entries if entry.body is None] == [1, 2, 3, 4]
        assert {e.seq: e.erased_digest for e in entries[:4]} == digests
        assert [entry.seq for entry in await hf.journal.read("a", after=2)] == [3, 4, 5, 6]
        assert await hf.journal.verify("a") == []
        await run.complete()
        assert [entry.seq async for entry in hf.journal.tail("a")] == [1, 2, 3, 4, 5, 6, 7]
    if backend.name == "sqlite":
        assert SECRET.encode() not in Path(backend.url).read_bytes()
        with backend.raw() as raw:
            assert raw.rows("SELECT count(*) FROM bodies") == [(0,)]


@pytest.mark.mission("S1-085")
@async_test
async def test_bodies_of_pruned_versions_are_gone_and_later_ones_load(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        marks = Marks(hf._context, hf.leases, "framework")  # pyright: ignore[reportPrivateUsage]
        run = await marks.open("thread")
        for number in range(1, 6):

            def change(_: LogView, number: int = number) -> VersionChange:
                return VersionChange(
                    {}, {"kept": "from the first", f"of {number}": SECRET * number}
                )

            await run.save(Mark("", str(number)), change)
        before = {version: await hf.checkpoints.load("thread", version) for version in (4, 5)}
        history = await hf.checkpoints.history("thread")
        gone = {each.seq for each in history if each.version < 4}
        await marks.prune(run, {1, 2, 3}, note="old")
        assert [each.version for each in await hf.checkpoints.history("thread")] == [5, 4]
        for version, state in before.items():
            assert (await hf.checkpoints.load("thread", version)).parts == state.parts
        with pytest.raises(CheckpointNotFound):
            await hf.checkpoints.load("thread", 3)
        assert await hf.journal.verify("thread") == []
        run = await marks.open("thread")
        await run.save(Mark("", "6"), lambda _: VersionChange({}, {"kept": "to the last"}))
        assert (await hf.checkpoints.load("thread"))["kept"] == "to the last"
    with backend.raw() as raw:
        bodies = {entry[0]: entry[-2] for entry in raw.entries()}
    assert len(gone) == 3
    assert {bodies[seq] for seq in gone} == {None}


@async_test
async def test_holder_folds_in_an_erasure_and_goes_on(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        await run.record("step", SECRET)
        await commit_late(hf, "a", written("n"), erased((3, 4)))
        run.append("log", 1)
        assert (await run.checkpoint()).version == 1
        assert (await hf.checkpoints.load("a"))["log"] == [1]
        assert await hf.journal.verify("a") == []


@async_test
async def test_value_that_was_erased_is_said_to_be(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a", input=SECRET)
        request = EffectRequest(tool="t", args=SECRET, key="order-7")
        (begun,) = await run.begin_effects([request])
        await run.finish_effect(begun, SECRET)
        await hf.signals.send("a", "go", SECRET, id="s")
        run.append("log", SECRET)
        await run.checkpoint()
        await run.open_waits([WaitSpec(wait_id="w")], suspend=True)
        await hf.waits.resolve("w", SECRET)
        wait = await hf.waits.get("w")
        end = (await hf.journal.read("a"))[-1].seq
        await commit_late(hf, "a", erased((1, end)))
        with pytest.raises(BodyErased, match="was erased"):
            await hf.runs.input("a")
        with pytest.raises(BodyErased, match="was erased"):
            await hf.signals.value("a", "s")
        with pytest.raises(BodyErased, match="was erased"):
            await hf.waits.results("a", wait.group_id)
        other = await hf.runs.open("b")
        with pytest.raises(BodyErased, match="was erased"):
            await other.begin_effects([request])
        with pytest.raises(CheckpointCorrupted, match="was erased"):
            await hf.checkpoints.load("a")
        assert await hf.journal.verify("a") == []


@async_test
async def test_body_that_is_missing_without_a_record_is_damage(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a", input=1)
        await commit(hf, "a", written("n"))
        await commit_late(hf, "a", erased((1, 1)))
        await commit(hf, "a", written("n"))
        with backend.raw() as raw:
            for seq in (2, 4):
                (row,) = [r for r in raw.entries() if r[0] == seq]
                digest = hashlib.sha256(row[10] + row[11]).digest()
                sql = "UPDATE journal SET body = NULL, erased_digest = ? WHERE seq = ?"
                assert raw.execute(sql, digest, seq) == 1
        problems = await hf.journal.verify("a")
        assert [problem.seq for problem in problems] == [2, 4]
        assert all("no erasure is on the record" in problem.what for problem in problems)
        with pytest.raises(JournalCorrupted, match="entry 2"):
            await hf.journal.read("a")
        assert len(await hf.journal.read("a", checked=False)) == 4
    shown = cli(backend.url, "journal", "show", "a", "-o", "json")
    assert [entry["erased"] for entry in json.loads(shown.stdout)] == [True, False, False, False]
    assert [entry["intact"] for entry in json.loads(shown.stdout)] == [True, False, True, False]
    assert shown.returncode == 7


@async_test
async def test_forged_erasure_explains_nothing(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a", input=1)
        await commit(hf, "a", written("n"))
        await commit_late(hf, "a", erased((1, 1)))
        await commit(hf, "a", written("n"))
        with backend.raw() as raw:
            (row,) = [r for r in raw.entries() if r[0] == 2]
            digest = hashlib.sha256(row[10] + row[11]).digest()
            raw.execute("UPDATE journal SET body = NULL, erased_digest = ? WHERE seq = 2", digest)
            # The entry that tells of entry 1 is made to tell of entry 2 as well.
            (facts,) = [r[9] for r in raw.entries() if r[0] == 3]
            forged = facts.replace(b"\x91\x92\x01\x01", b"\x91\x92\x01\x02")
            assert raw.execute("UPDATE journal SET facts = ? WHERE seq = 3", forged) == 1
        problems = await hf.journal.verify("a")
        assert {problem.seq for problem in problems} >= {1, 2, 3}
        with pytest.raises(JournalCorrupted):
            await hf.journal.read("a", limit=2)


@async_test
async def test_command_line_says_erased(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a", input=SECRET)
        await commit(hf, "a", saved(1, "n", source="loop"), written("n"))
        await commit_late(hf, "a", erased((1, 1)))
    audited = cli(backend.url, "audit", "verify")
    assert (audited.returncode, "1 run verified: whole" in audited.stdout) == (0, True)
    shown = cli(backend.url, "journal", "show", "a", "--bodies")
    lines = shown.stdout.splitlines()
    assert shown.returncode == 0
    assert ["erased" in line.split() for line in lines] == [True, False, False, False]
    assert SECRET not in shown.stdout
    followed = cli(backend.url, "store", "reindex")
    assert followed.returncode == 0
    assert cli(backend.url, "audit", "verify").returncode == 0


@async_test
async def test_two_processes_that_save_the_same_mark_at_once(backend: Backend) -> None:
    async with holdfast.open(backend.url) as left, holdfast.open(backend.url) as right:
        await left.runs.create("a")
        await commit(left, "a", saved(1, "root"))
        for version in range(2, 12):
            name = f"n{version}"
            twins = [(hf, await commit_of(hf, "a", saved(version, name))) for hf in (left, right)]
            outcomes = await asyncio.gather(*(store_of(hf).submit(c) for hf, c in twins))
            assert sorted(type(o).__name__ for o in outcomes) == ["Applied", "Conflict"]
            loser, _ = twins[outcomes.index(Conflict())]
            assert isinstance(await commit(loser, "a", saved(version + 1, name)), Refused)
            winner = await store_of(loser).marks.get("a", "", name)
            assert winner is not None
            assert winner.version == version
        assert await commit(right, "a", saved(12, "last")) == Applied()
        assert await left.journal.verify("a") == []


@async_test
async def test_changed_index_rows_of_marks_are_found_and_mended(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        await hf.runs.create("a")
        for version in (1, 2, 3):
            await commit(hf, "a", saved(version, f"n{version}", step=version), written("n1"))
        with backend.raw() as raw:
            assert raw.execute("UPDATE marks SET tags = '{\"step\":9}' WHERE version = 1") == 1
            assert raw.execute("DELETE FROM marks WHERE version = 2") == 1
            assert raw.execute("DELETE FROM writes WHERE seq = 3") == 1
        found = [problem.what for problem in await hf.journal.verify("a")]
        assert len(found) == 3
        assert sum("row of mark" in what for what in found) == 2
        assert sum("row of writes 3" in what for what in found) == 1
        await hf.reindex("a")
        assert await hf.journal.verify("a") == []
        assert [m.tags["step"] for m in await store_of(hf).marks.of_run("a")] == [1, 2, 3]
