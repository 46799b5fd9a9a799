"""An MCP server to be called, crashed and refused: it writes what it does into a file.

    python -m tests.edges.mcp.ledger_server FILE [PORT]

Without a port it speaks on its pipes. A line of the file is: what, number, key, run, call, pid. It
knows nothing of Holdfast.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from mcp.types import ImageContent, TextContent, ToolAnnotations

FILE = Path(sys.argv[1])
_MOST_SECONDS = 60.0
server = MCPServer("ledger", log_level="ERROR")


def write(what: str, number: int, context: Context[Any, Any]) -> None:
    meta: dict[str, Any] = dict(context.request_context.meta or {})
    told = [
        meta.get(f"io.holdfast/{name}", "-") for name in ("idempotency-key", "run-id", "call-id")
    ]
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{what} {number} {' '.join(map(str, told))} {os.getpid()}\n".encode())
    os.close(file)


@server.tool()
async def pay(number: int, context: Context[Any, Any], memo: str = "") -> str:
    """Pay a number."""
    write("pay", number, context)
    return f"paid {number}"


@server.tool(structured_output=False)
async def pay_slowly(number: int, context: Context[Any, Any]) -> str:
    """Pay, and answer when the file `go` is there."""
    write("pay", number, context)
    limit = time.monotonic() + _MOST_SECONDS
    while not FILE.with_name("go").exists() and time.monotonic() < limit:
        await anyio.sleep(0.01)
    return f"paid {number}"


@server.tool(structured_output=False)
async def pay_and_wait(number: int, context: Context[Any, Any]) -> str:
    """The same by another name."""
    return await pay_slowly(number, context)


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def look(number: int, context: Context[Any, Any]) -> str:
    """See whether a number was paid."""
    write("look", number, context)
    return f"{FILE.read_text().count(f'pay {number} ')} times"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def note(number: int, context: Context[Any, Any]) -> dict[str, int]:
    """Note a number."""
    write("note", number, context)
    return {"noted": number}


@server.tool(structured_output=False)
async def fail(number: int, context: Context[Any, Any]) -> str:
    """Fail, after something was done."""
    write("fail", number, context)
    raise ValueError(f"no money for {number}")


@server.tool(structured_output=False)
async def refuse(number: int) -> str:
    """Answer with an error of the protocol, by its code."""
    raise MCPError(code=number, message="I will not")


@server.tool(structured_output=False)
async def draw(size: int) -> list[TextContent | ImageContent]:
    """Draw."""
    picture = ImageContent(type="image", data="A" * size, mime_type="image/png")
    return [TextContent(type="text", text="seen"), picture]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
