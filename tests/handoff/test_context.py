"""A context is counted as the model sees it: system prompt, tools, results; and ends in time.

What a model is given is counted here, by a counter of its own: nothing of Holdfast judges itself.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import AgentLoop, HandoffPolicy, Message, ToolCall, Usage
from holdfast.agents.definitions import tokens
from holdfast.agents.definitions.model_windows import window_of
from holdfast.agents.definitions.tokens import counter_for, estimate, fitting, shares
from holdfast.errors import InvalidSetting, RunBlocked
from holdfast.settings import Settings
from holdfast.testing.store_suite import async_test

WINDOW = 10_000
SYSTEM = "You are careful. " * 1058  # about 6,000 tokens of three bytes


def seen_by(given: list[Message], tools: Sequence[Any] = ()) -> int:
    """Tokens of what a model was given: three bytes each, ids and times of messages left out."""
    told: list[str] = [json.dumps([t.name, t.description, t.input_schema]) for t in tools]
    for message in given:
        for block in message.blocks:
            kind = type(block).__name__
            if kind == "ToolCall":
                told.append(f"{block.name}{json.dumps(block.args)}")  # pyright: ignore[reportAttributeAccessIssue] - its kind says so
            else:
                told.append(block.content if kind == "ToolResult" else block.text)  # pyright: ignore[reportAttributeAccessIssue] - the same
    return sum(len(text.encode()) for text in told) // 3


@holdfast.tool(effect="read")
def look(at: int, *, size: int = 300) -> str:
    """Look at a place. The answer is as long as it is told."""
    return "0123456789" * (size // 10)


class Watched:
    """A model that looks around a number of times; `shares` is what it was given of its window."""

    def __init__(self, times: int, *, tells: bool = False, size: int = 300, calls: int = 1) -> None:
        self.times, self.tells, self.size, self.calls = times, tells, size, calls
        self.shares: list[float] = []
        self.given: list[list[Message]] = []

    async def __call__(self, talk: list[Message], *, tools: list[Any]) -> Message:
        seen = seen_by(talk, tools)
        self.given.append(talk)
        self.shares.append(seen / WINDOW)
        if len(self.shares) > self.times:
            return Message.assistant("done")
        at = len(self.shares)
        asked = [
            ToolCall(f"c{at}-{n}", "look", {"at": at * 100 + n, "size": self.size})
            for n in range(self.calls)
        ]
        used = Usage(input_tokens=seen, output_tokens=50) if self.tells else None
        return Message.assistant("I look. ", asked, usage=used)


def loop(model: Watched, **more: Any) -> AgentLoop:
    options: dict[str, Any] = {"handoff": HandoffPolicy(window=WINDOW), "max_turns": 1000}
    return AgentLoop(model, tools=[look], **(options | more))


@pytest.mark.mission("S3-010", "S3-131", "S3-132", "S3-136")
@pytest.mark.parametrize("tells", [False, True], ids=["counted", "told"])
@async_test
async def test_system_prompt_and_tools_count_and_no_call_passes_the_limit(
    store: str, *, tells: bool
) -> None:
    model = Watched(30, tells=tells)
    agent = loop(model, system=SYSTEM)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "look around", run_id="r", timeout=60) == "done"
        handoffs = await hf.handoffs.of_run("r")
    assert min(model.shares) > 0.58, "the system prompt alone is that much"
    assert max(model.shares) <= 0.7
    assert len(handoffs) >= 3
    for handoff in handoffs:
        assert handoff.window == WINDOW
        assert 0.58 < handoff.tokens / WINDOW <= 0.7


@pytest.mark.mission("S3-010", "S3-131")
@pytest.mark.parametrize("calls", [1, 5])
@async_test
async def test_large_result_is_cut_before_it_passes_the_limit_and_kept_whole(
    store: str, calls: int
) -> None:
    model = Watched(3, size=45_000, calls=calls)
    agent = loop(model)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "look around", run_id="r", timeout=60) == "done"
        entries = await hf.journal.read("r")
        blobs = [e for e in entries if e.kind == "STEP_RECORDED" and b"blob:look" in bytes(e.facts)]
    assert max(model.shares) <= 0.7
    results = [r for m in model.given[1] for r in m.results]
    assert len(results) == calls, "the model is shown what it asked for"
    for result in results:
        assert "the whole is kept as blob" in result.content
        assert len(result.content) > 1000, "each has its share"
    assert len(blobs) == 3 * calls


@async_test
async def test_small_results_beside_a_large_one_are_shown_whole(store: str) -> None:
    shown: list[str] = []

    async def model(talk: list[Message]) -> Message:
        if len(talk) > 1:
            shown.extend(result.content for m in talk for result in m.results)
            return Message.assistant("done")
        sizes = [100, 40_000, 100]
        calls = [ToolCall(f"c{n}", "look", {"at": n, "size": s}) for n, s in enumerate(sizes)]
        return Message.assistant("", calls)

    agent = AgentLoop(model, tools=[look], handoff=HandoffPolicy(window=WINDOW))
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "look", run_id="r") == "done"
    assert [len(text) for text in shown] == [100, len(shown[1]), 100]
    assert 5_000 < len(shown[1]) < 20_000


@async_test
async def test_blob_of_a_cut_result_is_read_whole(store: str) -> None:
    @holdfast.agent(tools=[look], handoff=HandoffPolicy(window=WINDOW))
    async def agent(run: holdfast.Run) -> int:
        (answer,) = await run.tools([ToolCall("1", "look", {"at": 1, "size": 45_000})])
        (result,) = answer.results
        assert len(result.content) < 20_000
        return len(await run.blob(result.content.rpartition("blob ")[2].rstrip("]")))

    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, run_id="r") == 45_000


@pytest.mark.mission("S3-010")
@async_test
async def test_message_of_a_session_that_does_not_fit_is_given_to_a_fresh_context(
    store: str,
) -> None:
    shares_: list[float] = []

    async def model(talk: list[Message]) -> Message:
        shares_.append(seen_by(talk) / WINDOW)
        return Message.assistant(f"{len(talk)}: {'well ' * 300}")

    agent = AgentLoop(model, handoff=HandoffPolicy(window=WINDOW), name="chat")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        chat = hf.session(agent, "s")
        answers = [await chat.send(f"{n} " + "news " * 2_000, timeout=60) for n in range(5)]
        handoffs = await hf.handoffs.of_run("s")
    assert max(shares_) <= 0.7
    assert len(answers) == len(shares_) == 5, "every message is answered once, none is paid twice"
    assert len(handoffs) >= 2
    assert {handoff.trigger for handoff in handoffs} == {"context"}


@pytest.mark.parametrize(
    ("system", "request_", "told"),
    [("x" * 21_000, "look", "system prompt and tools"), ("", "x" * 31_000, "104%")],
)
@async_test
async def test_context_that_is_too_small_for_a_fresh_start_blocks_before_the_model_is_asked(
    store: str, system: str, request_: str, told: str
) -> None:
    model = Watched(1)
    agent = loop(model, system=system)
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        with pytest.raises(RunBlocked, match=told):
            await hf.run(agent, request_, run_id="r", timeout=30)
        assert (await hf.runs.get("r")).blocked_reason == "breaker"
        assert await hf.handoffs.of_run("r") == []
    assert model.shares == []


@async_test
async def test_usage_that_leaves_cached_tokens_out_is_not_believed(store: str) -> None:
    model = Watched(30)

    async def cached(talk: list[Message], *, tools: list[Any]) -> Message:
        reply = await model(talk, tools=tools)
        usage = Usage(input_tokens=40, output_tokens=20)
        return Message.assistant(reply.text, reply.tool_calls, usage=usage)

    agent = AgentLoop(
        cached, tools=[look], system=SYSTEM, handoff=HandoffPolicy(window=WINDOW), max_turns=1000
    )
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "look around", run_id="r", timeout=60) == "done"
    assert max(model.shares) <= 0.7


@async_test
async def test_number_is_on_a_handoff_without_a_policy(store: str) -> None:
    async def model(talk: list[Message]) -> Message:
        if len(talk[-1].blocks) == 1:  # it is told of no handoff yet
            return Message.assistant("", [ToolCall("1", "hand_over", {})])
        return Message.assistant("done")

    agent = AgentLoop(
        model, tools=[holdfast.hand_over], system="s" * 3_000, model_name="gpt-4-0613"
    )
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        assert await hf.run(agent, "x" * 3_000, run_id="r") == "done"
        (handoff,) = await hf.handoffs.of_run("r")
        (event,) = [e for e in await hf.journal.read("r") if e.kind == "AGENT_HANDOFF"]
    assert event.kind
    assert 2_000 < handoff.tokens < 2_400
    assert handoff.window == 8_192


@pytest.mark.mission("S3-131")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("", 200_000),
        ("nobody-knows-1", 200_000),
        ("gpt-4", 8_192),
        ("gpt-4o-2024-11-20", 128_000),
        ("openai/gpt-4o-mini", 128_000),
        ("Claude-Sonnet", 200_000),
        ("my-model-7b", 32_000),
        ("gpt-4-turbo", 64_000),
    ],
)
def test_window_is_that_of_the_model(model: str, expected: int) -> None:
    settings = Settings(model_windows="my-model=32000, gpt-4-turbo=64000")
    assert window_of(model, settings.windows) == expected
    policy = HandoffPolicy().for_model(model, settings.windows)
    assert policy.window_tokens == expected
    assert policy.limit_tokens == int(expected * 0.7)
    assert HandoffPolicy(window=5_000).for_model(model, {}).window_tokens == 5_000


@pytest.mark.parametrize("wrong", ["gpt-4", "gpt-4=", "=8000", "gpt-4=lots", "gpt-4=10", "a=-5000"])
def test_setting_of_windows_that_cannot_be_meant_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="model_windows must be MODEL=TOKENS"):
        Settings(model_windows=wrong)


@async_test
async def test_agent_hands_over_by_the_window_of_its_model(store: str) -> None:
    model = Watched(25, size=1_500)
    agent = loop(model, handoff=HandoffPolicy(), model_name="tiny-1")
    settings = Settings(model_windows=f"tiny={WINDOW}")
    async with holdfast.Holdfast(store, agents=[agent], settings=settings) as hf:
        assert await hf.run(agent, "look around", run_id="r", timeout=60) == "done"
        handoffs = await hf.handoffs.of_run("r")
    assert handoffs
    assert {handoff.window for handoff in handoffs} == {WINDOW}
    assert max(model.shares) <= 0.7


class Words:
    """An encoding that counts words, and refuses marks unless it is told not to."""

    def encode(self, text: str, *, disallowed_special: Any = "all") -> list[int]:
        assert disallowed_special == (), "marks of vendors are text"
        return list(range(len(text.split())))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A tokenizer's library is installed; each test says what it does."""
    made = ModuleType("tiktoken")
    made.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec("tiktoken", None)
    monkeypatch.setitem(sys.modules, "tiktoken", made)
    tokens._counter.cache_clear()  # pyright: ignore[reportPrivateUsage] - each test has a library of its own
    yield made
    tokens._counter.cache_clear()  # pyright: ignore[reportPrivateUsage] - the same


