"""Rows of effects are changed behind Holdfast's back: going back does not pay again."""

from pathlib import Path

import pytest

import holdfast
from holdfast.errors import IndexCorrupted
from holdfast.testing.store_suite import async_test
from tests.agents.resting import until_it_waits
from tests.backends import Backend

FORGED = [
    "DELETE FROM effects",
    "UPDATE effects SET status = 'not_done'",
    "UPDATE effects SET status = 'issued', result_seq = 0, settled_at = 0",
    "UPDATE effects SET key = 'forged'",
    "UPDATE effects SET tool = 'forged'",
    "UPDATE effects SET issued_seq = issued_seq + 1",
]


def shop(ledger: Path) -> holdfast.Agent[..., str]:
    @holdfast.tool(effect="mutate")
    async def charge(order: str, *, key: holdfast.Key) -> str:
        with ledger.open("a") as file:
            file.write(f"{order}\n")
        return "paid"

    @holdfast.agent(tools=[charge])
    async def sell(run: holdfast.Run, order: str) -> str:
        seen = run.value("seen", int, 0)
        if not seen.get():
            seen.set(1)
            await run.checkpoint()
        paid = await run.call(charge, order)
        await run.ask("well?", schema=str)
        return paid

    return sell


@pytest.mark.parametrize("way", ["fork", "rewind"])
@pytest.mark.parametrize("forged", FORGED)
@async_test
async def test_effect_is_not_made_again_because_its_row_was_forged(
    backend: Backend, tmp_path: Path, forged: str, way: str
) -> None:
    ledger = tmp_path / "ledger"
    sell = shop(ledger)

    async def go_back(hf: holdfast.Holdfast) -> str:
        if way == "fork":
            return (await hf.runs.fork("r", 1, new_run_id="again")).run_id
        await hf.runs.rewind("r", 1, by="ann")
        return "r"

    async with holdfast.Holdfast(backend.url, agents=[sell]) as hf:
        await until_it_waits(hf, await hf.start(sell, "order", run_id="r"))
        assert ledger.read_text() == "order\n"
        with backend.raw() as raw:
            assert raw.execute(forged) == 1
        with pytest.raises(IndexCorrupted, match="store reindex"):
            await go_back(hf)
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.reindex("r")
        run_id = await go_back(hf)
        handle = await hf.start(sell, "order", run_id=run_id)
        await until_it_waits(hf, handle)
        (asked,) = await hf.approvals.list(run_id=run_id)
        await hf.approvals.answer(asked.wait_id, "yes", by="ann")
        assert await handle.result() == "paid"
        assert ledger.read_text() == "order\n"
