"""Handoffs that do not come about: the run goes back to its giver, or to people; never nowhere."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import HandoffPolicy, Settings
from holdfast.agents.handoff import handoff_record
from holdfast.agents.turn.handoff_exit import previous_context
from holdfast.errors import ConflictError, Fenced, IllegalMove, RunBlocked, RunCancelled
from holdfast.kernel import record_proofs
from holdfast.kernel.records import Record
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import kinds, start
from tests.backends import Backend
from tests.handoff.relays import STEPS, Seen, builder, handed
from tests.handoff.test_protocol import CYCLE

SOON = Settings(lease_seconds=0.3, wakeup_poll_seconds=0.05)
SECONDS = 0.15
# What keeps final checkpoints from being changed is in the way of whoever means to damage one.
GUARD = {
    "sqlite": ("DROP TRIGGER final_entry_changed", "SELECT 1"),
    "postgres": (
        "ALTER TABLE journal DISABLE TRIGGER final_entry",
        "ALTER TABLE journal ENABLE TRIGGER final_entry",
    ),
}
DAMAGE = "UPDATE journal SET body = ? WHERE run_id = 'r' AND seq = ?"


def giver_to(
    to: str, seen: Seen, *, seconds: float = 30.0, **more: Any
) -> holdfast.Agent[..., Any]:
    """Hands over to somebody after its second part, by its policy only: once, not by a wish."""
    policy = HandoffPolicy(select=lambda _: to, acknowledge_seconds=seconds, errors=None)
    return builder(seen, hand_over_at={2: ""}, handoff=policy, **more)


@asynccontextmanager
async def given(
    store: str, *, to: str = "qa", seconds: float = 30.0, assigned: bool = True
) -> AsyncGenerator[tuple[holdfast.Holdfast, str, Seen]]:
    """A run that is handed over, and that nobody has taken yet; the id of its handoff."""
    seen = Seen()
    agents = [giver_to(to, seen, seconds=seconds), builder(seen, name="qa")]
    async with holdfast.Holdfast(store, agents=agents, settings=SOON) as hf:
        await start(hf, agents[0], "it")
        orchestrate = hf.leases.outbox.orchestrate
        protocol: Any = hf._work._handoffs
        if not assigned:
            # Neither the giver nor whoever delivers messages decides who goes on.
            hf.leases.outbox.orchestrate = None
            protocol._orchestrate_at_once = _nothing
        task = hf._work.start_pass(await hf.leases.take("r"))
        await task
        hf.leases.outbox.orchestrate = orchestrate
        vars(protocol).pop("_orchestrate_at_once", None)
        run = await hf.runs.get("r")
        assert run.status == ("ready" if assigned else "waiting")
        yield hf, run.handoff, seen


async def _nothing(run_id: str, given: object) -> None:
    """The giver dies here."""


async def orchestrate(hf: holdfast.Holdfast, handoff_id: str) -> None:
    """Decide who goes on, however often that was decided before."""
    found = await hf._context.store.journal.read("r", after=0, limit=100)  # may be damaged
    (entry,) = [entry for entry in found if entry.kind == "AGENT_HANDOFF"]
    assert hf.leases.outbox.orchestrate is not None
    await hf.leases.outbox.orchestrate("r", handoff_id, entry.seq)


async def pass_deadline(hf: holdfast.Holdfast) -> None:
    """Wait until the handoff should have been acknowledged."""
    while (await hf.waits.of_run("r"))[0].deadline > hf._context.now():
        await asyncio.sleep(0.002)


async def expire(*sweepers: holdfast.Holdfast) -> None:
    """Let the time of what is open pass: all sweep at once until one of them has found it."""
    async with asyncio.timeout(240):
        while not sum(await asyncio.gather(*(each.waits.expire_due() for each in sweepers))):
            await asyncio.sleep(0.01)


@async_test
async def test_handoff_that_nobody_acknowledges_goes_back_to_its_giver_once(store: str) -> None:
    async with given(store, seconds=SECONDS) as (hf, _, seen):
        assert (await hf.runs.get("r")).agent == "qa"
        twin = hf.another_worker()
        await expire(hf, twin, twin, twin)
        run = await hf.runs.get("r")
        assert (run.agent, run.status, run.handoff, run.reverts) == ("builder", "ready", "", 1)
        assert (await handed(hf))[-1:] == ["HANDOFF_REVERTED"]
        assert (await handed(hf)).count("HANDOFF_REVERTED") == 1
        (view,) = await hf.handoffs.of_run("r")
        assert (view.status, view.reason) == ("reverted", "nobody acknowledged it in time")
        # The giver wishes it again, and this time somebody is there.
        ending = await hf._work.start_pass(await hf.leases.take("r"))
        assert ending.error is None
        assert [name for name, _, _ in seen.turns] == ["builder"] * 2, "no turn is repeated"
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"
        assert (await hf.runs.get("r")).reverts == 0
        assert await hf.journal.verify("r") == []


@async_test
async def test_agent_that_nobody_knows_gets_nothing_and_people_are_asked(store: str) -> None:
    seen = Seen()
    agent = giver_to("nobody", seen, seconds=SECONDS)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        with pytest.raises(RunBlocked, match="3 handoffs in a row were not acknowledged"):
            await hf.run(agent, "it", run_id="r", timeout=60)
        run = await hf.runs.get("r")
        assert (run.blocked_reason, run.agent, run.handoff) == ("no_agent", "builder", "")
        assert (await handed(hf)).count("HANDOFF_REVERTED") == 3
    known = builder(seen, name="nobody")
    async with holdfast.Holdfast(store, agents=[agent, known], settings=SOON) as hf:
        await hf.runs.unblock("r")
        assert await hf.run(agent, "it", run_id="r", timeout=60) == "4 parts of it"
        assert (await hf.runs.get("r")).agent == "nobody"
    assert [name for name, _, _ in seen.turns] == ["builder"] * 2 + ["nobody"] * 2


@async_test
async def test_receiver_that_cannot_take_the_input_is_refused(store: str) -> None:
    @holdfast.agent
    async def adder(run: holdfast.Run, a: int, b: int) -> str:
        raise AssertionError("it never comes here")

    agent = giver_to("adder", Seen())
    async with holdfast.Holdfast(store, agents=[agent, adder], settings=SOON) as hf:
        with pytest.raises(RunBlocked, match="agent adder takes: a, b"):
            await hf.run(agent, "it", run_id="r", timeout=60)
        assert "HANDOFF_ASSIGNED" not in await handed(hf)


@async_test
async def test_choosing_that_breaks_does_not_lose_the_run(store: str) -> None:
    asked: list[int] = []

    def select(_: object) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("no idea")
        return "" if len(asked) == 2 else "builder"

    policy = HandoffPolicy(select=select, acknowledge_seconds=1.0)
    agent = builder(Seen(), hand_over_at={2: ""}, handoff=policy)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        assert await hf.run(agent, "it", run_id="r", timeout=60) == "4 parts of it"
        assert await hf.journal.verify("r") == []


@pytest.mark.mission("S3-060")
@async_test
async def test_damaged_checkpoint_is_not_handed_over(backend: Backend) -> None:
    async with given(backend.url, assigned=False) as (hf, handoff_id, _):
        version = (await hf.handoffs.of_run("r"))[0].version
        with backend.raw() as raw:
            (seq,) = raw.rows(
                "SELECT seq FROM checkpoints WHERE run_id = 'r' AND version = ?", version
            )[0]
            off, on = GUARD[backend.name]
            raw.execute(off)
            assert raw.execute(DAMAGE, b"\x00", seq) == 1
            raw.execute(on)
        await orchestrate(hf, handoff_id)
        run = await hf.runs.get("r")
        assert (run.handoff, run.agent) == ("", "builder")
        (view,) = await hf.handoffs.of_run("r")
        assert view.status == "reverted"
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"
        found = await hf._context.store.journal.read("r", after=0, limit=100)
        told = [entry.kind for entry in found]
        assert "HANDOFF_REVERTED" in told[: told.index("RECOVERY_INITIATED")]
        assert "CHECKPOINT_CORRUPTED" in told
        assert "RECOVERY_INITIATED" in told


@pytest.mark.mission("S3-060")
@async_test
async def test_record_that_is_not_the_one_that_was_hashed_is_not_handed_over(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain is whole: whoever wrote the record has changed it after it was hashed."""

    def changed_later(record: Record) -> Record:
        hashed = record_proofs.with_hash(record)
        recovery = msgspec.structs.replace(hashed.recovery, rollback_instructions="send money")
        return msgspec.structs.replace(hashed, recovery=recovery)

    monkeypatch.setattr(handoff_record, "with_hash", changed_later)
    async with given(store, assigned=False) as (hf, handoff_id, _):
        assert await hf.journal.verify("r") == []
        await orchestrate(hf, handoff_id)
        (view,) = await hf.handoffs.of_run("r")
        assert (view.status, view.hash, view.chosen_because) == ("reverted", "", "")
        assert "the hash of the record is not that of its content" in view.reason
        assert (await hf.runs.get("r")).agent == "builder"


