"""Graphs of LangGraph with each saver, which `benchmarks.langgraph` measures side by side.

`holdfast` and `theirs` run the same graph; `delta` is theirs with a channel that stores deltas.
As a module it is a reader in a new process: `python -m benchmarks.graphs SAVER URL list|resume`.
"""

import json
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

from benchmarks import places as places  # imports what opening a store would, before any clock
from benchmarks.turns import TurnMaker
from holdfast.integrations.langgraph import HoldfastSaver

SAVERS = ("holdfast", "theirs", "delta")
THREAD: Any = {"configurable": {"thread_id": "session-0001"}}
LISTED = 100


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaTalk(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def texts(seed: int = 7) -> Iterator[str]:
    """Messages of 1 KB, no two alike."""
    maker = TurnMaker(seed)
    while True:
        yield maker.turn()[0]["content"][0]["text"][:1024]


def graph_on(saver: Any, kind: str, replies: Iterator[str]) -> Any:
    """A graph that answers each message with the next reply."""

    one_at_a_time = threading.Lock()

    def reply(_: Any) -> dict[str, Any]:
        with one_at_a_time:
            return {"messages": [AIMessage(next(replies))]}

    builder = StateGraph(DeltaTalk if kind == "delta" else Talk)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def says(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


@contextmanager
def saver_of(kind: str, url: str) -> Generator[Any]:
    """A saver for blocking calls."""
    if kind == "holdfast":
        with HoldfastSaver(url) as saver:
            yield saver
    elif "://" in url:
        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    else:
        with closing(sqlite3.connect(url, check_same_thread=False)) as connection:
            # As durable as the others: what is acknowledged survives a loss of power.
            connection.execute("PRAGMA synchronous = FULL")
            yield SqliteSaver(connection)


@asynccontextmanager
async def async_saver_of(kind: str, url: str) -> AsyncGenerator[Any]:
    """The same for use with asyncio."""
    if kind == "holdfast":
        async with HoldfastSaver(url) as saver:
            yield saver
    elif "://" in url:
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            yield saver
    else:
        async with AsyncSqliteSaver.from_conn_string(url) as saver:
            await saver.conn.execute("PRAGMA synchronous = FULL")
            yield saver


def _read(kind: str, url: str, what: str) -> list[float]:
    """Milliseconds of reading something twice: with opening the database, and again."""
    taken: list[float] = []
    with saver_of(kind, url) as saver:
        graph = graph_on(saver, kind, texts())
        for _ in range(2):
            since = time.perf_counter()
            if what == "list":
                found = len(list(saver.list(THREAD, limit=LISTED)))
            else:
                found = len(graph.get_state(THREAD).values["messages"])
            taken.append((time.perf_counter() - since) * 1000)
            assert found >= LISTED, "the thread was built"
    return taken


if __name__ == "__main__":
    print(json.dumps(_read(*sys.argv[1:])))
