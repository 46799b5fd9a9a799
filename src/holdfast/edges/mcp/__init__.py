"""MCP: Holdfast as a server of the Model Context Protocol, and the tools of other servers here."""

try:
    from holdfast.edges.mcp.access.tokens import TokenFile
    from holdfast.edges.mcp.agent_tools import Exposed
    from holdfast.edges.mcp.client.outside import McpTools, mcp_tools
    from holdfast.edges.mcp.contract import FollowedRun, McpCall, ServedTool, served
    from holdfast.edges.mcp.failures import ProtocolError
    from holdfast.edges.mcp.server import McpServer
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("mcp", "mcp_types", "jinja2", "yaml"):
        raise
    raise ImportError(
        "holdfast.edges.mcp needs the MCP SDK 2.3: pip install 'holdfast[mcp]'"
    ) from missing

__all__ = [
    "Exposed",
    "FollowedRun",
    "McpCall",
    "McpServer",
    "McpTools",
    "ProtocolError",
    "ServedTool",
    "TokenFile",
    "mcp_tools",
    "served",
]
