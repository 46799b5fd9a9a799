"""Poolers that hand out servers per transaction: sessions forget, and belong to others."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from tests.pooler import TransactionPooler
from tests.postgres import check_whole, pooled, save


async def check_everything(hf: holdfast.Holdfast) -> None:
    """A bit of everything, several at once."""
    runs = await asyncio.gather(*(hf.runs.open(f"run-{n}") for n in range(6)))
    for turn in range(3):
        await asyncio.gather(*(save(run, turn) for run in runs))
    (begun,) = await runs[0].begin_effects([holdfast.EffectRequest(tool="t")])
    await runs[0].finish_effect(begun, "result")
    (again,) = await runs[0].begin_effects([holdfast.EffectRequest(tool="t")])
    assert (again.answer, again.result) == ("done", "result")
    specs = [holdfast.WaitSpec(wait_id=f"w{n}") for n in range(6)]
    group = await runs[1].open_waits(specs, suspend=True)
    await asyncio.gather(*(hf.waits.resolve(f"w{n}", n) for n in range(6)))
    assert [r.value for r in await hf.waits.results("run-1", group)] == list(range(6))
    held = await hf.leases.next()
    assert held is not None
    assert held.run_id == "run-1"
    await hf.reindex("run-1")
    for run in runs:
        await check_whole(hf, run.run_id, [0, 1, 2])


@async_test
async def test_pooler_that_keeps_no_session_is_worked_with_and_warned_of(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with TransactionPooler(postgres_url) as pooler:
        async with holdfast.open(pooler.url) as hf:
            await check_everything(hf)
        assert pooler.transactions > 50
    warned = [record.message for record in caplog.records if record.name == "holdfast"]
    assert len([said for said in warned if "does not keep prepared statements" in said]) == 1
    assert "prepared_statements=False" in caplog.text


@async_test
async def test_pooler_that_is_told_of_causes_no_warning(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    unprepared = holdfast.Settings(prepared_statements=False)
    with TransactionPooler(postgres_url) as pooler:
        async with holdfast.open(pooler.url, settings=unprepared) as hf:
            await check_everything(hf)
    assert caplog.records == []


@pytest.mark.parametrize("statement", [b"DEALLOCATE ALL", b"DISCARD ALL", b"RESET ALL"])
@async_test
async def test_sessions_that_forget_between_transactions_are_worked_with(
    statement: bytes, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with holdfast.open(postgres_url) as hf:
        pool = hf._context.store._connections._pool  # type: ignore[attr-defined]
        putconn = pool.putconn

        async def forget(connection: Any) -> None:
            if not connection.closed:
                connection.pgconn.exec_(statement)
            await putconn(connection)

        pool.putconn = forget
        await check_everything(hf)
    assert ("prepared statements" in caplog.text) is (statement != b"RESET ALL")


@async_test
async def test_prepared_statement_of_another_client_is_never_taken_for_ones_own(
    postgres_url: str,
) -> None:
    """Drivers number them: behind a pooler a session may have another client's number 7."""
    async with holdfast.open(postgres_url) as hf:
        for name in ("a", "b"):
            await hf.runs.create(name)
        for _ in range(2):
            assert (await hf.runs.get("a")).run_id == "a"
        columns = ", ".join(holdfast.RunRow.__struct_fields__)
        for connection in pooled(hf):
            connection.pgconn.exec_(b"DEALLOCATE ALL")
            for number in range(200):
                sql = f"SELECT {columns} FROM runs WHERE tenant = $1 AND run_id = 'b' AND $2 <> ''"
                prepare = f"PREPARE _pg3_{number} (text, text) AS {sql}"
                assert connection.pgconn.exec_(prepare.encode()).status == 1
        assert (await hf.runs.get("a")).run_id == "a"
