"""Versions in flight: what an agent is made of is on record, and a change is dealt with."""

import logging
from typing import Any

import pytest

import holdfast
from holdfast import AgentLoop, Message, Versions
from holdfast.agents.definitions.versions import OnChange
from holdfast.agents.exits.exit_reasons import Suspend, WaitExit
from holdfast.agents.run import turn_of
from holdfast.engine.reading.journal import body_of
from holdfast.errors import MisuseError, RunBlocked
from holdfast.kernel import indexes
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance, kinds, start


@holdfast.tool
async def charge(cents: int) -> str:
    """Charge somebody."""
    return f"charged {cents}"


@holdfast.tool(effect="read")
async def look(place: str) -> str:
    return place


class Made:
    """An agent that is made again and again. It charges in its second turn, then may crash."""

    def __init__(self) -> None:
        self.crashes = 0
        self.asked: list[tuple[str, int]] = []

    def agent(
        self, version: str, on_change: OnChange = "continue", **made_of: Any
    ) -> holdfast.Agent[[int], int]:
        options: dict[str, Any] = {"tools": [charge], "model": "vendor/one", "prompt": "be kind"}

        async def reply(turn: int) -> str:
            self.asked.append((version, turn))
            return f"{turn} by {version}"

        @holdfast.agent(name="made", version=version, on_change=on_change, **options | made_of)
        async def made(run: holdfast.Run, turns: int) -> int:
            log = run.log("log", str)
            while len(log) < turns:
                at = len(log)
                log.append(await run.model(reply, at))
                if at == 1:
                    await run.call(charge, at)
                    if self.crashes:
                        self.crashes -= 1
                        raise Crash
                await run.checkpoint()
            return len(log)

        return made


async def recorded(hf: holdfast.Holdfast, run_id: str = "r") -> list[str]:
    """Kinds of entries, those that tell versions with the agent's."""
    told: list[str] = []
    for entry in await hf.journal.read(run_id):
        if entry.kind == "VERSIONS_RECORDED":
            told.append(f"versions {versions_in(entry).agent_version}")
        elif not entry.kind.startswith(("RUN_", "LEASE_")):
            told.append(entry.kind)
    return told


def versions_in(entry: holdfast.Entry) -> Versions:
    return indexes.facts_of(entry)


async def crashed(store: str, made: Made, agent: holdfast.Agent[[int], int], turns: int) -> None:
    """A run whose worker was lost in its second turn."""
    made.crashes = 1
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, turns)
        assert await advance(hf, "r") is None


# What is on record.


@async_test
async def test_versions_are_in_front_of_the_first_turn_and_in_the_state(store: str) -> None:
    agent = Made().agent("3")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await hf.run(agent, 3, run_id="r")
        assert await recorded(hf) == [
            *("versions 3", "STEP_RECORDED", "CHECKPOINT_CREATED"),
            *("STEP_RECORDED", "EFFECT_ISSUED", "EFFECT_COMPLETED", "CHECKPOINT_CREATED"),
            *("STEP_RECORDED", "CHECKPOINT_CREATED"),
        ]
        for version in (1, 2, 3):
            stored = (await hf.checkpoints.load("r", version))["holdfast.versions"]
            assert Versions(**stored) == agent.rules.versions
        assert (await hf.checkpoints.diff("r", 1, 3)).changed == {}  # it is written once
    versions = agent.rules.versions
    assert (versions.agent_version, versions.model) == ("3", "vendor/one")
    assert len(versions.prompt_digest) == len(versions.tools_digest) == 64


@async_test
async def test_versions_cost_no_checkpoint_of_their_own(store: str) -> None:
    @holdfast.agent(version="1")
    async def empty(run: holdfast.Run) -> str:
        return "nothing"

    async with holdfast.Holdfast(store, agents=[empty]) as hf:
        await hf.run(empty, run_id="r")
        assert await kinds(hf, "r") == ["RUN_CREATED", "RUN_LEASED", "RUN_COMPLETED"]


@async_test
async def test_effect_and_wait_without_a_reply_have_versions_before_them(store: str) -> None:
    @holdfast.agent(tools=[charge], version="1")
    async def spends(run: holdfast.Run) -> str:
        return await run.call(charge, 5)

    @holdfast.agent(version="1")
    async def waits(run: holdfast.Run) -> None:
        turn_of(run).gate.leave(Suspend(WaitExit((holdfast.WaitSpec(name="x"),))))

    async with holdfast.Holdfast(store, agents=[spends, waits]) as hf:
        await hf.run(spends, run_id="r")
        assert await recorded(hf) == ["versions 1", "EFFECT_ISSUED", "EFFECT_COMPLETED"]
        await start(hf, waits, run_id="w")
        await advance(hf, "w")
        assert await recorded(hf, "w") == ["versions 1", "WAITS_OPENED"]


