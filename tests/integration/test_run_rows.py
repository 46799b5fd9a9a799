"""Rows of runs are changed behind Holdfast's back, column by column: none of them is believed.

The columns come from the schema, so that a new one cannot be forgotten.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.errors import IndexCorrupted, IntegrityError
from holdfast.testing.clocks import ManualClock, outlive
from holdfast.testing.store_suite import async_test
from tests.agents.resting import until_it_waits
from tests.backends import Backend, Raw
from tests.recovery.test_index_attacks import columns

VALUES = {
    "status": ["'completed'", "'ready'", "'running'", "'blocked'", "'waiting'", "'forged'"],
    "input_digest": ["substr({}, 2)"],
    "is_recovering": ["NOT {}"],
    "losses": ['\'[["w", 1, "silent"]]\''],
}
FORGED_RUNS = ("waits", "ends", "blocks")


@holdfast.agent
async def waiter(run: holdfast.Run, order: str) -> str:
    return await run.ask(f"{order}?", schema=str)


@holdfast.agent
async def ender(_: holdfast.Run, order: str) -> str:
    return order


async def play(hf: holdfast.Holdfast) -> None:
    await until_it_waits(hf, await hf.start(waiter, "waits", run_id="waits"))
    await hf.run(ender, "ends", run_id="ends")
    held = await hf.runs.open("blocks")
    await held.block("budget", note="too much")


def reads(hf: holdfast.Holdfast, run_id: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "get": lambda: hf.runs.get(run_id),
        "list": lambda: hf.runs.list(),
        "of status": lambda: hf.runs.list(status="completed"),
        "of agent": lambda: hf.runs.list(agent="ender"),
        "of another agent": lambda: hf.runs.list(agent="forged"),
        "cancel": lambda: hf.runs.cancel(run_id, by="ann"),
        "unblock": lambda: hf.runs.unblock(run_id),
        "signal": lambda: hf.signal(run_id, "hello", 1),
        "open": lambda: hf.runs.open(run_id),
    }


async def is_refused(ask: Callable[[], Awaitable[Any]]) -> bool:
    try:
        await ask()
    except IntegrityError:
        return True
    except holdfast.HoldfastError:
        return False
    return False


def changes(raw: Raw, backend: Backend) -> list[str]:
    found: list[str] = []
    for table, column, is_number in columns(raw, backend):
        if table == "runs" and column not in ("tenant", "run_id"):
            values = VALUES.get(column, ["{} + 7" if is_number else "'forged'"])
            found += [f"{column} = {value.format(column)}" for value in values]
    return found


@async_test
async def test_no_column_of_a_run_is_believed(backend: Backend) -> None:
    settings = holdfast.Settings(sweep_seconds=3600.0, wakeup_poll_seconds=3600.0)
    async with holdfast.Holdfast(backend.url, agents=[waiter, ender], settings=settings) as hf:
        await play(hf)
        tried = 0
        with backend.raw() as raw:
            raw.execute("CREATE TEMP TABLE saved AS SELECT * FROM runs")
            before = {run_id: (await hf.journal.read(run_id))[-1].seq for run_id in FORGED_RUNS}
            for change in changes(raw, backend):
                for run_id in FORGED_RUNS:
                    raw.execute(f"UPDATE runs SET {change} WHERE run_id = '{run_id}'")
                    row = "SELECT * FROM runs WHERE run_id = ?"
                    kept = "SELECT * FROM saved WHERE run_id = ?"
                    if raw.rows(row, run_id) == raw.rows(kept, run_id):
                        continue
                    for name, ask in reads(hf, run_id).items():
                        is_search = name.startswith("of ")
                        assert await is_refused(ask) or is_search, (run_id, change, name)
                    assert (await hf.journal.read(run_id))[-1].seq == before[run_id]
                    if change != "status = 'forged'":
                        problems = await hf.journal.verify(run_id)
                        assert "wrong_row" in {each.flaw for each in problems}, change
                    tried += 1
                    await hf.reindex(run_id)
                    assert raw.rows(row, run_id) == raw.rows(kept, run_id)
        assert tried > 60


@pytest.mark.parametrize("run_id", ["ends", "blocks"])
@async_test
async def test_run_that_was_made_ready_by_hand_is_given_to_nobody(
    backend: Backend, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker rebuilds its row, and takes the run behind it that really is ready."""
    async with holdfast.Holdfast(backend.url, agents=[waiter, ender]) as hf:
        await play(hf)
        truth = await hf.runs.get(run_id)
        entries = len(await hf.journal.read(run_id))
        with backend.raw() as raw:
            raw.execute("UPDATE runs SET status = 'ready', ready_at = 1 WHERE run_id = ?", run_id)
        await hf.start(ender, "next", run_id="next")
        with pytest.raises(IndexCorrupted, match=f"store reindex {run_id}"):
            await hf.runs.get(run_id)
        async with holdfast.open(backend.url) as other:
            held = await other.leases.next(timeout_seconds=30)
            assert held is not None
            assert held.run_id == "next"
            await held.release()
        assert await hf.runs.get(run_id) == truth
        assert len(await hf.journal.read(run_id)) == entries
        assert f"the rows of run {run_id} are rebuilt from its journal" in caplog.text


@async_test
async def test_damaged_proof_is_damage_of_the_journal_and_not_of_the_row(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url, agents=[waiter, ender]) as hf:
        await play(hf)
        truth = await hf.runs.get("ends")
        with backend.raw() as raw:
            raw.execute("UPDATE journal SET proof = nonce WHERE run_id = 'ends' AND seq > 1")
        assert await hf.runs.get("ends") == truth
        problems = await hf.journal.verify("ends")
        assert {each.flaw for each in problems} == {"changed"}


@async_test
async def test_rebuilding_a_run_with_a_missing_entry_keeps_the_row_that_the_journal_confirms(
    backend: Backend,
) -> None:
    """What the missing entry did to the run cannot be replayed, and later entries confirm it."""
    clock, settings = ManualClock(), holdfast.Settings(lease_seconds=30)
    async with holdfast.open(backend.url, clock=clock, settings=settings) as hf:
        await hf.another_worker().runs.open("r")
        assert await outlive(hf, clock, lease_seconds=30) == 1
        await hf.runs.open("r")
        before = await hf.runs.get("r")
        assert before.lost == 1
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM journal WHERE kind = 'LEASE_EXPIRED'") == 1
        await hf.reindex("r")
        assert await hf.runs.get("r") == before
