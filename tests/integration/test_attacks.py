"""Defects that were found by attacking the promises, and must not come back."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.errors import (
    CheckpointCorrupted,
    IntegrityError,
    InvalidIdentifier,
    LeaseHeld,
    MisuseError,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    ValueTooLarge,
)
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.holding import Holder, holder_of


@pytest.fixture
def holder(backend: Backend) -> Iterator[Holder]:
    """A store whose commits can be held up."""
    with holder_of(backend) as holder:
        yield holder


@async_test
async def test_equal_arguments_in_tuples_are_one_effect(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        one = holdfast.EffectRequest(tool="t", args={"items": ({"sku": 1, "n": 2},)})
        two = holdfast.EffectRequest(tool="t", args={"items": ({"n": 2, "sku": 1},)})
        answers = [(await run.begin_effects([request]))[0].answer for request in (one, two)]
        assert answers == ["fresh", "in_flight"]


@async_test
async def test_tasks_that_share_a_run_store_every_item_once(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        await run.open_waits([holdfast.WaitSpec(wait_id=f"w{n}") for n in range(60)])

        async def append(name: str) -> None:
            for n in range(20):
                while True:
                    try:
                        run.append("log", f"{name}-{n}")
                    except OutcomeUnknown:
                        await asyncio.sleep(0)
                    else:
                        break
                await run.checkpoint()

        async def interfere() -> None:
            for n in range(60):
                await hf.waits.resolve(f"w{n}")

        await asyncio.gather(append("x"), append("y"), append("z"), interfere())
        log = (await hf.checkpoints.load("a"))["log"]
        assert sorted(log) == sorted(f"{name}-{n}" for name in "xyz" for n in range(20))


@async_test
async def test_run_leased_for_a_caller_that_went_away_is_given_back(store: str) -> None:
    async with holdfast.open(store) as hf:
        for n in range(30):
            await hf.runs.create(f"run-{n}")
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(0.0002 * n):
                    held = await hf.leases.next()
                    if held is not None:
                        await held.release()
        other = hf.another_worker()
        for _ in range(30):
            assert await other.leases.next(timeout_seconds=20) is not None
        assert await other.leases.next() is None


@async_test
async def test_reads_while_the_store_closes_end(store: str) -> None:
    hf = holdfast.open(store)
    async with hf:
        await hf.runs.create("a")
        readers = [asyncio.create_task(read_until_closed(hf)) for _ in range(10)]
        await asyncio.sleep(0)
    outcomes = await asyncio.wait_for(asyncio.gather(*readers), 60)
    assert outcomes == ["closed"] * 10


async def read_until_closed(hf: holdfast.Holdfast) -> str:
    while True:
        try:
            await hf.runs.get("a")
        except StoreClosed:
            return "closed"


@async_test
async def test_telemetry_that_fails_stops_nothing(store: str) -> None:
    def broken(name: str, amount: int) -> None:
        raise RuntimeError("the sink is broken")

    async with holdfast.open(store, telemetry=broken) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1)
        assert (await run.checkpoint()).version == 1


@async_test
async def test_worker_that_closed_its_leases_lives_again_when_it_takes_a_run(store: str) -> None:
    hf = holdfast.open(store)
    async with hf:
        await hf.runs.open("a")
    async with hf:
        await hf.runs.open("a")
        assert [worker.held for worker in await hf.leases.workers()] == [1]
        with pytest.raises(LeaseHeld):
            await hf.another_worker().runs.open("a")


LOCKS = {"sqlite": "BEGIN IMMEDIATE", "postgres": "BEGIN; LOCK TABLE runs IN EXCLUSIVE MODE"}


@async_test
async def test_lock_held_by_a_stranger_costs_all_waiting_writes_one_timeout(
    backend: Backend,
) -> None:
    timeout, writes = 1.0, 64
    impatient = holdfast.Settings(busy_timeout_seconds=timeout)
    async with holdfast.open(backend.url, settings=impatient) as hf:
        with backend.raw() as stranger:
            stranger.execute(LOCKS[backend.name])
            loop = asyncio.get_running_loop()
            begun = loop.time()
            outcomes = await asyncio.gather(
                *(hf.runs.create(f"run-{n}") for n in range(writes)), return_exceptions=True
            )
            assert all(isinstance(outcome, StoreBusy) for outcome in outcomes)
            assert loop.time() - begun < timeout * writes / 2, "they waited one after another"
            stranger.execute("ROLLBACK")
        assert (await hf.runs.create("a")).run_id == "a"


@async_test
async def test_intents_asked_for_again_after_a_cancelled_commit_are_the_same(
    holder: Holder,
) -> None:
    clock = ManualClock()
    async with holdfast.open(holder.url, clock=clock) as hf:
        run = await hf.runs.open("a")
        requests = [holdfast.EffectRequest(tool="t", args=1, limit_seconds=10)]
        with holder.hold("after") as held:
            trying = asyncio.create_task(run.begin_effects(requests))
            while not held.reached:
                await asyncio.sleep(0)
            trying.cancel()
            await asyncio.wait([trying])
        (begun,) = await run.begin_effects(requests)
        assert begun.answer == "fresh"
        assert begun.effect == await hf.effects.get(begun.effect.effect_id)
        (again,) = await run.begin_effects(requests)
        assert again.answer == "in_flight"
        clock.advance(10)
        (late,) = await run.begin_effects(requests)
        assert late.answer == "unknown"


def vandalise(backend: Backend, sql: str, *row: Any) -> None:
    with backend.raw() as raw:
        assert raw.execute(sql, *row) > 0


@async_test
async def test_rows_that_name_another_entry_as_the_result_are_not_believed(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        requests = [holdfast.EffectRequest(tool="t", args=n) for n in range(2)]
        for n, begun in enumerate(await run.begin_effects(requests)):
            await run.finish_effect(begun, n)
        waits = [holdfast.WaitSpec(wait_id=f"w{n}") for n in range(2)]
        group = await run.open_waits(waits, suspend=True)
        for n in range(2):
            await hf.waits.resolve(f"w{n}", n)
        await (await hf.runs.open("a")).complete("answer")
        one, two = await hf.effects.of_run("a")
        vandalise(backend, "UPDATE effects SET result_seq = ?", two.result_seq)
        with pytest.raises(IntegrityError):
            await hf.effects.find(one.key)
        seq = (await hf.waits.get("w1")).result_seq
        vandalise(backend, "UPDATE waits SET result_seq = ?", seq)
        with pytest.raises(IntegrityError):
            await hf.waits.results("a", group)
        vandalise(backend, "UPDATE runs SET result_seq = ?", seq)
        with pytest.raises(IntegrityError):
            await hf.runs.result("a")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM wait_groups",
        "UPDATE wait_groups SET status = 'garbled'",
        "UPDATE waits SET group_id = 'nowhere'",
    ],
)
@async_test
async def test_one_damaged_run_does_not_stop_the_others(sql: str, backend: Backend) -> None:
    clock = ManualClock()
    async with holdfast.open(backend.url, clock=clock) as hf:
        run = await hf.runs.open("damaged")
        spec = holdfast.WaitSpec(wait_id="w", timeout_seconds=1)
        await run.open_waits([spec], suspend=True)
        await hf.runs.create("healthy")
        vandalise(backend, sql)
        clock.advance(2)
        held = await hf.leases.next()
        assert held is not None
        assert held.run_id == "healthy"
        damaged = await hf.runs.get("damaged")
        assert (damaged.status, damaged.blocked_reason) == ("blocked", "corruption")
        assert await hf.waits.expire_due() == 0


DAMAGE = {
    "sqlite": "UPDATE bodies SET body = ?",
    "postgres": "UPDATE journal SET body = ? WHERE kind = 'CHECKPOINT_CREATED'",
}


@async_test
async def test_run_that_cannot_be_loaded_is_blocked_and_the_next_one_given(
    backend: Backend,
) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("damaged")
        run.append("log", os.urandom(1000))
        await run.checkpoint()
        await run.release()
        await hf.runs.create("healthy")
        vandalise(backend, DAMAGE[backend.name], b"\0")
        held = await hf.leases.next()
        assert held is not None
        assert held.run_id == "healthy"
        assert (await hf.runs.get("damaged")).blocked_reason == "corruption"
        await hf.runs.unblock("damaged")
        with pytest.raises(CheckpointCorrupted):
            await hf.runs.open("damaged")


@async_test
async def test_refused_save_leaves_the_edits_as_they_were(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        run.append("notes", "kept")
        with pytest.raises(InvalidIdentifier):
            await run.save({"plan": "REJECTED"}, label="bad\nlabel")
        with pytest.raises(MisuseError, match="dict of its parts"):
            await run.save([1])  # type: ignore[arg-type]
        run.append("log", "next")
        await run.checkpoint()
        assert (await hf.checkpoints.load("a")).parts == {"notes": ["kept"], "log": ["next"]}


@async_test
async def test_save_that_is_too_large_leaves_the_edits_as_they_were(store: str) -> None:
    async with holdfast.open(store, settings=holdfast.Settings(max_body_bytes=10_000)) as hf:
        run = await hf.runs.open("a")
        run.append("notes", "kept")
        with pytest.raises(ValueTooLarge, match="this checkpoint"):
            await run.save({"log": ["x" * 4_000] * 5})
        await run.checkpoint()
        assert (await hf.checkpoints.load("a")).parts == {"notes": ["kept"]}


@async_test
async def test_edits_that_could_not_be_loaded_again_are_refused(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        run.append("log", 1, 2)
        with pytest.raises(MisuseError, match="whole number"):
            run.splice("log", True, 1, [9])
        recorded = await run.record("step", {"k": 1})
        with pytest.raises(MisuseError, match="names entry"):
            run.append("log", holdfast.Ref(recorded.seq, ("nope",)))
        run.append("log", recorded)
        run.set("v", recorded)
        await run.checkpoint()
        run.set("v", 2)
        await run.checkpoint()
        assert run.state() == {"log": [1, 2, {"k": 1}], "v": 2}
        with pytest.raises(MisuseError, match="since the last checkpoint"):
            run.append("log", recorded)


@async_test
async def test_results_that_nothing_names_are_not_kept_in_memory(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        for n in range(50):
            await run.record("step", "x" * 1000)
            run.append("log", n)
            await run.checkpoint()
        assert (run.saver.parts.bodies, run.saver.parts.recorded) == ({}, {})


@async_test
async def test_many_named_results_and_values_load_in_time_that_grows_with_them(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        for n in range(300):
            run.append("log", await run.record("step", n), await run.record("other", n))
            run.set(f"value-{n}", "x" * 300)
            await run.checkpoint()
        await run.save({f"value-{n}": n for n in range(1000)} | {"log": ["small"]})
        await run.save({f"value-{n}": -n for n in range(1000)} | {"log": ["small", "er"]})
        loaded = await hf.checkpoints.load("a")
        assert (loaded["value-7"], loaded["log"]) == (-7, ["small", "er"])
        assert len((await hf.checkpoints.load("a", 300))["log"]) == 600


@async_test
async def test_names_and_numbers_given_as_strings_are_understood_or_misuse(store: str) -> None:
    async with holdfast.open(store) as hf:
        await hf.runs.create("a")
        await hf.runs.block("a", "breaker")
        with pytest.raises(MisuseError, match="is no reason"):
            await hf.runs.block("a", "boredom")
        assert await hf.effects.unsettled(status="unknown") == []
        with pytest.raises(MisuseError):
            await hf.effects.unsettled(status="completed")
        with pytest.raises(MisuseError, match="list of names"):
            await hf.leases.next(agents="support")
        run = await hf.runs.open("b")
        with pytest.raises(MisuseError, match="length of time"):
            await run.open_waits([holdfast.WaitSpec(timeout_seconds="5")])  # type: ignore[arg-type]
        with pytest.raises(MisuseError, match="whole number"):
            await hf.waits.expire_due(limit="x")  # type: ignore[arg-type]
