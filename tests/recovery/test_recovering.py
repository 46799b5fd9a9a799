"""Recovery: what fails goes on from its last good checkpoint, or waits for people with a reason."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from holdfast.agents.definitions.recovery_policy import RecoveryPolicy
from holdfast.agents.work.breaker import AgentBreaker
from holdfast.agents.work.scrubber import Scrubber
from holdfast.engine.maintenance import travel
from holdfast.errors import (
    ConflictError,
    IntegrityError,
    RunBlocked,
    RunEnded,
    RunFailed,
    StoreBusy,
)
from holdfast.kernel import indexes, leases
from holdfast.kernel.leases import WorkerRow
from holdfast.kernel.recoveries import Point
from holdfast.stores.contract import LateDecision, Snapshot
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start
from tests.agents.ledger import Ledger
from tests.agents.resting import until_it_waits
from tests.backends import Backend

SOON = Settings(lease_seconds=0.2, wakeup_poll_seconds=0.05)
QUICK = RecoveryPolicy(backoff_seconds=0.01)
TOLD = ("LEASE_EXPIRED", "RUN_BLOCKED", "RUN_UNBLOCKED", "RUN_FAILED", "CHECKPOINT_CORRUPTED")


async def told(hf: holdfast.Holdfast, run_id: str = "r") -> list[str]:
    """What the journal of a run says of failures, be it damaged or not."""
    found = await hf._context.store.journal.read(run_id, after=0, limit=1000)
    kinds = [entry.kind for entry in found]
    return [kind for kind in kinds if kind.startswith("RECOVERY") or kind in TOLD]


async def reasons(hf: holdfast.Holdfast, run_id: str = "r") -> list[str]:
    """How a run failed each time, as the recoveries in its journal tell."""
    found = await hf._context.store.journal.read(run_id, after=0, limit=1000)
    of_recovery = ("RECOVERY_INITIATED", "RECOVERY_FAILED")
    return [indexes.facts_of(entry).reason for entry in found if entry.kind in of_recovery]


def worker_of(
    ledger: Ledger, *, fail: Any = None, policy: RecoveryPolicy | None = QUICK, name: str = "payer"
) -> holdfast.Agent[[int], int]:
    """Pays once in each turn. `fail` is called with the turn before its checkpoint."""

    @holdfast.tool
    async def pay(run: str, turn: int) -> str:
        ledger.write("pay", run, turn)
        return "paid"

    @holdfast.agent(name=name, tools=[pay], recovery=policy)
    async def agent(run: holdfast.Run, turns: int) -> int:
        done = run.value("done", int, 0)
        while done.get() < turns:
            await run.call(pay, run.run_id, done.get())
            if fail is not None:
                await fail(done.get())
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    return agent


def paid(ledger: Ledger) -> list[int]:
    return [line.turn for line in ledger.lines()]


class Failing:
    """Fails so often in a turn, in some way."""

    def __init__(self, turn: int, times: int, error: BaseException | None = None) -> None:
        self.turn, self.left, self.error = turn, times, error or ValueError("no luck")
        self.seen: list[int] = []

    async def __call__(self, turn: int) -> None:
        self.seen.append(turn)
        if turn == self.turn and self.left:
            self.left -= 1
            raise self.error


@pytest.mark.mission("S3-068", "S3-070", "S3-072", "S3-149", "S3-151", "S3-152", "S3-153", "S3-154")
@pytest.mark.mission("S3-161", "S3-186", "S3-187", "S3-201")
@async_test
async def test_agent_that_raises_goes_on_from_its_last_checkpoint(
    store: str, tmp_path: Path
) -> None:
    ledger, failing = Ledger(tmp_path / "ledger"), Failing(1, 2)
    agent = worker_of(ledger, fail=failing)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        assert await hf.run(agent, 3, run_id="r", timeout=30) == 3
        assert await told(hf) == ["RECOVERY_INITIATED", "RECOVERY_COMPLETED"] * 2
        assert await reasons(hf) == ["error"] * 2
        run = await hf.runs.get("r")
        assert not run.is_recovering
        assert await hf.journal.verify("r") == []
    assert failing.seen == [0, 1, 1, 1, 2], "it goes on from the turn that failed"
    assert paid(ledger) == [0, 1, 2], "what was done before it failed is not done again"


@pytest.mark.mission("S3-071", "S3-153", "S3-155", "S3-198")
@async_test
async def test_agent_that_fails_again_and_again_is_left_to_people(
    store: str, tmp_path: Path
) -> None:
    ledger, failing = Ledger(tmp_path / "ledger"), Failing(1, 3)
    agent = worker_of(ledger, fail=failing)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        with pytest.raises(
            RunBlocked, match="3 tries failed without progress: ValueError: no luck"
        ):
            await hf.run(agent, 3, run_id="r", timeout=30)
        tries = ["RECOVERY_INITIATED", "RECOVERY_COMPLETED"] * 2
        assert await told(hf) == [*tries, "RECOVERY_FAILED", "RUN_BLOCKED"]
        run = await hf.runs.get("r")
        assert (run.blocked_reason, failing.left) == ("breaker", 0)
        alerts = hf.events("start", run_id="r", kinds=["RUN_BLOCKED"])
        alert = await asyncio.wait_for(anext(alerts), 30)
        assert alert.data["reason"] == "breaker"
        assert "ValueError: no luck" in alert.data["note"]
        await hf.runs.unblock("r", by="ann", note="mended")
        assert await hf.run(agent, 3, run_id="r", timeout=30) == 3
    assert paid(ledger) == [0, 1, 2]


@async_test
async def test_progress_gives_new_tries(store: str, tmp_path: Path) -> None:
    """Three tries are meant in a row: a run that comes further each time is not stuck."""
    failed: set[int] = set()

    async def fail_once(turn: int) -> None:
        if turn not in failed:
            failed.add(turn)
            raise ValueError("no luck")

    agent = worker_of(Ledger(tmp_path / "ledger"), fail=fail_once)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        assert await hf.run(agent, 6, run_id="r", timeout=30) == 6


@pytest.mark.mission("S3-152", "S3-153")
@pytest.mark.parametrize("way", ["no policy", "give_up_on", "not among errors"])
@async_test
async def test_errors_that_are_not_worth_a_try_fail_the_run(
    store: str, tmp_path: Path, way: str
) -> None:
    policy = {
        "no policy": None,
        "give_up_on": RecoveryPolicy(give_up_on=(ValueError,)),
        "not among errors": RecoveryPolicy(errors=(OSError,)),
    }[way]
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=Failing(1, 1), policy=policy)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        with pytest.raises(RunFailed, match="no luck"):
            await hf.run(agent, 3, run_id="r", timeout=30)
        assert await told(hf) == ["RUN_FAILED"]


@pytest.mark.mission("S3-068", "S3-151", "S3-161")
@async_test
async def test_turn_that_takes_too_long_is_broken_off_and_its_call_is_in_doubt(
    store: str, tmp_path: Path
) -> None:
    ledger, hung = Ledger(tmp_path / "ledger"), list[int]()

    @holdfast.tool(limit_seconds=2)
    async def pay(turn: int) -> str:
        ledger.write("pay", "r", turn)
        if not hung:
            hung.append(turn)
            await asyncio.sleep(60)
        return "paid"

    policy = RecoveryPolicy(backoff_seconds=0.01, turn_seconds=0.3)

    @holdfast.agent(tools=[pay], recovery=policy)
    async def payer(run: holdfast.Run) -> str:
        return await run.call(pay, 0)

    async with holdfast.Holdfast(store, agents=[payer], settings=SOON) as hf:
        with pytest.raises(RunBlocked, match="unknown_effect"):
            await hf.run(payer, run_id="r", timeout=30)
        found = await hf._context.store.journal.read("r", after=0, limit=100)
        kinds = [entry.kind for entry in found]
        assert "RECOVERY_INITIATED" in kinds
        assert await reasons(hf) == ["timeout"]
        (effect,) = await hf.effects.of_run("r")
        assert effect.status == "unknown"
        await hf.effects.settle(effect.effect_id, "completed", result="paid", by="ann")
        assert await hf.run(payer, run_id="r", timeout=30) == "paid"
    assert paid(ledger) == [0], "nobody knew whether it happened, so it was not sent again"


@async_test
async def test_turns_that_are_short_enough_are_not_broken_off(store: str) -> None:
    """The limit is of each turn, not of all."""

    @holdfast.agent(recovery=RecoveryPolicy(turn_seconds=0.5))
    async def slow(run: holdfast.Run) -> int:
        done = run.value("done", int, 0)
        while done.get() < 6:
            await asyncio.sleep(0.15)
            done.set(done.get() + 1)
            await run.checkpoint()
        return done.get()

    async with holdfast.Holdfast(store, agents=[slow], settings=SOON) as hf:
        assert await hf.run(slow, run_id="r", timeout=30) == 6
        assert await told(hf) == []


@pytest.mark.mission("S3-068", "S3-149", "S3-155")
@async_test
async def test_worker_that_is_lost_is_on_record_and_three_of_them_block(
    store: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    agent = worker_of(ledger, fail=Failing(1, 3, Crash()))
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        await start(hf, agent, 3)
        for _ in range(3):
            assert await advance(hf, "r") is None
            await lose(hf)
        tries = ["LEASE_EXPIRED", "RECOVERY_INITIATED"] * 2  # nobody came as far as to go on
        assert await told(hf) == [*tries, "LEASE_EXPIRED", "RECOVERY_FAILED", "RUN_BLOCKED"]
        assert (await hf.runs.get("r")).blocked_reason == "breaker"
        await hf.runs.unblock("r")
        assert await hf.run(agent, 3, run_id="r", timeout=30) == 3
    assert paid(ledger) == [0, 1, 2]


@pytest.mark.mission("S3-151", "S3-161", "S3-187")
@async_test
async def test_worker_that_goes_on_after_another_was_lost_says_so(
    store: str, tmp_path: Path
) -> None:
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=Failing(1, 1, Crash()))
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        await start(hf, agent, 3)
        assert await advance(hf, "r") is None
        await lose(hf)
        assert await hf.run(agent, 3, run_id="r", timeout=30) == 3
        wanted = ["LEASE_EXPIRED", "RECOVERY_INITIATED", "RECOVERY_COMPLETED"]
        assert await told(hf) == wanted
        assert await reasons(hf) == ["lost"]
        assert not (await hf.runs.get("r")).is_recovering


async def lose(hf: holdfast.Holdfast) -> None:
    """Let whoever holds a run be lost: it beats no more."""
    for twin in hf._twins:
        await twin.leases._stop_beating()
    await hf.leases.expire_lost()
    async with asyncio.timeout(60):
        while (await hf.runs.get("r")).status == "running":
            await asyncio.sleep(0.01)
            await hf.leases.expire_lost()


def seq_of(raw: Any, kind: str, nth: int = -1) -> int:
    sql = "SELECT seq FROM journal WHERE run_id = 'r' AND kind = ? ORDER BY seq"
    return raw.rows(sql, kind)[nth][0]


DAMAGE = "UPDATE journal SET body = ? WHERE run_id = 'r' AND seq = ?"


async def stopped(hf: holdfast.Holdfast, agent: holdfast.Agent[..., Any]) -> None:
    """A run of four turns whose worker is lost in its third one, after it has paid."""
    await start(hf, agent, 4)
    assert await advance(hf, "r") is None
    await lose(hf)


@pytest.mark.mission("S3-069", "S3-073", "S3-074", "S3-076", "S3-150", "S3-151", "S3-153")
@pytest.mark.mission("S3-161", "S3-188")
@async_test
async def test_damaged_version_is_passed_over_openly(backend: Backend, tmp_path: Path) -> None:
    ledger, failing = Ledger(tmp_path / "ledger"), Failing(2, 1, Crash())
    agent = worker_of(ledger, fail=failing)
    async with holdfast.Holdfast(backend.url, agents=[agent], settings=SOON) as hf:
        await stopped(hf, agent)
        with backend.raw() as raw:
            raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
        assert await hf.run(agent, 4, run_id="r", timeout=30) == 4
        kinds = await told(hf)
        before = kinds[: kinds.index("RECOVERY_COMPLETED")]
        assert before == [
            "LEASE_EXPIRED",
            "RECOVERY_INITIATED",
            "CHECKPOINT_CORRUPTED",
            "RECOVERY_INITIATED",
        ]
        assert await reasons(hf) == ["lost", "corruption"]
        assert (await hf.checkpoints.load("r"))["done"] == 4
    assert failing.seen == [0, 1, 2, 1, 2, 3], "it goes on from the newest version that is intact"
    assert paid(ledger) == [0, 1, 2, 3], "effects since the older version are not sent again"


@pytest.mark.mission("S3-075", "S3-076", "S3-180", "S3-181")
@pytest.mark.parametrize("what", ["an effect", "a hole", "by its settings"])
@async_test
async def test_damage_that_only_people_can_accept_blocks_the_run(
    backend: Backend, tmp_path: Path, what: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    agent = worker_of(ledger, fail=Failing(2, 1, Crash()))
    strict = Settings(lease_seconds=0.2, wakeup_poll_seconds=0.05, on_corruption="block")
    settings = strict if what == "by its settings" else SOON
    async with holdfast.Holdfast(backend.url, agents=[agent], settings=settings) as hf:
        await stopped(hf, agent)
        with backend.raw() as raw:
            if what == "an effect":
                raw.execute(DAMAGE, b"\x00", seq_of(raw, "EFFECT_COMPLETED"))
                raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
            elif what == "a hole":
                seq = seq_of(raw, "CHECKPOINT_CREATED")
                raw.execute("DELETE FROM journal WHERE run_id = 'r' AND seq = ?", seq)
            else:
                raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
        with pytest.raises((RunBlocked, IntegrityError)):
            await hf.run(agent, 4, run_id="r", timeout=30)
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "corruption")
        point = await hf.recoveries.find_point("r")
        if what != "by its settings":
            assert point.why_not
            with pytest.raises(ConflictError, match="--accept-gap"):
                await hf.recoveries.execute("r")
        await hf.recoveries.execute("r", accept_gap=True, by="ann", note="seen")
        if what == "an effect":
            with pytest.raises(
                RunBlocked, match=r"result of effect .* is damaged; it was not used"
            ):
                await hf.run(agent, 4, run_id="r", timeout=30)
            *_, lost = await hf.effects.of_run("r")
            await hf.runs.rewind("r", 1, resend=[lost.effect_id], by="ann")
        assert await hf.run(agent, 4, run_id="r", timeout=30) == 4
    assert sorted(set(paid(ledger))) == [0, 1, 2, 3]


@pytest.mark.mission("S3-073")
@async_test
async def test_scrubber_finds_damage_that_nobody_has_read(backend: Backend, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    agent = worker_of(ledger)
    async with holdfast.Holdfast(backend.url, agents=[agent], settings=SOON) as hf:
        for run_id in ("r", "s", "t"):
            assert await hf.run(agent, 2, run_id=run_id) == 2
        scrubber = Scrubber(hf._context)
        assert await scrubber.scrub() == []
        with backend.raw() as raw:
            raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
        assert await scrubber.scrub() == ["r"]
        assert await scrubber.scrub() == ["r"]
        assert (await told(hf)).count("CHECKPOINT_CORRUPTED") == 1
        assert await told(hf, "s") == []


@pytest.mark.mission("S3-155")
@async_test
async def test_breaker_of_an_agent_opens_and_closes(store: str, tmp_path: Path) -> None:
    failing = {"on": True}

    async def fail(turn: int) -> None:
        if failing["on"]:
            raise ValueError("no luck")

    ledger = Ledger(tmp_path / "ledger")
    policy = RecoveryPolicy(backoff_seconds=0.01, tries=1000)
    bad = worker_of(ledger, fail=fail, name="bad", policy=policy)
    good = worker_of(ledger, name="good")
    settings = Settings(lease_seconds=1.0, breaker_runs=2, breaker_seconds=0.05)
    async with holdfast.Holdfast(store, agents=[bad, good], settings=settings) as hf:
        for run_id in ("a", "b"):
            await start(hf, bad, 1, run_id=run_id)
            for _ in range(2):
                await fail_once(hf, run_id)
        breaker = AgentBreaker(hf._context)
        assert await breaker.allowed(["bad", "good"]) == ["bad", "good"], "one is tried"
        breaker.took("bad")
        assert await breaker.allowed(["bad", "good"]) == ["good"]
        failing["on"] = False
        for run_id in ("a", "b"):
            assert await hf.run(bad, 1, run_id=run_id, timeout=30) == 1
        breaker._looked_at = -1e9
        assert await breaker.allowed(["bad", "good"]) == ["bad", "good"]


@async_test
async def test_breaker_of_an_agent_does_not_count_lost_workers(
    backend: Backend, tmp_path: Path
) -> None:
    """Else workers that die of something else stop an agent whose code is sound."""
    agent = worker_of(Ledger(tmp_path / "ledger"), name="sound")
    settings = Settings(lease_seconds=1.0, breaker_runs=2, breaker_seconds=600.0)
    async with holdfast.Holdfast(backend.url, agents=[agent], settings=settings) as hf:
        for run_id in ("a", "b", "c"):
            await start(hf, agent, 1, run_id=run_id)
            for _ in range(3):
                await lose_worker_of(hf, run_id)
            run = await hf.runs.get(run_id)
            assert (run.status, run.attempts, run.lost) == ("ready", 3, 3)
        breaker = AgentBreaker(hf._context)
        for _ in range(2):
            assert await breaker.allowed(["sound"]) == ["sound"]
            breaker.took("sound")


async def lose_worker_of(hf: holdfast.Holdfast, run_id: str) -> None:
    """Take a run with a worker that is gone without a word, among others that it held."""
    taken = await hf.leases.take(run_id)

    def expire(snapshot: Snapshot) -> LateDecision:
        assert snapshot.run is not None
        holder = WorkerRow(
            tenant="default",
            worker=taken.run.worker,
            started_at=1,
            expires_at=2,
            held=9,
        )
        drafts = leases.expire(
            snapshot.run, Point(*snapshot.newest), {holder.worker: holder}, note="", now=0
        )
        return LateDecision(None, drafts)

    await hf._context.decide_late(run_id, expire)


@async_test
async def test_one_success_closes_the_breaker_of_an_agent(store: str, tmp_path: Path) -> None:
    """It stays closed for the failing runs that it had then, and opens again for more."""

    async def fail(turn: int) -> None:
        raise ValueError("no luck")

    policy = RecoveryPolicy(backoff_seconds=0.01, tries=1000)
    bad = worker_of(Ledger(tmp_path / "ledger"), fail=fail, name="bad", policy=policy)
    settings = Settings(lease_seconds=1.0, breaker_runs=2, breaker_seconds=600.0)
    async with holdfast.Holdfast(store, agents=[bad], settings=settings) as hf:

        async def fail_twice(*run_ids: str) -> None:
            for run_id in run_ids:
                await start(hf, bad, 1, run_id=run_id)
                for _ in range(2):
                    await fail_once(hf, run_id)
            breaker._looked_at = -1e9

        breaker = AgentBreaker(hf._context)
        await fail_twice("a", "b")
        assert await breaker.allowed(["bad"]) == ["bad"], "one is tried"
        breaker.took("bad")
        assert await breaker.allowed(["bad"]) == []
        breaker.passed("bad", has_failed=True)
        assert await breaker.allowed(["bad"]) == []
        breaker.passed("bad", has_failed=False)
        breaker._looked_at = -1e9
        for _ in range(2):
            assert await breaker.allowed(["bad"]) == ["bad"]
            breaker.took("bad")
        await fail_twice("c", "d")
        assert await breaker.allowed(["bad"]) == ["bad"], "one is tried"
        breaker.took("bad")
        assert await breaker.allowed(["bad"]) == []


async def fail_once(hf: holdfast.Holdfast, run_id: str) -> None:
    async with asyncio.timeout(60):
        while (await hf.runs.get(run_id)).ready_at > hf._context.now():
            await asyncio.sleep(0.005)
    await hf._work.start_pass(await hf.leases.take(run_id))


@async_test
async def test_damage_after_a_handoff_is_passed_over_too(backend: Backend) -> None:
    @holdfast.agent
    async def work(run: holdfast.Run) -> int:
        done = run.value("done", int, 0)
        while done.get() < 4:
            done.set(done.get() + 1)
            if done.get() == 2:
                run.hand_over()
            await run.checkpoint()
        await run.signal("go")
        return done.get()

    async with holdfast.Holdfast(backend.url, agents=[work], settings=SOON) as hf:
        await until_it_waits(hf, await hf.start(work, run_id="r"))
        assert (await hf.runs.get("r")).contexts == 2
        with backend.raw() as raw:
            raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
    async with holdfast.Holdfast(backend.url, agents=[work], settings=SOON) as hf:
        await hf.signal("r", "go")
        assert await hf.run(work, run_id="r", timeout=30) == 4
        assert "CHECKPOINT_CORRUPTED" in await told(hf)
        assert (await hf.runs.get("r")).contexts == 2


async def damaged_in_its_only_version(
    backend: Backend,
) -> tuple[holdfast.Agent[[], str], list[int]]:
    """A run that waits, whose one version is damaged; and the turns that were begun."""
    begun: list[int] = []

    @holdfast.agent
    async def work(run: holdfast.Run) -> str:
        begun.append(run.version)
        if run.version == 0:
            run.value("n", int, 0).set(1)
            await run.checkpoint()
        await run.signal("go")
        return "done"

    async with holdfast.Holdfast(backend.url, agents=[work], settings=SOON) as hf:
        await until_it_waits(hf, await hf.start(work, run_id="r"))
    with backend.raw() as raw:
        raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
    return work, begun


@async_test
async def test_run_without_an_intact_version_begins_anew_if_somebody_says_so(
    backend: Backend,
) -> None:
    work, begun = await damaged_in_its_only_version(backend)
    async with holdfast.Holdfast(backend.url, agents=[work], settings=SOON) as hf:
        await hf.signal("r", "go")
        with pytest.raises((RunBlocked, IntegrityError)):
            await hf.run(work, run_id="r", timeout=30)
        with pytest.raises(ConflictError, match="no version is intact"):
            await hf.recoveries.execute("r")
        await hf.recoveries.execute("r", accept_gap=True, by="ann")
        assert await hf.run(work, run_id="r", timeout=30) == "done"
    assert begun[0] == 0
    assert len(begun) > 1


@async_test
async def test_store_that_is_busy_while_a_run_is_mended_does_not_block_it(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    agent = worker_of(ledger, fail=Failing(2, 1, Crash()))
    rewind, failed = travel.rewind, list[str]()

    async def busy_once(*args: Any, **options: Any) -> Any:
        if not failed:
            failed.append("busy")
            raise StoreBusy("the database is locked")
        return await rewind(*args, **options)

    monkeypatch.setattr(travel, "rewind", busy_once)
    async with holdfast.Holdfast(backend.url, agents=[agent], settings=SOON) as hf:
        await stopped(hf, agent)
        with backend.raw() as raw:
            raw.execute(DAMAGE, b"\x00", seq_of(raw, "CHECKPOINT_CREATED"))
        with pytest.raises(StoreBusy):
            await hf.run(agent, 4, run_id="r", timeout=30)
        assert (await hf.runs.get("r")).status != "blocked"
        assert await hf.run(agent, 4, run_id="r", timeout=30) == 4
    assert failed == ["busy"]
    assert paid(ledger) == [0, 1, 2, 3]


@async_test
async def test_runs_that_wait_for_people_do_not_hold_up_their_agent(
    store: str, tmp_path: Path
) -> None:
    async def fail(turn: int) -> None:
        raise ValueError("no luck")

    policy = RecoveryPolicy(backoff_seconds=0.01, tries=2)
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=fail, policy=policy)
    settings = Settings(lease_seconds=1.0, breaker_runs=1, breaker_seconds=600.0)
    async with holdfast.Holdfast(store, agents=[agent], settings=settings) as hf:
        await start(hf, agent, 1)
        while (await hf.runs.get("r")).status != "blocked":
            await fail_once(hf, "r")
        breaker = AgentBreaker(hf._context)
        breaker.took("payer")
        assert await breaker.allowed(["payer"]) == ["payer"]


@async_test
async def test_run_that_has_ended_is_not_recovered_and_its_plan_says_so(
    store: str, tmp_path: Path
) -> None:
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=Failing(0, 1), policy=None)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        with pytest.raises(RunFailed):
            await hf.run(agent, 1, run_id="r", timeout=30)
        point = await hf.recoveries.find_point("r")
        assert point.is_over
        assert "it has ended (failed): fork it" in point.why_not
        for accept_gap in (False, True):
            with pytest.raises(RunEnded, match="fork it"):
                await hf.recoveries.execute("r", accept_gap=accept_gap)


@async_test
async def test_run_that_a_person_recovers_has_all_its_tries_again(
    store: str, tmp_path: Path
) -> None:
    tries: list[int] = []

    async def fail(turn: int) -> None:
        tries.append(turn)
        raise ValueError("no luck")

    policy = RecoveryPolicy(backoff_seconds=0.01, tries=3)
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=fail, policy=policy)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        for _ in range(2):
            with pytest.raises(RunBlocked):
                await hf.run(agent, 1, run_id="r", timeout=30)
            await hf.recoveries.execute("r", by="ann")
    assert len(tries) == 6


@async_test
async def test_run_that_a_person_unblocks_has_all_its_tries_again(
    store: str, tmp_path: Path
) -> None:
    failing = Failing(0, 6)
    agent = worker_of(Ledger(tmp_path / "ledger"), fail=failing)
    async with holdfast.Holdfast(store, agents=[agent], settings=SOON) as hf:
        for left in (3, 0):
            with pytest.raises(RunBlocked, match="3 tries failed without progress"):
                await hf.run(agent, 1, run_id="r", timeout=30)
            assert failing.left == left
            await hf.runs.unblock("r", by="ann")
