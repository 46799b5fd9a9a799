"""Rows of effects are changed behind Holdfast's back: nothing is paid again because of it."""

from pathlib import Path

import pytest

import holdfast
from holdfast import EffectRequest
from holdfast.errors import IndexCorrupted, IntegrityError
from holdfast.testing.store_suite import async_test
from tests.agents.resting import until_it_waits
from tests.backends import Backend
from tests.recovery.test_index_attacks import columns

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


@async_test
async def test_no_column_of_an_effect_is_believed_when_its_key_is_looked_up(
    backend: Backend,
) -> None:
    """A call with a key that is taken gets the outcome of that call, and of no other."""
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        requests = [EffectRequest(tool="pay", key=key) for key in ("done", "doubtful", "running")]
        done, doubtful, _ = await run.begin_effects(requests)
        await run.finish_effect(done, "paid")
        await run.doubt_effect(doubtful)
        truth = {each.key: await hf.effects.find(each.key) for each in requests}
        tried = 0
        with backend.raw() as raw:
            raw.execute("CREATE TEMP TABLE saved AS SELECT * FROM effects")
            for table, column, is_number in columns(raw, backend):
                if table != "effects" or column in ("id", "tenant"):
                    continue
                other = OTHER_ID[backend.name] if column == "effect_id" else "'forged'"
                for value in VALUES.get(column, ["{} + 7" if is_number else other]):
                    for key in truth:
                        change = f"{column} = {value.format(column)}"
                        raw.execute(f"UPDATE effects SET {change} WHERE key = '{key}'")
                        asked = "forged" if column == "key" else key
                        assert await found(hf, asked) in (truth[key], "error"), change
                        assert asked != "forged" or await found(hf, asked) == "error"
                        tried += 1
                        raw.execute("DELETE FROM effects")
                        raw.execute("INSERT INTO effects SELECT * FROM saved")
        assert tried > 30


HIDDEN = [
    "DELETE FROM effects WHERE key = 'k'",
    "UPDATE effects SET status = 'not_done' WHERE key = 'k'",
    "UPDATE effects SET status = 'not_done', result_seq = 0 WHERE key = 'k'",
    "UPDATE effects SET status = 'not_done', result_seq = 5 WHERE key = 'k'",
    "UPDATE effects SET key = 'other' WHERE key = 'k'",
]


@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
@pytest.mark.parametrize("forged", HIDDEN)
@async_test
async def test_key_in_the_journal_is_not_free_because_its_row_is_hidden(
    backend: Backend, forged: str, beside: int
) -> None:
    """A second intent is refused, whether it is committed alone or with another."""
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        (paid,) = await run.begin_effects([EffectRequest(tool="pay", key="k")])
        await run.finish_effect(paid, "paid")
        (declined,) = await run.begin_effects([EffectRequest(tool="pay", key="declined")])
        await run.abandon_effect(declined)
        with backend.raw() as raw:
            assert raw.execute(forged) == 1
        other = await hf.runs.open("other")
        again = [EffectRequest(tool="pay", key=key) for key in ("k", "fresh")[: 1 + beside]]
        for writer in (run, other):
            with pytest.raises(IndexCorrupted, match="store reindex"):
                await writer.begin_effects(again)
        await hf.reindex("r")
        begun = await other.begin_effects(again)
        assert (begun[0].answer, begun[0].result) == ("done", "paid")


@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "beside another"])
@async_test
async def test_key_that_only_a_forged_row_has_is_reported_and_not_issued(
    backend: Backend, beside: int
) -> None:
    """Whether its intent is committed alone or with another."""
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("r")
        await run.begin_effects([EffectRequest(tool="pay", key="k")])
        with backend.raw() as raw:
            assert raw.execute("UPDATE effects SET key = 'free'") == 1
        other = await hf.runs.open("other")
        wanted = [EffectRequest(tool="pay", key=key) for key in ("free", "fresh")[: 1 + beside]]
        with pytest.raises(IndexCorrupted, match="store reindex"):
            await other.begin_effects(wanted)
        await hf.reindex("r")
        assert {begun.answer for begun in await other.begin_effects(wanted)} == {"fresh"}


@async_test
async def test_effect_that_was_not_done_can_be_issued_again_and_again(backend: Backend) -> None:
    """Also after its rows were rebuilt, and in another run."""
    async with holdfast.open(backend.url) as hf:
        run, other = await hf.runs.open("r"), await hf.runs.open("other")
        for writer in (run, run, other, run):
            (tried,) = await writer.begin_effects([EffectRequest(tool="pay", key="k")])
            assert tried.answer == "fresh"
            await writer.abandon_effect(tried)
            await hf.reindex("r")
        (tried,) = await run.begin_effects([EffectRequest(tool="pay", key="k")])
        await run.finish_effect(tried, "paid")
        await hf.reindex("r")
        (again,) = await other.begin_effects([EffectRequest(tool="pay", key="k")])
        assert (again.answer, again.result) == ("done", "paid")
        assert await hf.journal.verify("r") == []


VALUES = {
    "status": ["'completed'", "'unknown'"],
    "run_id": ["'r2'"],
    "args_digest": ["substr({}, 2)"],
}
OTHER_ID = {"sqlite": "zeroblob(16)", "postgres": "gen_random_uuid()"}


async def found(hf: holdfast.Holdfast, key: str) -> object:
    try:
        return await hf.effects.find(key)
    except IntegrityError:
        return "error"
