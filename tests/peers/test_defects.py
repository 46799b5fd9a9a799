"""What went wrong in systems that call peers, one scenario each: none of it can happen here."""

import asyncio
import logging
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Message, Peer, Settings, ToolCall
from holdfast.engine.messages import peers as engine_peers
from holdfast.engine.messages.replies import PeerReply
from holdfast.errors import PeerFailed, PeerTimedOut, RunCancelled, WaitNotFound
from holdfast.peers import envelopes, open_transport
from holdfast.peers.envelopes import CancelEnvelope, ReplyEnvelope, RequestEnvelope
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start
from tests.agents.ledger import Ledger
from tests.backends import Backend
from tests.peers import members
from tests.peers.exchanging import served, until
from tests.peers.sweeping import Side, owed
from tests.processes import Child


@holdfast.agent
async def research(run: holdfast.Run, question: str) -> str:
    return f"found {question}"


@holdfast.agent
async def caller(run: holdfast.Run) -> str:
    try:
        return await run.peer("research", "gold")
    except PeerTimedOut as error:
        return str(error)


async def suspended(hf: holdfast.Holdfast, agent: Any = caller) -> str:
    """A caller that waits for its one peer; the id of the wait."""
    await start(hf, agent)
    await advance(hf, "r")
    (wait,) = await hf.waits.of_run("r")
    return wait.wait_id


async def results(hf: holdfast.Holdfast, run_id: str = "r") -> list[Any]:
    """The tool results in a transcript."""
    talk = (await hf.checkpoints.load(run_id))["transcript"]
    return [result for each in talk for result in msgspec.convert(each, Message).results]


def model(*replies: Message) -> Any:
    async def answer(transcript: list[Message]) -> Message:
        return replies[sum(message.role == "assistant" for message in transcript)]

    return answer


def silent(name: str) -> holdfast.Agent[[str], None]:
    """A peer that is taken and never answers."""

    @holdfast.agent(name=name)
    async def waiting(run: holdfast.Run, question: str) -> None:
        await asyncio.sleep(3600)

    return waiting


def called(name: str, *args: dict[str, Any]) -> Message:
    return Message.assistant("", [ToolCall(str(n), name, each) for n, each in enumerate(args)])


@pytest.mark.mission("S0-042")
@async_test
async def test_silent_peer_times_out_although_nobody_gave_a_timeout(store: str) -> None:
    looped = holdfast.AgentLoop(
        model(called("peer_research", {"request": "tin"}), Message.assistant("done")),
        peers=[Peer("research")],
        name="looped",
    )
    settings = Settings(peer_timeout_seconds=0.2)
    agents = [caller, looped, silent("research")]
    async with holdfast.Holdfast(store, agents=agents, settings=settings) as hf:
        told = await hf.run(caller, timeout=30)
        assert told == "Request to peer agent tool 'research' timed out after 0.2 seconds."
        assert await hf.run(looped, "go", run_id="r", timeout=30) == "done"
        (result,) = await results(hf)
        assert result.is_error
        assert "timed out after 0.2 seconds" in result.content


@pytest.mark.mission("S0-020", "S0-022")
@pytest.mark.parametrize("point", ["batch.before_commit", "batch.after_commit"])
@async_test
async def test_whoever_dies_while_it_records_an_answer_leaves_all_of_it_or_nothing(
    store: str, point: str
) -> None:
    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        wait_id = await suspended(hf)
        with Child("tests.child", store) as child:
            assert await asyncio.to_thread(child.ask, ["arm", point, "kill"]) == "armed"
            child.tell(["resolve", wait_id, "found"])
            assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
        is_there = point == "batch.after_commit"
        wait, run = await hf.waits.get(wait_id), await hf.runs.get("r")
        wanted = ("resolved", "ready") if is_there else ("open", "waiting")
        assert (wait.status, run.status) == wanted
        again = await hf.waits.resolve(wait_id, "again")
        assert again.accepted is not is_there
        assert await hf.run(caller, run_id="r", timeout=30) == ("found" if is_there else "again")