def test_tokenizer_that_is_installed_counts(library: Any) -> None:
    library.encoding_for_model = lambda model: {"gpt-4o": Words()}[model]
    counter: Any = counter_for("openai/gpt-4o")
    counter.loading.join()
    assert counter("three words <|endoftext|>") == 3
    policy = HandoffPolicy().for_model("gpt-4o", {})
    assert policy.tokens_of("one two") == 2
    own = HandoffPolicy(count=len).for_model("gpt-4o", {})
    assert own.tokens_of("one two") == 7, "a counter that was given counts"


@pytest.mark.parametrize("error", [KeyError("nobody-1"), ConnectionError("offline")])
def test_tokenizer_that_is_not_there_is_done_without(library: Any, error: Exception) -> None:
    def fail(model: str) -> None:
        raise error

    library.encoding_for_model = fail
    counter: Any = counter_for("nobody-1")
    counter.loading.join()
    assert counter("some text") == estimate("some text")


def test_tokenizer_that_breaks_later_is_done_without(library: Any) -> None:
    class Broken:
        def encode(self, text: str, **_: Any) -> list[int]:
            raise RuntimeError("stack overflow")

    library.encoding_for_model = lambda model: Broken()
    counter: Any = counter_for("gpt-4o")
    counter.loading.join()
    assert counter("some text") == estimate("some text")