@async_test
async def test_what_a_giver_writes_later_is_refused(store: str) -> None:
    seen = Seen()
    agents = [giver_to("qa", seen), builder(seen, name="qa")]
    async with holdfast.Holdfast(store, agents=agents, settings=SOON) as hf:
        await start(hf, agents[0], "it")
        held = await hf.leases.take("r")
        old = await hf.another_worker().leases.take("r", takeover=True)
        await hf._work.start_pass(old)
        held.append("log", "late")
        with pytest.raises(Fenced):
            await held.checkpoint()
        assert "log" not in (await hf.checkpoints.load("r")).parts


@async_test
async def test_acknowledgement_after_the_deadline_is_refused(store: str) -> None:
    async with given(store, seconds=SECONDS) as (hf, handoff_id, _):
        late = await hf.leases.take("r")
        await expire(hf)
        late.set("late", True)
        with pytest.raises(Fenced, match="was handed over, taken back or recovered"):
            await late.handoffs.acknowledge()
        assert (await handed(hf)).count("HANDOFF_ACKNOWLEDGED") == 0
        with pytest.raises(ConflictError, match="is over"):
            await hf.handoffs.acknowledge("r", handoff_id, "qa")
        with pytest.raises(ConflictError, match="is over"):
            await hf.handoffs.refuse("r", handoff_id, "too late")
        with pytest.raises(ConflictError, match="is over"):
            await hf.handoffs.assign("r", handoff_id, "qa")
        assert (await hf.runs.get("r")).agent == "builder"


