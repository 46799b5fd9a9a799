"""Models of Pydantic AI as the model of a loop: what is sent, what comes back, what is kept."""

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from pydantic_ai import models
from pydantic_ai.messages import (
    BinaryImage,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

import holdfast
from holdfast import (
    AgentLoop,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    codec,
)
from holdfast.errors import MisuseError
from holdfast.integrations.pydantic_ai import PydanticAIModel
from holdfast.integrations.pydantic_ai.messages import from_messages, to_message
from holdfast.integrations.pydantic_ai.model import usage_of
from holdfast.testing.store_suite import async_test

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def nobody_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


@holdfast.tool(effect="read")
async def weather(city: str, days: int = 1) -> str:
    """Tell the weather."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"sunny in {city} for {days}"


def round_trip(response: ModelResponse) -> ModelResponse:
    """A response as it comes back from the record, and is sent again."""
    message = to_message(response, Usage())
    (again,) = from_messages([stored(message)])
    assert isinstance(again, ModelResponse)
    return again


def stored(message: Message) -> Message:
    return msgspec.convert(codec.decode(codec.encode(message)), Message)


@async_test
async def test_test_model_calls_every_tool_and_ends(store: str) -> None:
    agent = AgentLoop(PydanticAIModel(TestModel()), tools=[weather], name="weather")
    async with holdfast.Holdfast(store, agents=[agent]) as hf:
        answer = await hf.run(agent, "How is the weather?", run_id="r")
        transcript = (await hf.checkpoints.load("r"))["transcript"]
    assert answer == '{"weather":"sunny in a for 1"}'
    assert [message["role"] for message in transcript] == ["user", "assistant", "tool", "assistant"]


@async_test
async def test_name_of_a_model_is_looked_up() -> None:
    agent = AgentLoop(PydanticAIModel("test"))
    async with holdfast.Holdfast("memory://") as hf:
        assert await hf.run(agent, "hello") == "success (no tool calls)"


@async_test
async def test_model_sees_tools_settings_and_the_transcript_as_its_own_types() -> None:
    seen: list[tuple[list[ModelMessage], AgentInfo]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append((list(messages), info))
        if len(messages) > 1:
            return ModelResponse([TextPart("It is sunny.")])
        calls = [ToolCallPart("weather", {"city": c}, c) for c in ("Rome", "Atlantis")]
        return ModelResponse([TextPart("I look."), *calls])

    settings = ModelSettings(temperature=0.5)
    agent = AgentLoop(
        PydanticAIModel(FunctionModel(answer), settings), tools=[weather], system="Be brief."
    )
    async with holdfast.Holdfast("memory://") as hf:
        assert await hf.run(agent, "How is it?") == "It is sunny."

    (first, info), (second, _) = seen
    (request,) = first
    assert [type(part) for part in request.parts] == [SystemPromptPart, UserPromptPart]
    assert info.model_settings == settings
    (definition,) = info.function_tools
    assert (definition.name, definition.description) == ("weather", "Tell the weather.")
    assert definition.parameters_json_schema["required"] == ["city"]
    assert [type(message) for message in second] == [ModelRequest, ModelResponse, ModelRequest]
    found, failed = second[2].parts
    assert isinstance(found, ToolReturnPart)
    assert isinstance(failed, ToolReturnPart)
    assert (found.tool_name, found.tool_call_id, found.outcome) == ("weather", "Rome", "success")
    assert found.content == "sunny in Rome for 1"
    assert (failed.tool_call_id, failed.outcome) == ("Atlantis", "failed")
    assert failed.content == "weather raised LookupError: no such city"


def test_response_with_every_part_comes_back_as_it_was() -> None:
    response = ModelResponse(
        [
            ThinkingPart(
                "Let me see.",
                id="t1",
                signature="c2ln",
                provider_name="anthropic",
                provider_details={"redacted": [None, 1]},
            ),
            ThinkingPart("", signature="only a signature", provider_name="openai"),
            NativeToolCallPart("web_search", {"query": "x"}, "n1", provider_name="openai"),
            NativeToolReturnPart("web_search", {"found": 3}, "n1", timestamp=NOW),
            TextPart("I look.", id="msg_1", provider_name="openai"),
            FilePart(BinaryImage(b"\x89PNG\x00\xff", media_type="image/png")),
            ToolCallPart(
                "weather",
                '{"city": "Rome"}',
                "c1",
                provider_name="google",
                provider_details={"thought_signature": "AAA="},
            ),
            ToolCallPart("weather", {"city": "Oslo"}, "c2"),
        ],
        usage=RequestUsage(input_tokens=0, output_tokens=0),
        model_name="gpt-5",
        provider_name="openai",
        canonical_system="azure",
        provider_details={"finish_reason": "tool_calls"},
        provider_response_id="resp_1",
        finish_reason="tool_call",
        timestamp=NOW,
    )
    assert round_trip(response) == response


def test_plain_response_has_plain_blocks() -> None:
    response = ModelResponse(
        [TextPart("Yes."), ToolCallPart("weather", None, "c1")], model_name="gpt-5"
    )
    message = to_message(response, Usage(input_tokens=3))
    assert message.blocks == [Text("Yes."), ToolCall("c1", "weather", {})]
    assert (message.role, message.usage) == ("assistant", Usage(input_tokens=3))


def test_thought_is_reasoning_with_what_its_provider_wants_back() -> None:
    part = ThinkingPart("Hm.", signature="c2ln", provider_name="anthropic")
    message = to_message(ModelResponse([part, TextPart("Yes.")]), Usage())
    assert message.blocks[1:] == [
        Reasoning("Hm.", {"signature": "c2ln", "provider_name": "anthropic"}),
        Text("Yes."),
    ]
    assert message.text == "Yes."


def test_reasoning_without_metadata_is_a_thought() -> None:
    message = Message(role="assistant", blocks=[Reasoning("Hm."), Text("Yes.")])
    (response,) = from_messages([message])
    assert list(response.parts) == [ThinkingPart("Hm."), TextPart("Yes.")]


def test_messages_between_replies_are_one_request() -> None:
    transcript = [
        Message.user("one"),
        Message.assistant("", [ToolCall("1", "a"), ToolCall("2", "b")]),
        Message.tool(ToolResult("1", "first")),
        Message.tool(ToolResult("2", "second")),
        Message.user("two"),
    ]
    first, _, last = from_messages(transcript)
    assert len(first.parts) == 1
    assert [type(part) for part in last.parts] == [ToolReturnPart, ToolReturnPart, UserPromptPart]
    assert [getattr(part, "tool_name", None) for part in last.parts] == ["a", "b", None]


def test_reply_that_says_nothing_is_not_sent_again() -> None:
    empty = to_message(ModelResponse([]), Usage())
    (request,) = from_messages([Message.user("one"), empty, Message.user("two")])
    assert [type(part) for part in request.parts] == [UserPromptPart, UserPromptPart]


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", blocks=[ToolCall("1", "a")]),
        Message(role="assistant", blocks=[ToolResult("1", "x")]),
    ],
)
def test_block_in_the_wrong_place_is_refused(message: Message) -> None:
    with pytest.raises(MisuseError, match=r"block|result"):
        from_messages([message])


def test_price_is_that_of_the_provider_or_of_its_list_or_none() -> None:
    used = RequestUsage(input_tokens=1_000_000, output_tokens=10)
    listed = ModelResponse([], usage=used, model_name="gpt-4o", provider_name="openai")
    unknown = ModelResponse([], usage=used, model_name="nobody-knows-it")
    nameless = ModelResponse([], usage=used)
    told = ModelResponse([], usage=RequestUsage(input_tokens=1, cost=Decimal("0.25")))
    assert usage_of(listed).usd > 0.1
    assert (usage_of(listed).input_tokens, usage_of(listed).output_tokens) == (1_000_000, 10)
    assert usage_of(unknown).usd == usage_of(nameless).usd == 0.0
    assert usage_of(told).usd == 0.25


@async_test
async def test_reply_in_the_background_is_refused() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("later")], state="suspended")

    with pytest.raises(MisuseError, match="in the background"):
        await PydanticAIModel(FunctionModel(answer))([Message.user("hello")])


def test_missing_package_is_told_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "try:\n    import holdfast.integrations.pydantic_ai\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'holdfast[pydantic-ai]'" in done.stdout
