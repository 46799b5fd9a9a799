"""What a plain tool of the kit is: called by our server like its own, with no run behind it."""

from contextvars import ContextVar
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import CallToolResult, InputRequiredResult, TextContent

from holdfast.edges.mcp.contract import Handler, ServedTool

Answer = CallToolResult | InputRequiredResult
Context = ServerRequestContext[Any, Any]
Given = dict[str, Any]

_context: ContextVar[Context] = ContextVar("context")


def plain(
    name: str, description: str, handle: Handler, schema: dict[str, Any] | None = None
) -> ServedTool:
    """A tool that the kit calls by name."""
    return ServedTool(
        name=name,
        description=description,
        input_schema=schema or {"type": "object", "properties": {}},
        handle=handle,
        read=lambda given: given,
    )


def text(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=words)])


async def remember(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware: keep the SDK's context for tools that speak with the client themselves."""
    token = _context.set(ctx)
    try:
        return await call_next(ctx)
    finally:
        _context.reset(token)


def context() -> Context:
    """The SDK's context of the request that is being handled."""
    return _context.get()
