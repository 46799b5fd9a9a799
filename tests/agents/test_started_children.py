"""Runs that an agent's code starts with `parent=`: once whatever happens, also after going back.

What was paid is told by a list that the tools write; not by Holdfast.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast import Key, Settings, sync
from holdfast.clock import MICROSECONDS
from holdfast.errors import OutcomeUnknown
from holdfast.stores.contract import Commit
from holdfast.testing import ManualClock
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start
from tests.agents.resting import until_it_waits
from tests.agents.test_past import flip
from tests.backends import Backend


class Office:
    """A clerk that pays, and a boss that starts one after its first checkpoint."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.hf: holdfast.Holdfast | None = None
        self.own_id = ""
        self.asks = False
        self.crashes = False

        @holdfast.tool(repeat=True)
        async def pay(what: str, *, key: Key) -> str:
            self.paid.append(key)
            return f"paid {len(self.paid)}"

        @holdfast.agent(tools=[pay])
        async def clerk(run: holdfast.Run, what: str) -> str:
            if self.asks:
                await run.ask("may I?", schema=str, name="clerk")
            return await run.call(pay, what)

        @holdfast.agent
        async def boss(run: holdfast.Run, name: str) -> str:
            if run.version == 0:
                await run.checkpoint(label="begun")
            return await self.delegate(run)

        self.clerk, self.boss = clerk, boss
        self.agents: list[holdfast.Agent[..., Any]] = [clerk, boss]

    async def delegate(self, run: holdfast.Run) -> str:
        options = {"run_id": f"{self.own_id}-{run.run_id}"} if self.own_id else {}
        assert self.hf is not None
        handle = await self.hf.start(self.clerk, "x", parent=run.run_id, **options)
        if self.crashes:
            raise Crash
        return await handle.result()

    def open(self, url: str, **options: Any) -> holdfast.Holdfast:
        self.hf = holdfast.Holdfast(url, agents=self.agents, **options)
        return self.hf


@pytest.mark.parametrize("own_id", ["", "c"])
@async_test
async def test_completed_child_is_given_back_after_going_back(store: str, own_id: str) -> None:
    office = Office()
    office.own_id = own_id
    async with office.open(store) as hf:
        assert await hf.run(office.boss, "x", run_id="r") == "paid 1"
        (call,) = (await hf.runs.plan("r", 1)).calls
        assert (call.agent, call.then) == ("clerk", "replayed")
        await hf.runs.fork("r", 1, new_run_id="f")
        assert await hf.run(office.boss, "x", run_id="f") == "paid 1"
    assert len(office.paid) == 1


@asynccontextmanager
async def working(office: Office, url: str) -> AsyncIterator[holdfast.Holdfast]:
    """A store with a worker, for a minute."""
    async with asyncio.timeout(60), office.open(url) as hf:
        task = asyncio.create_task((worker := hf.new_worker()).run())
        yield hf
        worker.stop()
        await task


async def until_asked(hf: holdfast.Holdfast, *expected: str) -> dict[str, str]:
    """Wait until these questions are open; their ids by name."""
    while sorted(asked := {q.name: q.wait_id for q in await hf.approvals.list()}) != [*expected]:
        await asyncio.sleep(0.01)
    return asked


async def leave_at_work(office: Office, hf: holdfast.Holdfast) -> holdfast.Handle[Any]:
    """Let the boss start a clerk, who asks a person, and ask a person itself."""
    office.asks = True

    async def delegate(run: holdfast.Run) -> str:
        assert office.hf is not None
        await office.hf.start(office.clerk, "x", parent=run.run_id)
        return await run.ask("and then?", schema=str, name="boss")

    office.delegate = delegate  # type: ignore[method-assign]
    handle = await hf.start(office.boss, "x", run_id="r")
    await until_asked(hf, "boss", "clerk")
    return handle


@async_test
async def test_child_at_work_is_taken_over_by_a_rewind(store: str) -> None:
    office = Office()
    async with working(office, store) as hf:
        handle = await leave_at_work(office, hf)
        before = await until_asked(hf, "boss", "clerk")
        await hf.runs.rewind("r", 1, by="ann")
        while (asked := await until_asked(hf, "boss", "clerk")) == before:
            await asyncio.sleep(0.01)
        await hf.approvals.answer(asked["boss"], "nothing", by="ann")
        assert await handle.result() == "nothing"
        (child,) = await hf.runs.list(agent="clerk")
        assert child.status == "waiting"


