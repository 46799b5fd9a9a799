"""The ready loop: turns, sessions, budget, limits, and a crash between and inside turns."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import holdfast
from holdfast import (
    AgentLoop,
    BlockedReason,
    Budget,
    Key,
    Message,
    RunStatus,
    Tool,
    ToolCall,
    Usage,
)
from holdfast.errors import MisuseError, RunBlocked, RunFailed
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash

CENTS = Usage(input_tokens=10, output_tokens=5, usd=0.25)


class Scripted:
    """A model that answers by a function of the transcript, and counts how often it is asked."""

    def __init__(self, answer: Callable[[Sequence[Message]], Message]) -> None:
        self._answer = answer
        self.asked: list[list[Message]] = []

    async def __call__(self, transcript: Sequence[Message]) -> Message:
        self.asked.append(list(transcript))
        return self._answer(transcript)


class Bank:
    """Charges, and dies so often after a charge, before anybody hears of it."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.crashes = 0

    def tool(self) -> Tool[..., Any]:
        @holdfast.tool(effect="mutate", verify=self.find)
        async def charge(cents: int, *, key: Key) -> str:
            """Charge the customer's card."""
            self.charges.append(cents)
            if self.crashes:
                self.crashes -= 1
                raise Crash
            return f"charged {cents}"

        return charge

    async def find(self, cents: int) -> "holdfast.Happened[str] | holdfast.NotDone":
        if cents in self.charges:
            return holdfast.Happened(f"charged {cents}")
        return holdfast.NotDone()


def last(transcript: Sequence[Message]) -> Message:
    return transcript[-1]


def charging(transcript: Sequence[Message]) -> Message:
    """Asks for one charge, then says what came of it."""
    if last(transcript).role == "user":
        call = ToolCall("c1", "charge", {"cents": 7})
        return Message.assistant("I charge.", [call], usage=CENTS)
    return Message.assistant(f"Done: {last(transcript).results[0].content}", usage=CENTS)


def echo(transcript: Sequence[Message]) -> Message:
    users = [message.text for message in transcript if message.role == "user"]
    return Message.assistant(" + ".join(users), usage=CENTS)


def endless(transcript: Sequence[Message]) -> Message:
    call = ToolCall(f"c{len(transcript)}", "look", {"at": len(transcript)})
    return Message.assistant(tool_calls=[call], usage=CENTS)


@holdfast.tool(effect="read")
async def look(at: int) -> str:
    """Look somewhere."""
    return f"nothing at {at}"


async def transcript_of(hf: holdfast.Holdfast, run_id: str) -> list[dict[str, Any]]:
    return (await hf.checkpoints.load(run_id))["transcript"]


@async_test
async def test_loop_calls_tools_and_ends_with_the_first_reply_without_calls(store: str) -> None:
    bank, model = Bank(), Scripted(charging)
    agent = AgentLoop(model, tools=[bank.tool()], system="Be brief.", name="cashier")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        answer = await hf.run(agent, "charge 7", run_id="r")
        assert answer == "Done: charged 7"
        assert await hf.run(agent, "charge 7", run_id="r") == answer, "the stored answer"
        roles = [message["role"] for message in await transcript_of(hf, "r")]
    assert roles == ["user", "assistant", "tool", "assistant"], "the system prompt is not stored"
    assert bank.charges == [7]
    assert len(model.asked) == 2
    assert [asked[0].text for asked in model.asked] == ["Be brief.", "Be brief."]
    assert [len(asked) for asked in model.asked] == [2, 4]


@async_test
async def test_model_that_takes_tools_is_given_them(store: str) -> None:
    given: list[Tool[..., Any]] = []

    async def model(transcript: Sequence[Message], *, tools: Sequence[Tool[..., Any]]) -> Message:
        given.extend(tools)
        return Message.assistant("ready")

    agent = AgentLoop(model=model, tools=[look])
    async with holdfast.Holdfast(store) as hf:
        assert await hf.run(agent, "hello") == "ready"
    (tool,) = given
    assert (tool.name, tool.description) == ("look", "Look somewhere.")
    assert tool.input_schema["properties"] == {"at": {"type": "integer"}}


