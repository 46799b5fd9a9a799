"""Each sentence of the kernel's contract about commits, with a test that fails without it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import (
    OutcomeUnknown,
    RunCancelled,
    StoreBusy,
    StoreClosed,
    StoreUnavailable,
    WrongProcess,
)
from holdfast.stores.combiner import Combiner
from holdfast.stores.contract import Commit, Late, Write
from holdfast.telemetry import Telemetry
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.holding import Held, Holder, holder_of


@pytest.fixture
def holder(backend: Backend) -> Iterator[Holder]:
    """A store whose commits can be held up."""
    with holder_of(backend) as holder:
        yield holder


async def held_up(work: Coroutine[Any, Any, Any], held: Held) -> "asyncio.Task[Any]":
    """Let `work` come to where its commit is held up."""
    task = asyncio.create_task(work)
    while not held.reached:
        assert not task.done()
        await asyncio.sleep(0)
    return task


async def cancelled_when_held_up(work: Coroutine[Any, Any, Any], held: Held) -> None:
    task = await held_up(work, held)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def combiner_of(hf: holdfast.Holdfast) -> Any:
    """What applies the commits of lease holders."""
    store: Any = hf._context.store
    return store._commits if hasattr(store, "_commits") else store._combiner


@async_test
async def test_commit_of_a_cancelled_caller_is_stored_and_the_run_goes_on(holder: Holder) -> None:
    async with holdfast.open(holder.url) as hf:
        run = await hf.runs.open("a")
        run.append("log", "first")
        with holder.hold("before") as held:
            await cancelled_when_held_up(run.checkpoint(), held)
            with pytest.raises(OutcomeUnknown, match="find out"):
                run.append("log", "second")
            held.release()
            assert (await run.checkpoint()).version == 1
        run.append("log", "second")
        await run.checkpoint()
        assert (await hf.checkpoints.load("a"))["log"] == ["first", "second"]
        assert await hf.journal.verify("a") == []


@async_test
async def test_cancelled_commit_that_was_stored_is_not_stored_again(holder: Holder) -> None:
    async with holdfast.open(holder.url) as hf:
        run = await hf.runs.open("a")
        run.append("log", "once")
        with holder.hold("after") as held:
            await cancelled_when_held_up(run.checkpoint(), held)
        again = await run.checkpoint()
        assert again.version == 1
        assert (await hf.checkpoints.load("a"))["log"] == ["once"]
        assert run.state() == {"log": ["once"]}
        assert (await run.checkpoint()).version == 2


@async_test
async def test_commit_whose_answer_is_lost_is_told_as_the_success_it_was(holder: Holder) -> None:
    async with holdfast.open(holder.url) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        with holder.lose_answer():
            assert (await run.checkpoint()).version == 1
        waiting = await hf.runs.open("b")
        await waiting.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        with holder.lose_answer():
            answer = await hf.waits.resolve("w", 1, by="alice")
        assert answer.accepted
        assert (await hf.waits.get("w")).duplicates == 0


@async_test
async def test_trying_again_what_turns_out_to_be_stored_succeeds(holder: Holder) -> None:
    async with holdfast.open(holder.url) as hf:
        run = await hf.runs.open("a")
        (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="t")])
        for attempt in (lambda: run.finish_effect(begun, "r"), lambda: run.complete("answer")):
            with holder.hold("after") as held:
                await cancelled_when_held_up(attempt(), held)
            await attempt()
        assert await hf.runs.result("a") == "answer"
        kinds = [entry.kind for entry in await hf.journal.read("a")]
        assert (kinds.count("EFFECT_COMPLETED"), kinds.count("RUN_COMPLETED")) == (1, 1)


class FlakyApply:
    """Loses the answer of a batch: after it was stored, or before it was tried."""

    def __init__(self, real: Callable[..., None], *, stored: bool) -> None:
        self._real = real
        self._stored = stored
        self.failures = 1

    def __call__(self, batch: Sequence[Write], done: Any) -> None:
        if not self.failures:
            return self._real(batch, done)
        self.failures -= 1
        lost = OutcomeUnknown("the connection was lost at COMMIT")
        if self._stored:
            return self._real(batch, lambda *_: done(None, lost))
        asyncio.get_running_loop().call_soon(done, None, lost)
        return None


@pytest.mark.parametrize("stored", [True, False])
@async_test
async def test_commit_of_unknown_outcome_is_resent_unchanged(store: str, *, stored: bool) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        run.append("log", "x")
        combiner = combiner_of(hf)
        combiner._apply = FlakyApply(combiner._apply, stored=stored)
        with pytest.raises(OutcomeUnknown):
            await run.checkpoint()
        assert (await run.checkpoint()).version == 1
        run.append("log", "y")
        await run.checkpoint()
        assert (await hf.checkpoints.load("a"))["log"] == ["x", "y"]
        assert await hf.journal.verify("a") == []


@pytest.mark.parametrize("stored", [True, False])
@async_test
async def test_request_of_unknown_outcome_that_is_made_again_is_stored_once(
    store: str, *, stored: bool
) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        combiner = combiner_of(hf)
        combiner._apply = FlakyApply(combiner._apply, stored=stored)
        with pytest.raises(OutcomeUnknown):
            await run.complete("answer")
        await run.complete("answer")
        assert await hf.runs.result("a") == "answer"
        kinds = [entry.kind for entry in await hf.journal.read("a")]
        assert kinds.count("RUN_COMPLETED") == 1
        assert await hf.journal.verify("a") == []


@async_test
async def test_unknown_commit_stays_unknown_while_resending_it_fails(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        run.append("log", "x")
        combiner = combiner_of(hf)
        real = combiner._apply
        combiner._apply = FlakyApply(real, stored=True)
        with pytest.raises(OutcomeUnknown):
            await run.checkpoint()

        def busy(batch: Sequence[Write], done: Any) -> None:
            asyncio.get_running_loop().call_soon(done, None, StoreBusy())

        combiner._apply = busy
        with pytest.raises(StoreBusy):
            await run.checkpoint()
        with pytest.raises(OutcomeUnknown):
            run.append("log", "not yet")
        combiner._apply = real
        assert (await run.checkpoint()).version == 1
        run.append("log", "y")
        assert (await run.checkpoint()).version == 2
        assert (await hf.checkpoints.load("a"))["log"] == ["x", "y"]
        assert await hf.journal.verify("a") == []


@async_test
async def test_cancel_folded_in_before_an_effect_is_issued_stops_it(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        await hf.another_worker().runs.cancel("a", by="alice")
        with pytest.raises(RunCancelled):
            await run.begin_effects([holdfast.EffectRequest(tool="charge")])
        assert [entry.kind for entry in await hf.journal.read("a")][-1] == "RUN_CANCELLED"


@async_test
async def test_many_sessions_share_few_transactions(store: str) -> None:
    batches: list[int] = []

    def count(name: str, amount: int) -> None:
        if name == "store.batch_committed":
            batches.append(amount)

    seldom = holdfast.Settings(lease_seconds=600)  # a heartbeat is a batch too
    async with holdfast.open(store, telemetry=count, settings=seldom) as hf:
        runs = await asyncio.gather(*(hf.runs.open(f"run-{n}") for n in range(200)))
        batches.clear()
        for run in runs:
            run.append("log", 1)
        await asyncio.gather(*(run.checkpoint() for run in runs))
        assert sum(batches) == 200
        assert len(batches) <= 5


class RecordingApply:
    """Applies batches in this loop; one poisonous run makes any batch with it fail."""

    def __init__(self, poison: str) -> None:
        self.poison = poison
        self.stored: list[str] = []

    def __call__(self, batch: Sequence[Write], done: Any) -> None:
        names = [write.run_id for write in batch if isinstance(write, Late)]
        if self.poison in names:
            asyncio.get_running_loop().call_soon(done, None, StoreUnavailable("poison"))
            return
        self.stored += names
        asyncio.get_running_loop().call_soon(done, names, None)


def late(name: str) -> Late:
    return Late("default", name, "test", lambda _: None)  # type: ignore[arg-type,return-value]


def combiner_on(apply: Any, *, queue_commits: int = 1000) -> Combiner:
    return Combiner(
        apply,
        batch_commits=100,
        queue_commits=queue_commits,
        telemetry=Telemetry(),
        on_applied=lambda _: None,
    )


@async_test
async def test_one_poisonous_write_in_a_batch_of_a_hundred_fails_alone() -> None:
    apply = RecordingApply("run-42")
    combiner = combiner_on(apply)
    outcomes = await asyncio.gather(
        *(combiner.submit(late(f"run-{n}")) for n in range(100)), return_exceptions=True
    )
    failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)]
    assert failed == [42]
    assert sorted(apply.stored) == sorted(f"run-{n}" for n in range(100) if n != 42)


@async_test
async def test_full_queue_holds_submitters_back_and_loses_nobody() -> None:
    apply = RecordingApply("none")
    combiner = combiner_on(apply, queue_commits=7)
    answers = await asyncio.gather(*(combiner.submit(late(f"run-{n}")) for n in range(300)))
    assert answers == [f"run-{n}" for n in range(300)]
    await combiner.close()
    with pytest.raises(StoreClosed):
        await combiner.submit(late("late"))


@async_test
async def test_commits_of_one_run_are_never_in_one_batch(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        batches: list[list[str]] = []
        combiner = combiner_of(hf)
        real = combiner._apply

        def apply(batch: Sequence[Write], done: Any) -> None:
            batches.append([write.run_id for write in batch if isinstance(write, Commit)])
            real(batch, done)

        combiner._apply = apply
        await asyncio.gather(*(run.record("step", n) for n in range(20)))
        assert all(names.count("a") <= 1 for names in batches)
        assert [entry.seq for entry in await hf.journal.read("a")] == list(range(1, 23))


@pytest.mark.mission("S0-105")
@pytest.mark.parametrize("what", ["checkpoint", "sweep"])
@async_test
async def test_slow_write_holds_up_no_other_task_of_the_process(holder: Holder, what: str) -> None:
    async with holdfast.open(holder.url) as hf, holdfast.open(holder.backend.url) as reader:
        run = await hf.runs.open("a")
        await run.open_waits([holdfast.WaitSpec(wait_id="due", timeout_seconds=0)])
        run.append("log", "x")
        with holder.hold("before") as held:
            alarm = threading.Timer(20, held.release)  # for a write in the event loop itself
            alarm.daemon = True
            alarm.start()
            writing = await held_up(
                run.checkpoint() if what == "checkpoint" else hf.waits.expire_due(), held
            )
            assert (await reader.runs.get("a")).status == "running"
            assert (await reader.waits.get("due")).status == "open"
            assert not writing.done()
            alarm.cancel()
            held.release()
            await writing
        assert await hf.journal.verify("a") == []


@async_test
async def test_cancelled_waiters_do_not_keep_others_from_their_turn(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        waiting = [asyncio.create_task(run.record("step", n)) for n in range(30)]
        await asyncio.sleep(0)
        for task in waiting[1:20]:
            task.cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(not isinstance(outcome, BaseException) for outcome in done) >= 11
        assert await hf.journal.verify("a") == []


@async_test
async def test_task_that_is_cancelled_while_it_waits_for_its_turn_ends_and_writes_nothing(
    holder: Holder,
) -> None:
    async with holdfast.open(holder.url) as hf:
        run = await hf.runs.open("a")
        with holder.hold("before") as held:
            writing = await held_up(run.record("step", 1), held)
            waiting = asyncio.create_task(run.record("step", 2))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting], timeout=5)
            assert waiting.cancelled()
            held.release()
            await writing
        kinds = [entry.kind for entry in await hf.journal.read("a")]
        assert kinds.count("STEP_RECORDED") == 1


@async_test
async def test_torn_commit_cannot_be_seen_by_readers(holder: Holder) -> None:
    async with holdfast.open(holder.url) as hf, holdfast.open(holder.backend.url) as reader:
        run = await hf.runs.open("a")
        await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        before = await reader.journal.read("a")
        with holder.hold("before") as held:
            answering = await held_up(hf.waits.resolve("w", 1), held)
            assert await reader.journal.read("a") == before
            assert (await reader.waits.get("w")).status == "open"
            assert (await reader.runs.get("a")).status == "waiting"
            held.release()
            await answering
        kinds = [entry.kind for entry in await reader.journal.read("a", after=len(before))]
        assert kinds == ["WAIT_RESOLVED", "GROUP_CLOSED"]
        assert (await reader.waits.get("w")).status == "resolved"
        assert (await reader.runs.get("a")).status == "ready"


@async_test
async def test_use_after_close_and_before_open_is_refused(store: str) -> None:
    hf = holdfast.open(store)
    with pytest.raises(StoreClosed):
        await hf.runs.create("a")
    async with hf:
        run = await hf.runs.open("a")
    with pytest.raises(StoreClosed):
        await run.checkpoint()
    with pytest.raises(StoreClosed):
        await hf.runs.get("a")


def test_use_from_another_event_loop_is_refused(store: str) -> None:
    hf = holdfast.open(store)
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(hf.__aenter__())

        async def elsewhere() -> None:
            with pytest.raises(WrongProcess, match="another event loop"):
                await hf.runs.create("a")

        asyncio.run(elsewhere())
        first.run_until_complete(hf.__aexit__(None, None, None))
    finally:
        first.close()


@async_test
async def test_two_holdfasts_of_one_process_see_each_other(store: str) -> None:
    async with holdfast.open(store) as one, holdfast.open(store) as two:
        run = await one.runs.open("a")
        await run.open_waits([holdfast.WaitSpec(wait_id="w")], suspend=True)
        waiting = asyncio.create_task(one.leases.next(timeout_seconds=30))
        await two.waits.resolve("w", "hello")
        held = await waiting
        assert held is not None
        assert held.run_id == "a"


def test_other_sqlite_libraries_are_not_loaded() -> None:
    assert apsw.using_amalgamation
