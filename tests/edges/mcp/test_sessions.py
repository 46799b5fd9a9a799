"""Real client sessions that lose their server, or their client, and no run."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

import holdfast
from holdfast import faults
from holdfast.testing.store_suite import async_test
from tests.edges.mcp.driving import WIRES, Person, charges, step, told
from tests.edges.mcp.serving import started
from tests.edges.mcp.tasking import WithTasks, accepted, begun, get, shows_forms, until, update
from tests.processes import Child

KILLS = [
    ("batch.before_commit", 0),
    ("batch.after_commit", 2),
    ("commit.after_first_entry", 3),
    ("batch.before_acknowledge", 5),
    ("tool.after_call", 0),
]
MORE_KILLS = [(point, skip) for point in faults.POINTS for skip in (0, 2, 5, 8)]


class Place(NamedTuple):
    """A store, and the ledger's folder; servers over them are processes of their own."""

    store: str
    folder: Path

    @asynccontextmanager
    async def connected(self, *die: object, **options: Any) -> AsyncIterator[Client]:
        orders = (self.store, self.folder / "ledger", *die)
        async with Client(started(*orders), **options) as client:
            yield client

    def kill_server(self) -> None:
        os.kill(int((self.folder / "ledger.pid").read_text()), signal.SIGKILL)

    @property
    def charged(self) -> list[str]:
        return charges(self.folder)


@pytest.fixture
def place(store: str, tmp_path: Path) -> Place:
    return Place(store, tmp_path)


async def finish(client: Client, run_id: str, place: Place) -> dict[str, Any]:
    """Start a release, or go on with it, to its end, as a client that knows nothing would."""
    view = await told(
        client, "execute_workflow", name="release", inputs={"version": run_id}, run_id=run_id
    )
    while view["status"] not in ("completed", "failed", "cancelled"):
        if view.get("blocked_reason") == "breaker":
            async with holdfast.open(place.store) as operator:
                await operator.runs.unblock(run_id, by="ann")
        elif view["status"] == "blocked":
            found = await told(client, "list_unknown_effects", run_id=run_id)
            (effect,) = found["effects"]
            has_happened = run_id in place.charged
            outcome = "happened" if has_happened else "retry"
            result = {"result": f"charged {run_id}"} if has_happened else {}
            await told(
                client, "resolve_effect", effect_id=effect["effect_id"], outcome=outcome, **result
            )
        answers = {"approve": "yes"} if view.get("waiting") else {}
        view = await told(client, "resume_workflow", run_id=run_id, answers=answers)
    return view


@pytest.mark.mission("S1-028", "S1-030", "S1-062")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.chaos(backend=["postgres"], wire=["legacy"])
@async_test
async def test_a_server_is_killed_between_question_and_answer(place: Place, wire: str) -> None:
    async with place.connected(mode=wire) as client:
        paused = await told(client, "execute_workflow", name="release", inputs={"version": "1"})
        assert paused["status"] == "waiting"
        place.kill_server()
    async with place.connected(mode=wire) as client:
        again = await told(client, "get_run", run_id=paused["run_id"])
        assert again["waiting"] == paused["waiting"]
        ended = await told(
            client, "resume_workflow", run_id=paused["run_id"], answers={"approve": "yes"}
        )
        assert (ended["status"], ended["result"]) == ("completed", {"said": "yes"})
        same = await told(
            client, "resume_workflow", run_id=paused["run_id"], answers={"approve": "yes"}
        )
        assert same["result"] == ended["result"]
    assert place.charged == ["1"]


@pytest.mark.mission("S1-002", "S1-007")
@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_servers_that_die_at_any_point_lose_nothing_and_charge_once(
    place: Place, is_chaos: bool
) -> None:
    died = 0
    runs = [f"r{number}" for number in range(len(MORE_KILLS if is_chaos else KILLS))]
    for run_id, die in zip(runs, MORE_KILLS if is_chaos else KILLS, strict=True):
        try:
            async with place.connected(*die) as client:
                await finish(client, run_id, place)
        except (MCPError, ExceptionGroup):
            died += 1
    async with place.connected() as client:
        for run_id in runs:
            ended = await finish(client, run_id, place)
            assert (ended["status"], ended["result"]) == ("completed", {"said": "yes"})
    assert sorted(place.charged) == sorted(runs)
    assert died >= len(KILLS)


