"""Whose a run is: told when it is started, handed to all that it begins, and listed by."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import sync
from holdfast.agents.work.schedule_times import ScheduleSpec
from holdfast.agents.work.schedules import AGENT, ScheduleChange
from holdfast.clock import from_datetime
from holdfast.errors import InputDiffers, InvalidIdentifier
from holdfast.stores.sqlfiles import load_queries
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Block
from tests.agents.crashing import advance
from tests.backends import Backend, SQLiteBackend
from tests.workflows.flows import flow, opened, prompt

NINE = from_datetime(datetime(2026, 11, 16, 9, 0, tzinfo=UTC))


@holdfast.agent
async def asker(run: holdfast.Run, what: str = "sure") -> str:
    return await run.ask(f"{what}?", schema=str)


@holdfast.agent
async def caller(run: holdfast.Run) -> str:
    return await run.peer(asker, "peer")


@holdfast.agent
async def quick(run: holdfast.Run) -> str:
    return "done"


async def owners(hf: holdfast.Holdfast) -> dict[str, str]:
    return {run.run_id: run.owner for run in await hf.runs.list()}


@async_test
async def test_peers_children_and_forks_are_the_owners(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url, agents=[asker, caller]) as hf:
        await hf.start(caller, run_id="r", owner="ann")
        await advance(hf, "r")
        (peer,) = await hf.runs.list(parent_id="r")
        await hf.start(asker, run_id="child", parent="r")
        await hf.runs.fork("r", 0, new_run_id="fork")
        await hf.runs.create("other", parent_id="r", owner="bob")
        await hf.start(asker, run_id="plain")
        mine = dict.fromkeys(("r", peer.run_id, "child", "fork"), "ann")
        assert await owners(hf) == mine | {"other": "bob", "plain": ""}
        with backend.raw() as raw:
            raw.execute("UPDATE runs SET owner = 'mallory'")
        for run_id in ("r", peer.run_id, "child", "fork", "other", "plain"):
            await hf.reindex(run_id)
        assert await owners(hf) == mine | {"other": "bob", "plain": ""}
        assert [await hf.journal.verify(run_id) for run_id in mine] == [[]] * 4


@async_test
async def test_runs_below_a_workflow_are_its_owners() -> None:
    child = flow(
        prompt("ask"), Block(id="who", type="Agent", inputs={"agent": "asker"}), name="below"
    )
    parent = flow(Block(id="sub", type="Workflow", inputs={"workflow": "below"}))
    async with opened("memory://", definitions=[child], agents=[asker]) as hf:
        started = await hf.workflows.start(parent, run_id="first", owner="ann")
        assert started.run_id == "first"
        await hf.workflows.run(parent, run_id="first", owner="ann")
        await hf.workflows.run(flow(prompt("ask"), name="alone"), run_id="second")
        found = await owners(hf)
        assert found.pop("second") == ""
        assert len(found) == 3
        assert set(found.values()) == {"ann"}
        with pytest.raises(InputDiffers, match="is taken"):
            await hf.workflows.start(parent, run_id="first", owner="bob")


@async_test
async def test_id_of_a_run_of_somebody_else_is_taken() -> None:
    async with holdfast.Holdfast("memory://", agents=[asker, caller]) as hf:
        await hf.start(asker, "a", run_id="r", owner="ann")
        await hf.start(asker, "a", run_id="plain")
        again = await hf.start(asker, "a", run_id="r", owner="ann")
        nobody = await hf.start(asker, "a", run_id="r")
        assert again.run_id == nobody.run_id == "r"
        for asked in (asker.input_of(("a",), {}), asker.input_of(("b",), {})):
            with pytest.raises(InputDiffers, match="run id 'r' is taken") as refused:
                await hf._work.create(asker, asked, "r", owner="bob")
            assert "ann" not in str(refused.value)
        with pytest.raises(InputDiffers, match="is taken") as refused:
            await hf.run(caller, run_id="r", owner="bob")
        assert "asker" not in str(refused.value), "not even what it is, is told"
        with pytest.raises(InputDiffers, match="is taken"):
            await hf.start(asker, "a", run_id="plain", owner="bob")
        with pytest.raises(InvalidIdentifier, match="owner"):
            await hf.start(asker, "a", owner="a\nb")
        assert await owners(hf) == {"r": "ann", "plain": ""}


@async_test
async def test_questions_of_an_owner_are_listed_the_oldest_first(store: str) -> None:
    clock = ManualClock()
    async with holdfast.Holdfast(store, agents=[asker, caller], clock=clock) as hf:
        for at, owner in enumerate(("bob", "ann", "", "ann")):
            await hf.start(asker, f"q{at}", run_id=f"r-{at}", owner=owner)
            await advance(hf, f"r-{at}")
            clock.advance(1)
        await hf.start(caller, run_id="r", owner="ann")
        await advance(hf, "r")
        (peer,) = await hf.runs.list(parent_id="r")
        await advance(hf, peer.run_id)

        async def asked(**wanted: Any) -> list[str]:
            return [each.prompt for each in await hf.approvals.list(**wanted)]

        assert await asked(owner="ann") == ["q1?", "q3?", "peer?"]
        assert await asked(owner="ann", limit=1) == ["q1?"]
        first = await hf.waits.get((await hf.approvals.list(owner="ann"))[0].wait_id)
        rest = await hf._context.store.waits.open_questions(
            "ann", after=(first.opened_at, first.wait_id), limit=1
        )
        assert [wait.run_id for wait in rest] == ["r-3"]
        assert await asked(owner="eve") == []
        assert await asked(run_id="r", owner="ann") == ["peer?"]
        assert await asked(run_id="r", owner="bob") == []
        assert await asked(run_id="none", owner="bob") == []
        assert len(await asked()) == 5
        await hf.approvals.answer(first.wait_id, "yes", by="ann")
        assert await asked(owner="ann") == ["q3?", "peer?"]


@async_test
async def test_runs_of_a_schedule_are_its_owners() -> None:
    clock = ManualClock(NINE)
    async with holdfast.Holdfast("memory://", agents=[asker], clock=clock) as hf:
        spec = ScheduleSpec(agent="asker", input={"what": "x"}, every_seconds=60)
        change = {"change": ScheduleChange(spec, clock.now())}
        await hf.schedule(asker, name="plain", every_seconds=60)
        await hf.runs.create("schedule:daily", agent=AGENT, input=change, owner="ann")
        for _ in range(2):
            await hf.waits.expire_due()
            for run_id in ("schedule:daily", "schedule:plain"):
                await advance(hf, run_id)
            clock.advance(61)
        found = {run_id.partition("@")[0]: owner for run_id, owner in (await owners(hf)).items()}
        assert (found["daily"], found["plain"]) == ("ann", "")


def test_blocking_face_tells_owners() -> None:
    with sync.open("memory://", agents=[quick]) as hf:
        assert hf.start(quick, run_id="r", owner="ann").run_id == "r"
        assert hf.run(quick, run_id="r", owner="ann") == "done"
        assert [run.owner for run in hf.runs.list(owner="ann")] == ["ann"]
        assert hf.approvals.list(owner="bob") == []


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("list_runs_by_owner", "runs_by_owner (tenant=? AND owner=? AND (created_at,run_id)<"),
        ("list_open_questions_of_owner", "waits_for_people (tenant=? AND (opened_at,wait_id)>"),
        ("list_open_effects_of_owner", "effects_open (tenant=? AND status=?"),
    ],
)
def test_what_is_an_owners_is_found_by_an_index(tmp_path: Path, query: str, index: str) -> None:
    with sync.open(f"sqlite:///{tmp_path / 'o.db'}") as hf:
        hf.runs.create("r", owner="ann")
    with SQLiteBackend(tmp_path / "o.db").raw() as raw:
        sql = load_queries("holdfast.stores.sqlite")[query]
        given = max(int(number) for number in re.findall(r"\?(\d)", sql))
        plan = raw.rows(f"EXPLAIN QUERY PLAN {sql}", *["x"] * given)
    assert any(index in row[3] for row in plan), plan
    assert not any("TEMP B-TREE" in row[3] for row in plan), plan
