"""Rows of wait groups are changed behind Holdfast's back: no run moves by it."""

from typing import Any

import pytest

import holdfast
from holdfast import WaitSpec
from holdfast.engine import sweeper
from holdfast.errors import IndexCorrupted, IntegrityError
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, Raw
from tests.recovery.test_index_attacks import columns

STATUSES = ("open", "satisfied", "failed", "cancelled")


async def open_group(hf: holdfast.Holdfast, count: int, mode: str | int = "all") -> str:
    run = await hf.runs.open("r")
    specs = [WaitSpec(wait_id=f"w{n}", name="n", timeout_seconds=3600) for n in range(count)]
    return await run.open_waits(specs, mode=mode, suspend=True)


def forgeries(raw: Raw, backend: Backend) -> list[str]:
    """Return a change for every column of a group: numbers up and down, every other status."""
    found: list[str] = []
    for table, column, is_number in columns(raw, backend):
        if table != "wait_groups":
            continue
        if column == "status":
            found += [f"status = '{status}'" for status in STATUSES]
        elif is_number:
            found += [f"{column} = {column} + 1", f"{column} = {column} - 1"]
        else:
            found.append(f"{column} = 'forged'")
    return found


async def outcome(ask: Any) -> Any:
    try:
        return await ask
    except IntegrityError:
        return "error"


@pytest.mark.parametrize("mode", ["all", 2])
@pytest.mark.parametrize("is_closed", [False, True])
@async_test
async def test_no_column_of_a_group_is_believed(
    backend: Backend, mode: str | int, is_closed: bool
) -> None:
    async with holdfast.open(backend.url) as hf:
        group_id = await open_group(hf, 3, mode)
        await hf.waits.resolve("w0", "answer")
        if is_closed:
            await hf.waits.resolve("w1", "answer")
            await hf.waits.resolve("w2", "answer")
        run, end, tried = await hf.runs.get("r"), await hf.journal.head("r"), 0
        late = await hf.waits.resolve("w0", "again")
        assert not late.accepted
        with backend.raw() as raw:
            raw.execute("CREATE TEMP TABLE saved AS SELECT * FROM wait_groups")
            saved = raw.rows("SELECT * FROM saved")
            for change in [*forgeries(raw, backend), ""]:
                what = f"UPDATE wait_groups SET {change}" if change else "DELETE FROM wait_groups"
                raw.execute(what)
                if raw.rows("SELECT * FROM wait_groups") == saved:
                    continue
                assert await outcome(hf.waits.resolve("w0", "again")) in ("error", late), change
                if not is_closed:
                    assert await outcome(hf.waits.resolve("w1", "answer")) == "error", change
                    read = await outcome(hf._context.store.waits.group("r", group_id))
                    assert read in ("error", None), change
                assert await hf.journal.head("r") == end, change
                assert await hf.runs.get("r") == run, change
                assert await hf.journal.verify("r") != [], change
                tried += 1
                raw.execute("DELETE FROM wait_groups")
                raw.execute("INSERT INTO wait_groups SELECT * FROM saved")
        assert tried > 12
        assert await hf.journal.verify("r") == []


@pytest.mark.parametrize("change", ["resolved = resolved + 1", "failed = failed - 1", "need = 1"])
@pytest.mark.parametrize("mode", ["all", 150])
@async_test
async def test_large_group_is_not_closed_early_or_left_open(
    backend: Backend, mode: str | int, change: str
) -> None:
    """Only a part of its waits is counted at a time."""
    async with holdfast.open(backend.url) as hf:
        await open_group(hf, 200, mode)
        with backend.raw() as raw:
            assert raw.execute(f"UPDATE wait_groups SET {change}") == 1
        with pytest.raises(IndexCorrupted, match="wait group"):
            await resolve_all(hf)
        assert (await hf.runs.get("r")).status == "waiting"
        assert "GROUP_CLOSED" not in [entry.kind for entry in await hf.journal.read("r")]
        await hf.reindex("r")
        await resolve_all(hf)
        assert (await hf.runs.get("r")).status == "ready"


async def resolve_all(hf: holdfast.Holdfast) -> None:
    for number in range(200):
        await hf.waits.resolve(f"w{number}", number)


@async_test
async def test_run_does_not_continue_by_a_group_that_was_made_closed(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        group_id = await run.open_waits([WaitSpec(wait_id="w", name="n")], suspend=False)
        with backend.raw() as raw:
            assert raw.execute("UPDATE wait_groups SET status = 'satisfied', closed_seq = 3") == 1
        with pytest.raises(IndexCorrupted, match="closed, and it has open waits"):
            await run.suspend(group_id)


@async_test
async def test_closed_group_of_which_the_journal_has_nothing_left_is_what_its_row_says(
    backend: Backend,
) -> None:
    """The row of a group whose opening is on record must have its closing there, too."""
    async with holdfast.open(backend.url) as hf:
        await open_group(hf, 1)
        await hf.waits.resolve("w0", "answer", by="ann")
        late = await hf.waits.resolve("w0", "again")
        assert (late.accepted, late.settled_by) == (False, "ann")
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM journal WHERE kind = 'GROUP_CLOSED'") == 1
            with pytest.raises(IndexCorrupted, match="differs from the entry that closed it"):
                await hf.waits.resolve("w0", "again")
            assert raw.execute("DELETE FROM journal WHERE kind = 'WAITS_OPENED'") == 1
        assert await hf.waits.resolve("w0", "again") == late


@async_test
async def test_sweeper_rebuilds_a_group_and_expires_its_waits(backend: Backend) -> None:
    """Else it would find the same group first at every sweep."""
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        spec = WaitSpec(wait_id="w", name="n", timeout_seconds=0.001)
        await run.open_waits([spec], suspend=True)
        with backend.raw() as raw:
            assert raw.execute("UPDATE wait_groups SET total = 2") == 1
        while not await sweeper.expire_due_waits(hf._context, limit=10):
            pass
        assert (await hf.runs.get("r")).status == "ready"
        assert await hf.journal.verify("r") == []
