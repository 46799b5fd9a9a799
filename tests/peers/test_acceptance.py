"""When a task is stored and acknowledged: at its acceptance, or at its first boundary; and what
happens when it cannot be stored."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.messages import peers
from holdfast.errors import RunFailed
from holdfast.settings import Settings
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds
from tests.backends import SQLiteBackend
from tests.conftest import OwnPostgres
from tests.peers.exchanging import served, until, write_lock


@holdfast.agent
async def caller(run: holdfast.Run, agent: str) -> Any:
    return await run.peer(agent, "gold")


def requests(transport: str, agent: str) -> int:
    """How many requests for an agent nobody has acknowledged."""
    with SQLiteBackend(Path(transport.removeprefix("sqlite:///"))).raw() as raw:
        sql = "SELECT count(*) FROM messages WHERE queue = ? AND status <> 'done'"
        ((count,),) = raw.rows(sql, f"agents.{agent}")
    return count


@pytest.mark.mission("S0-006")
@async_test
async def test_task_without_a_boundary_is_one_commit_at_its_end(
    store: str, elsewhere: str, transport: str
) -> None:
    stored: list[int] = []

    @holdfast.agent(cadence="boundary")
    async def quick(run: holdfast.Run, question: str) -> str:
        await run.step(asyncio.sleep, 0)
        await run.checkpoint()
        stored.append(len(await hf.runs.list()))
        return f"found {question}"

    async with (
        served(elsewhere, transport, [caller]) as theirs,
        served(store, transport, [quick]) as hf,
    ):
        assert await theirs.run(caller, "quick", timeout=30) == "found gold"
        assert stored == [0]
        (run,) = await hf.runs.list()
        assert await kinds(hf, run.run_id) == ["RUN_CREATED", "RUN_LEASED", "RUN_COMPLETED"]
        assert await hf.journal.verify(run.run_id) == []


@pytest.mark.mission("S0-010")
@async_test
async def test_task_with_an_effect_is_stored_before_the_effect(
    store: str, elsewhere: str, transport: str
) -> None:
    stored: list[int] = []

    @holdfast.tool(effect="mutate")
    async def pay(cents: int) -> str:
        stored.append(len(await hf.runs.list()))
        return "paid"

    @holdfast.agent(cadence="boundary", tools=[pay])
    async def payer(run: holdfast.Run, question: str) -> str:
        return await run.call(pay, 5)

    async with (
        served(elsewhere, transport, [caller]) as theirs,
        served(store, transport, [payer]) as hf,
    ):
        assert await theirs.run(caller, "payer", timeout=30) == "paid"
        assert stored == [1]


@pytest.mark.mission("S0-010", "S0-013")
@async_test
async def test_task_that_was_lost_before_its_boundary_comes_again(
    store: str, elsewhere: str, transport: str
) -> None:
    begun = asyncio.Event()
    tries: list[str] = []

    @holdfast.agent(cadence="boundary")
    async def slow(run: holdfast.Run, question: str) -> str:
        tries.append(run.run_id)
        if len(tries) == 1:
            begun.set()
            await asyncio.sleep(3600)
        return f"found {question}"

    async with served(elsewhere, transport, [caller]) as theirs:
        handle = await theirs.start(caller, "slow")
        async with served(store, transport, [slow]) as hf:
            await asyncio.wait_for(begun.wait(), 60)
            left = await hf.runs.list(), requests(transport, "slow")
            await hf._work.cancel_passes()  # pyright: ignore[reportPrivateUsage] - the process ends here
            assert left == ([], 1), "nothing is stored, and nothing acknowledged"
        async with served(store, transport, [slow]) as hf:
            assert await handle.result(timeout=30) == "found gold"
            assert len(tries) == 2
            assert len(await hf.runs.list()) == 1

            async def is_acknowledged() -> bool:
                return requests(transport, "slow") == 0

            assert await until(is_acknowledged)


@async_test
async def test_request_that_is_worked_on_twice_has_one_run_and_one_answer(
    store: str, elsewhere: str, transport: str
) -> None:
    """Two instances are given the same request: the first commit has the run."""
    both, begun = asyncio.Event(), []

    @holdfast.agent(cadence="boundary")
    async def twin(run: holdfast.Run, question: str) -> str:
        begun.append(run.run_id)
        if len(begun) == 2:
            both.set()
        await both.wait()
        return f"found {question}"

    async with (
        served(elsewhere, transport, [caller]) as theirs,
        served(store, transport, [twin]) as one,
        served(store, transport, [twin]) as two,
    ):
        handle = await theirs.start(caller, "twin")

        async def is_begun() -> Any:
            return begun

        (run_id,) = (await until(is_begun))[:1]
        working = [hf for hf in (one, two) if hf._work._passes]  # pyright: ignore[reportPrivateUsage] - which of them works on it
        other = two if working[0] is one else one
        created = await peers.creation(
            other._context,  # pyright: ignore[reportPrivateUsage] - of a second delivery
            agent="twin",
            given="gold",
            reply_to="queue:replies.nobody",
        )
        again = asyncio.create_task(other._work.take_in(run_id, created, "gold"))  # pyright: ignore[reportPrivateUsage] - a second delivery
        await both.wait()
        outcomes = {await again}
        await until(one.runs.list)
        (run,) = await one.runs.list()
        assert run.run_id == run_id
        assert (await kinds(one, run_id)).count("RUN_COMPLETED") == 1
        assert outcomes <= {True, False}
        if run.reply_to.endswith("nobody"):
            await theirs.runs.cancel(handle.run_id)
        else:
            assert await handle.result(timeout=30) == "found gold"


@async_test
async def test_second_writer_of_a_request_is_fenced_while_the_first_goes_on(store: str) -> None:
    """Both have the lease of the same entry in mind; only one of them has stored it."""
    is_first_stored, is_second_over = asyncio.Event(), asyncio.Event()
    entered: list[str] = []

    @holdfast.agent(cadence="boundary")
    async def twin(run: holdfast.Run, question: str) -> str:
        entered.append(question)
        run.value("by", str, "").set(question)
        if question == "first":
            await run.checkpoint(label="stored")
            is_first_stored.set()
            await is_second_over.wait()
        else:
            await is_first_stored.wait()
            await run.checkpoint(label="stored")
        return question

    async with holdfast.Holdfast(store, agents=[twin]) as hf:
        works = [hf._work, hf.another_worker()._work]  # pyright: ignore[reportPrivateUsage] - two deliveries
        first, second = [
            asyncio.create_task(
                work.take_in(
                    "r",
                    await peers.creation(
                        work.context, agent="twin", given=name, reply_to="queue:replies.x"
                    ),
                    name,
                )
            )
            for work, name in zip(works, ("first", "second"), strict=True)
        ]
        assert await first
        assert not await second
        is_second_over.set()
        assert await hf.run(twin, "first", run_id="r", timeout=30) == "first"
        assert (await hf.checkpoints.load("r"))["by"] == "first"
        assert sorted(entered) == ["first", "second"]
        assert await hf.journal.verify("r") == []


@pytest.mark.mission("S0-023")
@async_test
async def test_request_is_not_acknowledged_while_its_task_goes_on_in_memory(
    tmp_path: Path, elsewhere: str, transport: str
) -> None:
    path, seen = tmp_path / "store.db", list[Any]()

    @holdfast.agent(cadence="boundary")
    async def patient(run: holdfast.Run, question: str) -> str:
        async with write_lock(path):
            seen.append(await run.checkpoint(label="found"))
            seen.append(requests(transport, "patient"))
        return f"found {question}"

    busy: Any = {"on_store_failure": "memory", "busy_timeout_seconds": 0.2}
    async with (
        served(elsewhere, transport, [caller]) as theirs,
        served(str(path), transport, [patient], **busy),
    ):
        assert await theirs.run(caller, "patient", timeout=60) == "found gold"
        assert seen == [None, 1]

        async def is_acknowledged() -> bool:
            return requests(transport, "patient") == 0

        assert await until(is_acknowledged)


@pytest.mark.mission("S0-023", "S0-076", "X-009")
@async_test
async def test_agent_goes_on_in_memory_while_its_store_is_busy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, seen = tmp_path / "store.db", list[Any]()

    @holdfast.agent
    async def patient(run: holdfast.Run) -> str:
        talk = run.log("talk", str)
        talk.append("first")
        async with write_lock(path):
            seen.append(await run.checkpoint())
            talk.append("second")
        return " ".join(talk)

    settings = Settings(on_store_failure="memory", busy_timeout_seconds=0.2)
    async with holdfast.Holdfast(str(path), agents=[patient], settings=settings) as hf:
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert await hf.run(patient, run_id="r", timeout=60) == "first second"
        assert seen == [None]
        assert (await hf.checkpoints.load("r"))["talk"] == ["first", "second"]
        assert await hf.journal.verify("r") == []
        assert any("goes on in memory" in record.getMessage() for record in caplog.records)


@async_test
async def test_agent_outlasts_a_server_that_is_killed_and_comes_back(
    own_postgres: OwnPostgres,
) -> None:
    server = own_postgres()
    entered: list[int] = []

    @holdfast.agent
    async def patient(run: holdfast.Run) -> str:
        entered.append(1)
        talk = run.log("talk", str)
        talk.append("first")
        server.kill()
        asyncio.get_running_loop().call_later(1.0, server.restart)
        await run.checkpoint()
        talk.append("second")
        return " ".join(talk)

    settings = Settings(on_store_failure="memory", busy_timeout_seconds=0.3, lease_seconds=60)
    async with holdfast.Holdfast(server.url(), agents=[patient], settings=settings) as hf:
        assert await hf.run(patient, run_id="r", timeout=60) == "first second"
        assert (await hf.checkpoints.load("r"))["talk"] == ["first", "second"]
        assert entered == [1]


@pytest.mark.mission("X-009")
@async_test
async def test_agent_stops_by_default_when_its_store_is_away(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    entered: list[int] = []

    @holdfast.agent
    async def careful(run: holdfast.Run) -> str:
        entered.append(len(entered))
        if len(entered) == 1:
            server.kill()
            try:
                run.value("x", int, 0).set(1)
                await run.checkpoint()
            finally:
                server.restart()
        return "done"

    settings = Settings(busy_timeout_seconds=0.3, lease_seconds=2)
    async with holdfast.Holdfast(server.url(), agents=[careful], settings=settings) as hf:
        try:
            answer = await hf.run(careful, run_id="r", timeout=60)
        except (RunFailed, holdfast.errors.UnavailableError):
            answer = await hf.run(careful, run_id="r", timeout=60)
        assert answer == "done"
        assert len(entered) == 2