@pytest.mark.mission("S0-010")
@pytest.mark.parametrize("point", ["receiver.before_commit", "receiver.after_commit"])
@async_test
async def test_answer_is_acknowledged_after_it_is_recorded(
    backend: Backend, tmp_path: Path, point: str
) -> None:
    transport = f"sqlite:///{tmp_path}/between.db"
    ledger = tmp_path / "ledger"
    side = Side(backend, ledger, "tests.peers.members:make_task", transport)
    there = served(str(tmp_path / "there.db"), transport, members.make_part(Ledger(ledger)))
    async with there, holdfast.open(backend.url) as hf:
        await hf.runs.create("r", agent="task", input={"parts": 1})
        await side.begin(point)
        assert await side.ended() == -signal.SIGKILL
        (wait,) = await hf.waits.of_run("r")
        assert wait.status == ("open" if point == "receiver.before_commit" else "resolved")
        await side.begin()

        async def is_done() -> bool:
            known = await hf.waits.get(wait.wait_id)
            is_counted = known.duplicates == (point == "receiver.after_commit")
            return is_counted and (await hf.runs.get("r")).status == "completed"

        assert await until(is_done)
        await side.stop()
        assert await hf.runs.result("r") == ["r/0"]
        assert (await kinds(hf, "r")).count("WAIT_RESOLVED") == 1
    side.close()


@pytest.mark.mission("S0-092")
@async_test
async def test_worker_killed_right_after_it_took_the_woken_caller_loses_nothing(
    store: str,
) -> None:
    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        wait_id = await suspended(hf)
        await advance(hf, wait_id)
        with Child("tests.child", store, 0.3) as child:
            taken = await asyncio.to_thread(child.ask, ["next"])
            child.signal(signal.SIGKILL)
        assert taken[0] == "r"
        assert await hf.run(caller, run_id="r", timeout=30) == "found gold"
        assert [wait.wait_id for wait in await hf.waits.of_run("r")] == [wait_id]
        assert (await kinds(hf, "r")).count("WAIT_RESOLVED") == 1