@pytest.mark.mission("S3-065", "S3-179")
@async_test
async def test_a_second_acknowledgement_is_refused(store: str) -> None:
    async with given(store) as (hf, handoff_id, _):
        await hf.handoffs.acknowledge("r", handoff_id, "qa", by="outside")
        with pytest.raises(ConflictError, match="is over"):
            await hf.handoffs.acknowledge("r", handoff_id, "other")
        (view,) = await hf.handoffs.of_run("r")
        assert (view.status, view.to, view.worker) == ("acknowledged", "qa", "qa")
        assert [w.status for w in await hf.waits.of_run("r")] == ["resolved"]
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"


@async_test
async def test_who_was_acknowledged_from_outside_is_told_what_was_left(store: str) -> None:
    async with given(store) as (hf, handoff_id, _):
        assert previous_context(await hf.leases.take("r")) is None
        await hf.handoffs.acknowledge("r", handoff_id, "qa", by="outside")
        left = previous_context(await hf.leases.take("r", takeover=True))
        assert left is not None
        assert left.giver == "builder"


@pytest.mark.mission("S3-059")
@async_test
async def test_handoff_that_was_given_while_nobody_decided_is_received_later(store: str) -> None:
    """The giver's process ends before anybody has chosen: its message is still there."""
    async with given(store, assigned=False) as (_, _, seen):
        pass
    agents = [giver_to("qa", seen), builder(seen, name="qa")]
    async with holdfast.Holdfast(store, agents=agents, settings=SOON) as hf:
        assert await handed(hf, kinds=STEPS) == ["AGENT_HANDOFF"]
        assert await hf.run(agents[0], "it", run_id="r", timeout=60) == "4 parts of it"
        assert await handed(hf, kinds=STEPS) == CYCLE, "in time, so it never went back"


