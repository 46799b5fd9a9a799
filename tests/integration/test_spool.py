"""While the store is away commits go to a local file, and later to the store, or to evidence."""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import EffectRequest, LeasedRun
from holdfast.errors import (
    OutcomeUnknown,
    SpoolSuperseded,
    SpoolUnusable,
    StoreFull,
    StoreUnavailable,
    UnavailableError,
)
from holdfast.stores import spool_files
from holdfast.telemetry import SPOOL_DRAINED, SPOOL_SUPERSEDED, SPOOLED
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.outages import Outage, spooling
from tests.peers.test_acceptance import write_lock


def versions(backend: Backend) -> list[int]:
    with backend.raw() as raw:
        found = raw.rows("SELECT version FROM checkpoints WHERE run_id = 'r' ORDER BY version")
    return [version for (version,) in found]


def kinds(backend: Backend) -> list[str]:
    with backend.raw() as raw:
        return [kind for (kind,) in raw.rows("SELECT kind FROM journal ORDER BY run_id, seq")]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.spool") if path.parent.name != "evidence")


def evidence(folder: Path) -> list[Path]:
    return sorted(folder.rglob("evidence/*.spool"))


async def save(held: LeasedRun, *items: object) -> Any:
    held.append("log", *items)
    return await held.checkpoint()


@pytest.mark.mission("S3-084", "X-009")
@async_test
async def test_run_goes_on_with_a_spool_and_is_stored_in_order_when_the_store_is_back(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name] += amount

    settings = spooling(tmp_path / "spool")
    async with holdfast.open(backend.url, settings=settings, telemetry=count) as hf:
        outage = Outage(hf)
        held = await hf.runs.open("r")
        assert not (await save(held, 1)).is_spooled
        with outage.away(), caplog.at_level(logging.WARNING, "holdfast"):
            second = await save(held, 2)
            await held.record("step", "x")
            third = await save(held, 3)
            assert (second.is_spooled, third.is_spooled, held.is_spooled) == (True, True, True)
            assert (second.version, third.version) == (2, 3)
            assert versions(backend) == [1]
            (file,) = files(tmp_path)
            assert len(spool_files.read(file).commits) == 3
        assert [r.getMessage() for r in caplog.records if "commits go to" in r.getMessage()]
        await held.complete("done")
        assert not held.is_spooled
        assert versions(backend) == [1, 2, 3]
        assert kinds(backend)[-1] == "RUN_COMPLETED"
        assert await hf.journal.verify("r") == []
        assert (await hf.checkpoints.load("r"))["log"] == [1, 2, 3]
        assert (counts[SPOOLED], counts[SPOOL_DRAINED]) == (3, 3)
    assert files(tmp_path) == []


@async_test
async def test_spool_is_drained_by_itself(backend: Backend, tmp_path: Path) -> None:
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")) as hf:
        outage = Outage(hf)
        held = await hf.runs.open("r")
        with outage.away():
            await save(held, 1)
        while held.is_spooled:
            await asyncio.sleep(0.001)
        assert versions(backend) == [1]


@pytest.mark.parametrize("error", [StoreFull(), OutcomeUnknown()], ids=repr)
@async_test
async def test_store_that_is_full_or_does_not_answer_is_away(
    backend: Backend, tmp_path: Path, error: UnavailableError
) -> None:
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")) as hf:
        outage = Outage(hf)
        outage.error = error
        held = await hf.runs.open("r")
        with outage.away():
            assert (await save(held, 1)).is_spooled
        await held.complete()
        assert versions(backend) == [1]


async def begin(held: LeasedRun) -> object:
    return await held.begin_effects([EffectRequest(key="k", tool="charge")])


async def wait(held: LeasedRun) -> object:
    return await held.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)


async def end(held: LeasedRun) -> object:
    return await held.complete()


async def give_back(held: LeasedRun) -> object:
    return await held.release()


