"""Signals: each id counts once in its run, is kept until taken, and wakes who waits for it."""

import asyncio

import pytest

from holdfast.engine.waits import WaitSpec
from holdfast.errors import (
    ConflictError,
    IllegalMove,
    MisuseError,
    RunCancelled,
    RunEnded,
    RunNotFound,
    SignalNotFound,
)
from holdfast.kernel.runs import RunStatus
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test


def _await(name: str, wait_id: str = "w") -> WaitSpec:
    return WaitSpec(wait_id=wait_id, kind="signal", name=name)


class SignalsSuite:
    """What a store guarantees about signals."""

    @async_test
    async def test_signal_that_nobody_awaits_is_kept_until_it_is_taken(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            await hf.runs.create("a")
            receipt = await hf.signals.send("a", "go", {"n": 1}, id="one", by="alice")
            assert (receipt.accepted, receipt.seq, receipt.received_by) == (True, 2, "alice")
            (kept,) = await hf.signals.untaken("a", "go")
            assert kept == await hf.signals.get("a", "one")
            assert (kept.seq, kept.received_by, kept.received_at) == (2, "alice", clock.now())
            assert await hf.signals.value("a", "one") == {"n": 1}
            with pytest.raises(ConflictError, match="not taken signal one yet"):
                await hf.signals.answer("a", "one")
            run = await hf.runs.open("a")
            clock.advance(1)
            await run.inbox.answer("one", "done")
            assert await hf.signals.untaken("a", "go") == []
            taken = await hf.signals.get("a", "one")
            assert taken.taken_at == clock.now()
            assert await hf.signals.answer("a", "one") == "done"
            assert (await hf.journal.read("a"))[-1].seq == taken.taken_seq
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_id_sent_again_is_told_of_the_first_and_writes_nothing(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            await hf.runs.create("a")
            first = await hf.signals.send("a", "go", "first", id="one", by="alice")
            before = await hf.journal.read("a")
            clock.advance(1)
            again = await hf.signals.send("a", "go", "other", id="one", by="bob")
            assert not again.accepted
            assert (again.seq, again.received_by) == (first.seq, "alice")
            assert again.received_at == first.received_at
            with pytest.raises(MisuseError, match="sent as 'go' before, and now as 'stop'"):
                await hf.signals.send("a", "stop", "first", id="one")
            assert await hf.journal.read("a") == before
            assert await hf.signals.value("a", "one") == "first"

    @async_test
    async def test_ids_are_those_of_one_run(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            await hf.runs.create("b")
            sent = [hf.signals.send(run_id, "go", run_id, id="one") for run_id in ("a", "b")]
            receipts = await asyncio.gather(*sent, hf.signals.send("a", "go"))
            assert all(receipt.accepted for receipt in receipts)
            assert [signal.run_id for signal in await hf.signals.of_run("b")] == ["b"]
            assert await hf.signals.value("b", "one") == "b"
            assert len(await hf.signals.of_run("a")) == 2

    @async_test
    async def test_signals_of_a_name_come_in_the_order_they_were_sent(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            for n in (3, 1, 2, 0):
                await hf.signals.send("a", "go", n, id=f"go-{n}")
                await hf.signals.send("a", "stop", n, id=f"stop-{n}")
            kept = await hf.signals.untaken("a", "go")
            assert [signal.signal_id for signal in kept] == ["go-3", "go-1", "go-2", "go-0"]
            assert await hf.signals.untaken("a", "go", limit=2) == kept[:2]
            everything = await hf.signals.of_run("a")
            assert [signal.seq for signal in everything] == list(range(2, 10))
            assert await hf.signals.untaken("a", "none") == []

    @async_test
    async def test_signal_wakes_a_run_that_waits_for_it_in_one_commit(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            group = await run.open_waits([_await("go")], suspend=True)
            await hf.signals.send("a", "stop", id="other")
            assert (await hf.runs.get("a")).status is RunStatus.WAITING
            await hf.signals.send("a", "go", 1, id="one", by="alice")
            assert (await hf.runs.get("a")).status is RunStatus.READY
            *_, received, resolved, closed = await hf.journal.read("a")
            kinds = [entry.kind for entry in (received, resolved, closed)]
            assert kinds == ["SIGNAL_RECEIVED", "WAIT_RESOLVED", "GROUP_CLOSED"]
            assert received.at == resolved.at == closed.at
            (result,) = await hf.waits.results("a", group)
            assert (result.value, result.settled_by) == ("one", "alice")
            assert [s.signal_id for s in await hf.signals.untaken("a", "go")] == ["one"]
            held = await hf.leases.next()
            assert held is not None
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_first_of_several_waits_is_resolved_by_each_signal(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits([_await("go", "w9")])
            await run.open_waits([_await("go", "w2"), _await("go", "w1")], mode="any")
            await run.open_waits([WaitSpec(wait_id="w0", kind="reply", name="go")])
            sent = [hf.signals.send("a", "go", n, id=f"s{n}") for n in range(3)]
            await asyncio.gather(*sent)
            statuses = {wait.wait_id: wait.status for wait in await hf.waits.of_run("a")}
            assert statuses == {
                "w0": "open",
                "w1": "resolved",
                "w2": "cancelled",
                "w9": "resolved",
            }
            by_seq = {wait.result_seq: wait.wait_id for wait in await hf.waits.of_run("a")}
            first, second, _ = await hf.signals.of_run("a")
            assert (by_seq[first.seq + 1], by_seq[second.seq + 1]) == ("w9", "w1")
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_same_id_sent_at_once_is_accepted_once(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits([_await("go")], suspend=True)
            receipts = await asyncio.gather(
                *(hf.signals.send("a", "go", n, id="one", by=f"p{n}") for n in range(100))
            )
            (winner,) = [receipt for receipt in receipts if receipt.accepted]
            assert {receipt.received_by for receipt in receipts} == {winner.received_by}
            value = await hf.signals.value("a", "one")
            assert f"p{value}" == winner.received_by
            kinds = [entry.kind for entry in await hf.journal.read("a")]
            assert kinds.count("SIGNAL_RECEIVED") == kinds.count("WAIT_RESOLVED") == 1

    @async_test
    async def test_signal_is_taken_once(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await hf.signals.send("a", "go", id="one")
            await run.inbox.answer("one", None)
            before = await hf.journal.read("a")
            with pytest.raises(IllegalMove):
                await run.inbox.answer("one", "again")
            with pytest.raises(IllegalMove):
                await run.inbox.answer("never sent", "again")
            assert await hf.journal.read("a") == before
            assert await hf.signals.answer("a", "one") is None
            again = await hf.signals.send("a", "go", id="one")
            assert not again.accepted

    @async_test
    async def test_ended_run_keeps_its_signals_and_takes_no_more(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await hf.signals.send("a", "go", 1, id="one")
            await run.complete("done")
            with pytest.raises(RunEnded):
                await hf.signals.send("a", "go", 2, id="two")
            assert not (await hf.signals.send("a", "go", 1, id="one")).accepted
            assert [s.signal_id for s in await hf.signals.untaken("a", "go")] == ["one"]
            assert await hf.signals.value("a", "one") == 1
            await hf.runs.create("b")
            await hf.runs.cancel("b")
            with pytest.raises(RunCancelled):
                await hf.signals.send("b", "go")
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_blocked_run_keeps_what_is_sent(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits([_await("go")], suspend=True)
            await hf.runs.block("a", "no_agent")
            assert (await hf.signals.send("a", "go", id="one")).accepted
            assert (await hf.runs.get("a")).status is RunStatus.BLOCKED
            await hf.runs.unblock("a")
            assert (await hf.runs.get("a")).status is RunStatus.READY
            assert (await hf.waits.get("w")).status == "resolved"

    @async_test
    async def test_signal_to_nobody_is_said_clearly(self, backend: Backend) -> None:
        async with backend.open() as hf:
            with pytest.raises(RunNotFound):
                await hf.signals.send("nobody", "go")
            await hf.runs.create("a")
            for verb in (hf.signals.get, hf.signals.value, hf.signals.answer):
                with pytest.raises(SignalNotFound, match="run 'a' has received no signal 'one'"):
                    await verb("a", "one")
            assert await hf.signals.of_run("nobody") == []

    @async_test
    async def test_signal_is_folded_in_by_the_holders_next_commit(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await hf.another_worker().signals.send("a", "go", 1, id="one")
            run.append("log", 1)
            assert (await run.checkpoint()).version == 1
            kinds = [entry.kind for entry in await hf.journal.read("a")]
            assert kinds[-2:] == ["SIGNAL_RECEIVED", "CHECKPOINT_CREATED"]
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_reindex_gives_the_signals_that_were_there(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.open_waits([_await("go")])
            for n in range(3):
                await hf.signals.send("a", "go", n, id=f"s{n}")
            await run.inbox.answer("s1", "answer")
            before = await hf.signals.of_run("a"), await hf.waits.of_run("a")
            await hf.reindex("a")
            assert before == (await hf.signals.of_run("a"), await hf.waits.of_run("a"))
            assert await hf.journal.verify("a") == []