@async_test
async def test_child_at_work_that_nobody_asks_for_after_a_rewind_is_cancelled(store: str) -> None:
    office = Office()
    async with working(office, store) as hf:
        handle = await leave_at_work(office, hf)
        may_go_on = asyncio.Event()

        async def checkpoint(run: holdfast.Run) -> str:
            await may_go_on.wait()
            await run.checkpoint()
            return "nothing"

        office.delegate = checkpoint  # type: ignore[method-assign]
        (call,) = (await hf.runs.plan("r", 1)).calls
        assert call.then == "taken_over"
        await hf.runs.rewind("r", 1, by="ann")
        (child,) = await hf.runs.list(agent="clerk")
        assert child.status == "waiting"
        may_go_on.set()
        assert await handle.result() == "nothing"
        assert (await hf.runs.get(child.run_id)).status == "cancelled"
    assert office.paid == []


@async_test
async def test_start_behind_ends_of_turns_that_were_passed_over_is_made_once(store: str) -> None:
    office, slow = Office(), [0.0]

    @holdfast.agent(cadence=holdfast.every(seconds=1))
    async def paced(run: holdfast.Run, name: str) -> int:
        at = run.value("at", int, 0)
        while at.get() < 2:
            if at.get() == 1:
                await office.delegate(run)
            at.set(at.get() + 1)
            await asyncio.sleep(slow[0])
            await run.checkpoint()
        return at.get()

    office.agents.append(paced)
    async with office.open(store) as hf:
        await start(hf, paced, "x")
        office.crashes = True
        assert await advance(hf, "r") is None
        office.crashes, slow[0] = False, 1.1
        assert await advance(hf, "r") is not None
        assert (await hf.runs.get("r")).status == "completed"
        assert len(await hf.runs.list(parent_id="r")) == 1
    assert len(office.paid) == 1


@async_test
async def test_child_with_an_id_of_its_own_below_a_call_that_is_made_again_pays_once(
    store: str,
) -> None:
    office, fails = Office(), [True]
    office.own_id = "c"

    @holdfast.agent
    async def middle(run: holdfast.Run, name: str) -> str:
        said = await office.delegate(run)
        if fails:
            raise ValueError("not mended yet")
        return said

    @holdfast.agent
    async def top(run: holdfast.Run, name: str) -> str:
        if run.version == 0:
            await run.checkpoint(label="begun")
        return await run.peer(middle, "n")

    office.agents += [middle, top]
    async with office.open(store) as hf:
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(top, "x", run_id="r")
        fails.clear()
        await hf.runs.fork("r", 1, new_run_id="f")
        assert await hf.run(top, "x", run_id="f") == "paid 1"
    assert len(office.paid) == 1


@async_test
async def test_effect_below_a_child_is_sent_again_if_it_is_named(store: str) -> None:
    office = Office()
    async with office.open(store) as hf:
        await hf.run(office.boss, "x", run_id="r")
        (effect,) = (await hf.runs.plan("r", 1)).effects
        await hf.runs.fork("r", 1, new_run_id="f", resend=[effect.effect.effect_id])
        assert await hf.run(office.boss, "x", run_id="f") == "paid 2"
    assert len(set(office.paid)) == 2


@async_test
async def test_recovery_from_damage_asks_nobody_below_a_child_again(backend: Backend) -> None:
    office = Office()
    office.asks = True

    @holdfast.agent
    async def chief(run: holdfast.Run, name: str) -> str:
        got = run.value("got", str, "")
        if run.version == 0:
            await run.checkpoint(label="begun")
        if not got.get():
            got.set(await office.delegate(run))
            await run.checkpoint()
        return await run.ask("done?", schema=str, name="end")

    office.agents.append(chief)
    async with working(office, backend.url) as hf:
        await hf.start(chief, "x", run_id="r")
        asked = await until_asked(hf, "clerk")
        await hf.approvals.answer(asked["clerk"], "yes", by="ann")
        await until_asked(hf, "end")
        entries = await hf.journal.read("r")
        newest = [entry.seq for entry in entries if entry.kind == "CHECKPOINT_CREATED"][-1]
    flip(backend, "r", newest)
    async with working(office, backend.url) as hf:
        await hf.recoveries.execute("r", by="ann")
        asked = await until_asked(hf, "end")
        await hf.approvals.answer(asked["end"], "yes", by="ann")
        assert await (await hf.start(chief, "x", run_id="r")).result() == "yes"
        assert len(await hf.runs.list(agent="clerk")) == 1
    assert len(office.paid) == 1


