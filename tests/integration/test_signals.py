"""Signals from many senders at once, and against a store that was tampered with."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import IntegrityError, InvalidIdentifier, RunCancelled, ValueTooLarge
from holdfast.kernel import signals
from holdfast.kernel.journal import Draft, Origin
from holdfast.stores.combiner import topics_of
from holdfast.stores.contract import Applied, Commit, Late, LateDecision, Outcome, Refused
from holdfast.stores.entry_sealer import seal_all
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.processes import Child

IDS = [f"s{n:02}" for n in range(50)]


def awaited(name: str, wait_id: str) -> holdfast.WaitSpec:
    return holdfast.WaitSpec(wait_id=wait_id, kind="signal", name=name)


async def commit(hf: holdfast.Holdfast, run_id: str, *drafts: Draft) -> Outcome:
    """What the run's holder would commit."""
    store = hf._context.store
    found = await store.runs.at_head(run_id)
    assert found is not None
    origin = Origin(store.tenant, run_id, hf.worker, store.clock.now())
    sealed = seal_all(found.run, found.position, drafts, origin)
    entries, changes = tuple(sealed.entries), tuple(sealed.changes)
    return await store.submit(Commit(store.tenant, run_id, found.position, entries, None, changes))


@async_test
async def test_each_id_of_a_thousand_sends_counts_once_and_in_order(store: str) -> None:
    """Each sender sends an id after it was told of the one before: so the ids have an order."""
    async with holdfast.open(store) as hf, holdfast.open(store) as other:
        await hf.runs.create("a")
        senders = [hf, other, hf.another_worker(), other.another_worker()]

        async def send_all(number: int) -> list[Any]:
            sender = senders[number % len(senders)]
            return [
                await sender.signals.send("a", "go", number, id=id_, by=f"sender-{number}")
                for id_ in IDS
            ]

        told = await asyncio.gather(*map(send_all, range(20)))
        receipts = [receipt for each in told for receipt in each]
        assert len(receipts) == 1_000
        accepted = {receipt.signal_id: receipt for receipt in receipts if receipt.accepted}
        assert sum(receipt.accepted for receipt in receipts) == len(accepted) == len(IDS)
        for receipt in receipts:
            first = accepted[receipt.signal_id]
            assert (receipt.seq, receipt.received_by) == (first.seq, first.received_by)
        kept = await hf.signals.untaken("a", "go")
        assert [signal.signal_id for signal in kept] == IDS
        assert [signal.seq for signal in kept] == list(range(2, 52))
        assert len(await hf.journal.read("a")) == 51, "a duplicate wrote to the journal"
        values = [await hf.signals.value("a", id_) for id_ in IDS]
        assert [f"sender-{value}" for value in values] == [s.received_by for s in kept]
        assert await hf.journal.verify("a") == []


@async_test
async def test_many_signals_at_once_resolve_each_wait_once(store: str) -> None:
    async with holdfast.open(store) as hf, holdfast.open(store) as other:
        run = await hf.runs.open("a")
        specs = [awaited("go", f"w{n}") for n in range(5)]
        group = await run.open_waits(specs, suspend=True)
        await asyncio.gather(
            *(sender.signals.send("a", "go", id=id_) for id_ in IDS for sender in (hf, other))
        )
        results = await hf.waits.results("a", group)
        ids = [signal.signal_id for signal in await hf.signals.of_run("a")]
        assert len(ids) == len(IDS)
        assert [result.value for result in results] == ids[:5]
        assert (await hf.runs.get("a")).status == "ready"
        assert await hf.journal.verify("a") == []


@async_test
async def test_signal_of_another_process_wakes_a_worker(store: str) -> None:
    patient = holdfast.Settings(wakeup_poll_seconds=50)
    async with holdfast.open(store, settings=patient) as hf:
        run = await hf.runs.open("a")
        await run.open_waits([awaited("go", "w")], suspend=True)
        waiting = asyncio.create_task(hf.leases.next(timeout_seconds=40))
        await asyncio.sleep(0)
        with Child("tests.child", store) as peer:
            assert peer.ask(["signal", "a", "go", "value", "one"]) == [True, 5]
            assert peer.ask(["signal", "a", "go", "value", "one"]) == [False, 5]
            held = await waiting
        assert held is not None
        assert await hf.signals.value("a", "one") == "value"


def test_signal_tells_those_who_watch_the_run_and_those_who_want_one() -> None:
    late = Late("default", "a", "me", lambda _: LateDecision(None), signal_ids=("one",))
    assert topics_of(late, None) == ("run:a", "ready", "journal")