@pytest.mark.mission("S3-084", "X-009")
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (begin, "EFFECT_ISSUED"),
        (wait, "WAITS_OPENED"),
        (end, "RUN_COMPLETED"),
        (give_back, "RUN_RELEASED"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@async_test
async def test_what_others_would_see_waits_until_the_spool_is_drained(
    backend: Backend, tmp_path: Path, act: Any, kind: str
) -> None:
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")) as hf:
        outage = Outage(hf)
        held = await hf.runs.open("r")
        with outage.away():
            await save(held, 1)
            acting = asyncio.create_task(act(held))
            done, _ = await asyncio.wait([acting], timeout=0.3)
            assert not done
            assert kinds(backend) == ["RUN_CREATED", "RUN_LEASED"]
        await acting
        found = kinds(backend)
        assert found.index("CHECKPOINT_CREATED") < found.index(kind)
        assert await hf.journal.verify("r") == []


async def taken_over(url: str, run_id: str = "r") -> None:
    async with holdfast.open(url) as other:
        held = await other.leases.take(run_id, takeover=True)
        held.set("mine", True)
        await held.checkpoint(label="of the other")
        await held.release()


@pytest.mark.mission("S3-084")
@async_test
async def test_what_was_spooled_for_a_run_that_was_taken_over_is_kept_apart(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts: Counter[str] = Counter()

    def count(name: str, amount: int) -> None:
        counts[name] += amount

    settings = spooling(tmp_path / "spool")
    async with holdfast.open(backend.url, settings=settings, telemetry=count) as hf:
        outage = Outage(hf)
        held, other = await hf.runs.open("r"), await hf.runs.open("s")
        with outage.away():
            saved = [await save(held, 1), await save(held, 2)]
            assert (await save(other, 1)).is_spooled
            await taken_over(backend.url)
        with pytest.raises(SpoolSuperseded, match="kept in"):
            await held.complete()
        with pytest.raises(SpoolSuperseded):
            await save(held, 3)
        await other.complete()
        assert await hf.journal.verify("r") == []
        assert (await hf.checkpoints.load("r")).parts == {"mine": True}
        assert counts[SPOOL_SUPERSEDED] == 2
    (kept,) = evidence(tmp_path)
    found = spool_files.read(kept)
    assert found.head is not None
    assert (found.head.run_id, found.problem) == ("r", "")
    assert "RUN_LEASED by" in found.head.why
    data = kept.read_bytes()
    assert all(row.checkpoint_id.bytes in data for row in saved)
    assert versions(backend) == [1]
    assert any(r.levelno == logging.ERROR and "r" in r.getMessage() for r in caplog.records)
    assert files(tmp_path) == []


@async_test
async def test_outcome_that_was_spooled_is_reported_though_its_run_was_taken_over(
    backend: Backend, tmp_path: Path
) -> None:
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")) as hf:
        outage = Outage(hf)
        held = await hf.runs.open("r")
        (begun,) = await held.begin_effects([EffectRequest(key="k", tool="charge")])
        with outage.away():
            await held.finish_effect(begun, "paid")
            await taken_over(backend.url)
        with pytest.raises(SpoolSuperseded):
            await held.complete()
        with backend.raw() as raw:
            assert raw.rows("SELECT status FROM effects") == [("completed",)]


@async_test
async def test_spool_that_cannot_be_written_raises_as_if_there_were_none(
    backend: Backend, tmp_path: Path
) -> None:
    settings = spooling(tmp_path / "spool", spool_bytes=2000)
    async with holdfast.open(backend.url, settings=settings) as hf:
        outage = Outage(hf)
        held = await hf.runs.open("r")
        with outage.away():
            assert (await save(held, 1)).is_spooled
            with pytest.raises(UnavailableError):
                await save(held, os.urandom(4000))
            with pytest.raises(UnavailableError):  # it does not wait either
                await held.complete(save=True)
        await held.complete(save=True)
        assert versions(backend) == [1, 2]


@async_test
async def test_folder_that_cannot_be_used_is_told_when_the_store_is_opened(
    backend: Backend, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable):
        async with holdfast.open(backend.url, settings=spooling(tmp_path / "file" / "spool")):
            pass


async def left_behind(url: str, folder: Path, *, run_id: str = "r", **more: Any) -> None:
    """A process that ends while the store is away."""
    hf = holdfast.Holdfast(url, settings=spooling(folder, **more))
    await hf.__aenter__()
    outage = Outage(hf)
    held = await hf.runs.open(run_id)
    outage.is_away = True
    await save(held, 1)
    await save(held, 2)
    with pytest.raises(StoreUnavailable):
        await hf.__aexit__(None, None, None)


@pytest.mark.mission("S3-084")
@async_test
async def test_next_process_drains_what_was_left_before_it_takes_runs(
    backend: Backend, tmp_path: Path
) -> None:
    await left_behind(backend.url, tmp_path)
    assert versions(backend) == []
    async with holdfast.open(backend.url, settings=spooling(tmp_path)) as hf:
        assert versions(backend) == [1, 2]
        assert files(tmp_path) == []
        held = await hf.leases.take("r", takeover=True)
        assert held.part("log") == [1, 2]


@async_test
async def test_what_was_left_for_a_run_that_was_taken_over_is_evidence_once(
    backend: Backend, tmp_path: Path
) -> None:
    await left_behind(backend.url, tmp_path)
    await taken_over(backend.url)
    for _ in range(2):
        async with holdfast.open(backend.url, settings=spooling(tmp_path)):
            assert versions(backend) == [1]
            assert len(evidence(tmp_path)) == 1
            assert files(tmp_path) == []


@async_test
async def test_spool_of_another_tenant_or_store_is_left_alone(
    backend: Backend, tmp_path: Path
) -> None:
    await left_behind(backend.url, tmp_path / "spool", tenant="other")
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")):
        pass
    another = str(tmp_path / "another.db")
    async with holdfast.open(another, settings=spooling(tmp_path / "spool", tenant="other")):
        pass
    assert len(files(tmp_path)) == 1
    assert versions(backend) == []
    settings = spooling(tmp_path / "spool", tenant="other")
    async with holdfast.open(backend.url, settings=settings):
        assert versions(backend) == [1, 2]


@async_test
async def test_damaged_spool_is_drained_up_to_the_damage_and_kept(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await left_behind(backend.url, tmp_path)
    (file,) = files(tmp_path)
    changed = bytearray(file.read_bytes())
    changed[-40] ^= 1
    file.write_bytes(changed)
    async with holdfast.open(backend.url, settings=spooling(tmp_path)):
        assert versions(backend) == [1]
    (kept,) = evidence(tmp_path)
    assert kept.read_bytes() == changed
    assert any("is damaged" in record.getMessage() for record in caplog.records)


@async_test
async def test_torn_record_is_cut_and_those_before_it_are_drained(
    backend: Backend, tmp_path: Path
) -> None:
    await left_behind(backend.url, tmp_path)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    async with holdfast.open(backend.url, settings=spooling(tmp_path)):
        assert versions(backend) == [1]
    assert files(tmp_path) == evidence(tmp_path) == []


def agents(seen: list[Any], outage: list[Outage]) -> Sequence[holdfast.Agent[..., Any]]:
    @holdfast.tool
    async def charge(turn: int, *, key: holdfast.Key) -> str:
        seen.append(("charge", turn, outage[0].is_away))
        return "paid"

    @holdfast.tool(effect="read")
    async def look(turn: int) -> str:
        seen.append(("look", turn, outage[0].is_away))
        return "seen"

    async def model(turn: int) -> str:
        seen.append(("model", turn, outage[0].is_away))
        return f"reply {turn}"

    @holdfast.agent(tools=[charge, look])
    async def spooler(run: holdfast.Run) -> list[str]:
        done = run.log("done", str)
        while len(done) < 5:
            turn = len(done)
            if turn == 1:
                outage[0].is_away = True
            reply = await run.model(model, turn)
            if turn == 3:
                asyncio.get_running_loop().call_later(
                    0.3, lambda: setattr(outage[0], "is_away", False)
                )
                await run.call(charge, turn)
            else:
                await run.call(look, turn)
            done.append(reply)
            stored = await run.checkpoint()
            assert stored is not None
            seen.append(("saved", turn, stored.is_spooled))
            assert run.is_spooled == stored.is_spooled
        return list(done)

    return [spooler]


@pytest.mark.mission("S3-084", "X-009")
@async_test
async def test_agent_reads_and_asks_its_model_but_changes_nothing_while_the_store_is_away(
    backend: Backend, tmp_path: Path
) -> None:
    seen, outage = list[Any](), list[Outage]()
    (spooler,) = agents(seen, outage)
    settings = spooling(tmp_path / "spool")
    async with holdfast.Holdfast(backend.url, agents=[spooler], settings=settings) as hf:
        outage.append(Outage(hf))
        result = await hf.run(spooler, run_id="r", timeout=30)
        assert result == [f"reply {turn}" for turn in range(5)]
        assert await hf.journal.verify("r") == []
    assert [turn for what, turn, away in seen if what == "model" and away] == [1, 2, 3]
    assert [turn for what, turn, spooled in seen if what == "saved" and spooled] == [1, 2]
    assert [each for each in seen if each[0] == "charge"] == [("charge", 3, False)]
    assert versions(backend) == [1, 2, 3, 4, 5]


@async_test
async def test_agent_whose_run_was_taken_over_goes_on_from_what_is_stored(
    backend: Backend, tmp_path: Path
) -> None:
    outage = list[Outage]()
    entered: list[int] = []

    @holdfast.agent
    async def patient(run: holdfast.Run) -> list[str]:
        done = run.log("done", str)
        entered.append(len(done))
        if not done:
            done.append("first")
            await run.checkpoint()
        if len(entered) == 1:
            with outage[0].away():  # also if it is noticed that the run is another's
                done.append("lost")
                await run.checkpoint()
                assert run.is_spooled
                await taken_over(backend.url)
        done.append("last")
        return list(done)

    settings = spooling(tmp_path / "spool")
    async with holdfast.Holdfast(backend.url, agents=[patient], settings=settings) as hf:
        outage.append(Outage(hf))
        assert await hf.run(patient, run_id="r", timeout=30) == ["first", "last"]
        assert entered == [0, 1]
    assert len(evidence(tmp_path)) == 1


@async_test
async def test_store_that_is_back_gets_commits_while_the_spool_is_still_emptied(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, may_cut = spool_files.SpoolFile.cut, threading.Event()

    def slowly(file: spool_files.SpoolFile) -> None:
        may_cut.wait(60)
        cut(file)

    monkeypatch.setattr(spool_files.SpoolFile, "cut", slowly)
    async with holdfast.open(backend.url, settings=spooling(tmp_path / "spool")) as hf:
        spool = hf._context.spool
        assert spool is not None
        held = await hf.runs.open("r")
        with Outage(hf).away():
            assert (await save(held, 0)).is_spooled
        async with asyncio.timeout(60):
            while not spool.is_empty:
                await asyncio.sleep(0.01)
        assert not (await save(held, 1)).is_spooled
        may_cut.set()
        await held.complete()
    assert versions(backend) == [1, 2]


@pytest.mark.mission("S3-084")
@async_test
async def test_run_is_spooled_while_another_process_holds_the_lock_of_its_file(
    tmp_path: Path,
) -> None:
    backend = SQLiteBackend(tmp_path / "store.db")
    settings = spooling(tmp_path / "spool", busy_timeout_seconds=0.1)
    async with holdfast.open(backend.url, settings=settings) as hf:
        held = await hf.runs.open("r")
        async with write_lock(tmp_path / "store.db"):
            assert [(await save(held, n)).is_spooled for n in range(3)] == [True] * 3
        await held.complete()
        assert versions(backend) == [1, 2, 3]
        assert await hf.journal.verify("r") == []
