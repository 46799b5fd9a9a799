"""Going back does not pay again below a run: calls of other agents are given back, taken over, or
made again with what the former run did.

What was paid is told by a list that the tools write; not by Holdfast.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest

import holdfast
from holdfast import Key, Peer, ToolCall
from holdfast.errors import EffectNotFound
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, start
from tests.agents.resting import until_it_waits
from tests.backends import Backend


class Shop:
    """A cashier that charges, a clerk that calls it, and an agent above them."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.broken: set[str] = set()
        self.asking: set[str] = set()
        self.orders = ["a", "a", "b"]
        self.at_once = False

        def happened(what: str, key: str) -> str:
            self.paid.append(what)
            self.keys.append(key)
            return f"{what} #{len(self.paid)}"

        @holdfast.tool
        async def charge(order: str, *, key: Key) -> str:
            return happened(f"charge {order}", key)

        @holdfast.tool(repeat=True)
        async def ping(order: str, *, key: Key) -> str:
            return happened(f"ping {order}", key)

        @holdfast.tool(key="call")
        async def mail(order: str, *, key: Key) -> str:
            return happened(f"mail {order}", key)

        self.tools = {"charge": charge, "ping": ping, "mail": mail}
        self.cashier = self._cashier()
        self.clerk = self._clerk()
        self.agent = self._shop()
        self.agents = [self.agent, self.clerk, self.cashier]

    def _cashier(self) -> holdfast.Agent[[str], str]:
        charge, ping, mail = self.tools.values()

        @holdfast.agent(tools=list(self.tools.values()))
        async def cashier(run: holdfast.Run, order: str) -> str:
            await run.call(ping, order)
            await run.call(mail, order)
            got: str = await run.call(charge, order)
            if order in self.asking:
                await run.ask("go on?", schema=str, name=order)
            if order in self.broken:
                raise ValueError("no luck")
            return got

        return cashier

    def _clerk(self) -> holdfast.Agent[[str], str]:
        @holdfast.agent(peers=["cashier"])
        async def clerk(run: holdfast.Run, order: str) -> str:
            return await run.peer(self.cashier, order)

        return clerk

    def _shop(self) -> holdfast.Agent[[str], list[str]]:
        @holdfast.agent
        async def shop(run: holdfast.Run, name: str) -> list[str]:
            at, seen = run.value("at", int, 0), run.log("seen", str)
            if run.version == 0:
                at.set(0)
                await run.checkpoint()
            if self.at_once and at.get() == 0:
                seen.extend(await run.gather(*(run.peer(self.clerk, o) for o in self.orders)))
                at.set(len(self.orders))
            while at.get() < len(self.orders):
                seen.append(await run.peer(self.clerk, self.orders[at.get()]))
                at.set(at.get() + 1)
                await run.checkpoint()
            if name == "wait":
                await run.ask("done?", schema=str, name="done")
            return list(seen)

        return shop

    @property
    def expected(self) -> Counter[str]:
        what = ("ping", "mail", "charge")
        return Counter(f"{each} {order}" for order in self.orders for each in what)

    def check(self) -> None:
        assert Counter(self.paid) == self.expected
        assert len(set(self.keys)) == len(self.keys)


async def settle(hf: holdfast.Holdfast, agent: Any, name: str, run_id: str) -> None:
    """Work on a run until it waits for a person."""
    await until_it_waits(hf, await hf.start(agent, name, run_id=run_id))


@pytest.mark.parametrize("at_once", [False, True])
@async_test
async def test_siblings_with_equal_arguments_are_two_payments_before_and_after_a_fork(
    store: str, at_once: bool
) -> None:
    shop = Shop()
    shop.at_once = at_once
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        first = await hf.run(shop.agent, "x", run_id="r")
        shop.check()
        roots = [run.root_id for run in await hf.runs.list(agent="clerk")]
        assert len(set(roots)) == 3
        assert len(set(first)) == 3
        for version in (1, 0):
            await hf.runs.fork("r", version, new_run_id=f"f{version}")
            assert await hf.run(shop.agent, "x", run_id=f"f{version}") == first
            shop.check()
            assert (await hf.checkpoints.load(f"f{version}"))["holdfast.past"] == []
        assert len(await hf.runs.list(agent="clerk")) == 3, "replies are given back"