def test_digests_tell_prompts_and_tools_apart() -> None:
    def of(**options: Any) -> Versions:
        return Made().agent("1", **options).rules.versions

    @holdfast.tool(name="charge", effect="idempotent")
    async def safer(cents: int) -> str:
        """Charge somebody."""
        return ""

    @holdfast.tool(name="charge")
    async def wider(cents: int, currency: str = "EUR") -> str:
        """Charge somebody."""
        return ""

    @holdfast.tool(name="charge")
    async def retold(cents: int) -> str:
        """Charge somebody more."""
        return ""

    digests = {of(tools=tools).tools_digest for tools in ([charge], [safer], [wider], [retold], [])}
    assert len(digests) == 5
    assert of(tools=[charge, look]).tools_digest == of(tools=[look, charge]).tools_digest
    assert of(prompt="a").prompt_digest != of(prompt="b").prompt_digest
    assert of(prompt="", tools=[]) == Versions("1", "vendor/one")


def test_ready_loop_is_made_of_its_system_prompt_tools_and_model() -> None:
    async def model(transcript: list[Message]) -> Message:
        return Message.assistant("x")

    loop = AgentLoop(model, tools=[look], system="be kind", version="2", model_name="vendor/one")
    other = AgentLoop(model, tools=[look], system="be curt", version="2", model_name="vendor/one")
    assert loop.rules.versions.prompt_digest == Made().agent("1").rules.versions.prompt_digest
    assert loop.rules.versions.model == "vendor/one"
    assert loop.rules.versions != other.rules.versions


def test_wrong_versions_are_refused() -> None:
    made = Made()
    for wrong in ({"on_change": "explode"}, {"prompt": b"bytes"}, {"model": "a\nb"}):
        with pytest.raises(MisuseError):
            made.agent("1", **wrong)


# What is done about a change.


@async_test
async def test_run_goes_on_with_what_the_agent_is_now_and_tells_it_once(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made()
    await crashed(store, made, made.agent("1"), 4)
    second = made.agent("2", prompt="be curt")
    caplog.set_level(logging.INFO, logger="holdfast")
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await advance(hf, "r")
        assert await hf.runs.result("r") == 4
    assert made.asked == [("1", 0), ("1", 1), ("2", 2), ("2", 3)]  # the turn's reply came back
    told = [record.message for record in caplog.records if "has changed" in record.message]
    assert len(told) == 1
    assert "agent_version was '1', and is '2'; prompt_digest was" in told[0]
    assert "model" not in told[0]


@async_test
async def test_versions_of_each_turn_can_be_told_after_a_change(store: str) -> None:
    made = Made()
    first, second = made.agent("1"), made.agent("2")
    async with holdfast.Holdfast(store, agents=[first]) as hf:
        await start(hf, first, 4)
        held = await hf.leases.take("r")
        task = hf._work.start_pass(held)
        hf._work.hand_back("deployed anew")
        await task
        assert len((await hf.checkpoints.load("r"))["log"]) == 1
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await advance(hf, "r")
        assert await hf.runs.result("r") == 4
        turn = ["STEP_RECORDED", "CHECKPOINT_CREATED"]
        assert (await recorded(hf))[:5] == ["versions 1", *turn, "versions 2", "STEP_RECORDED"]
        assert (await recorded(hf))[-4:] == turn * 2
        told = [(await hf.checkpoints.load("r", v))["holdfast.versions"] for v in (1, 2, 3)]
        assert [versions["agent_version"] for versions in told] == ["1", "2", "2"]
    assert made.asked == [("1", 0), ("2", 1), ("2", 2), ("2", 3)]


@async_test
async def test_refused_run_is_blocked_until_the_old_agent_is_back(store: str) -> None:
    made = Made()
    first = made.agent("1")
    await crashed(store, made, first, 3)
    second = made.agent("2", "refuse", tools=[charge, look])
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await advance(hf, "r")
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "no_agent")
        with pytest.raises(RunBlocked, match="agent_version was '1', and is '2'; tools_digest"):
            await hf.run(second, 3, run_id="r")
        await hf.runs.unblock("r")
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "blocked"
        await hf.runs.unblock("r")
    async with holdfast.Holdfast(store, agents=[again := made.agent("1", "refuse")]) as hf:
        assert await hf.run(again, 3, run_id="r") == 3
    assert made.asked == [("1", 0), ("1", 1), ("1", 2)]


@async_test
async def test_fork_of_a_refused_run_goes_on_with_the_new_agent(store: str) -> None:
    made = Made()
    await crashed(store, made, made.agent("1"), 3)
    second = made.agent("2", "refuse")
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await advance(hf, "r")
        fork = await hf.runs.fork("r", 1, new_run_id="f")
        await advance(hf, fork.run_id)
        assert await hf.runs.result("f") == 3
        assert (await recorded(hf, "f"))[:2] == ["CHECKPOINT_CREATED", "versions 2"]


@async_test
async def test_change_within_a_turn_counts_more_than_the_state_before_it(store: str) -> None:
    made = Made()
    await handed_back(store, made.agent("1"), 3)
    made.crashes = 1
    async with holdfast.Holdfast(store, agents=[made.agent("2")]) as hf:
        assert await advance(hf, "r") is None
    async with holdfast.Holdfast(store, agents=[back := made.agent("1", "refuse")]) as hf:
        await advance(hf, "r")
        with pytest.raises(RunBlocked, match="agent_version was '2', and is '1'"):
            await hf.run(back, 3, run_id="r")


