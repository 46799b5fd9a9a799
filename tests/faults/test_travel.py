"""A process that forks or rewinds a run is killed at every fault point: all of it, or nothing.

What was done outside is counted by a file that only the tools write.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Key
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start
from tests.agents.ledger import Ledger
from tests.backends import Backend
from tests.processes import Child

POINTS = (
    "batch.before_begin",
    "batch.after_begin",
    "commit.after_first_entry",
    "commit.after_entries",
    "commit.after_changes",
    "batch.before_commit",
    "batch.after_commit",
    "batch.before_acknowledge",
)
STORED = ("batch.after_commit", "batch.before_acknowledge")
# Where a commit is one statement, nothing lies inside it.
ABSENT = {"sqlite": set[str](), "postgres": set(POINTS[2:6])}


def payer(ledger: Ledger, crashes: list[str]) -> holdfast.Agent[..., Any]:
    @holdfast.tool
    async def charge(run: str, *, key: Key) -> str:
        ledger.write("charge", run, 0, key)
        return "charged"

    @holdfast.tool(repeat=True)
    async def ping(run: str, *, key: Key) -> str:
        ledger.write("ping", run, 0, key)
        return "pong"

    @holdfast.agent(tools=[charge, ping])
    async def agent(run: holdfast.Run, name: str) -> list[str]:
        plan = run.value("plan", str, "")
        if run.is_fresh:
            plan.set("first")
            run.log("talk", str).append("begun")
            await run.checkpoint()
        done = [await run.call(charge, name), await run.call(ping, name), plan.get()]
        if name in crashes:
            crashes.remove(name)
            raise Crash
        return done

    return agent


async def prepare(hf: holdfast.Holdfast, agent: holdfast.Agent[..., Any], run_id: str) -> None:
    """A run that has charged and pinged, and stands."""
    await start(hf, agent, run_id, run_id=run_id)
    assert await advance(hf, run_id) is None
    async with asyncio.timeout(60):  # outcomes are stored a moment after they are there
        while {e.status for e in await hf.effects.of_run(run_id)} != {"completed"}:
            await asyncio.sleep(0.01)
    await hf.runs.block(run_id, "budget")


async def links(hf: holdfast.Holdfast, run_id: str) -> Sequence[bytes]:
    return [entry.link for entry in await hf.journal.read(run_id)]


@pytest.mark.parametrize("verb", ["fork", "rewind"])
@async_test
async def test_killed_travel_is_stored_whole_or_not_at_all(
    verb: str, backend: Backend, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    crashes = list(POINTS)
    agent = payer(ledger, crashes)
    name = "postgres" if backend.url.startswith("postgres") else "sqlite"
    child = Child("tests.faults.traveller", backend.url)
    try:
        async with holdfast.Holdfast(backend.url, agents=[agent]) as hf:
            for point in POINTS:
                await prepare(hf, agent, point)
                before = await links(hf, point)
                given: dict[str, Any] = {"version": 1, "by": "ann", "edits": {"plan": "second"}}
                if verb == "fork":
                    given["new_run_id"] = f"f-{point}"
                ended = child.ask([verb, point, given, point])
                assert ended == -signal.SIGKILL or point in ABSENT[name], point
                moved = f"f-{point}" if verb == "fork" else point
                ids = [run.run_id for run in await hf.runs.list()]
                after = await links(hf, point)
                is_stored = point in STORED or ended == 0
                if verb == "fork":
                    assert after == before
                    assert (moved in ids) is is_stored
                else:
                    assert after[: len(before)] == before
                    assert len(after) - len(before) == (3 if is_stored else 0)
                if not is_stored:
                    await getattr(hf.runs, verb)(point, **given)
                await advance(hf, moved)
                assert await hf.runs.result(moved) == ["charged", "pong", "second"]
                for run_id in {point, moved}:
                    assert await hf.journal.verify(run_id) == []
    finally:
        child.close()
    once = {(point, 0): 1 for point in POINTS}
    assert ledger.count("charge") == once
    assert ledger.count("ping") == once
