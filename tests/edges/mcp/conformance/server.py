"""The server that the kit is run on: `python -m tests.edges.mcp.conformance.server --port N`."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler
from mcp_types import SubscriptionsListenRequestParams

import holdfast
from holdfast.edges.mcp.server import McpServer
from holdfast.workflows import Kit
from tests.edges.mcp.conformance import content, conversing, input_required
from tests.edges.mcp.conformance.agents import AGENTS, EXPOSED, MULTI_INPUT
from tests.edges.mcp.conformance.events import RememberedEvents
from tests.edges.mcp.conformance.fixture import remember
from tests.edges.mcp.conformance.prompts import add_prompts
from tests.edges.mcp.conformance.resources import add_resources

PLAIN = [*content.TOOLS, *conversing.TOOLS, *input_required.TOOLS]
RUNS = frozenset({MULTI_INPUT.name, *(each.name for each in AGENTS)})


def add_fixtures(server: Server[Any]) -> None:
    """What the kit wants of a server beside tools."""
    server.middleware.append(remember)
    add_prompts(server)
    add_resources(server)
    server.add_request_handler(
        "subscriptions/listen", SubscriptionsListenRequestParams, ListenHandler(conversing.BUS)
    )


@asynccontextmanager
async def fixture_server(store: str) -> AsyncIterator[McpServer]:
    """Our server with all that the kit wants."""
    async with (
        holdfast.open(store, agents=AGENTS, workflows=Kit()) as hf,
        McpServer(hf, expose=EXPOSED, tools=[*PLAIN, MULTI_INPUT]) as server,
    ):
        add_fixtures(server.lowlevel)
        yield server


async def serve(store: str, port: int) -> None:
    async with fixture_server(store) as server:
        app = server.http_app(events=RememberedEvents())
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
        await uvicorn.Server(config).serve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the loopback port to listen on")
    parser.add_argument("--store", default="memory://", help="where runs are kept")
    given = parser.parse_args()
    asyncio.run(serve(given.store, given.port))


if __name__ == "__main__":
    main()
