"""The kit's prompts and completion: a Holdfast server has none of its own."""

from typing import Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ContentBlock,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from tests.edges.mcp.conformance.content import IMAGE, embedded
from tests.edges.mcp.conformance.fixture import Context
from tests.edges.mcp.conformance.input_required import content_of, elicit


def _argument(name: str) -> PromptArgument:
    return PromptArgument(name=name, description=f"The {name}.", required=True)


PROMPTS = [
    Prompt(name="test_simple_prompt", description="One message."),
    Prompt(
        name="test_prompt_with_arguments",
        description="One message that tells its arguments.",
        arguments=[_argument("arg1"), _argument("arg2")],
    ),
    Prompt(
        name="test_prompt_with_embedded_resource",
        description="A resource and a message.",
        arguments=[_argument("resourceUri")],
    ),
    Prompt(name="test_prompt_with_image", description="An image and a message."),
    Prompt(name="test_input_required_result_prompt", description="A prompt that asks first."),
]


def _messages(name: str, given: dict[str, str]) -> list[ContentBlock]:
    match name:
        case "test_simple_prompt":
            return [TextContent(text="This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            words = ", ".join(f"{key}='{value}'" for key, value in given.items())
            return [TextContent(text=f"Prompt with arguments: {words}")]
        case "test_prompt_with_embedded_resource":
            words = "Embedded resource content for testing."
            return [
                embedded(given["resourceUri"], "text/plain", words),
                TextContent(text="Please process the embedded resource above."),
            ]
        case "test_prompt_with_image":
            return [IMAGE, TextContent(text="Please analyze the image above.")]
        case _:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no prompt {name!r}")


async def _list(ctx: Context, params: PaginatedRequestParams) -> ListPromptsResult:
    return ListPromptsResult(prompts=PROMPTS)


async def _get(
    ctx: Context, params: GetPromptRequestParams
) -> GetPromptResult | InputRequiredResult:
    if params.name == "test_input_required_result_prompt":
        context = content_of(params, "user_context")
        if context is None:
            asked = elicit("What context should the prompt use?", "context")
            return InputRequiredResult(input_requests={"user_context": asked})
        content: list[ContentBlock] = [TextContent(text=f"In the context of {context['context']}.")]
    else:
        content = _messages(params.name, params.arguments or {})
    messages = [PromptMessage(role="user", content=each) for each in content]
    return GetPromptResult(messages=messages)


async def _complete(ctx: Context, params: CompleteRequestParams) -> CompleteResult:
    places = [name for name in ("paris", "park", "party") if name.startswith(params.argument.value)]
    return CompleteResult(completion=Completion(values=places, total=len(places), has_more=False))


def add_prompts(server: Server[Any]) -> None:
    server.add_request_handler("prompts/list", PaginatedRequestParams, _list)
    server.add_request_handler("prompts/get", GetPromptRequestParams, _get)
    server.add_request_handler("completion/complete", CompleteRequestParams, _complete)
