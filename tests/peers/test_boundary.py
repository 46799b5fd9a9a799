"""Calls of peers at the boundary: in memory or left, answered or timed out, one claim decides."""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import LeasedRun, Message, Peer, Settings, ToolCall, WaitSpec
from holdfast.engine import sweeper
from holdfast.engine.reading.journal import body_of
from holdfast.engine.waits import PeerRun
from holdfast.errors import HoldfastError, PeerTimedOut, RunCancelled, RunNotFound
from holdfast.kernel import indexes
from holdfast.kernel.waits import WaitStatus
from holdfast.telemetry import BATCH_COMMITTED
from holdfast.testing import ManualClock
from holdfast.testing.faults import armed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import advance, kinds, start
from tests.backends import Backend, SQLiteBackend


def call(wait_id: str, *, begins: bool = False) -> WaitSpec:
    return WaitSpec(
        wait_id=wait_id,
        kind="peer",
        name="research",
        timeout_seconds=60,
        payload={"function_call_id": f"call of {wait_id}"},
        address="store:",
        peer_run=PeerRun("research", wait_id) if begins else None,
    )


async def held_or_left(hf: holdfast.Holdfast, *, in_memory: bool) -> tuple[LeasedRun, str]:
    """A run with two open calls: still in somebody's hands, or left to its peers."""
    held = await hf.runs.open("r")
    group = await held.open_waits([call("a"), call("b")], suspend=not in_memory)
    return held, group


IN_MEMORY = pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "left"])


@pytest.mark.mission("S0-008", "S0-080", "S2-010", "S2-013", "S2-014", "S2-016")
@IN_MEMORY
@async_test
async def test_reply_finds_its_task_in_memory_or_left_and_the_last_one_lets_it_go_on(
    store: str, in_memory: bool
) -> None:
    async with holdfast.open(store) as hf:
        held, group = await held_or_left(hf, in_memory=in_memory)
        other = hf.another_worker()
        assert (await other.waits.resolve("b", "of b")).accepted
        assert [(r.wait_id, r.value) for r in await other.waits.results("r", group)] == [
            ("b", "of b")
        ]
        assert (await hf.waits.get("a")).status is WaitStatus.OPEN
        assert (await hf.runs.get("r")).status == ("running" if in_memory else "waiting")
        assert (await other.waits.resolve("a", "of a")).accepted
        if in_memory:
            assert not await held.suspend(group), "all are in: it goes on where it is"
        else:
            held = await other.leases.take("r", only_ready=True)
        assert [(r.wait_id, r.value) for r in await held.results(group)] == [
            ("a", "of a"),
            ("b", "of b"),
        ]
        assert (await kinds(hf, "r")).count("WAIT_RESOLVED") == 2


@pytest.mark.mission("S0-077", "S0-078", "S2-014")
@IN_MEMORY
@async_test
async def test_many_claims_of_a_call_succeed_once_and_reading_it_claims_nothing(
    store: str, in_memory: bool
) -> None:
    async with holdfast.open(store) as hf:
        _, group = await held_or_left(hf, in_memory=in_memory)
        others = [hf.another_worker() for _ in range(8)]
        await asyncio.gather(*(other.waits.get("a") for other in others))
        read = await asyncio.gather(*(other.waits.get("a") for other in others))
        told = {(wait.status, wait.name, wait.claimed_by) for wait in read}
        assert told == {("open", "research", "")}
        (opened,) = [e for e in await hf.journal.read("r") if e.kind == "WAITS_OPENED"]
        correlation: Any = body_of(opened)
        assert correlation["a"] == {"function_call_id": "call of a"}
        answers = await asyncio.gather(
            *(other.waits.resolve("a", n) for n, other in enumerate(others))
        )
        (first,) = [n for n, answer in enumerate(answers) if answer.accepted]
        assert (await hf.waits.get("a")).duplicates == 7
        assert [(r.wait_id, r.value) for r in await hf.waits.results("r", group)] == [("a", first)]


@pytest.mark.mission("S0-083", "S2-017", "S2-018", "S2-019")
@IN_MEMORY
@pytest.mark.parametrize("answered_first", [True, False], ids=["answer first", "timeout first"])
@async_test
async def test_timeout_must_claim_its_call_wherever_the_task_is(
    store: str, in_memory: bool, answered_first: bool
) -> None:
    clock = ManualClock()
    async with holdfast.open(store, clock=clock) as hf:
        held, group = await held_or_left(hf, in_memory=in_memory)
        await hf.waits.resolve("b", "of b")
        if answered_first:
            await hf.waits.resolve("a", "of a")
        clock.advance(61)
        assert await hf.another_worker().waits.expire_due() == (0 if answered_first else 1)
        assert (await hf.waits.resolve("a", "late")).accepted is False
        if in_memory:
            assert not await held.suspend(group)
        else:
            held = await hf.leases.take("r", only_ready=True)
        ended = {r.wait_id: (r.status, r.value) for r in await held.results(group)}
        expired = ("expired", None)
        assert ended == {"a": ("resolved", "of a") if answered_first else expired, "b": ended["b"]}
        entries = [e for e in await hf.journal.read("r") if e.kind == "WAIT_EXPIRED"]
        told = [indexes.facts_of(entry).wait_id for entry in entries]
        assert told == ([] if answered_first else ["a"])