@pytest.mark.mission("S3-144")
@async_test
async def test_two_who_decide_at_once_decide_once(store: str) -> None:
    async with given(store, assigned=False) as (hf, handoff_id, _):
        deciders = [hf, *(hf.another_worker() for _ in range(4))]
        await asyncio.gather(*(orchestrate(decider, handoff_id) for decider in deciders))
        assert await handed(hf) == ["AGENT_HANDOFF", "HANDOFF_ASSIGNED"]


@pytest.mark.chaos(round=range(3, 40))
@pytest.mark.parametrize("round", range(40))
@async_test
async def test_acknowledging_against_the_deadline_has_one_winner(store: str, round: int) -> None:
    async with given(store, seconds=0.01) as (hf, _, _):
        held = await hf.leases.take("r")
        sweeper = hf.another_worker()
        await pass_deadline(hf)

        async def acknowledge() -> str:
            await asyncio.sleep(0.0005 * (round % 5))
            try:
                await held.handoffs.acknowledge()
            except Fenced:
                return "reverted"
            return "acknowledged"

        told, _ = await asyncio.gather(acknowledge(), sweeper.waits.expire_due())
        run = await hf.runs.get("r")
        (view,) = await hf.handoffs.of_run("r")
        assert view.status == told
        wanted = {"acknowledged": ("qa", "running"), "reverted": ("builder", "ready")}[told]
        assert (run.agent, run.status) == wanted
        assert (await handed(hf))[2:] in (["HANDOFF_ACKNOWLEDGED"], ["HANDOFF_REVERTED"])
        assert await hf.journal.verify("r") == []


@pytest.mark.parametrize("assigned", [False, True])
@async_test
async def test_run_is_cancelled_while_it_is_handed_over(store: str, assigned: bool) -> None:
    async with given(store, assigned=assigned, seconds=SECONDS) as (hf, handoff_id, _):
        await hf.runs.cancel("r")
        run = await hf.runs.get("r")
        assert (run.status, run.handoff, run.giver) == ("cancelled", "", "")
        assert [w.status for w in await hf.waits.of_run("r")] == ["cancelled"]
        await orchestrate(hf, handoff_id)
        assert await hf.waits.expire_due() == 0
        assert (await kinds(hf, "r"))[-1] == "RUN_CANCELLED"
        with pytest.raises(RunCancelled):
            await hf.run(hf.agent("builder"), "it", run_id="r")
        with pytest.raises(RunCancelled):
            await hf.handoffs.request("r")


@pytest.mark.parametrize("assigned", [False, True])
@async_test
async def test_rows_of_a_pending_handoff_are_rebuilt_from_the_journal(
    backend: Backend, assigned: bool
) -> None:
    async with given(backend.url, assigned=assigned) as (hf, _, _):
        with backend.raw() as raw:
            tables = ("runs", "waits", "wait_groups", "messages", "checkpoints")
            before = {t: sorted(map(repr, raw.rows(f"SELECT * FROM {t}"))) for t in tables}
            raw.execute("UPDATE runs SET handoff = '', giver = '', wish = 'x', contexts = 9")
            await hf.reindex("r")
            after = {t: sorted(map(repr, raw.rows(f"SELECT * FROM {t}"))) for t in tables}
        assert after == before
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"


@pytest.mark.parametrize("assigned", [False, True])
@async_test
async def test_blocked_run_stays_blocked_when_its_handoff_is_not_acknowledged(
    store: str, assigned: bool
) -> None:
    """An operator has stopped it: only an operator lets it go on."""
    async with given(store, assigned=assigned, seconds=SECONDS) as (hf, handoff_id, _):
        await hf.runs.block("r", "breaker", note="let me look")
        (view,) = await hf.handoffs.of_run("r")
        assert (view.status, view.reason) == ("reverted", "the run was blocked")
        await orchestrate(hf, handoff_id)
        await pass_deadline(hf)
        await hf.waits.expire_due()
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "breaker")
        await hf.runs.unblock("r")
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"
        assert await hf.journal.verify("r") == []


