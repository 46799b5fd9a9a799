"""Tools that ask through `input_required` for what no run asks: sampling, roots, all at once."""

from collections.abc import Mapping
from typing import Any

from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetPromptRequestParams,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)

from holdfast.edges.mcp.contract import Handler, McpCall
from tests.edges.mcp.conformance.fixture import Answer, Given, plain, text


def elicit(message: str, wanted: str, kind: str = "string") -> ElicitRequest:
    """Ask for one field."""
    schema = {"type": "object", "properties": {wanted: {"type": kind}}, "required": [wanted]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(words: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=words))
    return CreateMessageRequest(
        params=CreateMessageRequestParams(messages=[message], max_tokens=100)
    )


def content_of(params: GetPromptRequestParams, key: str) -> Mapping[str, Any] | None:
    """What the user entered for `key`, None when nothing was."""
    given = (params.input_responses or {}).get(key)
    return given.content if isinstance(given, ElicitResult) else None


def _asking(requests: Mapping[str, InputRequest], state: str | None = None) -> Handler:
    """Ask for all of these; be complete when each has an answer."""

    async def handle(call: McpCall, given: Given) -> Answer:
        if call.responses.keys() >= requests.keys() and call.request_state == state:
            return text(f"The client answered {', '.join(requests)}.")
        return InputRequiredResult(input_requests=dict(requests), request_state=state)

    return handle


async def _capabilities(call: McpCall, given: Given) -> Answer:
    """Ask only what the client said that it can answer."""
    requests: dict[str, InputRequest] = {"greeting": sample("Generate a greeting")}
    if call.capabilities.elicitation is not None:
        requests["user_name"] = elicit("What is your name?", "name")
    return await _asking(requests)(call, given)


TOOLS = [
    plain(
        "test_input_required_result_sampling",
        "Ask the client's model.",
        _asking({"capital_question": sample("What is the capital of France?")}),
    ),
    plain(
        "test_input_required_result_list_roots",
        "Ask for the client's roots.",
        _asking({"client_roots": ListRootsRequest()}),
    ),
    plain(
        "test_input_required_result_multiple_inputs",
        "Ask three kinds at once.",
        _asking(
            {
                "user_name": elicit("What is your name?", "name"),
                "greeting": sample("Generate a greeting"),
                "client_roots": ListRootsRequest(),
            },
            state="asked-three",
        ),
    ),
    plain(
        "test_input_required_result_capabilities",
        "Ask what this client can answer.",
        _capabilities,
    ),
]