@async_test
async def test_session_answers_several_messages_on_one_transcript(store: str) -> None:
    agent = AgentLoop(Scripted(echo), name="echo")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha")
        assert await chat.send("one", id="m1") == "one"
        assert await chat.send("two", id="m2") == "one + two"
        assert await chat.send("one", id="m1") == "one", "a message counts once"
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.session(agent, "alpha").send("three") == "one + two + three"
        assert len(await transcript_of(hf, "alpha")) == 6


@async_test
async def test_started_run_is_answered_by_a_worker(store: str) -> None:
    agent = AgentLoop(Scripted(echo), name="echo")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        worker = hf.new_worker(agents=["echo"])
        working = asyncio.create_task(worker.run())
        handle = await hf.start(agent, "hello")
        async for _ in handle.events():  # until it has ended; unlike result() this does not help
            pass
        assert await hf.runs.result(handle.run_id) == "hello"
        worker.stop()
        await working


@async_test
async def test_run_is_blocked_when_its_budget_is_reached_and_goes_on_with_another(
    store: str,
) -> None:
    poor = AgentLoop(Scripted(endless), tools=[look], name="loop", budget=Budget(usd=0.5))
    async with holdfast.Holdfast(store, agents=[poor]) as hf:
        with pytest.raises(RunBlocked, match=r"budget.*0\.50 of 0\.50 USD is spent"):
            await hf.run(poor, "look", run_id="r")
        run = await hf.runs.get("r")
        assert (run.status, run.blocked_reason) == (RunStatus.BLOCKED, BlockedReason.BUDGET)
        assert len(await transcript_of(hf, "r")) == 5, "what was paid for is kept"
    rich = AgentLoop(Scripted(echo), tools=[look], name="loop")
    async with holdfast.Holdfast(store, agents=[rich]) as hf:
        await hf.budgets.add("r", Budget(usd=0.5), by="ann")
        assert await hf.run(rich, "look", run_id="r") == "look"


@async_test
async def test_message_to_a_session_without_budget_is_answered_when_there_is_more(
    store: str,
) -> None:
    poor = AgentLoop(Scripted(echo), name="echo", budget=Budget(usd=0.25))
    async with holdfast.Holdfast(store, agents=[poor]) as hf:
        chat = hf.session(poor, "alpha")
        await chat.send("one")
        with pytest.raises(RunBlocked, match="budget"):
            await chat.send("two", id="m2")
    rich = AgentLoop(Scripted(echo), name="echo")
    async with holdfast.Holdfast(store, agents=[rich]) as hf:
        await hf.budgets.add("alpha", Budget(usd=0.25), by="ann")
        assert await hf.session(rich, "alpha").send("two", id="m2") == "one + two"


@async_test
async def test_run_fails_after_its_last_turn_and_says_so(store: str) -> None:
    model = Scripted(endless)
    agent = AgentLoop(model, tools=[look], name="loop", max_turns=3)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunFailed, match="loop has not answered within 3 turns"):
            await hf.run(agent, "look", run_id="r")
        assert (await hf.runs.get("r")).status is RunStatus.FAILED
    assert len(model.asked) == 3


@pytest.mark.mission("S4-060", "S4-072")
@async_test
async def test_each_turn_is_saved_when_the_next_one_begins(store: str) -> None:
    seen: list[tuple[str, list[int]]] = []

    async def model(transcript: Sequence[Message]) -> Message:
        versions = [saved.version for saved in await hf.checkpoints.history("r")]
        seen.append(((await hf.runs.get("r")).status, versions))
        return endless(transcript) if len(seen) < 3 else Message.assistant("enough")

    agent = AgentLoop(model, tools=[look], name="loop")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "look", run_id="r") == "enough"
    assert seen == [("running", []), ("running", [1]), ("running", [2, 1])]


