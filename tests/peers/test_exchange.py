"""Calls of peers that do not share a store: through a transport, once, whatever it does twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.messages.queues import Queues
from holdfast.engine.messages.replies import PeerReply
from holdfast.errors import PeerFailed, PeerTimedOut, TransportUnavailable
from holdfast.kernel.messages import OUTGOING
from holdfast.peers import envelopes, open_transport
from holdfast.peers.envelopes import AliveEnvelope, CancelEnvelope, ReplyEnvelope, RequestEnvelope
from holdfast.peers.relay import Relay
from holdfast.testing.store_suite import async_test
from tests.backends import Backend, SQLiteBackend
from tests.peers.exchanging import SOON, served, until


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


@pytest.mark.mission("S0-016", "S2-010")
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


@pytest.mark.mission("S2-023", "S2-031")
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
            return await run.peer("slow", "gold", timeout=5)
        except PeerTimedOut as error:
            return str(error)

    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [slow]) as theirs,
    ):
        answer = await hf.run(asker, run_id="r", timeout=30)
        assert answer == "Request to peer agent tool 'slow' timed out after 5 seconds."
        assert begun.is_set()
        (wait,) = await hf.waits.of_run("r")

        async def is_cancelled() -> bool:
            return (await theirs.runs.get(wait.wait_id)).status == "cancelled"

        await until(is_cancelled)
        late = await hf.waits.resolve(wait.wait_id, PeerReply(status="completed", value="late"))
        assert not late.accepted
        assert await hf.runs.result("r") == answer


class Failing:
    """A transport through which no cancel gets; all else goes through the real one."""

    def __init__(self, hf: holdfast.Holdfast, error: Exception) -> None:
        self.tries = 0
        self._error = error
        self._transport: Any = hf._exchange._transport  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess] - nobody else knows it
        self._publish = self._transport.publish
        self._transport.publish = self.publish

    async def publish(self, queue: str, body: bytes, **more: Any) -> bool:
        if more["headers"]["kind"] == "cancel":
            self.tries += 1
            raise self._error
        return await self._publish(queue, body, **more)


@pytest.mark.mission("S2-030")
@pytest.mark.parametrize(
    "error", [TransportUnavailable("the broker is away"), OSError("no route to host")]
)
@async_test
async def test_cancel_that_cannot_be_sent_is_logged_and_holds_nothing_up(
    store: str,
    elsewhere: str,
    transport: str,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @holdfast.agent
    async def slow(run: holdfast.Run, question: str) -> None:
        await run.signal("never")

    @holdfast.agent
    async def asker(run: holdfast.Run) -> list[str]:
        try:
            await run.peer("slow", "gold", timeout=3)
        except PeerTimedOut as error:
            timed_out = str(error)
        return [timed_out, await run.peer("research", "silver", timeout=60)]

    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [slow, research]) as theirs,
    ):
        failing = Failing(hf, error)
        answer = await hf.run(asker, run_id="r", timeout=60)
        assert answer == [
            "Request to peer agent tool 'slow' timed out after 3 seconds.",
            "found silver",
        ]

        async def was_tried_again() -> bool:
            return failing.tries >= 2

        await until(was_tried_again)
        (told,) = [r for r in caplog.records if r.levelname == "WARNING" and "cancel" in r.message]
        assert str(error) in told.message
        waits = await hf.waits.of_run("r")
        assert [(wait.name, wait.status) for wait in waits] == [
            ("slow", "expired"),
            ("research", "resolved"),
        ]
        assert (await theirs.runs.get(waits[0].wait_id)).status == "waiting"
        assert await hf.journal.verify("r") == []


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
        reply = ReplyEnvelope(
            wait_id=wait.wait_id, reply=PeerReply(status="completed", value="first")
        )
        other = ReplyEnvelope(
            wait_id=wait.wait_id, reply=PeerReply(status="completed", value="second")
        )
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


@pytest.mark.mission("S2-029")
@async_test
async def test_late_reply_is_acknowledged_logged_and_never_sent_back(
    store: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    @holdfast.agent
    async def asker(run: holdfast.Run) -> str:
        try:
            return await run.peer("nobody", "gold", queue_timeout=0.2)
        except PeerTimedOut:
            return "timed out"

    between = open_transport(transport)
    await between.open()
    async with served(store, transport, [asker]) as hf:
        assert await hf.run(asker, run_id="r", timeout=30) == "timed out"
        (wait,) = await hf.waits.of_run("r")
        queue = envelopes.queue_of_store("default", await hf._context.store.store_id())  # pyright: ignore[reportPrivateUsage] - where its replies go
        late = ReplyEnvelope(
            wait_id=wait.wait_id, reply=PeerReply(status="completed", value="late")
        )
        await between.publish(queue, envelopes.encode(late), key="late")

        async def is_dealt_with() -> Any:
            with SQLiteBackend(Path(transport.removeprefix("sqlite:///"))).raw() as raw:
                sql = (
                    "SELECT status, attempts FROM messages WHERE queue = ? AND message_id = 'late'"
                )
                ((status, attempts),) = raw.rows(sql, queue)
            return status != "ready" and (status, attempts)

        assert await until(is_dealt_with) == ("done", 1)
        (told,) = [r for r in caplog.records if wait.wait_id in r.message]
        assert (told.levelname, "was expired by" in told.message) == ("WARNING", True)
        assert (await hf.waits.get(wait.wait_id)).duplicates == 1
        assert await hf.runs.result("r") == "timed out"
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
        cancel = CancelEnvelope(wait_id="w", agent="research")
        await between.publish(queue, envelopes.encode(cancel), key="w/cancel")

        async def is_there() -> bool:
            return any(run.run_id == "w" for run in await theirs.runs.list())

        await until(is_there)
        request = RequestEnvelope(
            wait_id="w", agent="research", input="gold", reply_to="queue:replies.x"
        )
        await between.publish(queue, envelopes.encode(request), key="w")
        again = RequestEnvelope(
            wait_id="v", agent="research", input="gold", reply_to="queue:replies.x"
        )
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


@async_test
async def test_only_a_run_that_was_woken_says_that_it_waits_for_no_person(
    store: str, transport: str
) -> None:
    """A sign that says so ends the long time which a caller gives to a person who is asked."""
    async with holdfast.open(store) as hf, asyncio.timeout(SOON):
        between = open_transport(transport)
        await between.open()
        outgoing = Queues(hf._context)  # pyright: ignore[reportPrivateUsage] - runs fill it
        for kind in ("taken", "working", "alive"):
            headers = {"kind": kind, "address": "queue:caller", "subject": "w", "seq": "1"}
            await outgoing.publish(OUTGOING, b"", key=kind, headers=headers, ordering="w")
        relay = Relay(hf._context, between, reply_to="queue:here")  # pyright: ignore[reportPrivateUsage] - as a worker does
        sending = asyncio.create_task(relay.keep_sending())
        signs: list[bool] = []
        arriving = between.consume("caller", lease=60)
        async for delivery in arriving:
            sign = envelopes.decode(delivery.body)
            assert isinstance(sign, AliveEnvelope)
            signs.append(sign.is_awake)
            await delivery.ack()
            if len(signs) == 3:
                break
        assert signs == [False, False, True]
        await arriving.aclose()
        sending.cancel()
        await asyncio.wait([sending])
        await between.close()


@async_test
async def test_reply_that_can_never_be_sent_fails_the_call_it_is_for(
    backend: Backend, transport: str
) -> None:
    async with holdfast.open(backend.url) as hf, asyncio.timeout(SOON):
        between = open_transport(transport)
        await between.open()
        outgoing = Queues(hf._context)  # pyright: ignore[reportPrivateUsage] - runs fill it
        headers = {"kind": "reply", "address": "queue:caller", "subject": "lost", "seq": "1"}
        await outgoing.publish(OUTGOING, b"", key="one", headers=headers, ordering="lost")
        with backend.raw() as raw:
            assert raw.execute("UPDATE messages SET attempts = 19") == 1, "one try is left"
        relay = Relay(hf._context, between, reply_to="queue:here")  # pyright: ignore[reportPrivateUsage] - as a worker does
        sending = asyncio.create_task(relay.keep_sending())
        arriving = between.consume("caller", lease=60)
        told = envelopes.decode((await anext(arriving)).body)
        assert isinstance(told, ReplyEnvelope)
        assert (told.wait_id, told.reply.status) == ("lost", "failed")
        assert "its reply could not be delivered: entry 1 of run lost" in told.reply.error
        await arriving.aclose()

        async def is_dead() -> Any:
            return await outgoing.dead_letters(OUTGOING)

        (dead,) = await until(is_dead)
        assert dead.message_id == "one"
        sending.cancel()
        await asyncio.wait([sending])
        await between.close()


@async_test
async def test_answers_and_cancels_find_the_store_that_has_the_run(
    store: str, elsewhere: str, transport: str, tmp_path: Path
) -> None:
    """Two stores serve the same agent: what is about a run goes to the one that has it."""

    @holdfast.agent
    async def asked(run: holdfast.Run, topic: str) -> str:
        return await run.ask(f"Which {topic}?")

    @holdfast.agent
    async def asker(run: holdfast.Run) -> list[str]:
        calls = (run.peer("asked", str(n), timeout=60) for n in range(6))
        return [*await run.gather(*calls)]

    third = str(tmp_path / "third.db")
    async with (
        served(store, transport, [asker]) as hf,
        served(elsewhere, transport, [asked]) as one,
        served(third, transport, [asked]) as two,
    ):

        async def all_asked(run_id: str) -> Any:
            found = await hf.approvals.list(run_id=run_id)
            return found if len(found) == 6 else None

        handle = await hf.start(asker, run_id="r")
        for question in await until(lambda: all_asked("r")):
            await hf.approvals.answer(question.wait_id, question.prompt, by="ann")
        assert await handle.result(timeout=30) == [f"Which {n}?" for n in range(6)]
        await hf.start(asker, run_id="c")
        await until(lambda: all_asked("c"))
        await hf.runs.cancel("c")

        async def all_cancelled() -> bool:
            ended = [
                *await one.runs.list(status="cancelled"),
                *await two.runs.list(status="cancelled"),
            ]
            real = [run for run in ended if run.input_digest]
            return len(real) == 6

        assert await until(all_cancelled)


@async_test
async def test_tasks_that_wait_for_their_boundary_hold_up_nobody(
    store: str, elsewhere: str, transport: str
) -> None:
    """Replies are taken and cancels arrive while every place for such tasks is in use."""
    begun: list[str] = []

    @holdfast.agent(cadence="boundary")
    async def slow(run: holdfast.Run, question: str) -> None:
        begun.append(question)
        await asyncio.sleep(3600)

    @holdfast.agent
    async def asker(run: holdfast.Run) -> None:
        await run.gather(*(run.peer("slow", str(n)) for n in range(20)))

    @holdfast.agent
    async def quick(run: holdfast.Run) -> str:
        return await run.peer("research", "gold")

    async with (
        served(store, transport, [asker, quick, slow]) as hf,
        served(elsewhere, transport, [research, asker]) as theirs,
    ):
        await theirs.start(asker, run_id="many")

        async def are_begun() -> bool:
            return len(begun) >= 8

        await until(are_begun)
        assert await hf.run(quick, timeout=30) == "found gold"
        await theirs.runs.cancel("many")

        async def none_is_left() -> bool:
            return not hf._work._passes  # pyright: ignore[reportPrivateUsage] - what is worked on here

        assert await until(none_is_left)


@async_test
async def test_task_for_which_a_worker_has_no_room_is_given_back_and_comes_later(
    store: str, elsewhere: str, transport: str
) -> None:
    begun: list[int] = []
    may_end = asyncio.Event()

    @holdfast.agent(cadence="boundary")
    async def slow(run: holdfast.Run, number: int) -> int:
        begun.append(number)
        await may_end.wait()
        return number

    @holdfast.agent
    async def asker(run: holdfast.Run, number: int) -> int:
        return await run.peer("slow", number)

    def given_back() -> int:
        with SQLiteBackend(Path(transport.removeprefix("sqlite:///"))).raw() as raw:
            sql = "SELECT count(*) FROM messages WHERE note = 'there was no room for it'"
            ((count,),) = raw.rows(sql)
        return count

    between = open_transport(transport)
    await between.open()
    async with (
        served(elsewhere, transport, [asker]) as theirs,
        served(store, transport, [slow], concurrency=1),
    ):
        handles = [await theirs.start(asker, number) for number in range(3)]

        async def have_all_come() -> bool:
            return len(begun) + given_back() >= 3

        try:
            assert await until(have_all_come)
            assert len(begun) == 1
        finally:
            may_end.set()
        assert [await handle.result(timeout=30) for handle in handles] == [0, 1, 2]
    await between.close()


@async_test
async def test_exchange_begins_again_when_its_store_was_away(
    store: str, elsewhere: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [holdfast.errors.StoreUnavailable("away"), RuntimeError("a bug")]
    async with served(elsewhere, transport, [research]):
        made = holdfast.Settings(transport=transport, wakeup_poll_seconds=0.1)
        async with holdfast.Holdfast(store, agents=[caller], settings=made) as hf:
            known = hf._context.store.store_id  # pyright: ignore[reportPrivateUsage] - fails for a while

            async def store_id() -> str:
                if failures:
                    raise failures.pop()
                return await known()

            monkeypatch.setattr(hf._context.store, "store_id", store_id)  # pyright: ignore[reportPrivateUsage] - the same
            assert (await hf.run(caller, ["gold"], timeout=30))[0] == "found gold"
            assert failures == []


@async_test
async def test_poison_is_set_aside(elsewhere: str, transport: str) -> None:
    between = open_transport(transport)
    await between.open()
    async with served(elsewhere, transport, [research]) as theirs:
        queue = envelopes.queue_of_store("default", await theirs._context.store.store_id())  # pyright: ignore[reportPrivateUsage] - where its replies go
        for number, deadline in enumerate((2**63 - 5, -1)):
            asks = envelopes.QuestionEnvelope(
                wait_id="w",
                question_id=f"q{number}",
                kind="question",
                deadline=deadline,
                question={},
                answer_to="queue:agents.x",
            )
            await between.publish(queue, envelopes.encode(asks), key=f"{number}")

        async def are_buried() -> Any:
            dead = await between.dead_letters(queue)
            return dead if len(dead) == 2 else None

        for letter in await until(are_buried):
            assert "no person is asked" in letter.reason
    await between.close()


def test_queues_of_tenants_are_never_the_same() -> None:
    queues = {
        envelopes.queue_of_agent(tenant, name)
        for tenant, name in [
            ("default", "acme/x"),
            ("default", "@4:acme.x"),
            ("acme", "x"),
            ("acme.x", "x"),
            ("acme", "x.x"),
        ]
    }
    assert len(queues) == 5
    with pytest.raises(holdfast.errors.InvalidIdentifier):
        envelopes.queue_of_agent("default", "x" * 250)


@holdfast.agent
async def patient(run: holdfast.Run, name: str, given: Any) -> str:
    try:
        return await run.peer(name, given)
    except PeerFailed as error:
        return str(error)


@async_test
async def test_request_that_its_receiver_buries_has_failed(
    store: str, elsewhere: str, transport: str
) -> None:
    between = open_transport(transport)
    await between.open()
    async with (
        served(store, transport, [patient]) as hf,
        served(elsewhere, transport, [research]),
    ):
        await hf.start(patient, "nobody", "gold", run_id="r")

        async def is_left() -> Any:
            return await hf.waits.of_run("r")

        (wait,) = await until(is_left)
        queue = envelopes.queue_of_store("default", await hf._context.store.store_id())  # pyright: ignore[reportPrivateUsage] - where its replies go
        request = RequestEnvelope(
            wait_id=wait.wait_id, agent="\0", input="gold", reply_to=f"queue:{queue}"
        )
        await between.publish("agents.research", envelopes.encode(request), key="broken")
        answer = await hf.run(patient, "nobody", "gold", run_id="r", timeout=60)
        assert "the request could not be delivered" in answer

        async def is_buried() -> Any:
            return await between.dead_letters("agents.research")

        (dead,) = await until(is_buried)
        assert dead.key == "broken"
    await between.close()


@async_test
async def test_peers_elsewhere_pay_nothing_again_when_their_caller_goes_back(
    store: str, elsewhere: str, transport: str
) -> None:
    paid: list[str] = []
    broken = ["tin"]

    @holdfast.tool
    async def charge(order: str) -> str:
        paid.append(order)
        return f"paid {order}"

    @holdfast.agent(tools=[charge])
    async def cashier(run: holdfast.Run, order: str) -> str:
        got = await run.call(charge, order)
        if order in broken:
            raise ValueError("no luck")
        return got

    @holdfast.agent
    async def shop(run: holdfast.Run, orders: list[str]) -> list[str]:
        if run.version == 0:
            await run.checkpoint(label="begun")
        return [*await run.gather(*(run.peer("cashier", order) for order in orders))]

    orders = ["gold", "gold", "tin"]
    async with (
        served(store, transport, [shop]) as hf,
        served(elsewhere, transport, [cashier]) as theirs,
    ):
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(shop, orders, run_id="r", timeout=30)
        assert sorted(paid) == orders, "siblings are two payments"
        then = sorted(call.then for call in (await hf.runs.plan("r", 1)).calls)
        assert then == ["made_again", "replayed", "replayed"]
        broken.clear()
        await hf.runs.fork("r", 1, new_run_id="f")
        answers = await hf.run(shop, orders, run_id="f", timeout=30)
        assert answers == ["paid gold", "paid gold", "paid tin"]
        assert sorted(paid) == orders
        found = await theirs.runs.list(agent="cashier")
        (again,) = [run for run in found if run.forked_from]
        assert again.root_id == (await theirs.runs.get(again.forked_from)).root_id
        assert len(found) == 4
