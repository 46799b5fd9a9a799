"""Calls of peers that do not share a store: through a transport, once, whatever it does twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.replies import PeerReply
from holdfast.errors import PeerFailed, PeerTimedOut
from holdfast.peers import envelopes, open_transport
from holdfast.peers.envelopes import Cancel, Reply, Request
from holdfast.testing.store_suite import async_test
from tests.peers.exchanging import served, until


@pytest.fixture
def transport(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/between.db"


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    return str(tmp_path / "elsewhere.db")


@holdfast.agent
async def research(run: holdfast.Run, question: str) -> str:
    run.artifacts.append({"about": question})
    if question == "tin":
        raise ValueError("no such source")
    return f"found {question}"


@holdfast.agent
async def caller(run: holdfast.Run, questions: list[str]) -> list[Any]:
    async def one(question: str) -> str:
        try:
            return await run.peer("research", question)
        except PeerFailed as error:
            return str(error)

    answers = await run.gather(*map(one, questions))
    return [*answers, *run.artifacts]


@pytest.mark.mission("S0-016")
@async_test
async def test_calls_go_out_after_the_commit_and_answers_come_back(
    store: str, elsewhere: str, transport: str
) -> None:
    async with (
        served(store, transport, [caller]) as hf,
        served(elsewhere, transport, [research]) as theirs,
    ):
        answers = await hf.run(caller, ["gold", "tin"], run_id="r", timeout=30)
        assert answers == [
            "found gold",
            "Request to peer agent tool 'research' failed: ValueError: no such source",
            {"about": "gold"},
        ]
        waits = await hf.waits.of_run("r")
        assert {wait.address for wait in waits} == {"queue:agents.research"}
        for wait in waits:
            assert (await theirs.runs.get(wait.wait_id)).agent == "research"
            assert await hf.runs.list(agent="research") == []


@async_test
async def test_peer_that_comes_later_finds_the_request(
    store: str, elsewhere: str, transport: str
) -> None:
    async with served(store, transport, [caller]) as hf:
        handle = await hf.start(caller, ["gold"], run_id="r")
        async with served(elsewhere, transport, [research]):
            assert (await handle.result(timeout=30))[0] == "found gold"


@pytest.mark.mission("S2-023", "S2-030", "S2-031")
@async_test
async def test_timeout_cancels_the_peer_elsewhere_and_its_late_reply_is_ignored(
    store: str, elsewhere: str, transport: str
) -> None:
    begun = asyncio.Event()

    @holdfast.agent
    async def slow(run: holdfast.Run, question: str) -> None:
        begun.set()
        await asyncio.sleep(3600)

    @holdfast.agent
    async def asker(run: holdfast.Run) -> str:
        try:
            return await run.peer("slow", "gold", timeout=1)
        except PeerTimedOut as error:
            return str(error)

    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [slow]) as theirs,
    ):
        answer = await hf.run(asker, run_id="r", timeout=30)
        assert answer == "Request to peer agent tool 'slow' timed out after 1 seconds."
        assert begun.is_set()
        (wait,) = await hf.waits.of_run("r")

        async def is_cancelled() -> bool:
            return (await theirs.runs.get(wait.wait_id)).status == "cancelled"

        await until(is_cancelled)
        late = await hf.waits.resolve(wait.wait_id, PeerReply(status="completed", value="late"))
        assert not late.accepted
        assert await hf.runs.result("r") == answer


@pytest.mark.mission("S0-020")
@async_test
async def test_everything_twice_and_out_of_order_counts_once(
    store: str, elsewhere: str, transport: str
) -> None:
    between = open_transport(transport)
    await between.open()
    async with served(store, transport, [caller]) as hf:
        await hf.start(caller, ["gold"], run_id="r")

        async def is_left() -> Any:
            return await hf.waits.of_run("r")

        (wait,) = await until(is_left)
        queue = envelopes.queue_of_store("default", await hf._context.store.store_id())  # pyright: ignore[reportPrivateUsage] - where its replies go
        reply = Reply(wait_id=wait.wait_id, reply=PeerReply(status="completed", value="first"))
        other = Reply(wait_id=wait.wait_id, reply=PeerReply(status="completed", value="second"))
        await between.publish(queue, envelopes.encode(reply), key="1")
        await between.publish(queue, envelopes.encode(reply), key="2")
        await between.publish(queue, b"\xc1 no envelope", key="3")
        assert (await hf.run(caller, ["gold"], run_id="r", timeout=30))[0] == "first"
        await between.publish(queue, envelopes.encode(other), key="4")

        async def are_counted() -> bool:
            return (await hf.waits.get(wait.wait_id)).duplicates == 2

        await until(are_counted)
        assert (await hf.runs.result("r"))[0] == "first"

        async def is_buried() -> Any:
            return await between.dead_letters(queue)

        (dead,) = await until(is_buried)
        assert dead.key == "3"
        assert "no message between agents" in dead.reason
    await between.close()


@pytest.mark.mission("S0-090")
@async_test
async def test_cancel_that_overtakes_its_request_stops_it_all_the_same(
    elsewhere: str, transport: str
) -> None:
    between = open_transport(transport)
    await between.open()
    async with served(elsewhere, transport, [research]) as theirs:
        queue = envelopes.queue_of_agent("default", "research")
        cancel = Cancel(wait_id="w", agent="research")
        await between.publish(queue, envelopes.encode(cancel), key="w/cancel")

        async def is_there() -> bool:
            return any(run.run_id == "w" for run in await theirs.runs.list())

        await until(is_there)
        request = Request(wait_id="w", agent="research", input="gold", reply_to="queue:replies.x")
        await between.publish(queue, envelopes.encode(request), key="w")
        again = Request(wait_id="v", agent="research", input="gold", reply_to="queue:replies.x")
        await between.publish(queue, envelopes.encode(again), key="v")

        async def is_done() -> bool:
            return any(run.run_id == "v" for run in await theirs.runs.list(status="completed"))

        await until(is_done)
        assert (await theirs.runs.get("w")).status == "cancelled"
    await between.close()


@async_test
async def test_question_of_a_peer_elsewhere_is_asked_where_its_caller_is(
    store: str, elsewhere: str, transport: str
) -> None:
    @holdfast.agent
    async def asked(run: holdfast.Run, topic: str) -> str:
        return await run.ask(f"Which {topic}?", choices=["this", "that"])

    @holdfast.agent
    async def asker(run: holdfast.Run) -> str:
        return await run.peer("asked", "one", timeout=60)

    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [asked]) as theirs,
    ):
        handle = await hf.start(asker, run_id="r")

        async def is_asked() -> Any:
            return await hf.approvals.list(run_id="r")

        (question,) = await until(is_asked)
        assert (question.prompt, question.choices) == ("Which one?", ["this", "that"])
        with pytest.raises(holdfast.errors.AnswerRefused):
            await hf.approvals.answer(question.wait_id, "neither", by="ann")
        await hf.approvals.answer(question.wait_id, "that", by="ann")
        assert await handle.result(timeout=30) == "that"
        (there,) = await theirs.waits.of_run((await hf.waits.of_run("r"))[0].wait_id)
        assert (there.status, there.settled_by) == ("resolved", "ann")


@async_test
async def test_signs_of_life_cross_the_transport(
    store: str, elsewhere: str, transport: str
) -> None:
    @holdfast.agent
    async def slow(run: holdfast.Run, topic: str) -> str:
        await run.report({"percent": 50})
        await run.ask("go on?")
        return topic

    @holdfast.agent
    async def asker(run: holdfast.Run) -> str:
        return await run.peer("slow", "x", timeout=60)

    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [slow]),
    ):
        await hf.start(asker, run_id="r")

        async def is_told() -> bool:
            waits = [w for w in await hf.waits.of_run("r") if w.kind == "peer"]
            return any(wait.progress == '{"percent":50}' for wait in waits)

        assert await until(is_told)
        await hf.runs.cancel("r")