async def asked_in(store: str, made: Made, agent: holdfast.Agent[[int], int]) -> str:
    """The question that a changed agent leaves its run with."""
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await advance(hf, "r")
        assert (await hf.runs.get("r")).status == "waiting"
        (wait,) = [w for w in await hf.waits.of_run("r") if w.status == "open"]
        assert (wait.kind, wait.name) == ("question", "versions")
        return wait.wait_id


@async_test
async def test_question_is_asked_and_continue_goes_on(store: str) -> None:
    made = Made()
    first, second = made.agent("1"), made.agent("2", "ask")
    await handed_back(store, first, 3)
    wait_id = await asked_in(store, made, second)
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        payload = (await opened_payloads(hf))[wait_id]
        assert payload["choices"] == ["continue", "stop"]
        assert "agent_version was '1', and is '2'" in payload["prompt"]
        assert (await hf.waits.resolve(wait_id, "continue")).accepted
        await advance(hf, "r")
        assert await hf.runs.result("r") == 3
        assert (await recorded(hf)).count("versions 2") == 1
    assert made.asked == [("1", 0), ("2", 1), ("2", 2)]


@async_test
async def test_answer_holds_for_the_agent_it_was_given_about(store: str) -> None:
    made = Made()
    await handed_back(store, made.agent("1"), 3)
    wait_id = await asked_in(store, made, made.agent("2", "ask"))
    async with holdfast.Holdfast(store) as hf:
        await hf.waits.resolve(wait_id, "continue")
    again = await asked_in(store, made, made.agent("3", "ask"))
    assert again != wait_id
    assert made.asked == [("1", 0)]


@async_test
async def test_stop_blocks_and_unblocking_asks_again(store: str) -> None:
    made = Made()
    second = made.agent("2", "ask")
    await handed_back(store, made.agent("1"), 3)
    wait_id = await asked_in(store, made, second)
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await hf.waits.resolve(wait_id, "stop")
        await advance(hf, "r")
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == ("blocked", "no_agent")
        await hf.runs.unblock("r")
    assert await asked_in(store, made, second) != wait_id


@async_test
async def test_answer_that_is_none_of_the_choices_is_asked_for_again(store: str) -> None:
    made = Made()
    second = made.agent("2", "ask")
    await handed_back(store, made.agent("1"), 3)
    wait_id = await asked_in(store, made, second)
    async with holdfast.Holdfast(store) as hf:
        await hf.waits.resolve(wait_id, ["what?"])
    assert await asked_in(store, made, second) != wait_id


@async_test
async def test_crash_after_the_answer_does_not_ask_again(store: str) -> None:
    made = Made()
    second = made.agent("2", "ask")
    await handed_back(store, made.agent("1"), 3)
    wait_id = await asked_in(store, made, second)
    async with holdfast.Holdfast(store, agents=[second]) as hf:
        await hf.waits.resolve(wait_id, "continue")
        made.crashes = 2
        assert await advance(hf, "r") is None
        assert await advance(hf, "r") is None
        assert [w.wait_id for w in await hf.waits.of_run("r")] == [wait_id]
        assert (await recorded(hf)).count("versions 2") == 1


@async_test
async def test_session_is_asked_about_between_messages(store: str) -> None:
    def chat(version: str, on_change: OnChange) -> holdfast.Agent[[str], str]:
        @holdfast.agent(name="chat", version=version, on_change=on_change)
        async def agent(run: holdfast.Run, words: str) -> str:
            return f"{words} by {version}"

        return agent

    async with holdfast.Holdfast(store, agents=[old := chat("1", "continue")]) as hf:
        assert await hf.session(old, "s").send("a") == "a by 1"
        assert await hf.session(old, "s").send("b") == "b by 1"
        assert await recorded(hf, "s") != []
    async with holdfast.Holdfast(store, agents=[new := chat("2", "refuse")]) as hf:
        with pytest.raises(RunBlocked, match="agent_version was '1', and is '2'"):
            await hf.session(new, "s").send("c", id="c")
        await hf.runs.unblock("s")
    async with holdfast.Holdfast(store, agents=[old]) as hf:
        assert await hf.session(old, "s").send("c", id="c") == "c by 1"
    async with holdfast.Holdfast(store, agents=[new]) as hf:
        session = hf.session(new, "s")
        await session.close()  # no code of the agent is needed for this
        assert await session.status() == "completed"


async def handed_back(store: str, agent: holdfast.Agent[[int], int], turns: int) -> None:
    """A run that was left at the end of its first turn."""
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await start(hf, agent, turns)
        task = hf._work.start_pass(await hf.leases.take("r"))
        hf._work.hand_back("deployed anew")
        await task


async def opened_payloads(hf: holdfast.Holdfast) -> dict[str, Any]:
    (opened,) = [e for e in await hf.journal.read("r") if e.kind == "WAITS_OPENED"]
    return body_of(opened)