@pytest.mark.parametrize("at_once", [False, True])
@async_test
async def test_rewound_run_is_given_back_what_its_peers_replied(store: str, at_once: bool) -> None:
    shop = Shop()
    shop.at_once = at_once
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await settle(hf, shop.agent, "wait", "r")
        for version in (0, 1, 2):
            await hf.runs.rewind("r", version, by="ann")
            await settle(hf, shop.agent, "wait", "r")
            shop.check()
        assert await hf.journal.verify("r") == []
        await hf.reindex("r")
        assert await hf.journal.verify("r") == []


@async_test
async def test_call_that_failed_is_made_again_and_repeats_nothing_below_it(store: str) -> None:
    shop = Shop()
    shop.broken = {"b"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(shop.agent, "x", run_id="r")
        shop.check()
        shop.broken = set()  # the code was mended
        plan = await hf.runs.plan("r", 1)
        by_agent = Counter((call.agent, call.then) for call in plan.calls)
        assert by_agent == {
            ("clerk", "replayed"): 2,
            ("clerk", "made_again"): 1,
            ("cashier", "replayed"): 2,
            ("cashier", "made_again"): 1,
        }
        await hf.runs.fork("r", 1, new_run_id="f")
        assert len(await hf.run(shop.agent, "x", run_id="f")) == 3
        shop.check()
        again = [run for run in await hf.runs.list(agent="clerk") if run.forked_from]
        (former,) = [await hf.runs.get(run.forked_from) for run in again]
        assert (again[0].root_id, former.status) == (former.root_id, "failed")


@async_test
async def test_call_under_way_is_taken_over_and_answers_all_that_wait(store: str) -> None:
    shop = Shop()
    shop.asking = {"b"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await settle(hf, shop.agent, "x", "r")
        await hf.runs.fork("r", 1, new_run_id="f")
        await settle(hf, shop.agent, "x", "f")
        await hf.runs.fork("f", 0, new_run_id="g")
        await settle(hf, shop.agent, "x", "g")
        await hf.runs.rewind("r", 3, by="ann")
        await settle(hf, shop.agent, "x", "r")
        shop.check()
        (question,) = await hf.approvals.list()
        await hf.approvals.answer(question.wait_id, "yes", by="ann")
        results = [await hf.run(shop.agent, "x", run_id=run_id) for run_id in ("r", "f", "g")]
        assert results[0] == results[1] == results[2]
        shop.check()
        assert len(await hf.runs.list(agent="clerk")) == 3


@async_test
async def test_one_of_two_that_wait_may_go_and_the_last_one_stops_the_call(store: str) -> None:
    shop = Shop()
    shop.asking = {"b"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await settle(hf, shop.agent, "x", "r")
        await hf.runs.fork("r", 1, new_run_id="f")
        await settle(hf, shop.agent, "x", "f")
        (joined,) = [wait for wait in await hf.waits.of_run("f") if wait.status == "open"]
        assert joined.address.startswith("call:")
        assert await hf.journal.verify("f") == []
        (question,) = await hf.approvals.list()
        await hf.runs.cancel("r", by="ann")
        await hf.leases.outbox.deliver()
        assert (await hf.runs.get(question.run_id)).status == "waiting"
        await hf.runs.cancel("f", by="ann")
        for _ in range(3):
            await hf.leases.outbox.deliver()
        assert (await hf.runs.get(question.run_id)).status == "cancelled"


@async_test
async def test_rewind_cancels_calls_that_its_next_turn_does_not_ask_for(store: str) -> None:
    shop = Shop()
    shop.asking = {"b"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await settle(hf, shop.agent, "x", "r")
        (call,) = [w for w in await hf.waits.of_run("r") if w.status == "open"]
        await hf.runs.rewind("r", 3, by="ann", edits={"at": 0})
        assert (await hf.waits.get(call.wait_id)).status == "open"
        shop.orders, shop.asking = ["a", "c", "b"], set()
        await hf.run(shop.agent, "x", run_id="r")
        assert (await hf.waits.get(call.wait_id)).status == "cancelled"
        # "a" was called at another place before: a call of before the version is another one.
        assert Counter(shop.paid)["charge b"] == 1


@async_test
async def test_what_is_named_is_repeated_alone_below_peers_too(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await hf.run(shop.agent, "x", run_id="r")
        plan = await hf.runs.plan("r", 1)
        assert Counter(p.effect.tool for p in plan.effects) == {"ping": 3, "mail": 3, "charge": 3}
        charges = [p.effect for p in plan.effects if p.effect.tool == "charge"]
        last = await hf.runs.get(charges[-1].run_id)
        assert last.agent == "cashier"
        await hf.runs.fork("r", 1, new_run_id="f", resend=[charges[-1].effect_id])
        await hf.run(shop.agent, "x", run_id="f")
        extra = Counter(shop.paid) - shop.expected
        assert sum(extra.values()) == 1
        assert next(iter(extra)).startswith("charge")
        # A whole call, by the id of its run: all that is below it is repeated.
        shop.paid.clear()
        called = next(call for call in plan.calls if call.agent == "clerk")
        await hf.runs.fork("r", 1, new_run_id="g", resend=[called.run_id])
        await hf.run(shop.agent, "x", run_id="g")
        assert sorted(what.split()[0] for what in shop.paid) == ["charge", "mail", "ping"]
        with pytest.raises(EffectNotFound, match="--plan"):
            await hf.runs.fork("r", 1, new_run_id="h", resend=["nobody"])


@async_test
async def test_what_was_repeated_below_a_call_that_failed_again_is_given_back(store: str) -> None:
    """The third run of the cashier gets what the second one sent, and not what the first did."""
    shop = Shop()
    shop.orders, shop.broken = ["a"], {"a"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(shop.agent, "x", run_id="r")
        plan = await hf.runs.plan("r", 1)
        (charge,) = [p.effect for p in plan.effects if p.effect.tool == "charge"]
        await hf.runs.fork("r", 1, new_run_id="f", resend=[charge.effect_id])
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(shop.agent, "x", run_id="f")
        assert shop.paid == ["ping a", "mail a", "charge a", "charge a"]
        shop.broken = set()  # the code was mended
        await hf.runs.fork("f", 1, new_run_id="g")
        assert await hf.run(shop.agent, "x", run_id="g") == ["charge a #4"]
        assert len(shop.paid) == 4


@async_test
async def test_other_input_is_another_call_and_what_is_left_is_shown(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        await hf.run(shop.agent, "x", run_id="r")
        await hf.runs.fork("r", 1, new_run_id="f")
        shop.orders = ["a", "z"]
        await hf.run(shop.agent, "x", run_id="f")
        assert Counter(shop.paid)["charge z"] == 1
        assert Counter(shop.paid)["charge a"] == 2
        left = await hf.runs.unclaimed("f")
        assert [(item.kind, item.name) for item in left] == [("call", "clerk")] * 2
        assert (await hf.runs.plan("f", 1)).unclaimed == left


@async_test
async def test_model_is_told_that_a_reply_is_a_replay(store: str) -> None:
    asked: list[str] = []

    @holdfast.agent
    async def research(run: holdfast.Run, request: str) -> str:
        asked.append(request)
        return f"found {request}"

    @holdfast.agent(peers=[Peer("research")])
    async def boss(run: holdfast.Run, name: str) -> str:
        if run.version == 0:
            await run.checkpoint(label="begun")
        call = ToolCall("c1", "peer_research", {"request": "gold"})
        (answer,) = await run.tools([call])
        return answer.results[0].content

    async with holdfast.Holdfast(store, agents=[boss, research]) as hf:
        assert await hf.run(boss, "x", run_id="r") == "found gold"
        (child,) = await hf.runs.list(agent="research")
        await hf.runs.fork("r", 1, new_run_id="f")
        told = f"[idempotent replay of {child.run_id}]: found gold"
        assert await hf.run(boss, "x", run_id="f") == told
        assert asked == ["gold"]


@async_test
async def test_runs_begun_with_a_parent_go_on_with_what_the_former_did(store: str) -> None:
    shop = Shop()
    shop.orders = ["a", "a"]

    @holdfast.agent
    async def boss(run: holdfast.Run, name: str) -> int:
        if run.version == 0:
            await run.checkpoint(label="begun")
        for order in shop.orders:
            handle = await hf.start(shop.clerk, order, parent=run.run_id)
            await handle.result()
        return len(shop.orders)

    async with holdfast.Holdfast(store, agents=[boss, *shop.agents]) as hf:
        await hf.run(boss, "x", run_id="r")
        shop.check()
        await hf.runs.fork("r", 1, new_run_id="f")
        await hf.run(boss, "x", run_id="f")
        shop.check()
        shop.orders.append("a")  # a third one is another
        await hf.runs.fork("f", 1, new_run_id="g")
        await hf.run(boss, "x", run_id="g")
        shop.check()


@async_test
async def test_repeated_call_at_a_new_place_is_not_taken_for_one_of_before(store: str) -> None:
    sent: list[str] = []
    plan = [1, 1]

    @holdfast.tool(repeat=True)
    async def ping(who: str, *, key: Key) -> str:
        sent.append(key)
        return "pong"

    @holdfast.agent(tools=[ping])
    async def pinger(run: holdfast.Run, who: str) -> None:
        at = run.value("at", int, 0)
        while at.get() < len(plan):
            for _ in range(plan[at.get()]):
                await run.call(ping, who)
            at.set(at.get() + 1)
            await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[pinger]) as hf:
        await hf.run(pinger, "ann", run_id="r")
        assert len(sent) == 2
        plan[:] = [2, 1]
        await hf.runs.fork("r", 0, new_run_id="f")
        await hf.run(pinger, "ann", run_id="f")
        assert len(sent) == len(set(sent)) == 3
        await hf.runs.fork("f", 0, new_run_id="g")
        await hf.run(pinger, "ann", run_id="g")
        await hf.runs.fork("r", 0, new_run_id="h")  # knows its root's places, not those of "f"
        await hf.run(pinger, "ann", run_id="h")
        assert len(sent) == 3


def flip(backend: Backend, run_id: str, seq: int) -> None:
    """Change one bit of what is stored, behind the back of Holdfast."""
    with backend.raw() as raw:
        where = "WHERE run_id = ? AND seq = ?"
        ((body,),) = raw.rows(f"SELECT body FROM journal {where}", run_id, seq)
        changed = bytearray(body)
        changed[len(changed) // 2] ^= 1
        assert raw.execute(f"UPDATE journal SET body = ? {where}", bytes(changed), run_id, seq) == 1


@async_test
async def test_damage_is_no_reason_to_pay_or_to_ask_again(backend: Backend) -> None:
    shop = Shop()
    async with holdfast.Holdfast(backend.url, agents=shop.agents) as hf:
        await settle(hf, shop.agent, "wait", "r")
        newest = (await hf.checkpoints.history("r", limit=1))[0]
        seqs = [e.seq for e in await hf.journal.read("r") if e.kind == "CHECKPOINT_CREATED"]
        assert newest.version == len(seqs)
    flip(backend, "r", seqs[-1])
    flip(backend, "r", seqs[-2])
    async with holdfast.Holdfast(backend.url, agents=shop.agents) as hf:
        (question,) = await hf.approvals.list(run_id="r")
        await hf.approvals.answer(question.wait_id, "yes", by="ann")
        assert len(await hf.run(shop.agent, "wait", run_id="r", timeout=300)) == 3
        shop.check()
        assert await hf.runs.unclaimed("r") == []


@async_test
async def test_recovery_serves_signals_steps_and_open_questions(backend: Backend) -> None:
    asked: list[str] = []

    async def model(prompt: str) -> str:
        asked.append(prompt)
        return f"reply to {prompt}"

    @holdfast.agent
    async def agent(run: holdfast.Run, name: str) -> list[str]:
        seen = run.log("seen", str)
        if run.version == 0:
            seen.append("begun")
            await run.checkpoint()
        if len(seen) == 1:
            seen.append(await run.step(model, "one"))
            seen.append(await run.signal("go", str))
            await run.checkpoint()
        seen.append(await run.step(model, "two"))
        return [*seen, await run.ask("well?", schema=str, name="q")]

    async with holdfast.Holdfast(backend.url, agents=[agent]) as hf:
        handle = await hf.start(agent, "x", run_id="r")
        await hf.signal("r", "go", "gone")
        await until_it_waits(hf, handle)
        seqs = [e.seq for e in await hf.journal.read("r") if e.kind == "CHECKPOINT_CREATED"]
        (question,) = await hf.approvals.list()
    flip(backend, "r", seqs[-1])
    async with holdfast.Holdfast(backend.url, agents=[agent]) as hf:
        await hf.recoveries.execute("r", by="ann")
        handle = await hf.start(agent, "x", run_id="r")
        await until_it_waits(hf, handle)
        assert [q.wait_id for q in await hf.approvals.list()] == [question.wait_id]
        await hf.approvals.answer(question.wait_id, "fine", by="ann")
        result = await handle.result(timeout=300)
        assert result == ["begun", "reply to one", "gone", "reply to two", "fine"]
        assert asked == ["one", "two"]


@async_test
async def test_crash_between_claiming_and_the_checkpoint_changes_nothing(store: str) -> None:
    shop = Shop()
    shop.broken = {"b"}
    async with holdfast.Holdfast(store, agents=shop.agents) as hf:
        with pytest.raises(holdfast.errors.RunFailed):
            await hf.run(shop.agent, "x", run_id="r")
        shop.broken = set()
        await hf.runs.fork("r", 1, new_run_id="f")
        for _ in range(20):
            run = await hf.runs.get("f")
            if run.status == "completed":
                break
            if run.status in ("ready", "running"):
                await advance(hf, "f")
            for peer in await hf.runs.list(status="ready"):
                await advance(hf, peer.run_id)
            await hf.leases.outbox.deliver()
            await asyncio.sleep(0)
        assert (await hf.runs.get("f")).status == "completed"
        shop.check()


@async_test
async def test_fork_and_its_original_share_the_call_that_both_make_later(store: str) -> None:
    """The root of a call is its place in the lineage, not the run that makes it."""
    shop = Shop()

    @holdfast.agent
    async def buyer(run: holdfast.Run) -> str:
        seen = run.value("seen", int, 0)
        if not seen.get():
            seen.set(1)
            await run.checkpoint()
        await run.ask("go on?", schema=str, name="start")
        return await run.peer(shop.clerk, "a")

    agents = [buyer, *shop.agents]
    async with holdfast.Holdfast(store, agents=agents) as hf:
        await until_it_waits(hf, await hf.start(buyer, run_id="first"))
        await hf.runs.fork("first", 1, new_run_id="second")
        await until_it_waits(hf, await hf.start(buyer, run_id="second"))
        for asked in await hf.approvals.list():
            await hf.approvals.answer(asked.wait_id, "yes", by="ann")
        for run_id in ("first", "second"):
            assert (await hf.run(buyer, run_id=run_id)).startswith("charge a")
    assert Counter(shop.paid) == {"ping a": 1, "mail a": 1, "charge a": 1}


@async_test
async def test_caller_is_not_told_of_the_damage_of_its_peer(backend: Backend) -> None:
    """Whoever follows a healthy run helps its peers; one of them is damaged, and blocked."""

    @holdfast.agent
    async def child(run: holdfast.Run) -> str:
        seen = run.value("seen", int, 0)
        if not seen.get():
            seen.set(1)
            await run.checkpoint()
        await run.signal("go")
        return "done"

    @holdfast.agent
    async def parent(run: holdfast.Run) -> str:
        return await run.peer(child)

    async with holdfast.Holdfast(backend.url, agents=[parent, child]) as hf:
        await until_it_waits(hf, await hf.start(parent, run_id="p"))
        (called,) = await hf.runs.list(agent="child")
    with backend.raw() as raw:
        where = "WHERE run_id = ? AND kind = 'CHECKPOINT_CREATED'"
        ((body,),) = raw.rows(f"SELECT body FROM journal {where}", called.run_id)
        changed = bytes([body[0] ^ 1, *body[1:]])
        raw.execute(f"UPDATE journal SET body = ? {where}", changed, called.run_id)
    async with holdfast.Holdfast(backend.url, agents=[parent, child]) as hf:
        await hf.signals.send(called.run_id, "go", 1, id="s")
        await until_it_waits(hf, await hf.start(parent, run_id="p"))
        damaged = await hf.runs.get(called.run_id)
        assert (damaged.status, damaged.blocked_reason) == ("blocked", "corruption")


def boss_of(shop: Shop, hold: dict[str, Any]) -> holdfast.Agent[[str], int]:
    """An agent that starts clerks with parent=, and crashes once after the first, if told to."""

    @holdfast.agent
    async def boss(run: holdfast.Run, name: str) -> int:
        if run.version == 0:
            await run.checkpoint(label="begun")

        async def order(what: str) -> None:
            handle = await hold["hf"].start(shop.clerk, what, parent=run.run_id)
            await handle.result()

        if hold.get("at_once"):
            await asyncio.gather(*map(order, shop.orders), return_exceptions=True)
            return len(shop.orders)
        for each in shop.orders:
            await order(each)
            if hold.pop("crash", False):
                raise Crash
        return len(shop.orders)

    return boss


@pytest.mark.parametrize("goes_back", [False, True])
@async_test
async def test_crash_of_the_parent_starts_no_child_again(store: str, goes_back: bool) -> None:
    shop, hold = Shop(), {}
    boss = boss_of(shop, hold)
    async with holdfast.Holdfast(store, agents=[boss, *shop.agents]) as hf:
        hold["hf"] = hf
        run_id = "r"
        if goes_back:
            await hf.run(boss, "x", run_id="r")
            await hf.runs.fork("r", 1, new_run_id="f")
            run_id = "f"
        else:
            await start(hf, boss, "x")
        hold["crash"] = True
        assert await advance(hf, run_id) is None, "it crashed"
        assert await advance(hf, run_id) is not None
        assert (await hf.runs.get(run_id)).status == "completed"
        shop.check()
        # Those that the former run started have completed, and are given back.
        assert len(await hf.runs.list(parent_id="r")) == len(shop.orders)


@async_test
async def test_children_started_at_once_after_going_back_are_two(store: str) -> None:
    shop, hold = Shop(), {"at_once": True}
    shop.orders = ["a", "a"]
    fails = [True]

    @holdfast.agent
    async def clerk(run: holdfast.Run, order: str) -> str:
        if fails[0]:
            raise ValueError("before it paid")
        return await run.peer(shop.cashier, order)

    shop.clerk = clerk
    boss = boss_of(shop, hold)
    async with holdfast.Holdfast(store, agents=[boss, clerk, shop.cashier]) as hf:
        hold["hf"] = hf
        await hf.run(boss, "x", run_id="r")
        assert shop.paid == []
        fails[0] = False
        await hf.runs.fork("r", 1, new_run_id="f")
        await hf.run(boss, "x", run_id="f")
        shop.check()


@async_test
async def test_start_in_a_step_has_no_position_of_its_own(store: str) -> None:
    """The step is not repeated after the crash: the start that follows it is another one."""
    shop = Shop()
    shop.orders = ["a", "a"]
    crash = [True]

    @holdfast.agent
    async def boss(run: holdfast.Run) -> None:
        async def order() -> str:
            return (await hf.start(shop.clerk, "a", parent=run.run_id)).run_id

        await run.step(order)
        if crash:
            crash.clear()
            raise Crash
        await order()

    async with holdfast.Holdfast(store, agents=[boss, *shop.agents]) as hf:
        await start(hf, boss)
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is not None
        for child in await hf.runs.list(parent_id="r"):
            await hf.run(shop.clerk, "a", run_id=child.run_id)
        shop.check()


@async_test
async def test_start_is_not_stored_before_the_step_it_follows_from(store: str) -> None:
    shop = Shop()
    made: list[str] = []
    at_start: list[list[str]] = []

    @holdfast.agent
    async def boss(run: holdfast.Run) -> None:
        async def choose() -> str:
            made.append("a")
            return "a"

        what = await run.step(choose)
        handle = await hf.start(shop.clerk, what, parent=run.run_id)
        at_start.append([e.kind for e in await hf.journal.read("r")])
        await handle.result()

    async with holdfast.Holdfast(store, agents=[boss, *shop.agents]) as hf:
        await hf.run(boss, run_id="r")
    assert "STEP_RECORDED" in at_start[0]


@async_test
async def test_answered_session_cancels_calls_that_were_left_open_by_a_rewind(store: str) -> None:
    shop = Shop()
    shop.asking = {"b"}
    plan = ["b"]

    @holdfast.agent
    async def talker(run: holdfast.Run, message: str) -> str:
        if message == "order":
            return ", ".join([await run.peer(shop.clerk, each) for each in plan])
        return message

    async with holdfast.Holdfast(store, agents=[talker, *shop.agents]) as hf:
        session = hf.session(talker, "s")
        assert await session.send("hello") == "hello"
        sent = asyncio.create_task(session.send("order"))
        while not (found := [w for w in await hf.waits.of_run("s") if w.status == "open"]) or (
            not await hf.approvals.list()
        ):
            await asyncio.sleep(0.02)
        sent.cancel()
        await asyncio.wait([sent])
        (call,) = [each for each in found if each.kind == "peer"]
        plan.clear()
        version = (await hf.checkpoints.history("s", limit=1))[0].version
        await hf.runs.rewind("s", version, by="ann", takeover=True)
        assert (await hf.waits.get(call.wait_id)).status == "open"
        assert await session.send("thanks") == "thanks"
        assert (await hf.waits.get(call.wait_id)).status == "cancelled"


@async_test
async def test_model_is_asked_again_where_its_transcript_may_differ(backend: Backend) -> None:
    """A lost reply may be another one now: what was said to it was said to a transcript of then."""
    asked: list[list[str]] = []

    @holdfast.agent
    async def talker(run: holdfast.Run) -> list[str]:
        talk = run.log("talk", str)

        async def reply(transcript: holdfast.Log[str]) -> str:
            asked.append(list(transcript))
            return f"r{len(asked)}"

        for version, said in enumerate(("begun", "more")):
            if run.version == version:
                talk.append(said)
                await run.checkpoint()
        while len(talk) < 8:
            talk.append(await run.model(reply, talk))
            talk.append("and then?")
        await run.ask("well?", schema=str, name="q")
        return list(talk)

    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        await until_it_waits(hf, await hf.start(talker, run_id="r"))
        entries = await hf.journal.read("r")
        steps = [e.seq for e in entries if e.kind == "STEP_RECORDED"]
        assert len(steps) == len(asked) == 3
    flip(backend, "r", steps[1])
    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        await hf.recoveries.execute("r", by="ann")
        handle = await hf.start(talker, run_id="r")
        await until_it_waits(hf, handle)
        (question,) = await hf.approvals.list()
        await hf.approvals.answer(question.wait_id, "fine", by="ann")
        talk = await handle.result(timeout=300)
    for transcript in asked[3:]:
        assert transcript == talk[: len(transcript)], "each reply was made from this transcript"
    assert [line for line in talk if line.startswith("r")] == ["r1", "r4", "r5"]


@async_test
async def test_calls_of_a_model_that_numbers_them_anew_in_each_turn_are_two(store: str) -> None:
    shop = Shop()
    mail = shop.tools["mail"]

    @holdfast.agent(tools=[mail])
    async def mailer(run: holdfast.Run) -> list[str]:
        sent = run.log("sent", str)
        while len(sent) < 2:
            results = await run.tools([ToolCall("1", "mail", {"order": "a"})])
            sent.append(results[0].results[0].content)
            await run.checkpoint()
        return list(sent)

    async with holdfast.Holdfast(store, agents=[mailer]) as hf:
        assert await hf.run(mailer, run_id="r") == ["mail a #1", "mail a #2"]
        await hf.runs.fork("r", 1, new_run_id="f")
        assert len(await hf.run(mailer, run_id="f")) == 2
    assert shop.paid == ["mail a"] * 2


@async_test
async def test_call_that_is_tried_again_with_its_id_in_one_turn_is_made_once(store: str) -> None:
    paid: list[str] = []

    @holdfast.tool(key="call", in_doubt="fail")
    async def pay(what: str, *, key: Key) -> str:
        paid.append(key)
        raise OSError("the connection was lost after the payment")

    @holdfast.agent(tools=[pay])
    async def payer(run: holdfast.Run) -> list[str]:
        calls = [ToolCall("c1", "pay", {"what": "x"})]
        return [(await run.tools(calls))[0].results[0].content for _ in range(2)]

    async with holdfast.Holdfast(store, agents=[payer]) as hf:
        first, again = await hf.run(payer, run_id="r")
    assert "not known" in first
    assert "was interrupted" in again
    assert len(paid) == 1


class Transcript:
    """What an author keeps a conversation in: no data that a digest could show."""

    def __init__(self) -> None:
        self.lines: list[str] = []


@async_test
async def test_model_is_asked_again_after_a_loss_if_a_digest_shows_only_a_type(
    backend: Backend,
) -> None:
    asked: list[list[str]] = []

    @holdfast.agent
    async def talker(run: holdfast.Run) -> list[str]:
        talk = Transcript()

        async def reply(transcript: Transcript) -> str:
            asked.append(list(transcript.lines))
            return f"r{len(asked)}"

        if run.version == 0:
            await run.checkpoint()
        for _ in range(2):
            talk.lines.append(await run.model(reply, talk))
        await run.ask("well?", schema=str, name="q")
        return talk.lines

    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        await until_it_waits(hf, await hf.start(talker, run_id="r"))
        entries = await hf.journal.read("r")
    flip(backend, "r", next(e.seq for e in entries if e.kind == "STEP_RECORDED"))
    async with holdfast.Holdfast(backend.url, agents=[talker]) as hf:
        await hf.recoveries.execute("r", by="ann", accept_gap=True)
        handle = await hf.start(talker, run_id="r")
        await until_it_waits(hf, handle)
        (question,) = await hf.approvals.list()
        await hf.approvals.answer(question.wait_id, "fine", by="ann")
        assert await handle.result(timeout=60) == ["r3", "r4"]
    assert asked[3] == ["r3"]
