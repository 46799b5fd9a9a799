"""Calls of peers in one store: the run leaves memory, the answer counts once, nothing hangs."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Message, ToolCall
from holdfast.engine.reading.journal import body_of
from holdfast.errors import MisuseError, PeerCancelled, PeerFailed, PeerTimedOut, RunCancelled
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


@holdfast.agent
async def research(run: holdfast.Run, question: str) -> str:
    return f"found {question}"


@holdfast.agent
async def silent(run: holdfast.Run, question: str) -> None:
    await asyncio.sleep(3600)


@holdfast.agent
async def broken(run: holdfast.Run, question: str) -> str:
    raise ValueError("no such source")


@pytest.mark.mission("S0-003", "S0-012", "S0-018")
@async_test
async def test_caller_is_left_to_its_peer_in_one_commit_and_goes_on_with_the_answer(
    store: str,
) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return (await run.peer("research", "gold")).upper()

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        assert (await kinds(hf, "r"))[-2:] == ["WAITS_OPENED", "RUN_WAITING"]
        (wait,) = await hf.waits.of_run("r")
        peer = await hf.runs.get(wait.wait_id)
        assert (wait.kind, wait.name, wait.address) == ("peer", "research", "store:")
        assert (peer.agent, peer.parent_id, peer.status) == ("research", "r", "ready")
        assert (wait.deadline, wait.patience) == (0, 600_000_000)
        await advance(hf, wait.wait_id)
        assert (await hf.runs.get("r")).status == "ready"
        await advance(hf, "r")
        assert await hf.runs.result("r") == "FOUND GOLD"


@pytest.mark.mission("S0-014")
@async_test
async def test_caller_that_is_left_to_its_peer_holds_no_memory(store: str) -> None:
    class Ballast:
        """What an agent has in its hands."""

    held: list[weakref.ref[Ballast]] = []

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        ballast = Ballast()
        held.append(weakref.ref(ballast))
        return await run.peer("nobody", str(ballast))

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        await hf.start(caller, run_id="r")
        async for entry in hf.journal.tail("r"):
            if entry.kind == "RUN_WAITING":
                break
        worker.stop()
        await working
        gc.collect()
        assert [ballast() for ballast in held] == [None]
        assert not hf._work._passes  # pyright: ignore[reportPrivateUsage] - what is worked on here
        assert (await hf.runs.get("r")).status == "waiting"


@async_test
async def test_one_call_of_run_is_enough_for_a_caller_and_its_peers(store: str) -> None:
    @holdfast.agent
    async def middle(run: holdfast.Run, word: str) -> str:
        return await run.peer("research", word)

    @holdfast.agent
    async def caller(run: holdfast.Run) -> tuple[str, ...]:
        return await run.gather(
            run.peer(middle, "a"), run.peer("research", "b"), run.peer(research, "c")
        )

    async with holdfast.Holdfast(store, agents=[caller, middle, research]) as hf:
        answer = await hf.run(caller, timeout=30)
        assert list(answer) == ["found a", "found b", "found c"]


@pytest.mark.mission("S0-017", "S0-050")
@async_test
async def test_parallel_calls_are_one_group_and_the_last_answer_wakes_the_caller(
    store: str,
) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[str]:
        return [*await run.gather(*(run.peer("research", str(n)) for n in range(5)))]

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        waits = await hf.waits.of_run("r")
        assert len({wait.group_id for wait in waits}) == 1
        for wait in waits[:4]:
            await advance(hf, wait.wait_id)
            assert (await hf.runs.get("r")).status == "waiting"
        await advance(hf, waits[4].wait_id)
        await advance(hf, "r")
        assert await hf.runs.result("r") == [f"found {n}" for n in range(5)]


@async_test
async def test_peer_that_fails_is_an_error_of_the_call_and_hangs_nobody(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[str]:
        answers = []
        for name in ("broken", "research"):
            try:
                answers.append(await run.peer(name, "gold"))
            except PeerFailed as error:
                answers.append(str(error))
        return answers

    async with holdfast.Holdfast(store, agents=[caller, research, broken]) as hf:
        failed, found = await hf.run(caller, timeout=30)
        assert failed == ("Request to peer agent tool 'broken' failed: ValueError: no such source")
        assert found == "found gold"


@pytest.mark.mission("S2-024", "S2-028")
@async_test
async def test_silent_peer_times_out_is_told_to_stop_and_its_late_answer_changes_nothing(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("silent", "gold", timeout=0.2)
        except PeerTimedOut as error:
            return str(error)

    async with holdfast.Holdfast(store, agents=[caller, silent]) as hf:
        answer = await hf.run(caller, run_id="r", timeout=30)
        assert answer == "Request to peer agent tool 'silent' timed out after 0.2 seconds."
        (wait,) = await hf.waits.of_run("r")
        assert (await hf.runs.get(wait.wait_id)).status == "cancelled"
        with caplog.at_level(logging.WARNING, "holdfast"):
            late = await hf.waits.resolve(wait.wait_id, "late")
        assert not late.accepted
        assert [wait.wait_id in record.getMessage() for record in caplog.records] == [True]
        assert (await hf.waits.get(wait.wait_id)).duplicates >= 1
        assert await hf.runs.result("r") == answer


@pytest.mark.mission("S0-089", "S0-090")
@async_test
async def test_cancel_reaches_every_peer_below_and_the_finished_stay_finished(store: str) -> None:
    @holdfast.agent
    async def middle(run: holdfast.Run, word: str) -> str:
        return await run.peer("research", word)

    @holdfast.agent
    async def caller(run: holdfast.Run) -> tuple[str, ...]:
        return await run.gather(run.peer("middle", "a"), run.peer("research", "b"))

    async with holdfast.Holdfast(store, agents=[caller, middle, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        below = [wait.wait_id for wait in await hf.waits.of_run("r")]
        for run_id in below:
            await advance(hf, run_id)
        (deepest,) = [w for run_id in below for w in await hf.waits.of_run(run_id)]
        await hf.runs.cancel("r")
        await hf.leases.outbox.deliver()
        status = {
            run_id: (await hf.runs.get(run_id)).status for run_id in (*below, deepest.wait_id)
        }
        assert sorted(status.values()) == ["cancelled", "cancelled", "completed"]
        with pytest.raises(RunCancelled):
            await hf.runs.cancel("r")


@async_test
async def test_peer_that_was_cancelled_is_a_cancelled_result(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("research", "gold")
        except PeerCancelled as error:
            return str(error)

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        await hf.runs.cancel(wait.wait_id)
        await hf.leases.outbox.deliver()
        await advance(hf, "r")
        told = "Request to peer agent tool 'research' was cancelled."
        assert await hf.runs.result("r") == told


@pytest.mark.mission("S0-082", "S0-033")
@async_test
async def test_artifacts_and_flags_of_every_peer_survive_in_the_order_of_the_calls(
    store: str,
) -> None:
    @holdfast.agent
    async def maker(run: holdfast.Run, name: str) -> str:
        run.artifacts.append({"file": name})
        run.flags.set({name: True})
        return name

    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[Any]:
        if not run.artifacts:
            run.artifacts.append({"file": "own"})
            await run.checkpoint()
        await run.gather(*(run.peer("maker", name) for name in ("b", "a", "c")))
        return [list(run.artifacts), run.flags.get()]

    async with holdfast.Holdfast(store, agents=[caller, maker]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        for wait in reversed(await hf.waits.of_run("r")):
            await advance(hf, wait.wait_id)
        await advance(hf, "r")
        artifacts, flags = await hf.runs.result("r")
        assert [each["file"] for each in artifacts] == ["own", "b", "a", "c"]
        assert flags == {"a": True, "b": True, "c": True}


@async_test
async def test_answers_outlive_every_crash_of_the_caller(store: str) -> None:
    seen: list[str] = []

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        seen.append(await run.peer("research", "gold"))
        if len(seen) < 3:
            raise Crash
        return seen[-1]

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        await advance(hf, wait.wait_id)
        for _ in range(3):
            await advance(hf, "r")
        assert await hf.runs.result("r") == "found gold"
        assert seen == ["found gold"] * 3
        assert len(await hf.waits.of_run("r")) == 1


def replies(*replies: Message) -> Any:
    left = list(replies)

    async def model(transcript: list[Message]) -> Message:
        return left[sum(message.role == "assistant" for message in transcript)]

    return model


@pytest.mark.mission("S2-008")
@async_test
async def test_all_calls_are_registered_before_any_of_them_can_be_answered(store: str) -> None:
    seen: list[Any] = []

    @holdfast.agent
    async def noting(run: holdfast.Run, request: str) -> str:
        caller = (await hf.waits.get(run.run_id)).run_id
        waits = await hf.waits.of_run(caller)
        (opened,) = [e for e in await hf.journal.read(caller) if e.kind == "WAITS_OPENED"]
        data: Any = body_of(opened)
        told = [(data[w.wait_id]["agent"], data[w.wait_id]["tool"]) for w in waits]
        seen.append(([w.status for w in waits], [w.name for w in waits], told))
        return request

    calls = [ToolCall(str(n), "peer_noting", {"request": str(n)}) for n in range(2)]
    model = replies(Message.assistant("", tool_calls=calls), Message.assistant("done"))
    asker = holdfast.AgentLoop(model, peers=["noting"], name="asker")
    async with holdfast.Holdfast(store, agents=[asker, noting]) as hf:
        await start(hf, asker, "go")
        await advance(hf, "r")
        first, _ = await hf.waits.of_run("r")
        await advance(hf, first.wait_id)
        names, told = ["peer_noting"] * 2, [("noting", "peer_noting")] * 2
        assert seen == [(["open", "open"], names, told)]


@pytest.mark.mission("S2-008")
@async_test
async def test_model_calls_peers_as_tools_and_an_error_of_one_does_not_hang_the_others(
    store: str,
) -> None:
    calls = [
        ToolCall("1", "peer_research", {"question": "gold"}),
        ToolCall("2", "peer_nobody", {"request": "x"}),
        ToolCall("3", "peer_broken", {"request": "tin"}),
        ToolCall("4", "peer_research", {"wrong": 1}),
    ]
    model = replies(Message.assistant("", tool_calls=calls), Message.assistant("done"))
    asker = holdfast.AgentLoop(model, peers=[research, "broken"], name="asker")

    async with holdfast.Holdfast(store, agents=[asker, research, broken]) as hf:
        assert await hf.run(asker, "go", run_id="r", timeout=30) == "done"
        assert len(await hf.waits.of_run("r")) == 2
        talk = (await hf.checkpoints.load("r"))["transcript"]
        messages = [msgspec.convert(each, Message) for each in talk]
        results = [result for message in messages for result in message.results]
        assert [result.call_id for result in results] == ["1", "2", "3", "4"]
        assert [result.is_error for result in results] == [False, True, True, True]
        assert results[0].content == "found gold"
        assert "there is no tool 'peer_nobody'" in results[1].content
        assert "peer_broken' failed: ValueError" in results[2].content
        assert "arguments are not valid" in results[3].content


@async_test
async def test_permission_may_refuse_the_call_of_a_peer(store: str) -> None:
    def permit(tool: holdfast.Tool[..., Any], args: Any) -> Any:
        return "ask in the morning" if tool.name == "peer_research" else None

    call = ToolCall("1", "peer_research", {"question": "gold"})
    model = replies(Message.assistant("", tool_calls=[call]), Message.assistant("done"))
    asker = holdfast.AgentLoop(model, peers=[research], permission=permit, name="asker")
    async with holdfast.Holdfast(store, agents=[asker, research]) as hf:
        assert await hf.run(asker, "go", run_id="r", timeout=30) == "done"
        assert await hf.waits.of_run("r") == []
        talk = (await hf.checkpoints.load("r"))["transcript"]
        messages = [msgspec.convert(each, Message) for each in talk]
        (result,) = [result for message in messages for result in message.results]
        assert result.is_error
        assert result.content == "peer_research was not called: ask in the morning"


@pytest.mark.mission("S0-079", "S0-098")
@async_test
async def test_sign_of_life_moves_the_deadline_of_all_callers_above(store: str) -> None:
    @holdfast.agent
    async def slow(run: holdfast.Run, word: str) -> str:
        assert await run.report({"done": "half"})
        return word

    @holdfast.agent
    async def middle(run: holdfast.Run, word: str) -> str:
        return await run.peer("slow", word, timeout=50)

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer("middle", "a", timeout=100)

    async with holdfast.Holdfast(store, agents=[caller, middle, slow]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (upper,) = await hf.waits.of_run("r")
        await advance(hf, upper.wait_id)
        (lower,) = await hf.waits.of_run(upper.wait_id)
        await advance(hf, lower.wait_id)
        moved = await hf.waits.get(upper.wait_id)
        said = await hf.waits.get(lower.wait_id)
        assert moved.progress_at > upper.opened_at
        assert moved.deadline >= moved.progress_at + 100_000_000 > upper.deadline
        assert said.progress == '{"done":"half"}'


@async_test
async def test_peer_that_asks_a_person_does_not_time_out_meanwhile(store: str) -> None:
    @holdfast.agent
    async def asker(run: holdfast.Run, word: str) -> str:
        return await run.ask("Which one?")

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer("asker", "a", timeout=60)

    async with holdfast.Holdfast(store, agents=[caller, asker]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        await advance(hf, wait.wait_id)
        patient = await hf.waits.get(wait.wait_id)
        assert patient.deadline > wait.opened_at + 86_400_000_000
        (asked,) = await hf.approvals.list(run_id="r")
        assert asked.run_id == wait.wait_id
        await hf.approvals.answer(asked.wait_id, "this one", by="ann")
        await hf.leases.outbox.deliver()
        again = await hf.waits.get(wait.wait_id)
        assert again.deadline < wait.opened_at + 86_400_000_000
        await advance(hf, wait.wait_id)
        await advance(hf, "r")
        assert await hf.runs.result("r") == "this one"


@async_test
async def test_cancelled_agent_is_interrupted_at_its_next_await(store: str) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    @holdfast.agent
    async def stuck(run: holdfast.Run) -> None:
        entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            left.set()

    async with holdfast.Holdfast(store, agents=[stuck]) as hf:
        handle = await hf.start(stuck, run_id="r")
        waiting = asyncio.create_task(handle.result())
        await asyncio.wait_for(entered.wait(), 60)
        await hf.another_worker().runs.cancel("r")
        await asyncio.wait_for(left.wait(), 60)
        with pytest.raises(RunCancelled):
            await waiting


async def play(hf: holdfast.Holdfast, run_id: str) -> None:
    """One pass over a run by this very worker."""
    await hf._work.start_pass(await hf.leases.take(run_id))  # pyright: ignore[reportPrivateUsage] - what a worker does


@pytest.mark.mission("S0-008", "S0-080")
@async_test
async def test_warm_instance_uses_its_memory_but_the_store_decides_what_was_answered(
    store: str,
) -> None:
    counted: list[str] = []

    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[str]:
        talk = run.log("talk", str)
        if not talk:
            talk.append("before")
            await run.checkpoint()
        answer = await run.peer("research", f"gold {len(talk)}")
        return [*talk, answer]

    def count(name: str, amount: int) -> None:
        counted.append(name)

    async with (
        holdfast.Holdfast(store, agents=[caller, research], telemetry=count) as hf,
        holdfast.Holdfast(store, agents=[caller, research]) as other,
    ):
        for run_id, reader in (("warm", hf), ("cold", other)):
            await start(hf, caller, run_id=run_id)
            await play(hf, run_id)
            (wait,) = await hf.waits.of_run(run_id)
            await play(other, wait.wait_id)
            await play(reader, run_id)
            assert await hf.runs.result(run_id) == ["before", "found gold 1"]
        assert counted.count("engine.warm_state") == 1
        await start(hf, caller, run_id="edited")
        await play(hf, "edited")
        await other.runs.rewind("edited", 1, by="ann", edits={"talk": ["changed", "twice"]})
        await play(hf, "edited")
        assert counted.count("engine.warm_state") == 1
        # The first call is left open until the next checkpoint: somebody may ask for it yet.
        _, open_wait = [w for w in await hf.waits.of_run("edited") if w.status == "open"]
        await play(hf, open_wait.wait_id)
        await play(hf, "edited")
        assert await hf.runs.result("edited") == ["changed", "twice", "found gold 2"]


@async_test
async def test_what_is_no_call_of_a_peer_is_refused_before_anything_is_written(store: str) -> None:
    refused: list[str] = []

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        for wrong in ("", "a\0b"):
            with pytest.raises(MisuseError):
                await run.peer(wrong, "x")
            refused.append(wrong)
        with pytest.raises(MisuseError):
            await run.peer("research", object())
        with pytest.raises(MisuseError):
            await run.peer("research", "x", timeout=-1)
        return "done"

    async with holdfast.Holdfast(store, agents=[caller]) as hf:
        assert await hf.run(caller, run_id="r", timeout=30) == "done"
        assert await hf.waits.of_run("r") == []
    with pytest.raises(MisuseError):
        holdfast.agent(peers="research")(research.function)
    with pytest.raises(MisuseError):
        holdfast.agent(peers=["research", research])(broken.function)


@async_test
async def test_sign_of_life_does_not_shorten_the_time_for_a_person(store: str) -> None:
    @holdfast.agent
    async def asker(run: holdfast.Run, word: str) -> str:
        asked, _ = await run.gather(run.ask("Which one?"), run.sleep(seconds=0.01))
        return asked

    @holdfast.agent
    async def teller(run: holdfast.Run, word: str) -> str:
        await run.report(word)
        return word

    @holdfast.agent
    async def middle(run: holdfast.Run, word: str) -> str:
        asked, _ = await run.gather(run.peer("asker", word), run.peer("teller", word))
        return asked

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer("middle", "a", timeout=60)

    async with holdfast.Holdfast(store, agents=[caller, middle, asker, teller]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (upper,) = await hf.waits.of_run("r")
        await advance(hf, upper.wait_id)
        lower = {wait.name: wait.wait_id for wait in await hf.waits.of_run(upper.wait_id)}
        await advance(hf, lower["asker"])
        await advance(hf, lower["teller"])
        day = 86_400_000_000
        assert (await hf.waits.get(upper.wait_id)).deadline > upper.opened_at + day
        (asked,) = await hf.approvals.list(run_id="r")
        await hf.approvals.answer(asked.wait_id, "this", by="ann")
        await hf.waits.expire_due()
        await advance(hf, lower["asker"])
        await hf.leases.outbox.deliver()
        assert (await hf.waits.get(upper.wait_id)).deadline < upper.opened_at + day


@async_test
async def test_answer_that_cannot_be_given_back_is_a_failure_of_the_call(store: str) -> None:
    @holdfast.agent
    async def deep(run: holdfast.Run) -> Any:
        value: Any = "bottom"
        for _ in range(200):
            value = [value]
        return value

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("deep")
        except PeerFailed as error:
            return str(error)

    async with holdfast.Holdfast(store, agents=[caller, deep]) as hf:
        told = await hf.run(caller, timeout=30)
        assert "'deep' failed: its answer cannot be given back" in told


@async_test
async def test_known_peer_is_helped_beside_many_that_nobody_serves(store: str) -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[str]:
        async def one(name: str, number: int) -> str:
            try:
                return await run.peer(name, f"{number}", queue_timeout=2)
            except PeerTimedOut:
                return "nobody"

        names = [*["nobody"] * 20, "research"]
        return [*await run.gather(*(one(name, n) for n, name in enumerate(names)))]

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        answers = await hf.run(caller, timeout=60)
        assert answers == [*["nobody"] * 20, "found 20"]


@async_test
async def test_whoever_waits_for_a_caller_works_on_some_of_its_peers_at_a_time(store: str) -> None:
    may_end = asyncio.Event()

    @holdfast.agent
    async def slow(run: holdfast.Run, number: int) -> int:
        await may_end.wait()
        return number

    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[int]:
        return [*await run.gather(*(run.peer(slow, n) for n in range(20)))]

    async with holdfast.Holdfast(store, agents=[caller, slow]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        await hf._work.help_peers(await hf.runs.get("r"))
        assert len(hf._work._passes) == 16
        may_end.set()
        assert await hf.run(caller, run_id="r", timeout=60) == list(range(20))


@async_test
async def test_input_is_what_was_given_whatever_it_looks_like(store: str) -> None:
    @holdfast.agent
    async def echo(run: holdfast.Run, request: dict[str, Any]) -> dict[str, Any]:
        return request

    @holdfast.agent
    async def optional(run: holdfast.Run, word: str = "none given") -> str:
        return word

    @holdfast.agent
    async def caller(run: holdfast.Run) -> list[Any]:
        return [
            await run.peer(echo, {}),
            await run.peer(echo, {"a": 1}),
            await run.peer("echo", {"a": 2}),
            await run.peer(optional),
            await run.peer(optional, "given"),
        ]

    calls = [
        ToolCall("1", "peer_echo", {"request": {"request": {"x": 1}}}),
        ToolCall("2", "peer_echo", {"request": {}}),
    ]
    model = replies(Message.assistant("", tool_calls=calls), Message.assistant("done"))
    asker = holdfast.AgentLoop(model, peers=[echo], name="asker")
    async with holdfast.Holdfast(store, agents=[caller, echo, optional, asker]) as hf:
        answers = await hf.run(caller, timeout=30)
        assert answers == [{}, {"a": 1}, {"a": 2}, "none given", "given"]
        await hf.run(asker, "go", run_id="m", timeout=30)
        talk = (await hf.checkpoints.load("m"))["transcript"]
        messages = [msgspec.convert(each, Message) for each in talk]
        results = [result.content for message in messages for result in message.results]
        assert results == ['{"request":{"x":1}}', "{}"]


@async_test
async def test_report_that_is_none_is_refused(store: str) -> None:
    @holdfast.agent
    async def teller(run: holdfast.Run) -> str:
        with pytest.raises(MisuseError):
            await run.report("x" * 100_000)
        with pytest.raises(MisuseError):
            await run.report(object())
        return "said nothing"

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer(teller)

    async with holdfast.Holdfast(store, agents=[caller, teller]) as hf:
        assert await hf.run(caller, timeout=30) == "said nothing"
