"""A context ends in time: before the next turn could pass its limit, after a phase, on request."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.agents.definitions.handoff_policy import HandoffPolicy
from holdfast.agents.definitions.handoff_triggers import (
    ContextLimits,
    ContextNumbers,
    Wish,
    evaluate,
)
from holdfast.agents.definitions.messages import Message, ToolResult, Usage
from holdfast.agents.definitions.tokens import PER_MESSAGE, estimate
from holdfast.agents.turn.context_usage import ContextUsage
from holdfast.agents.turn.progress import Progress
from holdfast.errors import MisuseError


class Parts:
    """The state of a run, as far as values of it are read and set."""

    version = 0

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def part(self, name: str, default: Any = None) -> Any:
        return self.parts.get(name, default)

    def set(self, name: str, value: Any) -> None:
        self.parts[name] = value


def counting(policy: HandoffPolicy) -> ContextUsage:
    parts: Any = Parts()
    return ContextUsage(parts, policy, Progress(parts, counts=True))


def kind(
    numbers: ContextNumbers, *, limits: ContextLimits | None = None, **more: Any
) -> str | None:
    found = evaluate(numbers, limits or ContextLimits(window=1000), **more)
    return found.kind if found is not None else None


@pytest.mark.mission("S3-055", "S3-132")
@pytest.mark.parametrize(
    ("used", "largest", "expected"),
    [
        (0, 0, None),
        (500, 199, None),
        (500, 200, "context"),
        (699, 0, None),
        (700, 0, "context"),
        (701, 0, "context_hard"),
        (5000, 10, "context_hard"),
    ],
)
def test_context_ends_before_another_turn_could_pass_its_limit(
    used: int, largest: int, expected: str | None
) -> None:
    assert kind(ContextNumbers(used=used, largest_turn=largest, replies=2)) == expected


@pytest.mark.mission("S3-134")
@pytest.mark.parametrize(("errors", "expected"), [(0, None), (3, None), (4, "errors")])
def test_more_than_so_many_errors_end_a_context(errors: int, expected: str | None) -> None:
    numbers = ContextNumbers(errors=errors)
    assert kind(numbers) == expected
    assert kind(numbers, limits=ContextLimits(window=1000, errors=None)) is None


@pytest.mark.mission("S3-133")
def test_finished_phase_ends_a_context_if_that_is_wanted() -> None:
    assert kind(ContextNumbers(), finished_phase="planning") == "phase_complete"
    limits = ContextLimits(window=1000, phase_complete=False)
    assert kind(ContextNumbers(), limits=limits, finished_phase="planning") is None


@pytest.mark.mission("S3-135")
def test_request_always_wins_and_says_who_goes_on() -> None:
    numbers = ContextNumbers(used=999, errors=9, replies=1)
    found = evaluate(numbers, ContextLimits(window=1000), wish=Wish("qa", "tests", is_asked=True))
    assert found is not None
    assert (found.kind, found.text, found.to) == ("explicit", "tests", "qa")
    assert kind(numbers) == "context_hard"
    assert kind(ContextNumbers(errors=9), finished_phase="planning") == "phase_complete"


def test_every_trigger_says_why() -> None:
    found = evaluate(
        ContextNumbers(used=650, largest_turn=60, replies=3), ContextLimits(window=1000)
    )
    assert found is not None
    assert found.text == (
        "the context uses 650 of 1,000 tokens (65%), and another turn of 60 tokens could pass 70%"
    )


@pytest.mark.mission("S3-010")
@settings(max_examples=200, deadline=None)
@given(
    base=st.integers(2, 5000),
    largest=st.integers(1, 2000),
    shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=60),
    context=st.floats(0.1, 1.0),
)
def test_use_stays_below_the_limit_if_no_turn_is_larger_than_the_largest_before(
    base: int, largest: int, shares: list[tuple[float, float]], context: float
) -> None:
    """Turns of replies and results; a counter of one token for each character of a result."""
    policy = HandoffPolicy(
        context=context, window=20_000, prompt_tokens=1000, count=len, phase_complete=False
    )
    meter = counting(policy)
    used = base
    for share, said in [(1.0, 0.5), *shares]:
        turn = int(largest * share)
        output = int(turn * said)
        usage = Usage(input_tokens=used, output_tokens=output)
        meter.count_reply(Message.assistant("hm"), usage, (), {})
        meter.count_calls(1, [Message.tool(ToolResult("1", "x" * (turn - output)))])
        meter.end_turn()
        used += turn + len("1 ") + PER_MESSAGE  # the id of the call, and what a message takes
        assert meter.numbers.used == used
        due = meter.due()
        if meter.numbers.turns == 1 and used >= policy.limit_tokens:
            return  # the first turn alone was too much: nothing was seen before it
        assert meter.numbers.max_utilization * policy.window <= policy.limit_tokens
        if due is not None:
            assert due.kind == "context"
            assert used < policy.limit_tokens
            return
    assert used < policy.limit_tokens


def test_what_the_first_reply_was_given_is_no_turn() -> None:
    meter = counting(HandoffPolicy(window=10_000, prompt_tokens=1000))
    meter.count_reply("", Usage(input_tokens=5000, output_tokens=10), (), {})
    meter.end_turn()
    assert meter.numbers.largest_turn == 10
    assert meter.due() is None


def test_begun_context_counts_anew() -> None:
    meter = counting(HandoffPolicy(window=10_000, prompt_tokens=1000))
    meter.count_reply("", Usage(input_tokens=7500, output_tokens=10), (), {})
    meter.count_calls(1, [Message.tool(ToolResult("1", "no", is_error=True))])
    meter.count_call(is_error=True)
    meter.end_turn()
    due = meter.due()
    assert due is not None
    assert (meter.numbers.errors, due.kind) == (2, "context_hard")
    meter.begin_context()
    assert meter.numbers == ContextNumbers()
    assert meter.due() is None


@pytest.mark.parametrize(
    ("text", "least"),
    [("", 0), ("word", 1), ("one two three four", 4), ("狐狸跳过懒狗", 6), ("\ud800", 1)],
)
def test_estimate_counts_rather_more_than_less(text: str, least: int) -> None:
    assert estimate(text) >= least


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": 0},
        {"context": 1.2},
        {"errors": -1},
        {"window": 10},
        {"window": "many"},
        {"prompt_tokens": -1},
        {"prompt_tokens": 150_000},
        {"to": "a\nb"},
        {"context_parts": "transcript"},
        {"context_parts": ("",)},
        {"acknowledge_seconds": 0},
        {"count": 3},
        {"summarize": "please"},
    ],
)
def test_policy_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        HandoffPolicy(**wrong)


def test_prompt_leaves_room_in_a_small_window() -> None:
    assert HandoffPolicy().prompt_limit() == 8_000
    assert HandoffPolicy(window=10_000).prompt_limit() == 1_750
    assert HandoffPolicy(window=10_000).prompt_limit(6_000) == 500
    assert HandoffPolicy(window=10_000, prompt_tokens=6_000).prompt_limit() == 6_000


def test_small_reply_beside_a_large_one_does_not_hide_it() -> None:
    meter = counting(HandoffPolicy(window=10_000))
    meter.count_reply("", Usage(input_tokens=6500, output_tokens=10), (), {})
    meter.count_reply("", Usage(input_tokens=100, output_tokens=10), (), {})
    meter.end_turn()
    assert meter.numbers.used == 6510
    meter.count_reply("", Usage(input_tokens=300, output_tokens=10), (), {})
    assert meter.numbers.used == 310, "an agent may cut its own transcript"


def test_counter_that_gives_no_count_is_refused() -> None:
    with pytest.raises(MisuseError, match="what count returned"):
        HandoffPolicy(count=lambda _: -1).tokens_of("x")


def test_policy_is_given_to_agents_and_loops() -> None:
    policy = HandoffPolicy()

    async def model(talk: Any) -> Message:
        return Message.assistant("yes")

    @holdfast.agent(handoff=policy)
    async def build(run: holdfast.Run) -> None: ...

    assert build.rules.handoff is policy
    assert holdfast.AgentLoop(model, handoff=policy).rules.handoff is policy
    assert holdfast.AgentLoop(model).rules.handoff is None