@async_test
async def test_signal_before_the_run_suspends_is_not_missed(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        group = await run.open_waits([awaited("go", "w")])
        await hf.another_worker().signals.send("a", "go", id="one")
        assert not await run.suspend(group)
        assert [result.value for result in await run.results(group)] == ["one"]
        assert run.run.status == "running"


@async_test
async def test_signal_between_looking_and_waiting_is_not_missed(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        reads = hf._context.store.signals
        untaken = reads.untaken

        async def untaken_before(*args: Any, **limit: Any) -> Any:
            found = await untaken(*args, **limit)
            monkeypatch.undo()
            await hf.another_worker().signals.send("a", "go", id="one")
            return found

        monkeypatch.setattr(reads, "untaken", untaken_before)
        assert not await run.inbox.wait("go")
        assert (await hf.runs.get("a")).status == "running"
        await run.inbox.answer("one")
        assert await run.inbox.wait("go")
        assert (await hf.runs.get("a")).status == "waiting"


@async_test
async def test_holder_notices_which_signals_came_meanwhile(store: str) -> None:
    async with holdfast.open(store) as hf:
        run = await hf.runs.open("a")
        assert run._writer.signalled == {}
        for n in range(2):
            await hf.signals.send("a", "go", id=f"s{n}")
        last = await hf.signals.send("a", "stop", id="s2")
        await run.record("step", 1)
        assert run._writer.signalled == {"go": last.seq - 1, "stop": last.seq}


@async_test
async def test_signal_and_cancel_at_once_leave_one_of_two_histories(store: str) -> None:
    async with holdfast.open(store) as hf:
        for n in range(10):
            run = await hf.runs.open(f"run-{n}")
            await run.open_waits([awaited("go", f"w{n}")], suspend=True)
            sent, _ = await asyncio.gather(
                hf.signals.send(f"run-{n}", "go", id="one"),
                hf.runs.cancel(f"run-{n}"),
                return_exceptions=True,
            )
            kept = await hf.signals.of_run(f"run-{n}")
            assert isinstance(sent, RunCancelled) == (kept == [])
            assert await hf.journal.verify(f"run-{n}") == []


@async_test
async def test_signal_of_a_holders_commit_can_be_received_and_taken_at_once(store: str) -> None:
    """The contract allows it, though no use case does so."""
    async with holdfast.open(store) as hf:
        await hf.runs.open("a")
        both = [
            Draft(signals.Kind.SIGNAL_RECEIVED, signals.SignalReceived("one", "go")),
            Draft(signals.Kind.SIGNAL_TAKEN, signals.SignalTaken("one")),
        ]
        assert await commit(hf, "a", *both) == Applied()
        (signal,) = await hf.signals.of_run("a")
        assert (signal.seq, signal.taken_seq) == (3, 4)
        assert await hf.signals.untaken("a", "go") == []
        for draft in both:
            refused = await commit(hf, "a", draft)
            assert isinstance(refused, Refused)
        assert await hf.signals.answer("a", "one") is None
        assert await hf.journal.verify("a") == []


@async_test
async def test_signals_are_those_of_one_tenant(store: str) -> None:
    theirs = holdfast.Settings(tenant="other")
    async with holdfast.open(store) as hf, holdfast.open(store, settings=theirs) as other:
        for tenant in (hf, other):
            await tenant.runs.create("a")
            assert (await tenant.signals.send("a", "go", tenant.worker, id="one")).accepted
        assert await hf.signals.value("a", "one") == hf.worker
        assert await other.signals.value("a", "one") == other.worker


@pytest.mark.parametrize(
    ("run_id", "name", "signal_id"), [("", "go", "s"), ("a", "\n", "s"), ("a", "go", "")]
)
@async_test
async def test_names_that_cannot_be_are_refused(run_id: str, name: str, signal_id: str) -> None:
    async with holdfast.open("memory://", settings=holdfast.Settings(max_body_bytes=1024)) as hf:
        await hf.runs.create("a")
        with pytest.raises(InvalidIdentifier):
            await hf.signals.send(run_id, name, id=signal_id)
        with pytest.raises(ValueTooLarge, match="value has"):
            await hf.signals.send("a", "go", b"x" * 2000)
        assert await hf.signals.of_run("a") == []


TAMPERED = {
    "row that names another's entry": "UPDATE signals SET seq = 4 WHERE signal_id = 's0'",
    "row that names no entry": "UPDATE signals SET seq = 99 WHERE signal_id = 's0'",
    "value": "UPDATE journal SET body = nonce WHERE seq = 3",
}


@pytest.mark.parametrize("sql", TAMPERED.values(), ids=TAMPERED)
@async_test
async def test_value_that_was_tampered_with_is_not_used(sql: str, backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        run = await hf.runs.open("a")
        for n in range(2):
            await hf.signals.send("a", "go", {"n": n}, id=f"s{n}")
        taken = signals.take("s1", b"\x01")
        assert await commit(hf, "a", taken) == Applied()
        assert [await hf.signals.value("a", f"s{n}") for n in range(2)] == [{"n": 0}, {"n": 1}]
        assert await hf.signals.answer("a", "s1") == 1
        with backend.raw() as raw:
            assert raw.execute(sql) == 1
        told = r"entry \d+ of run a is damaged, missing, or not|row of signal s0 of run a differs"
        with pytest.raises(IntegrityError, match=told):
            await hf.signals.value("a", "s0")
        assert await hf.signals.value("a", "s1") == {"n": 1}
        assert await hf.journal.verify("a")
        assert run.run_id == "a"


@async_test
async def test_wait_whose_group_is_gone_stops_the_signal_and_nothing_else(backend: Backend) -> None:
    async with holdfast.open(backend.url) as hf:
        for run_id in ("damaged", "healthy"):
            run = await hf.runs.open(run_id)
            await run.open_waits([awaited("go", f"w-{run_id}")], suspend=True)
        with backend.raw() as raw:
            raw.execute("DELETE FROM wait_groups WHERE run_id = 'damaged'")
        before = await hf.journal.read("damaged")
        damaged, healthy = await asyncio.gather(
            *(hf.signals.send(run_id, "go", id="one") for run_id in ("damaged", "healthy")),
            return_exceptions=True,
        )
        assert isinstance(damaged, IntegrityError)
        assert isinstance(healthy, signals.Receipt)
        assert await hf.journal.read("damaged") == before
        await hf.reindex("damaged")
        assert (await hf.signals.send("damaged", "go", id="one")).accepted
        assert (await hf.runs.get("damaged")).status == "ready"