@pytest.mark.mission("S2-019", "S2-020")
@async_test
async def test_timeout_that_an_answer_overtakes_is_logged_and_ends_quietly(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with holdfast.open(store, clock=clock) as hf:
        _, group = await held_or_left(hf, in_memory=False)
        clock.advance(61)
        look = sweeper.with_right_deadlines

        async def answered_meanwhile(*given: Any) -> Any:
            """Both calls were found due; before they are expired one is answered."""
            assert (await hf.another_worker().waits.resolve("a", "of a")).accepted
            return await look(*given)

        monkeypatch.setattr(sweeper, "with_right_deadlines", answered_meanwhile)
        with caplog.at_level(logging.INFO, "holdfast"):
            assert await hf.waits.expire_due() == 1
        (told,) = caplog.records
        assert (told.levelname, "wait a " in told.message) == ("INFO", True)
        ended = [(r.wait_id, r.status) for r in await hf.waits.results("r", group)]
        assert ended == [("a", "resolved"), ("b", "expired")]
        assert (await kinds(hf, "r")).count("WAIT_EXPIRED") == 1
        assert await hf.journal.verify("r") == []


@pytest.mark.mission("S0-083")
@async_test
async def test_call_in_a_store_that_is_only_memory_times_out_too() -> None:
    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        try:
            return await run.peer("nobody", 1, queue_timeout=0.1)
        except PeerTimedOut as error:
            return str(error)

    async with holdfast.Holdfast("memory://", agents=[caller]) as hf:
        assert "no worker took it within 0.1 seconds" in await hf.run(caller, timeout=30)


@pytest.mark.mission("S2-011", "S2-032")
@async_test
async def test_answer_in_time_disarms_the_timeout_which_costs_no_commit(store: str) -> None:
    async def answered(run_id: str, timeout: float | None) -> tuple[int, int, list[str]]:
        clock, counts = ManualClock(), Counter[str]()

        def count(name: str, amount: int) -> None:
            counts[name] += amount

        async with holdfast.open(store, clock=clock, telemetry=count) as hf:
            held = await hf.runs.open(run_id)
            spec = WaitSpec(wait_id=f"{run_id}/a", kind="peer", timeout_seconds=timeout)
            await held.open_waits([spec], suspend=True)
            before = counts[BATCH_COMMITTED]
            await hf.waits.resolve(f"{run_id}/a", "found")
            by_the_answer = counts[BATCH_COMMITTED] - before
            held = await hf.leases.take(run_id, only_ready=True)
            await held.complete("done")
            commits = counts[BATCH_COMMITTED]
            clock.advance(3600)
            assert await hf.waits.expire_due() == 0
            assert (await hf.waits.get(f"{run_id}/a")).status is WaitStatus.RESOLVED
            return by_the_answer, commits, await kinds(hf, run_id)

    timed = await answered("timed", 60)
    assert timed == await answered("untimed", None)
    assert timed[0] == 1


@pytest.mark.mission("S0-084")
@async_test
async def test_sweeper_sleeps_until_the_next_deadline_and_no_longer(store: str) -> None:
    clock = ManualClock()
    settings = Settings(wakeup_poll_seconds=10, sweep_seconds=10)
    async with holdfast.open(store, clock=clock, settings=settings) as hf:
        assert await hf.leases.tend() > 9
        held = await hf.runs.open("r")
        await held.open_waits([WaitSpec(wait_id="a", timeout_seconds=0.25)], suspend=True)
        fresh = hf.another_worker()
        assert 0 < await fresh.leases.tend() <= 0.25
        clock.advance(0.25)
        await hf.another_worker().leases.tend()
        assert (await hf.waits.get("a")).status is WaitStatus.EXPIRED


@pytest.mark.mission("S0-076")
@async_test
async def test_calls_that_cannot_be_stored_leave_the_task_in_memory_and_nothing_half_written(
    backend: Backend,
) -> None:
    # In PostgreSQL a commit is one statement, so there is nothing inside it to fail at.
    point = "commit.after_entries" if backend.name == "sqlite" else "batch.after_begin"
    async with holdfast.open(backend.url) as hf:
        held = await hf.runs.open("r")
        before = await kinds(hf, "r")
        calls = [call("a", begins=True), call("b", begins=True)]
        with armed(point, "raise"), pytest.raises((HoldfastError, RuntimeError)):
            await held.open_waits(calls, suspend=True)
        assert await kinds(hf, "r") == before
        assert await hf.waits.of_run("r") == []
        with pytest.raises(RunNotFound):
            await hf.runs.get("a")
        assert (await hf.runs.get("r")).status == "running"
        await held.open_waits(calls, suspend=True)
        assert (await hf.runs.get("r")).status == "waiting"
        assert [(await hf.runs.get(n)).status for n in ("a", "b")] == ["ready", "ready"]


@pytest.mark.mission("S0-087", "S2-021", "S2-022", "S2-024", "S2-025")
@async_test
async def test_timeout_is_the_result_of_its_own_call_and_resumes_when_all_are_in(
    store: str,
) -> None:
    clock = ManualClock()

    @holdfast.agent
    async def research(run: holdfast.Run, request: str) -> str:
        return f"found {request}"

    async def model(talk: list[Message]) -> Message:
        calls = [
            ToolCall("first", "peer_silent", {"request": "x"}),
            ToolCall("second", "peer_research", {"request": "gold"}),
        ]
        return Message.assistant("", calls) if len(talk) == 1 else Message.assistant("done")

    looped = holdfast.AgentLoop(
        model, peers=[Peer("silent", timeout=5), Peer("research", timeout=600)], name="looped"
    )
    async with holdfast.Holdfast(store, agents=[looped, research], clock=clock) as hf:
        await start(hf, looped, "go")
        await advance(hf, "r")
        calls = {wait.name: wait.wait_id for wait in await hf.waits.of_run("r")}
        clock.advance(60)  # nobody has taken them yet
        assert await hf.waits.expire_due() == 0
        await hf.runs.open(calls["peer_silent"])
        clock.advance(1)  # that it was taken is said a moment later
        await hf.leases.outbox.deliver()
        clock.advance(6)
        assert await hf.waits.expire_due() == 1
        await hf.leases.outbox.deliver()
        assert (await hf.runs.get(calls["peer_silent"])).status == "cancelled"
        assert (await hf.runs.get("r")).status == "waiting", "not earlier than all are in"
        await advance(hf, calls["peer_research"])
        assert (await hf.runs.get("r")).status == "ready"
        await advance(hf, "r")
        assert await hf.runs.result("r") == "done"
        talk = (await hf.checkpoints.load("r"))["transcript"]
        messages = [msgspec.convert(each, Message) for each in talk]
        results = {r.call_id: r.content for message in messages for r in message.results}
        assert results == {
            "first": "Request to peer agent tool 'peer_silent' timed out after 5 seconds.",
            "second": "found gold",
        }


@pytest.mark.mission("S0-091")
@pytest.mark.parametrize("is_answered", [True, False], ids=["no call is open", "a call is open"])
@async_test
async def test_cancel_closes_every_record_and_tells_the_caller(
    store: str, is_answered: bool
) -> None:
    @holdfast.agent
    async def research(run: holdfast.Run, topic: str) -> str:
        return f"found {topic}"

    @holdfast.agent
    async def caller(run: holdfast.Run) -> str:
        return await run.peer(research, "gold")

    async with holdfast.Holdfast(store, agents=[caller, research]) as hf:
        await start(hf, caller)
        await advance(hf, "r")
        (wait,) = await hf.waits.of_run("r")
        if is_answered:
            await advance(hf, wait.wait_id)
        handle = await hf.another_worker().start(caller, run_id="r")
        await handle.cancel(by="ann")
        await hf.leases.outbox.deliver()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=30)
        closed = await hf.waits.get(wait.wait_id)
        assert closed.status == ("resolved" if is_answered else "cancelled")
        peer = await hf.runs.get(wait.wait_id)
        assert peer.status == ("completed" if is_answered else "cancelled")


@pytest.mark.mission("S0-007")
@async_test
async def test_sessions_checkpoints_calls_and_effects_are_in_one_file(tmp_path: Path) -> None:
    @holdfast.tool(effect="idempotent")
    async def note(text: str) -> str:
        return text

    @holdfast.agent
    async def research(run: holdfast.Run, topic: str) -> str:
        return f"found {topic}"

    @holdfast.agent(tools=[note])
    async def clerk(run: holdfast.Run, message: str) -> str:
        return await run.call(note, await run.peer(research, message))

    backend = SQLiteBackend(tmp_path / "agents.db")
    async with holdfast.Holdfast(backend.url, agents=[clerk, research]) as hf:
        assert await hf.session(clerk, "ann").send("gold", timeout=30) == "found gold"
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"agents.db"}
    with backend.raw() as raw:
        for table in ("runs", "journal", "checkpoints", "waits", "effects", "signals"):
            assert raw.rows(f"SELECT count(*) FROM {table}")[0][0] > 0, table