@async_test
async def test_a_handoff_is_nobody_elses_wait(store: str) -> None:
    """Who goes on is decided by the protocol alone."""
    async with given(store, assigned=False) as (hf, handoff_id, _):
        with pytest.raises(IllegalMove, match="handoff"):
            await hf.waits.resolve(handoff_id, "me")
        with pytest.raises(IllegalMove, match="handoff"):
            await hf.waits.cancel(handoff_id)
        assert (await hf.runs.get("r")).status == "waiting"


@pytest.mark.parametrize("pending", [False, True])
@async_test
async def test_going_back_before_a_handoff_gives_the_agent_of_that_time(
    store: str, pending: bool
) -> None:
    async with given(store) as (hf, _, _):
        if not pending:
            await hf._work.start_pass(await hf.leases.take("r"))
            assert (await hf.runs.get("r")).status == "completed"
        fork = await hf.runs.fork("r", 1, new_run_id="f")
        assert (fork.agent, fork.contexts) == ("builder", 1)
        assert await hf.run(hf.agent("builder"), "it", run_id="f", timeout=60) == "4 parts of it"
        if not pending:
            after = await hf.runs.fork("r", 3, new_run_id="g")
            assert after.agent == "qa"
            return
        run = await hf.runs.rewind("r", 1)
        assert (run.agent, run.status, run.handoff, run.contexts) == ("builder", "ready", "", 1)
        assert [w.status for w in await hf.waits.of_run("r")] == ["cancelled"]
        assert await hf.run(hf.agent("builder"), "it", run_id="r", timeout=60) == "4 parts of it"


@pytest.mark.mission("S3-143")
@async_test
async def test_receiver_that_has_no_room_for_the_prompt_is_refused(store: str) -> None:
    seen = Seen()
    crowded = HandoffPolicy(window=1000, count=lambda text: 10 * len(text), prompt_tokens=100)
    agents = [giver_to("qa", seen), builder(seen, name="qa", handoff=crowded)]
    async with holdfast.Holdfast(store, agents=agents, settings=SOON) as hf:
        await start(hf, agents[0], "it")
        await hf._work.start_pass(await hf.leases.take("r"))
        (view, *_) = await hf.handoffs.of_run("r")
        assert (view.status, "tokens" in view.reason) == ("reverted", True)
        assert (await hf.runs.get("r")).agent == "builder"


@async_test
async def test_giver_that_goes_on_itself_is_no_receiver(store: str) -> None:
    found: list[object] = []

    async def each(run: holdfast.Run, turn: int) -> None:
        found.append(run.continuation)

    policy = HandoffPolicy(acknowledge_seconds=SECONDS)
    agent = builder(Seen(), handoff=policy, each=each)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        await start(hf, agent, "it")
        await hf.handoffs.request("r", to="nobody")
        assert await hf.run(agent, "it", run_id="r", timeout=60) == "4 parts of it"
        assert [each.status for each in await hf.handoffs.of_run("r")] == ["reverted"]
    assert found == [None, None, None, None]


@async_test
async def test_counter_that_raises_stops_its_handoff_and_no_worker(store: str) -> None:
    def count(text: str) -> int:
        raise OSError("the words of the model cannot be fetched")

    @holdfast.agent
    async def giver(run: holdfast.Run) -> str:
        run.hand_over("qa")
        await run.checkpoint()
        return "not handed over"

    @holdfast.agent(handoff=HandoffPolicy(count=count))
    async def qa(run: holdfast.Run) -> str:
        return "qa"

    @holdfast.agent
    async def other(run: holdfast.Run) -> str:
        return "other"

    async with holdfast.Holdfast(store, agents=[giver, qa, other], settings=SOON) as hf:
        worker = hf.new_worker()
        working = asyncio.create_task(worker.run())
        await hf.start(giver, run_id="r")
        async with asyncio.timeout(60):
            while (await hf.runs.get("r")).status != "blocked":
                await asyncio.sleep(0.02)
        assert await (await hf.start(other, run_id="o")).result(timeout=30) == "other"
        worker.stop()
        await working
        *_, last = await hf.handoffs.of_run("r")
        assert "the tokens of its prompt could not be counted" in last.reason
