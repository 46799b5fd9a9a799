"""Tools that speak with the client while they are called: logs, progress, questions, changes."""

import asyncio
from typing import Any

from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ClientCapabilities,
    MissingRequiredClientCapabilityErrorData,
    SamplingCapability,
    SamplingMessage,
    TextContent,
)

from holdfast.edges.mcp.contract import Handler, McpCall
from tests.edges.mcp.conformance.fixture import Given, context, plain, text

_STEP_SECONDS = 0.05
BUS = InMemorySubscriptionBus()
"""Where changes of lists are told to `subscriptions/listen`."""


async def _log(words: str) -> None:
    ctx = context()
    await ctx.session.send_log_message("info", words, related_request_id=ctx.request_id)


async def _logging(call: McpCall, given: Given) -> CallToolResult:
    await _log("Tool execution started")
    await asyncio.sleep(_STEP_SECONDS)
    await _log("Tool processing data")
    await asyncio.sleep(_STEP_SECONDS)
    await _log("Tool execution completed")
    return text("Three lines were logged.")


async def _progress(call: McpCall, given: Given) -> CallToolResult:
    for done in (0, 50, 100):
        await call.progress(done, 100)
        await asyncio.sleep(_STEP_SECONDS)
    return text("Progress was told.")


async def _sampling(call: McpCall, given: Given) -> CallToolResult:
    ctx = context()
    words = str(given["prompt"])
    answer = await ctx.session.create_message(
        [SamplingMessage(role="user", content=TextContent(text=words))],
        max_tokens=100,
        related_request_id=ctx.request_id,
    )
    said = answer.content.text if isinstance(answer.content, TextContent) else answer.content
    return text(f"LLM response: {said}")


async def _reconnection(call: McpCall, given: Given) -> CallToolResult:
    """Close the stream of this call; the client must come back for the answer."""
    close = context().close_sse_stream
    if close is not None:
        await close()
    await asyncio.sleep(_STEP_SECONDS)
    return text("The stream was closed, and the answer came after it.")


async def _missing_capability(call: McpCall, given: Given) -> CallToolResult:
    needed = ClientCapabilities(sampling=SamplingCapability())
    if call.capabilities.sampling is None:
        data = MissingRequiredClientCapabilityErrorData(required_capabilities=needed)
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="this tool needs a client with sampling",
            data=data.model_dump(by_alias=True, mode="json", exclude_none=True),
        )
    return text("The client has sampling.")


async def _change_tools(call: McpCall, given: Given) -> CallToolResult:
    await BUS.publish(ToolsListChanged())
    return text("Tools have changed.")


async def _change_prompts(call: McpCall, given: Given) -> CallToolResult:
    await BUS.publish(PromptsListChanged())
    return text("Prompts have changed.")


def _asking(message: str | None, properties: dict[str, Any], required: list[str]) -> Handler:
    """Ask on the connection of the call: what the wire of 2025 has, and no run can wait for."""

    async def handle(call: McpCall, given: Given) -> CallToolResult:
        ctx = context()
        answer = await ctx.session.elicit_form(
            message or str(given["message"]),
            {"type": "object", "properties": properties, "required": required},
            related_request_id=ctx.request_id,
        )
        return text(f"Elicitation completed: action={answer.action}, content={answer.content}")

    return handle


def _choices(word: str, title: str) -> list[dict[str, str]]:
    numbers = zip((1, 2, 3), ("First", "Second", "Third"), strict=True)
    return [{"const": f"{word}{number}", "title": f"{nth} {title}"} for number, nth in numbers]


_OPTIONS = ["option1", "option2", "option3"]
_ENUMS: dict[str, Any] = {
    "untitledSingle": {"type": "string", "enum": _OPTIONS},
    "titledSingle": {"type": "string", "oneOf": _choices("value", "Option")},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
    "titledMulti": {"type": "array", "items": {"anyOf": _choices("value", "Choice")}},
}
_DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
_USER = {
    "username": {"type": "string", "description": "User's response"},
    "email": {"type": "string", "description": "User's email address"},
}


def _one_string(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


TOOLS = [
    plain("test_tool_with_logging", "Log three lines.", _logging),
    plain("test_logging_tool", "Log three lines.", _logging),
    plain("test_tool_with_progress", "Tell progress three times.", _progress),
    plain("test_sampling", "Ask the client's model.", _sampling, _one_string("prompt")),
    plain(
        "test_elicitation",
        "Ask for a name and an address.",
        _asking(None, _USER, ["username", "email"]),
        _one_string("message"),
    ),
    plain(
        "test_elicitation_sep1034_defaults",
        "Ask with a default for every kind.",
        _asking("Please look at these defaults", _DEFAULTS, []),
    ),
    plain(
        "test_elicitation_sep1330_enums",
        "Ask with every kind of choice.",
        _asking("Please choose", _ENUMS, []),
    ),
    plain("test_reconnection", "Close the stream before the answer.", _reconnection),
    plain("test_missing_capability", "Need a client with sampling.", _missing_capability),
    plain("test_trigger_tool_change", "Tell that tools have changed.", _change_tools),
    plain("test_trigger_prompt_change", "Tell that prompts have changed.", _change_prompts),
]