@pytest.mark.mission("S4-069", "S4-070")
@async_test
async def test_turns_are_counted_across_a_crash(store: str) -> None:
    def crashing_once(transcript: Sequence[Message]) -> Message:
        if len(model.asked) == 3:
            raise Crash
        return endless(transcript)

    model = Scripted(crashing_once)
    agent = AgentLoop(model, tools=[look], name="loop", max_turns=3)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await crash(hf, agent, "look")
        with pytest.raises(RunFailed, match="within 3 turns"):
            await hf.run(agent, "look", run_id="r")
    assert [len(asked) for asked in model.asked] == [1, 3, 5, 5]


@async_test
async def test_crash_inside_a_tool_repeats_neither_the_reply_nor_the_charge(store: str) -> None:
    bank, model = Bank(), Scripted(charging)
    bank.crashes = 1
    agent = AgentLoop(model, tools=[bank.tool()], name="cashier")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        await crash(hf, agent, "charge 7")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:  # as another process
        assert await hf.run(agent, "charge 7", run_id="r") == "Done: charged 7"
        spent = (await hf.checkpoints.load("r"))["holdfast.usage"]
    assert bank.charges == [7]
    assert len(model.asked) == 2, "the reply before the crash is on record"
    assert spent["usd"] == 0.5


@async_test
async def test_message_of_a_session_is_not_appended_twice_after_a_crash(store: str) -> None:
    def crashing_once(transcript: Sequence[Message]) -> Message:
        if len(model.asked) == 3:
            raise Crash
        return charging(transcript)

    bank = Bank()
    model = Scripted(crashing_once)
    agent = AgentLoop(model, tools=[bank.tool()], name="cashier")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "r")
        assert await chat.send("charge 7") == "Done: charged 7"
        await hf.signals.send("r", "message", "charge again", id="m2")
        assert await advance(hf) is None, "it has crashed before the reply"
        assert await chat.send("charge again", id="m2") == DONE_AGAIN
        texts = [m["blocks"][0].get("text") for m in await transcript_of(hf, "r")]
    assert texts.count("charge again") == 1
    assert bank.charges == [7]


DONE_AGAIN = "Done: [idempotent replay of c1]: charged 7"


async def advance(hf: holdfast.Holdfast) -> Any:
    """One pass over the run by another worker; None if it crashed."""
    twin = hf.another_worker()
    task = twin._work.start_pass(await twin.leases.take("r", takeover=True))
    try:
        return await task
    except Crash:
        await (await hf.leases.take("r", takeover=True)).release(note="its worker is gone")
        return None


async def crash(hf: holdfast.Holdfast, agent: AgentLoop, request: str) -> None:
    """A run that another worker has begun, and died over."""
    await hf.start(agent, request, run_id="r")
    assert await advance(hf) is None


async def reply_of_a_user(transcript: Sequence[Message]) -> Message:
    return Message.user("not a reply")


async def reply_of_text(transcript: Sequence[Message]) -> Any:
    return "not a message"


@pytest.mark.parametrize("model", [reply_of_a_user, reply_of_text])
@async_test
async def test_what_is_no_reply_is_refused(model: Any) -> None:
    agent = AgentLoop(model)
    async with holdfast.Holdfast("memory://") as hf:
        with pytest.raises(RunFailed, match=r"the model of agent returned .*not a"):
            await hf.run(agent, "hello")


def test_loop_that_cannot_work_is_refused_when_it_is_made() -> None:
    def blocking(transcript: Sequence[Message]) -> Message:
        return Message.assistant("")

    with pytest.raises(MisuseError, match="must be async"):
        AgentLoop(blocking)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="max_turns"):
        AgentLoop(Scripted(echo), max_turns=0)
    with pytest.raises(MisuseError, match="two tools"):
        AgentLoop(Scripted(echo), tools=[look, look])
