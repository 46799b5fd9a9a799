"""Sessions: messages in order, each answered once, whoever sends and whoever answers."""

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.errors import (
    InputDiffers,
    MisuseError,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunWaiting,
)
from holdfast.testing.store_suite import async_test
from tests.agents.crashing import Crash, advance
from tests.processes import Child


def counter() -> tuple[holdfast.Agent[[str], str], list[str]]:
    """An agent that answers with how many messages it has seen, and what it was asked."""
    asked: list[str] = []

    @holdfast.agent(name="counter")
    async def agent(run: holdfast.Run, words: str) -> str:
        asked.append(words)
        talk = run.log("transcript", Message)
        if run.is_fresh:
            talk.append(Message.user(words))
            await run.checkpoint()
        talk.append(Message.assistant(f"answer to {words}"))
        if words == "crash" and asked.count("crash") == 1:
            raise Crash
        if words == "fail":
            raise ValueError("cannot say")
        return f"{sum(m.role == 'user' for m in talk)}: {words}"

    return agent, asked


@async_test
async def test_messages_are_answered_in_order_and_state_carries_on(store: str) -> None:
    agent, _ = counter()
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha", metadata={"scratchpad": "/pads/alpha"})
        assert [await chat.send(word) for word in "abc"] == ["1: a", "2: b", "3: c"]
        assert await chat.status() == "waiting"
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha")
        assert await chat.send("d") == "4: d"
        assert await chat.metadata() == {"scratchpad": "/pads/alpha"}
        talk = (await chat.state())["transcript"]
        assert [m["blocks"][0]["text"] for m in talk][-2:] == ["d", "answer to d"]
        await chat.close()
        assert await chat.status() == "completed"
        with pytest.raises(RunEnded):
            await chat.send("e")
        assert await hf.journal.verify("alpha") == []


@async_test
async def test_repeated_message_id_is_answered_once(store: str) -> None:
    agent, asked = counter()
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha")
        found = await asyncio.gather(*(chat.send("hi", id="m1") for _ in range(5)))
        assert found == ["1: hi"] * 5
        assert await chat.send("other", id="m2") == "2: other"
        assert await chat.send("hi", id="m1") == "1: hi"
    assert asked == ["hi", "other"]


@async_test
async def test_crash_between_message_and_answer_repeats_neither(store: str) -> None:
    agent, asked = counter()
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha")
        assert await chat.send("a") == "1: a"
        await hf.signals.send("alpha", "message", "crash", id="m2")
        assert await advance(hf, "alpha") is None
        assert await advance(hf, "alpha") is not None
        assert await chat.send("crash", id="m2") == "2: crash"
        assert await chat.send("b") == "3: b"
        talk = (await chat.state())["transcript"]
        assert [m["blocks"][0]["text"] for m in talk if m["role"] == "user"] == ["a", "crash", "b"]
    assert asked == ["a", "crash", "crash", "b"]


@async_test
async def test_message_that_the_agent_cannot_answer_does_not_end_the_session(store: str) -> None:
    agent, _ = counter()
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "alpha")
        with pytest.raises(RunFailed, match="ValueError: cannot say"):
            await chat.send("fail", id="m1")
        with pytest.raises(RunFailed, match="ValueError: cannot say"):
            await chat.send("fail", id="m1")
        assert await chat.send("ok") == "2: ok"


@async_test
async def test_messages_sent_while_one_is_answered_wait_their_turn(store: str) -> None:
    order: list[str] = []

    @holdfast.agent
    async def slow(run: holdfast.Run, words: str) -> str:
        order.append(words)
        await asyncio.sleep(0.01)
        return words.upper()

    async with holdfast.Holdfast(store, agents=[slow]) as hf:
        chat = hf.session(slow, "alpha")
        words = [f"w{n}" for n in range(20)]
        assert await asyncio.gather(*map(chat.send, words)) == [w.upper() for w in words]
        received = [await hf.signals.value("alpha", s.signal_id) for s in await messages(hf)]
    assert order == received


async def messages(hf: holdfast.Holdfast) -> list[holdfast.Signal]:
    found = await hf.signals.of_run("alpha")
    return sorted(found, key=lambda signal: signal.seq)


@async_test
async def test_two_processes_send_at_once_and_each_message_is_answered_once(
    store: str, tmp_path: Path
) -> None:
    answered = tmp_path / "answered"
    with (
        Child("tests.agents.chatter", store, str(answered)) as one,
        Child("tests.agents.chatter", store, str(answered)) as two,
    ):
        children = {"one": one, "two": two}
        assert {child.answer() for child in children.values()} == {"ready"}
        for name, child in children.items():
            child.tell(["chat", name, 15])
        found = {name: child.answer() for name, child in children.items()}
    for name, answers in found.items():
        assert answers == [f"{name}-{n}!" for n in range(15)]
    lines = answered.read_text().splitlines()
    assert sorted(lines) == sorted(f"{name}-{n}" for name in found for n in range(15))


@async_test
async def test_time_out_of_a_message_and_its_answer_later(store: str) -> None:
    go_on = asyncio.Event()

    @holdfast.agent
    async def slow(run: holdfast.Run, words: str) -> str:
        await go_on.wait()
        return words.upper()

    async with holdfast.Holdfast(store, agents=[slow]) as hf:
        chat = hf.session(slow, "alpha")
        with pytest.raises(RunWaiting, match="same id"):
            await chat.send("a", id="m1", timeout=0.05)
        go_on.set()
        assert await chat.send("a", id="m1") == "A"


@async_test
async def test_session_is_cancelled_and_belongs_to_one_agent(store: str) -> None:
    agent, _ = counter()

    @holdfast.agent
    async def other(run: holdfast.Run, words: str) -> str:
        return words

    @holdfast.agent
    async def two(run: holdfast.Run, a: str, b: str) -> str:
        return a + b

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.session(agent, "alpha").send("a") == "1: a"
        with pytest.raises(InputDiffers, match="counter"):
            await hf.session(other, "alpha").send("b")
        with pytest.raises(MisuseError, match="takes one"):
            hf.session(two, "beta")  # type: ignore[arg-type]
        await hf.runs.cancel("alpha")
        with pytest.raises(RunCancelled):
            await hf.session(agent, "alpha").send("c")