@async_test
async def test_tokenizer_whose_tables_never_come_holds_nobody_up(library: Any, store: str) -> None:
    """Offline some networks answer nothing at all: the fetch hangs, the agent does not."""
    asked, never = threading.Event(), threading.Event()

    def hang(model: str) -> None:
        asked.set()
        never.wait()

    library.encoding_for_model = hang
    model = Watched(5)
    agent = loop(model, model_name="gpt-4o")
    try:
        async with holdfast.Holdfast(store, agents=[agent]) as hf:
            assert await hf.run(agent, "look around", run_id="r", timeout=60) == "done"
        assert asked.is_set()
        assert not never.is_set()
    finally:
        never.set()


def test_process_ends_while_a_tokenizer_hangs(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.py").write_text(
        "import time\ndef encoding_for_model(model):\n    time.sleep(3600)\n"
    )
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from holdfast.agents.definitions.tokens import counter_for\n"
        "print(counter_for('gpt-4o')('abc' * 5))\n"
    )

    async def run() -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await asyncio.wait_for(process.communicate(), 60)
        return told

    began = time.monotonic()
    assert asyncio.run(run()).split() == [b"5"]
    assert time.monotonic() - began < 60


@given(st.lists(st.integers(0, 500), max_size=8), st.integers(-10, 2_000))
def test_shares_fit_and_waste_nothing(sizes: list[int], room: int) -> None:
    given_ = shares(sizes, room)
    assert all(0 <= share <= size for share, size in zip(given_, sizes, strict=True))
    assert sum(given_) <= max(0, room)
    if sum(sizes) > max(0, room):
        cut = [share for share, size in zip(given_, sizes, strict=True) if share < size]
        assert sum(given_) == max(0, room)
        assert max(cut) - min(cut) <= 1, "those that are cut have equal parts"
        assert max(given_, default=0) <= max(cut)
    else:
        assert given_ == sizes


@given(st.text(max_size=200), st.integers(0, 100))
def test_text_is_cut_at_the_last_character_that_fits(text: str, most: int) -> None:
    length = fitting(text, most, estimate)
    assert estimate(text[:length]) <= most
    assert length == len(text) or estimate(text[: length + 1]) > most