@pytest.mark.parametrize("by_code", [True, False], ids=["by code", "from outside"])
@async_test
async def test_step_of_the_clock_hides_no_child(by_code: bool) -> None:
    """The clock of the process that starts the child is an hour behind that of its parent."""
    office, clock = Office(), ManualClock()
    office.own_id = "c" if by_code else ""

    async def wait_and_delegate(run: holdfast.Run) -> str:
        await run.ask("go?", schema=str, name="q")
        return await Office.delegate(office, run) if by_code else "gone"

    office.delegate = wait_and_delegate  # type: ignore[method-assign]
    async with office.open("memory://", clock=clock) as hf:
        handle = await hf.start(office.boss, "x", run_id="r")
        await until_it_waits(hf, handle)
        clock._now -= 3600 * MICROSECONDS
        (asked,) = await hf.approvals.list()
        await hf.approvals.answer(asked.wait_id, "y", by="ann")
        if not by_code:
            await hf.start(office.clerk, "x", parent="r")
        await handle.result(timeout=60)
        (call,) = (await hf.runs.plan("r", 1)).calls
    assert call.agent == "clerk"


@async_test
async def test_forged_parent_of_a_child_makes_no_payment_again(backend: Backend) -> None:
    office = Office()
    office.own_id = "c"
    async with office.open(backend.url) as hf:
        await hf.run(office.boss, "x", run_id="r")
    with backend.raw() as raw:
        assert raw.execute("UPDATE runs SET parent_id = '' WHERE agent = 'clerk'") == 1
    async with office.open(backend.url) as hf:
        with pytest.raises(holdfast.errors.IndexCorrupted):
            await hf.runs.fork("r", 1, new_run_id="f")
    assert len(office.paid) == 1


@async_test
async def test_thread_of_the_code_with_the_blocking_face_may_start_children(store: str) -> None:
    """Its event loop is another one: the turn is not touched from there."""
    office = Office()

    async def in_a_thread(run: holdfast.Run) -> str:
        async def note() -> str:
            return "n"

        await run.step(note)  # staged, and perhaps not stored yet
        handle = await asyncio.to_thread(blocking.start, office.clerk, "x", parent=run.run_id)
        return handle.run_id

    office.delegate = in_a_thread  # type: ignore[method-assign]
    blocking = sync.Holdfast(store, agents=[office.clerk])
    await asyncio.to_thread(blocking.__enter__)
    try:
        async with office.open(store, settings=Settings(lease_seconds=60)) as hf:
            started = await hf.run(office.boss, "x", run_id="r")
            assert (await hf.runs.get(started)).parent_id == "r"
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)


def lose_answers(hf: holdfast.Holdfast, run_id: str, *, count: int) -> None:
    """Lose the next commits of a run, so that nobody knows whether they are stored."""
    store: Any = hf._context.store
    submit, lost = store.submit, list[Commit]()

    async def submit_or_lose(write: Any) -> Any:
        if isinstance(write, Commit) and write.run_id == run_id and len(lost) < count:
            lost.append(write)
            raise OutcomeUnknown("the connection was lost at COMMIT")
        return await submit(write)

    store.submit = submit_or_lose


@async_test
async def test_start_that_may_not_be_stored_is_no_failure_of_the_code(store: str) -> None:
    office = Office()
    delegate, losses = office.delegate, [2]  # the start, and what sends it again beside the code

    async def delegate_and_lose(run: holdfast.Run) -> str:
        if losses:
            assert office.hf is not None
            lose_answers(office.hf, run.run_id, count=losses.pop())
        return await delegate(run)

    office.delegate = delegate_and_lose  # type: ignore[method-assign]
    async with office.open(store) as hf:
        assert await hf.run(office.boss, "x", run_id="r") == "paid 1"
        assert "RECOVERY_INITIATED" not in await kinds(hf, "r")
        assert len(await hf.runs.list(agent="clerk")) == 1
    assert len(office.paid) == 1
