"""Handoffs that somebody asks for who does not hold the run; sessions; givers that come back."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import holdfast
from holdfast import HandoffPolicy, Message, Settings
from holdfast.errors import IllegalMove, RunBlocked, RunEnded, RunNotFound
from holdfast.kernel.records import Record
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import start
from tests.backends import Raw
from tests.handoff.frozen import SETTINGS, make
from tests.handoff.owners import Owners
from tests.handoff.relays import Seen, builder, handed
from tests.processes import Child

SOON = Settings(wakeup_poll_seconds=0.05)
ASKED = ["HANDOFF_REQUESTED", "AGENT_HANDOFF", "HANDOFF_ASSIGNED", "HANDOFF_ACKNOWLEDGED"]


@pytest.mark.mission("S3-135")
@pytest.mark.parametrize("when", ["running", "waiting"])
@async_test
async def test_a_run_is_handed_over_because_somebody_asks(store: str, when: str) -> None:
    seen, begun, may_go_on = Seen(), asyncio.Event(), asyncio.Event()

    async def each(run: holdfast.Run, turn: int) -> None:
        if turn != 2:
            return
        if when == "running":
            begun.set()
            await may_go_on.wait()
        elif when == "waiting":
            assert await run.ask("go on?") == "yes"

    agent, other = builder(seen, each=each), builder(seen, name="qa")
    async with holdfast.Holdfast(store, agents=[agent, other], settings=SOON) as hf:
        await start(hf, agent, "it")
        running = asyncio.create_task(hf.run(agent, "it", run_id="r"))
        if when == "running":
            await begun.wait()
        elif when == "waiting":
            await until(hf, "waiting")
        assert (await hf.runs.get("r")).status == when
        await hf.handoffs.request("r", to="qa", by="ann", note="qa knows better")
        assert (await hf.runs.get("r")).status == when, "it is done at the end of its turn"
        may_go_on.set()
        if when == "waiting":
            (asked,) = await hf.approvals.list()
            await hf.approvals.answer(asked.wait_id, "yes", by="ann")
        assert await running == "4 parts of it"
        assert await hf.run(agent, "it", run_id="r", timeout=30) == "4 parts of it"
        assert await handed(hf) == ASKED
        (handoff,) = await hf.handoffs.of_run("r")
        assert (handoff.giver, handoff.to, handoff.trigger) == ("builder", "qa", "explicit")
        assert handoff.note == "it was asked for from outside: qa knows better"
        assert sorted({turn for _, turn, _ in seen.turns}) == [1, 2, 3, 4]
        assert seen.turns[-1][0] == "qa"
        with pytest.raises(RunEnded):
            await hf.handoffs.request("r")
        with pytest.raises(RunNotFound):
            await hf.handoffs.request("nobody")


@pytest.mark.parametrize("when", ["ready", "blocked"])
@async_test
async def test_a_run_that_nobody_works_on_is_handed_over_when_it_goes_on(
    store: str, when: str
) -> None:
    seen = Seen()
    agent, other = builder(seen), builder(seen, name="qa")
    async with holdfast.Holdfast(store, agents=[agent, other], settings=SOON) as hf:
        await start(hf, agent, "it")
        if when == "blocked":
            await hf.runs.block("r", "breaker")
        await hf.handoffs.request("r", to="qa", by="ann", note="qa knows better")
        assert (await hf.runs.get("r")).status == when
        if when == "blocked":
            with pytest.raises(RunBlocked):
                await hf.run(agent, "it", run_id="r")
            await hf.runs.unblock("r")
        assert await hf.run(agent, "it", run_id="r", timeout=30) == "4 parts of it"
        assert await handed(hf) == ASKED
    assert {name for name, _, _ in seen.turns} == {"qa"}


@async_test
async def test_whoever_goes_on_is_told_what_was_said_by_who_asked_last(store: str) -> None:
    told: list[str] = []

    async def listen(run: holdfast.Run, turn: int) -> None:
        assert run.continuation is not None
        told.extend([run.continuation.note, run.continuation.prompt])

    agent, other = builder(Seen()), builder(Seen(), name="qa", each=listen)
    async with holdfast.Holdfast(store, agents=[agent, other], settings=SOON) as hf:
        await start(hf, agent, "it")
        await hf.handoffs.request("r", note="anybody will do")
        await hf.handoffs.request("r", to="qa", note="qa knows better")
        await hf.run(agent, "it", run_id="r", timeout=30)
    assert told
    assert all("qa knows better" in text and "anybody" not in text for text in told)


@async_test
async def test_note_of_a_request_is_found_behind_many_entries(store: str) -> None:
    async with holdfast.Holdfast(store, settings=SOON) as hf:
        held = await hf.runs.open("r", agent="builder")
        assert await held.handoffs.asked() == ""
        await hf.handoffs.request("r", note="qa knows better")
        for turn in range(120):
            held.append("log", turn)
            await held.checkpoint()
        assert await held.handoffs.asked() == "qa knows better"


async def until(hf: holdfast.Holdfast, status: str) -> None:
    async with asyncio.timeout(60):
        async for run in hf.runs.watch("r"):
            if run.status == status:
                return


@async_test
async def test_run_that_is_being_handed_over_is_not_asked_for_another(store: str) -> None:
    agent = builder(Seen(), hand_over_at={1: "nobody"})
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        await start(hf, agent, "it")
        await hf._work.start_pass(await hf.leases.take("r"))
        with pytest.raises(IllegalMove, match="is being handed over already"):
            await hf.handoffs.request("r", to="builder")


@async_test
async def test_a_session_goes_on_with_another_context(store: str) -> None:
    talks: list[tuple[str, list[str], bool]] = []

    def chatter(name: str, policy: HandoffPolicy | None) -> holdfast.Agent[[str], str]:
        @holdfast.agent(name=name, handoff=policy)
        async def agent(run: holdfast.Run, words: str) -> str:
            talk, count = run.log("transcript", Message), run.value("count", int, 0)
            talk.append(Message.user(words))
            talks.append((name, [m.text for m in talk], run.continuation is not None))
            count.set(count.get() + 1)
            if words == "b" and name == "first":
                run.hand_over("second")
                await run.checkpoint()
            return f"{name} {count.get()} {words}"

        return agent

    first, second = chatter("first", HandoffPolicy()), chatter("second", None)
    async with holdfast.Holdfast(store, agents=[first, second], settings=SOON) as hf:
        chat = hf.session(first, "s")
        answers = [await chat.send(words, timeout=30) for words in "abc"]
        assert (await hf.runs.get("s")).agent == "second"
        assert await hf.journal.verify("s") == []
    assert [answer[-1] for answer in answers] == list("abc"), "each message has one answer"
    assert [answer.split()[0] for answer in answers] == ["first", "second", "second"]
    second_talks = [talk for name, talk, _ in talks if name == "second"]
    assert second_talks == [["b"], ["b", "c"]], "the fresh context begins with the open message"
    assert [told for name, _, told in talks if name == "second"] == [True, True]


@async_test
async def test_giver_that_was_frozen_comes_back_and_is_refused(store: str, tmp_path: Path) -> None:
    """It stands still when it is about to hand over; it is given up, and another one goes on."""
    agents = make(tmp_path / "ledger")
    async with holdfast.Holdfast(store, agents=agents, settings=SETTINGS) as hf:
        await start(hf, agents[0], 3)
        with Child("tests.handoff.frozen", store, tmp_path / "ledger") as zombie:
            assert await asyncio.to_thread(zombie.answer) == "frozen"
            assert await hf.run(agents[0], 3, run_id="r", timeout=30) == 3
            zombie.signal(signal.SIGCONT)
            assert await asyncio.to_thread(zombie.answer) == [False, "Fenced"]
            assert zombie.wait() == 0
        assert [h.status for h in await hf.handoffs.of_run("r")] == ["acknowledged"] * 2
        assert await hf.journal.verify("r") == []
    lines = (tmp_path / "ledger").read_text().splitlines()
    assert [line.split()[:3] for line in lines] == [["pay", "r", str(n)] for n in range(3)]


@asynccontextmanager
async def working(
    store: str, *agents: holdfast.Agent[..., Any]
) -> AsyncGenerator[holdfast.Holdfast]:
    """A worker that knows these agents only."""
    async with holdfast.Holdfast(store, agents=agents, settings=SOON) as hf:
        worker = hf.new_worker(concurrency=2)
        task = asyncio.create_task(worker.run())
        yield hf
        worker.stop()
        await task


@pytest.mark.mission("S3-061", "S3-147")
@async_test
async def test_giver_and_receiver_work_in_processes_that_know_only_their_own(store: str) -> None:
    seen = Seen()
    policy = HandoffPolicy(select=lambda _: "qa")
    giver = builder(seen, hand_over_at={2: ""}, handoff=policy)
    async with working(store, giver) as first, working(store, builder(seen, name="qa")) as second:
        handle = await first.start(giver, "it", run_id="r")
        assert await handle.result(timeout=30) == "4 parts of it"
        (view,) = await first.handoffs.of_run("r")
        assert (view.to, view.worker) == ("qa", second.worker)
    assert [name for name, _, _ in seen.turns] == ["builder"] * 2 + ["qa"] * 2


@async_test
async def test_whoever_is_named_goes_on_though_the_givers_process_is_gone(store: str) -> None:
    seen = Seen()
    giver = builder(seen, hand_over_at={2: "qa"})
    async with holdfast.Holdfast(store, agents=[giver], settings=SOON) as hf:
        hf.leases.outbox.orchestrate = None
        await start(hf, giver, "it")
        await hf._work.start_pass(await hf.leases.take("r"))
    async with working(store, builder(seen, name="qa")) as hf:
        async with asyncio.timeout(60):
            while (await hf.runs.get("r")).status != "completed":
                await asyncio.sleep(0.01)
    assert [name for name, _, _ in seen.turns] == ["builder"] * 2 + ["qa"] * 2


@async_test
async def test_receiver_elsewhere_that_cannot_take_the_input_gives_the_run_back(store: str) -> None:
    @holdfast.agent(name="qa")
    async def adder(run: holdfast.Run, a: int, b: int) -> str:
        raise AssertionError("it never comes here")

    giver = builder(Seen(), hand_over_at={2: "qa"})
    async with working(store, giver) as first, working(store, adder):
        handle = await first.start(giver, "it", run_id="r")
        with pytest.raises(RunBlocked, match="agent qa takes: a, b"):
            await handle.result(timeout=30)
        assert "HANDOFF_ACKNOWLEDGED" not in await handed(first)
        run = await first.runs.get("r")
        assert (run.agent, run.blocked_reason) == ("builder", "no_agent")


@async_test
async def test_whoever_asked_a_peer_is_answered_by_the_one_that_went_on(store: str) -> None:
    seen = Seen()
    giver, other = builder(seen, hand_over_at={2: "qa"}), builder(seen, name="qa")

    @holdfast.agent
    async def boss(run: holdfast.Run) -> str:
        return await run.peer("builder", "it")

    async with holdfast.Holdfast(store, agents=[boss, giver, other], settings=SOON) as hf:
        assert await hf.run(boss, run_id="b", timeout=30) == "4 parts of it"
    assert [name for name, _, _ in seen.turns] == ["builder"] * 2 + ["qa"] * 2


def test_judge_of_owners_finds_what_is_wrong() -> None:
    """A judge that finds nothing in anything would be worth nothing."""
    given, acknowledged = ["h", b"", 1, "a", "", "", 0], ["h", "b", "w2"]
    right = [
        ("RUN_CREATED", "x", ["a"]),
        ("RUN_LEASED", "w1", ["w1"]),
        ("AGENT_HANDOFF", "w1", given),
        ("HANDOFF_RECEIVED", "w1", ["h", 1]),
        ("HANDOFF_VERIFIED", "w1", ["h", b"", 1, "hash"]),
        ("HANDOFF_SELECTED", "w1", ["h", "b", "", "because"]),
        ("HANDOFF_ASSIGNED", "w1", ["h", "b"]),
        ("RUN_LEASED", "w2", ["w2"]),
        ("CHECKPOINT_CREATED", "w2", []),
        ("HANDOFF_ACKNOWLEDGED", "w2", acknowledged),
        ("RUN_COMPLETED", "w2", []),
    ]
    assert problems_of(right) == []
    late = ("CHECKPOINT_CREATED", "w1", [])
    for at in range(3, 11):
        assert problems_of([*right[:at], late, *right[at:]]), "the giver wrote later"
    assert problems_of([*right[:-1], right[-2], right[-1]]), "it was acknowledged twice"
    for at in range(2, 11):
        assert problems_of([*right[:at], *right[at + 1 :]]) or at == 8, "something is missing"


def problems_of(entries: list[tuple[str, str, list[Any]]]) -> list[str]:
    class Rows:
        def rows(self, *_: object) -> list[tuple[int, str, str, bytes]]:
            return [
                (seq, kind, actor, msgspec.msgpack.encode(facts))
                for seq, (kind, actor, facts) in enumerate(entries, 1)
            ]

    return Owners(cast("Raw", Rows()), "r").problems


@async_test
async def test_request_that_comes_while_a_context_is_being_left_is_heard(store: str) -> None:
    async def summarize(record: Record, talk: list[Any]) -> str:
        await hf.handoffs.request("r", to="qa", by="operator")
        return "short"

    @holdfast.agent(handoff=HandoffPolicy(summarize=summarize))
    async def work(run: holdfast.Run) -> str:
        run.progress.finish_phase("testing")
        await run.checkpoint()
        return "work went on"

    @holdfast.agent
    async def qa(run: holdfast.Run) -> str:
        return "qa went on"

    async with holdfast.Holdfast(store, agents=[work, qa]) as hf:
        assert await hf.run(work, run_id="r", timeout=30) == "qa went on"
        (view,) = await hf.handoffs.of_run("r")
        assert (view.trigger, view.to, view.status) == ("phase_complete", "qa", "acknowledged")
        assert (await hf.runs.get("r")).wish == ""
