"""Sessions that are handed over: the talk goes on, and who takes it can answer messages."""

import pytest

import holdfast
from holdfast import AgentLoop, HandoffPolicy, Message, ToolCall
from holdfast.errors import RunBlocked
from holdfast.testing.store_suite import async_test

RECORD = "You continue work that another context has begun"


@async_test
async def test_only_the_first_message_of_a_context_tells_of_the_one_before(store: str) -> None:
    talks: list[list[str]] = []

    async def model(transcript: list[Message]) -> Message:
        talks.append([message.text for message in transcript])
        last = transcript[-1].text
        if last == "two":
            return Message.assistant(tool_calls=[ToolCall("1", "hand_over", {})])
        return Message.assistant("ok")

    loop = AgentLoop(model, name="bot", tools=[holdfast.hand_over], handoff=HandoffPolicy())
    async with holdfast.Holdfast(store, agents=[loop]) as hf:
        chat = hf.session(loop, "s", metadata={"root": "canary"})
        for words in ("one", "two", "three", "four"):
            assert await chat.send(words, timeout=30) == "ok"
        assert (await hf.runs.get("s")).contexts == 2
    first, *later = [text for text in talks[-1] if text != "ok"]
    assert RECORD in first
    assert "# The original task\n| - two\n" in first, "the message, not what the session is"
    assert "canary" not in first
    assert later == ["three", "four"]


@async_test
async def test_session_is_not_given_to_who_cannot_take_a_message(store: str) -> None:
    @holdfast.agent
    async def first(run: holdfast.Run, words: str) -> str:
        run.hand_over("second")
        await run.checkpoint()
        return words

    @holdfast.agent
    async def second(run: holdfast.Run, a: int, b: int) -> int:
        return a + b

    async with holdfast.Holdfast(store, agents=[first, second]) as hf:
        with pytest.raises(RunBlocked, match="second cannot be given one message: it takes a, b"):
            await hf.session(first, "s").send("hello", timeout=30)
        assert {each.status for each in await hf.handoffs.of_run("s")} == {"reverted"}
        assert (await hf.runs.get("s")).agent == "first"
