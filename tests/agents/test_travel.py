"""Going back: what was done outside is given back, and only sent again if somebody says so.

What was done outside is told by a list, or a file, that the tools write; not by Holdfast.
"""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Happened, Key, Message, NotDone, ToolCall
from holdfast.errors import (
    EffectNotFound,
    Fenced,
    IllegalMove,
    LeaseHeld,
    MisuseError,
    RunEnded,
)
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


class Shop:
    """A world outside: three tools that key their calls in different ways, and an agent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str] = []
        self.crash_after = ""
        self.rounds = 1

        def happened(what: str, key: str) -> str:
            self.sent.append(what)
            self.keys.append(key)
            if self.crash_after == what:
                self.crash_after = ""
                raise Crash
            return f"{what} #{len(self.sent)}"

        @holdfast.tool
        async def charge(cents: int, *, key: Key) -> str:
            return happened(f"charge {cents}", key)

        @holdfast.tool(repeat=True)
        async def ping(who: str, *, key: Key) -> str:
            return happened(f"ping {who}", key)

        @holdfast.tool(effect="idempotent")
        async def note(text: str, *, key: Key) -> str:
            return happened(f"note {text}", key)

        @holdfast.tool(key="call")
        async def mail(to: str, *, key: Key) -> str:
            return happened(f"mail {to}", key)

        @holdfast.agent(tools=[charge, ping, note, mail], loop_limit=0)
        async def buyer(run: holdfast.Run, cents: int) -> list[str]:
            plan = run.value("plan", dict[str, Any], {"who": "ann"})
            seen = run.log("seen", str)
            if not plan.is_set or run.version == 0:
                plan.set({"who": "ann"})
                await run.checkpoint()
            who = plan.get()["who"]
            for _ in range(self.rounds):
                seen.append(await run.call(charge, cents))
                seen.extend([await run.call(ping, who), await run.call(ping, who)])
                seen.append(await run.call(note, who))
                call = ToolCall(f"c{run.version}", "mail", {"to": who})
                (answer,) = await run.tools([call])
                seen.append(answer.results[0].content)
                await run.checkpoint()
            return list(seen)

        self.tools = {"charge": charge, "ping": ping, "note": note, "mail": mail}
        self.agent = buyer


ALL = ["charge 5", "ping ann", "ping ann", "note ann", "mail ann"]


@async_test
async def test_fork_is_given_back_everything_its_original_did_after_that_point(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        first = await hf.run(shop.agent, 5, run_id="r")
        assert shop.sent == ALL
        before = [entry.link for entry in await hf.journal.read("r")]
        fork = await hf.runs.fork("r", 1, new_run_id="f", by="ann", note="again")
        again = await hf.run(shop.agent, 5, run_id="f")
        assert shop.sent == ALL
        assert again[:4] == first[:4]
        assert again[4] == "[idempotent replay of c1]: mail ann #5"
        assert [entry.link for entry in await hf.journal.read("r")] == before
        assert (fork.forked_from, fork.forked_version, fork.root_id) == ("r", 1, "r")
        state = await hf.checkpoints.load("f")
        assert state["holdfast.past"] == []
        assert await hf.journal.verify("f") == []
        created = (await hf.journal.read("f"))[0]
        assert (created.kind, created.actor) == ("RUN_CREATED", "ann")
        # The fork of the fork, from before it asked for any of this.
        await hf.runs.fork("f", 1, new_run_id="ff")
        assert (await hf.run(shop.agent, 5, run_id="ff"))[:4] == first[:4]
        await hf.runs.fork("f", 0, new_run_id="f0")
        await hf.run(shop.agent, 5, run_id="f0")
        assert shop.sent == ALL


@async_test
async def test_only_the_effects_that_are_named_are_sent_again_and_once(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        await hf.run(shop.agent, 5, run_id="r")
        plan = await hf.runs.plan("r", 1)
        tools = [planned.effect.tool for planned in plan.effects]
        assert tools == ["charge", "ping", "ping", "note", "mail"]
        assert {planned.then for planned in plan.effects} == {"given_back"}
        charge, _, ping = (planned.effect.effect_id for planned in plan.effects[:3])
        await hf.runs.fork("r", 1, new_run_id="f", resend=[charge, str(ping)])
        shop.rounds = 2
        seen = await hf.run(shop.agent, 5, run_id="f")
        # The second round charges the same operation again, which is one; a ping may be repeated.
        others = ["ping ann", "ping ann", "note ann", "mail ann"]
        assert shop.sent[5:] == ["charge 5", "ping ann", *others]
        assert seen[:3] == ["charge 5 #6", "ping ann #2", "ping ann #7"]
        assert seen[5] == "charge 5 #6"
        assert len(set(shop.keys)) == len(shop.keys)


@async_test
async def test_effect_that_is_sent_again_and_declined_is_not_mistaken_for_the_old_one(
    store: str,
) -> None:
    sent: list[str] = []

    @holdfast.tool
    async def charge(cents: int, *, key: Key) -> str:
        sent.append(key)
        if len(sent) == 2:
            raise NotDone("declined")
        return f"receipt {len(sent)}"

    @holdfast.agent(tools=[charge])
    async def buyer(run: holdfast.Run, cents: int) -> str:
        await run.checkpoint()
        calls = [ToolCall(f"a{run.version}", "charge", {"cents": cents})]
        (first,) = await run.tools(calls)
        await run.checkpoint()
        if first.results[0].is_error:
            (first,) = await run.tools(calls)
        return first.results[0].content

    async with holdfast.Holdfast(store, agents=[buyer]) as hf:
        assert await hf.run(buyer, 5, run_id="r") == "receipt 1"
        (effect,) = await hf.effects.of_run("r")
        await hf.runs.fork("r", 1, new_run_id="f", resend=[effect.effect_id])
        assert await hf.run(buyer, 5, run_id="f") == "receipt 3"
    assert len(sent) == 3
    assert sent[1] == sent[2] != sent[0]


@async_test
async def test_crash_of_a_fork_anywhere_sends_nothing_again(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        await hf.run(shop.agent, 5, run_id="r")
        mail = (await hf.runs.plan("r", 1)).effects[-1].effect
        await hf.runs.fork("r", 1, new_run_id="f", resend=[mail.effect_id])
        shop.crash_after = "mail ann"
        assert await advance(hf, "f") is None
        assert shop.sent == [*ALL, "mail ann"]
        (effect,) = await hf.effects.of_run("f")  # nobody saw its end: a person tells
        await hf.effects.settle(effect.effect_id, "completed", result="it is there")
        await advance(hf, "f")
        assert (await hf.runs.result("f"))[4] == "it is there"
        assert shop.sent == [*ALL, "mail ann"]


@async_test
async def test_what_is_unknown_is_resolved_before_a_fork_goes_on(store: str) -> None:
    sent: list[str] = []

    async def find(cents: int, key: str) -> Happened[str] | NotDone:
        return Happened("found") if key in sent else NotDone()

    @holdfast.tool(repeat=True, verify=find)
    async def charge(cents: int, *, key: Key) -> str:
        sent.append(key)
        if len(sent) == 1:
            raise Crash
        return "charged"

    @holdfast.agent(tools=[charge])
    async def buyer(run: holdfast.Run, cents: int) -> str:
        if run.is_fresh:
            await run.checkpoint()
        return await run.call(charge, cents)

    async with holdfast.Holdfast(store, agents=[buyer]) as hf:
        await start(hf, buyer, 5)
        assert await advance(hf, "r") is None
        (effect,) = await hf.effects.of_run("r")
        planned = (await hf.runs.plan("r", 1)).effects
        assert [(p.effect.effect_id, p.then) for p in planned] == [
            (effect.effect_id, "to_be_resolved")
        ]
        with pytest.raises(IllegalMove, match=f"holdfast effects resolve {effect.effect_id}"):
            await hf.runs.fork("r", 1, resend=[effect.effect_id])
        await hf.effects.settle(effect.effect_id, "unknown")
        await hf.runs.fork("r", 1, new_run_id="f")
        assert await hf.run(buyer, 5, run_id="f") == "found"
        assert len(sent) == 1
        assert (await hf.effects.get(effect.effect_id)).status == "completed"


@async_test
async def test_rewound_run_goes_on_from_there_without_repeating_anything(store: str) -> None:
    shop = Shop()
    shop.crash_after = "mail ann"
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        await start(hf, shop.agent, 5)
        assert await advance(hf, "r") is None
        mail = (await hf.effects.of_run("r"))[-1]
        await hf.effects.settle(mail.effect_id, "unknown")
        await hf.effects.settle(mail.effect_id, "completed", result="it is there")
        await hf.runs.block("r", "budget")
        rewound = await hf.runs.rewind(
            "r", 1, by="ann", note="other person", edits={"plan": {"who": "bob"}}
        )
        assert (rewound.status, rewound.blocked_reason, rewound.attempts) == ("ready", "", 0)
        seen = await hf.run(shop.agent, 5, run_id="r")
        # For bob nothing was done yet; the charge was.
        assert shop.sent == [*ALL, "ping bob", "ping bob", "note bob", "mail bob"]
        assert seen[0] == "charge 5 #1"
        assert await hf.journal.verify("r") == []
        history = await hf.checkpoints.history("r")
        told = [(c.version, c.parent, c.label) for c in reversed(history)]
        assert told[:3] == [(1, 0, ""), (2, 1, "rewound"), (3, 2, "edited")]
        entries = [e for e in await hf.journal.read("r") if e.actor == "ann"]
        assert [e.kind for e in entries] == ["RUN_REWOUND"] + 2 * ["CHECKPOINT_CREATED"]
        diff = await hf.checkpoints.diff("r", 2, 3)
        assert (diff.changed, diff.added, diff.removed, diff.logs) == (
            {"plan": ({"who": "ann"}, {"who": "bob"})},
            {},
            {},
            {},
        )
        with pytest.raises(RunEnded, match="holdfast runs fork r --at"):
            await hf.runs.rewind("r", 1)


@async_test
async def test_rewind_twice_still_knows_everything(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        shop.crash_after = "mail ann"
        await start(hf, shop.agent, 5)
        await advance(hf, "r")
        mail = (await hf.effects.of_run("r"))[-1]
        await hf.effects.settle(mail.effect_id, "completed", result="mailed")
        charge = (await hf.effects.of_run("r"))[0]
        await hf.runs.rewind("r", 1, resend=[charge.effect_id], takeover=True)
        shop.crash_after = "charge 5"
        assert await advance(hf, "r") is None
        assert shop.sent == [*ALL, "charge 5"]
        again = next(e for e in await hf.effects.of_run("r") if e.status == "issued")
        await hf.effects.settle(again.effect_id, "completed", result="charged again")
        await hf.runs.rewind("r", 0, takeover=True)
        await hf.run(shop.agent, 5, run_id="r")
        assert shop.sent == [*ALL, "charge 5"]


@async_test
async def test_rewind_fences_the_worker_only_when_told_to(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        held = await hf.runs.open("r", agent="buyer", input={"cents": 5})
        held.set("plan", {"who": "ann"})
        await held.checkpoint()
        (begun,) = await held.begin_effects([holdfast.EffectRequest(tool="x")])
        with pytest.raises(LeaseHeld, match="--takeover"):
            await hf.runs.rewind("r", 1)
        before = await kinds(hf, "r")
        await hf.runs.rewind("r", 1, takeover=True)
        with pytest.raises(Fenced, match="rewound"):
            await held.finish_effect(begun, "late")
        after = await kinds(hf, "r")
        assert after == [*before, "RUN_REWOUND", "CHECKPOINT_CREATED"]


@async_test
async def test_rewinding_a_waiting_run_closes_its_waits(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        held.append("log", 1)
        await held.checkpoint()
        spec = holdfast.WaitSpec(wait_id="w", kind="person", name="ok?")
        await held.open_waits([spec], suspend=True)
        plan = await hf.runs.plan("r", 1)
        assert [wait.wait_id for wait in plan.open_waits] == ["w"]
        rewound = await hf.runs.rewind("r", 0)
        assert (rewound.status, rewound.waiting_on) == ("ready", "")
        assert (await hf.waits.get("w")).status == "cancelled"
        answer = await hf.waits.resolve("w", "yes")
        assert not answer.accepted
        assert await hf.journal.verify("r") == []
        again = await hf.runs.open("r")
        assert again.part("log") is None


@async_test
async def test_session_goes_back_between_messages_and_answers_the_next_one(store: str) -> None:
    sent: list[str] = []

    @holdfast.tool(repeat=True)
    async def ring(who: str) -> str:
        sent.append(who)
        return "rang"

    async def model(talk: Any) -> Message:
        said = [message.text for message in talk if message.role == "user"]
        if talk[-1].role == "user":
            return Message.assistant("", [ToolCall(f"c{len(talk)}", "ring", {"who": said[-1]})])
        return Message.assistant(" ".join(said))

    chatter = holdfast.AgentLoop(model, name="chatter", tools=[ring])
    async with holdfast.Holdfast(store, agents=[chatter]) as hf:
        chat = hf.session(chatter, "s")
        assert await chat.send("one") == "one"
        assert await chat.send("two") == "one two"
        versions = [c.version for c in await hf.checkpoints.history("s")]
        assert versions == [4, 3, 2, 1]
        await hf.runs.fork("s", 2, new_run_id="f")
        assert await hf.session(chatter, "f").send("two") == "one two"
        assert sent == ["one", "two"]
        assert await hf.session(chatter, "f").send("three") == "one two three"
        await hf.runs.rewind("s", 2)
        assert await chat.send("three") == "one three"
        assert sent == ["one", "two", "three", "three"]
        await hf.runs.rewind("s", 0)
        assert await chat.send("one") == "one"
        assert sent == ["one", "two", "three", "three"]


@async_test
async def test_call_that_is_refused_leaves_the_past_to_one_that_is_made(store: str) -> None:
    sent: list[str] = []
    allowed = [True]

    def permission(tool: Any, arguments: Any) -> bool:
        return allowed[0]

    @holdfast.tool(repeat=True)
    async def ping(who: str) -> str:
        sent.append(who)
        return "pong"

    @holdfast.agent(tools=[ping], permission=permission, loop_limit=0)
    async def pinger(run: holdfast.Run, who: str) -> list[str]:
        await run.checkpoint()
        seen: list[str] = []
        for number in range(2):
            (answer,) = await run.tools([ToolCall(f"c{number}", "ping", {"who": who})])
            seen.append(answer.results[0].content)
            allowed[0] = True
        return seen

    async with holdfast.Holdfast(store, agents=[pinger]) as hf:
        assert await hf.run(pinger, "ann", run_id="r") == ["pong", "pong"]
        allowed[0] = False
        effects = await hf.effects.of_run("r")
        await hf.runs.fork("r", 1, new_run_id="f")
        refused, given = await hf.run(pinger, "ann", run_id="f")
        assert "pong" not in refused
        assert given == "[idempotent replay of c0]: pong"
        assert sent == ["ann", "ann"]
        left = (await hf.checkpoints.load("f"))["holdfast.past"]
        assert [item["item_id"] for item in left] == [str(effects[1].effect_id)]


@async_test
async def test_fork_reads_what_its_original_kept_whole_and_its_own(store: str) -> None:
    @holdfast.tool(max_result_chars=5)
    async def fetch(page: str) -> str:
        return f"{page} " * 10

    @holdfast.agent(tools=[fetch])
    async def reader(run: holdfast.Run, page: str) -> list[str]:
        blobs = run.log("blobs", str)
        pages = [page, f"{page} of {run.run_id}"]
        for number, wanted in enumerate(pages):
            if number >= len(blobs):
                (got,) = await run.tools([ToolCall(f"c{number}", "fetch", {"page": wanted})])
                blobs.append(got.results[0].content.split("blob ")[1].rstrip("]"))
                await run.checkpoint()
        return [await run.blob(blob) for blob in blobs]

    async with holdfast.Holdfast(store, agents=[reader]) as hf:
        assert await hf.run(reader, "a", run_id="r") == ["a " * 10, "a of r " * 10]
        await hf.runs.fork("r", 1, new_run_id="f")
        assert await hf.run(reader, "a", run_id="f") == ["a " * 10, "a of f " * 10]
        await hf.runs.fork("f", 2, new_run_id="ff")
        assert await hf.run(reader, "a", run_id="ff") == ["a " * 10, "a of f " * 10]
        assert (await hf.checkpoints.load("f"))["blobs"][1].startswith("f:")


@async_test
async def test_what_was_paid_stays_counted_when_a_run_goes_back(store: str) -> None:
    async def model(talk: Any) -> Message:
        return Message.assistant("x", usage=holdfast.Usage(usd=1.0))

    @holdfast.agent
    async def talker(run: holdfast.Run, turns: int) -> float:
        said = run.log("said", str)
        while len(said) < turns:
            said.append((await run.model(model, len(said))).text)
            await run.checkpoint()
        if run.usage.usd < 5:
            raise Crash
        return run.usage.usd

    async with holdfast.Holdfast(store, agents=[talker]) as hf:
        await start(hf, talker, 3)
        assert await advance(hf, "r") is None
        await hf.runs.fork("r", 1, new_run_id="f")
        await hf.runs.rewind("r", 1, takeover=True)
        await advance(hf, "r")
        assert await hf.runs.result("r") == 5.0
        assert (await hf.checkpoints.load("f"))["holdfast.usage"]["usd"] == 1.0


@async_test
async def test_travel_that_cannot_be_is_refused_and_writes_nothing(store: str) -> None:
    shop = Shop()
    async with holdfast.Holdfast(store, agents=[shop.agent]) as hf:
        await hf.run(shop.agent, 5, run_id="r")
        stranger = "01a1e2b8-e891-7000-a1aa-06f4039864bc"
        first = (await hf.effects.of_run("r"))[0]
        with pytest.raises(EffectNotFound, match="--plan"):
            await hf.runs.fork("r", 1, new_run_id="f", resend=[stranger])
        with pytest.raises(EffectNotFound, match="not among the effects and calls after version 2"):
            await hf.runs.fork("r", 2, new_run_id="f", resend=[first.effect_id])
        with pytest.raises(EffectNotFound, match="x is not among"):
            await hf.runs.fork("r", 1, new_run_id="f", resend=["x"])
        with pytest.raises(MisuseError, match="a list of ids"):
            await hf.runs.fork("r", 1, new_run_id="f", resend=stranger)
        with pytest.raises(MisuseError, match="kept by Holdfast"):
            await hf.runs.fork("r", 1, new_run_id="f", edits={"holdfast.past": []})
        with pytest.raises(MisuseError, match="is a log"):
            await hf.runs.fork("r", 2, new_run_id="f", edits={"seen": "x"})
        with pytest.raises(holdfast.errors.CheckpointNotFound):
            await hf.runs.fork("r", 9, new_run_id="f")
        with pytest.raises(holdfast.errors.RunNotFound):
            await hf.runs.rewind("nobody", 0)
        for verb in (hf.runs.fork, hf.runs.plan):
            with pytest.raises(holdfast.errors.RunNotFound, match="there is no run 'nobody'"):
                await verb("nobody", 0)
        with pytest.raises(holdfast.errors.RunExists):
            await hf.runs.fork("r", 1, new_run_id="r")
        assert [run.run_id for run in await hf.runs.list()] == ["r"]


@async_test
async def test_two_rewinds_at_once_are_one_after_the_other(store: str) -> None:
    async with holdfast.open(store) as hf:
        held = await hf.runs.open("r")
        for item in range(3):
            held.append("log", item)
            await held.checkpoint()
        await held.release()
        await asyncio.gather(*(hf.runs.rewind("r", version) for version in (1, 2)))
        assert await hf.journal.verify("r") == []
        versions = [c.version for c in await hf.checkpoints.history("r")]
        assert versions == [5, 4, 3, 2, 1]
        newest = (await hf.checkpoints.load("r"))["log"]
        assert newest in ([0], [0, 1])