@pytest.mark.mission("S1-018")
@async_test
async def test_a_client_that_dies_loses_no_run(place: Place) -> None:
    """Killed with its server's pipe, so that the server ends too; another pair goes on."""
    with Child("tests.edges.mcp.dying_client", *place, kind="mcp") as client:
        paused = client.answer()
        assert paused["status"] == "waiting"
        client.signal(signal.SIGKILL)
        client.wait()
    async with place.connected() as other:
        listed = await told(other, "list_runs", status="waiting")
        assert [run["run_id"] for run in listed["runs"]] == [paused["run_id"]]
        ended = await told(
            other, "resume_workflow", run_id=paused["run_id"], answers={"approve": "yes"}
        )
        assert ended["result"] == {"said": "yes"}
    assert place.charged == ["1"]


@pytest.mark.mission("S1-019")
@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_two_servers_are_given_different_answers_to_one_question(place: Place) -> None:
    one, other = place.connected(), place.connected()
    async with one as first, other as second:
        paused = await told(first, "execute_workflow", name="release", inputs={"version": "1"})
        run_id = paused["run_id"]
        said = await asyncio.gather(
            first.call_tool("resume_workflow", {"run_id": run_id, "answers": {"approve": "yes"}}),
            second.call_tool("resume_workflow", {"run_id": run_id, "answers": {"approve": "no"}}),
        )
        ((winner, told_winner),) = [
            (answer, result.structured_content)
            for answer, result in zip(("yes", "no"), said, strict=True)
            if not result.is_error
        ]
        (loser,) = [result.structured_content for result in said if result.is_error]
        assert loser is not None
        assert loser["error"]["type"] == "AlreadyAnswered"
        assert told_winner is not None
        assert told_winner["result"] == {"said": winner}
    assert place.charged == (["1"] if winner == "yes" else [])


@pytest.mark.mission("S1-030", "S1-079")
@async_test
async def test_what_one_server_asked_in_a_form_another_is_answered(place: Place) -> None:
    given = {"name": "release", "inputs": {"version": "1"}}
    async with place.connected(elicitation_callback=Person()) as client:
        asked = await step(client, "execute_workflow", given)
        place.kill_server()
    filled = {"approve": types.ElicitResult(action="accept", content={"answer": "yes"})}
    async with place.connected(elicitation_callback=Person()) as client:
        ended = await step(
            client,
            "execute_workflow",
            given,
            input_responses=filled,
            request_state=asked.request_state,
        )
        assert ended.structured_content["result"] == {"said": "yes"}
    assert place.charged == ["1"]


@pytest.mark.parametrize("point", ["batch.before_begin", "batch.after_commit"])
@pytest.mark.chaos(backend=["postgres"])
@async_test
async def test_a_task_outlives_servers_that_die_while_it_is_made_and_answered(
    place: Place, point: str
) -> None:
    given = {"name": "release", "inputs": {"version": "1"}, "run_id": "r"}
    able = {"extensions": [WithTasks()], "elicitation_callback": shows_forms}
    with pytest.raises((MCPError, ExceptionGroup)):
        async with place.connected(point, 0, "idle", **able) as client:
            await begun(client, "execute_workflow", **given)
    async with place.connected(**able) as client:
        listed = await told(client, "list_runs")
        assert len(listed["runs"]) == (0 if point == "batch.before_begin" else 1)
        assert (await begun(client, "execute_workflow", **given))["taskId"] == "r"
        asked = await until(client, "r", "input_required")
        place.kill_server()
    answers = dict.fromkeys(asked["inputRequests"], accepted(answer="yes"))
    with pytest.raises((MCPError, ExceptionGroup)):
        async with place.connected(point, 0, "idle", **able) as client:
            await update(client, "r", answers)
    async with place.connected(**able) as client:
        if point == "batch.before_begin":
            assert (await get(client, "r"))["inputRequests"] == asked["inputRequests"]
        else:
            assert "inputRequests" not in await get(client, "r")
        assert await update(client, "r", answers) == {"resultType": "complete"}
        ended = await until(client, "r", "completed")
        assert ended["result"]["structuredContent"]["result"] == {"said": "yes"}
        listed = await told(client, "list_runs")
        assert [run["run_id"] for run in listed["runs"]] == ["r"]
    assert place.charged == ["1"]