@pytest.mark.mission("S0-081")
@async_test
async def test_reply_whose_wait_has_no_row_resumes_nobody(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async with holdfast.Holdfast(backend.url, agents=[caller, research]) as hf:
        wait_id = await suspended(hf)
        with backend.raw() as raw:
            assert raw.execute("DELETE FROM waits WHERE wait_id = ?", wait_id) == 1
        with caplog.at_level(logging.WARNING, "holdfast"):
            await advance(hf, wait_id)
            with backend.raw() as raw:
                while owed(raw):
                    await hf.leases.outbox.deliver()
        assert "nobody waits for the reply" in caplog.text
        assert (await hf.runs.get("r")).status == "waiting"
        await hf.reindex("r")
        assert (await hf.waits.resolve(wait_id, "told again")).accepted
        assert await hf.run(caller, run_id="r", timeout=30) == "told again"


@async_test
async def test_reply_that_another_worker_delivered_first_is_no_duplicate(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with holdfast.Holdfast(backend.url, agents=[caller, research], clock=clock) as hf:
        wait_id = await suspended(hf)
        outbox = hf.leases.outbox
        deliver_reply = outbox.deliver_reply

        async def late(*args: Any) -> None:
            clock.advance(1)  # the message is due for everybody
            await outbox.deliver()
            assert (await hf.waits.get(wait_id)).status == "resolved"
            await deliver_reply(*args)

        monkeypatch.setattr(outbox, "deliver_reply", late)
        with caplog.at_level(logging.WARNING, "holdfast"):
            await advance(hf, wait_id)
        assert (await hf.waits.get(wait_id)).duplicates == 0
        assert caplog.text == ""
        with backend.raw() as raw:
            assert owed(raw) == 0
        assert await hf.run(caller, run_id="r", timeout=30) == "found gold"


@async_test
async def test_reply_after_its_time_limit_is_counted_and_its_message_forgotten(
    backend: Backend,
) -> None:
    clock = ManualClock()
    async with holdfast.Holdfast(backend.url, agents=[caller, research], clock=clock) as hf:
        wait_id = await suspended(hf)
        await hf.waits.cancel(wait_id, by="ann")
        await advance(hf, wait_id)
        wait = await hf.waits.get(wait_id)
        assert (wait.status, wait.settled_by, wait.duplicates) == ("cancelled", "ann", 1)
        clock.advance(1)
        await hf.leases.outbox.deliver()
        with backend.raw() as raw:
            assert owed(raw) == 0


@pytest.mark.mission("S0-082", "S0-033")
@async_test
async def test_artifacts_and_flags_of_all_peers_outlive_a_crash(store: str) -> None:
    crashes: list[int] = []

    @holdfast.agent
    async def maker(run: holdfast.Run, name: str) -> str:
        run.artifacts.append(name)
        run.flags.set({name: True})
        await run.checkpoint()
        if name == "b":
            raise ValueError(name)
        return name

    @holdfast.agent
    async def gatherer(run: holdfast.Run) -> list[Any]:
        async def one(name: str) -> None:
            try:
                await run.peer("maker", name)
            except PeerFailed:
                return

        await run.gather(*map(one, "abc"))
        if len(crashes) < 2:
            crashes.append(1)
            raise Crash
        return [sorted(run.artifacts), run.flags.get()]

    async with holdfast.Holdfast(store, agents=[gatherer, maker]) as hf:
        await start(hf, gatherer)
        await advance(hf, "r")
        for wait in await hf.waits.of_run("r"):
            await advance(hf, wait.wait_id)
        for _ in range(3):
            await advance(hf, "r")
        artifacts, flags = await hf.runs.result("r")
        assert (artifacts, flags) == (["a", "b", "c"], {"a": True, "b": True, "c": True})


@pytest.mark.mission("S0-090", "S0-091")
@async_test
async def test_cancel_reaches_a_peer_that_nobody_ever_heard_of(store: str, tmp_path: Path) -> None:
    transport = f"sqlite:///{tmp_path}/between.db"
    async with served(store, transport, [caller]) as hf:
        await hf.start(caller, run_id="r")

        async def is_left() -> Any:
            return await hf.waits.of_run("r")

        (wait,) = await until(is_left)
        await hf.runs.cancel("r")
        with pytest.raises(RunCancelled):
            await hf.run(caller, run_id="r", timeout=30)

        async with served(str(tmp_path / "there.db"), transport, [research]) as theirs:

            async def has_ended() -> bool:
                found = [run for run in await theirs.runs.list() if run.run_id == wait.wait_id]
                return bool(found) and found[0].status in ("cancelled", "completed")

            assert await until(has_ended)
        assert (await hf.waits.get(wait.wait_id)).status == "cancelled"
        assert (await hf.runs.get("r")).status == "cancelled"


@async_test
async def test_queued_peer_that_is_cancelled_never_runs(store: str) -> None:
    entered: list[str] = []

    @holdfast.agent(name="research")
    async def noting(run: holdfast.Run, question: str) -> None:
        entered.append(question)

    async with holdfast.Holdfast(store, agents=[caller, noting]) as hf:
        wait_id = await suspended(hf)
        await hf.runs.cancel("r")
        await hf.leases.outbox.deliver()
        assert (await hf.runs.get(wait_id)).status == "cancelled"
        assert await hf.leases.next(agents=["research"]) is None
    assert entered == []


@async_test
async def test_ids_that_are_left_over_or_unknown_harm_nobody(store: str, tmp_path: Path) -> None:
    transport = f"sqlite:///{tmp_path}/between.db"
    between = open_transport(transport)
    await between.open()
    async with served(store, transport, [caller, research]) as hf:
        assert await hf.run(caller, run_id="r", timeout=30) == "found gold"
        assert await hf.run(caller, run_id="r", timeout=30) == "found gold"
        (wait,) = await hf.waits.of_run("r")
        again = RequestEnvelope(
            wait_id=wait.wait_id, agent="research", input="tin", reply_to="queue:x"
        )
        unknown = ReplyEnvelope(wait_id="nobody", reply=PeerReply(status="completed", value=1))
        own = envelopes.queue_of_store("default", await hf._context.store.store_id())  # pyright: ignore[reportPrivateUsage] - where its replies go
        agents = envelopes.queue_of_agent("default", "research")
        for key, queue, envelope in (
            ("1", agents, again),
            ("2", own, unknown),
            ("3", agents, CancelEnvelope(wait_id=wait.wait_id, agent="research")),
            (
                "4",
                agents,
                RequestEnvelope(wait_id="last", agent="research", input="x", reply_to="queue:x"),
            ),
        ):
            await between.publish(queue, envelopes.encode(envelope), key=key)

        async def is_last() -> bool:
            return any(run.run_id == "last" for run in await hf.runs.list(status="completed"))

        assert await until(is_last)
        assert await hf.runs.result(wait.wait_id) == "found gold"
        assert (await hf.runs.get(wait.wait_id)).status == "completed"
        assert not await engine_peers.hear_from(hf._context, "nobody")  # pyright: ignore[reportPrivateUsage] - a sign of life of a stranger
        with pytest.raises(WaitNotFound):
            await hf.waits.resolve("nobody", 1)
        for queue in (agents, own):
            assert await between.dead_letters(queue) == []
    await between.close()


@async_test
async def test_counts_of_repeats_and_attempts_are_kept_over_a_pause(store: str) -> None:
    tries: list[int] = []

    @holdfast.tool(effect="idempotent", retries=2)
    def flaky() -> str:
        tries.append(1)
        raise ConnectionError("the line is dead")

    ask = called("peer_research", {"question": "gold"})
    mixed = Message.assistant(
        "", [ToolCall("f", "flaky", {}), ToolCall("p", "peer_research", {"question": "tin"})]
    )
    looped = holdfast.AgentLoop(
        model(ask, ask, ask, mixed, Message.assistant("done")),
        peers=[research],
        tools=[flaky],
        name="looped",
        loop_limit=2,
    )
    async with holdfast.Holdfast(store, agents=[looped, research]) as hf:
        assert await hf.run(looped, "go", run_id="r", timeout=30) == "done"
        told = [(result.is_error, result.content) for result in await results(hf)]
        assert [content for _, content in told[:2]] == ["found gold"] * 2
        assert told[2][0]
        assert "the same call was made 2 times in a row" in told[2][1]
        assert len(await hf.waits.of_run("r")) == 3
        assert told[4] == (False, "found tin")
    assert len(tries) == 3  # one call and its two retries, not again after the pause


@pytest.mark.mission("S2-028", "S2-033")
@async_test
async def test_late_response_leaves_one_result_for_each_call(backend: Backend) -> None:
    looped = holdfast.AgentLoop(
        model(
            called("peer_silent", {"request": "gold"}, {"request": "tin"}),
            Message.assistant("done"),
        ),
        peers=[Peer("silent", timeout=0.2)],
        name="looped",
    )
    async with holdfast.Holdfast(backend.url, agents=[looped, silent("silent")]) as hf:
        assert await hf.run(looped, "go", run_id="r", timeout=30) == "done"
        for wait in await hf.waits.of_run("r"):
            for _ in range(2):
                late = await hf.waits.resolve(wait.wait_id, PeerReply(status="completed", value=1))
                assert not late.accepted
        told = await results(hf)
        assert [(result.call_id, result.is_error) for result in told] == [("0", True), ("1", True)]
        assert await hf.run(looped, "go", run_id="r", timeout=30) == "done"
        with backend.raw() as raw:
            rows = raw.rows("SELECT kind FROM journal WHERE run_id = ?", "r")
            ((duplicates,),) = raw.rows("SELECT sum(duplicates) FROM waits")
        settled = [kind for (kind,) in rows if kind in ("WAIT_EXPIRED", "WAIT_RESOLVED")]
        assert settled == ["WAIT_EXPIRED"] * 2
        assert duplicates >= 4


@pytest.mark.mission("S2-008")
@async_test
async def test_calls_that_all_fail_at_once_hang_nobody(store: str) -> None:
    looped = holdfast.AgentLoop(
        model(called("peer_research", {"wrong": 1}, {"wrong": 2}), Message.assistant("done")),
        peers=[research],
        name="looped",
    )
    async with holdfast.Holdfast(store, agents=[looped, research]) as hf:
        assert await hf.run(looped, "go", run_id="r", timeout=30) == "done"
        assert [result.is_error for result in await results(hf)] == [True, True]
        assert await hf.waits.of_run("r") == []


@pytest.mark.mission("S0-079", "S0-098")
@async_test
async def test_sign_of_life_gives_a_peer_its_whole_time_again(backend: Backend) -> None:
    async with holdfast.Holdfast(backend.url, agents=[caller, research]) as hf:
        wait_id = await suspended(hf)
        almost = hf._context.now() + 5_000_000  # pyright: ignore[reportPrivateUsage] - the store's clock
        with backend.raw() as raw:
            raw.execute("UPDATE waits SET deadline = ? WHERE wait_id = ?", almost, wait_id)
        assert await engine_peers.hear_from(hf._context, wait_id)  # pyright: ignore[reportPrivateUsage] - as a peer elsewhere does
        moved = await hf.waits.get(wait_id)
        assert moved.deadline == moved.progress_at + 600_000_000
        await hf.waits.cancel(wait_id)
        assert not await engine_peers.hear_from(hf._context, wait_id)  # pyright: ignore[reportPrivateUsage] - as a peer elsewhere does
        assert (await hf.waits.get(wait_id)).status == "cancelled"


@async_test
async def test_blocking_tool_of_a_cancelled_peer_is_journaled_to_its_end(store: str) -> None:
    running, let_go = threading.Event(), threading.Event()

    @holdfast.tool(in_doubt="fail")
    def charge() -> str:
        running.set()
        let_go.wait(60)
        return "receipt"

    @holdfast.agent(name="research", tools=[charge])
    async def paying(run: holdfast.Run, question: str) -> str:
        return await run.call(charge)

    async with holdfast.Holdfast(store, agents=[caller, paying]) as hf:
        wait_id = await suspended(hf)
        working = asyncio.create_task(advance(hf, wait_id))
        await asyncio.to_thread(running.wait, 30)
        await hf.runs.cancel("r")
        await hf.leases.outbox.deliver()
        assert (await hf.runs.get(wait_id)).status == "cancelled"
        let_go.set()
        await working
        (effect,) = await hf.effects.of_run(wait_id)
        found = await hf.effects.find(effect.key)
        assert found is not None
        assert (found.effect.status, found.result) == ("completed", "receipt")
        assert (await kinds(hf, wait_id))[-1] == "EFFECT_COMPLETED"
        assert (await hf.waits.get(wait_id)).status == "cancelled"


@async_test
async def test_reply_that_is_too_large_to_be_sent_fails_the_call_at_once(
    store: str, tmp_path: Path
) -> None:
    transport = f"sqlite:///{tmp_path}/between.db"

    @holdfast.agent(name="research")
    async def verbose(run: holdfast.Run, question: str) -> str:
        run.artifacts.append("x" * 40_000)
        return "y" * 40_000

    @holdfast.agent
    async def asker(run: holdfast.Run) -> str:
        try:
            return await run.peer("research", "gold")
        except PeerFailed as error:
            return str(error)

    there = str(tmp_path / "there.db")
    async with (
        served(store, transport, [asker]) as hf,
        served(there, transport, [verbose], max_body_bytes=60_000),
    ):
        told = await hf.run(asker, timeout=30)
        assert "its answer and artifacts have 80," in told
