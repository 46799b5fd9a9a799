"""Threads as LangGraph's own savers have them: real graphs, run on SqliteSaver and PostgresSaver.

Subgraphs, tasks that are sent, a fork, an interrupt nobody has answered, a task that failed beside
one that did not, and a channel that stores deltas.
"""

import operator
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt

Saver = BaseCheckpointSaver[Any]
Graph = Any


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    turns: int
    verdict: str


class Review(TypedDict):
    turns: int
    verdict: str


class Counted(TypedDict):
    seen: Annotated[list[str], DeltaChannel(lambda seen, new: seen + [n for w in new for n in w])]


def _answer(state: Talk) -> dict[str, Any]:
    turns = state.get("turns", 0) + 1
    said = AIMessage(f"answer {turns}: {state['messages'][-1].content}", id=f"ai-{turns}")
    return {"messages": [said], "turns": turns}


def _fan(state: Talk) -> list[Send]:
    return [Send("note", {"about": f"{state['turns']}-{n}"}) for n in range(3)]


def _note(state: dict[str, str]) -> dict[str, Any]:
    return {"notes": [f"note {state['about']}"]}


def _ask(state: Review) -> dict[str, Any]:
    asked = {"question": "is it right?", "turns": state["turns"]}
    return {"verdict": str(interrupt(asked))}


def _conclude(state: Review) -> dict[str, Any]:
    return {"verdict": f"verdict {state['verdict']}"}


def talk(saver: Saver) -> Graph:
    """Answers, notes by tasks that are sent, and a review in a subgraph, which asks a person."""
    review = StateGraph(Review)
    review.add_node("ask", _ask)
    review.add_node("conclude", _conclude)
    review.add_edge(START, "ask")
    review.add_edge("ask", "conclude")
    builder = StateGraph(Talk)
    builder.add_node("answer", _answer)
    builder.add_node("note", _note)
    builder.add_node("review", review.compile())
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", _fan, ["note"])
    builder.add_edge("note", "review")
    builder.add_edge("review", END)
    return builder.compile(checkpointer=saver)


def counting(saver: Saver) -> Graph:
    """Stores what is new, and now and then all of it."""
    builder = StateGraph(Counted)
    builder.add_node("see", lambda state: {"seen": [f"saw {len(state['seen'])}"]})
    builder.add_edge(START, "see")
    return builder.compile(checkpointer=saver)


def failing(saver: Saver) -> Graph:
    """Two tasks of one step, one of which fails."""

    def fail(_: Talk) -> None:
        raise ZeroDivisionError("as it was told")

    builder = StateGraph(Talk)
    builder.add_node("good", lambda _: {"notes": ["good"]})
    builder.add_node("bad", fail)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    return builder.compile(checkpointer=saver)


GRAPHS: dict[str, Callable[[Saver], Graph]] = {
    "talk": talk,
    "fork": talk,
    "waiting": talk,
    "failed": failing,
    "delta": counting,
}


def config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}, "metadata": {"who": "ann"}}


def say(graph: Graph, thread_id: str, text: str) -> None:
    """One whole turn, its question included."""
    message = HumanMessage(text, id=f"human-{text}")
    graph.invoke({"messages": [message]}, config(thread_id), durability="sync")
    graph.invoke(Command(resume="yes"), config(thread_id), durability="sync")


def fill(saver: Saver) -> None:
    """All the threads of GRAPHS."""
    graph = talk(saver)
    for turn in range(3):
        say(graph, "talk", f"hello {turn}")
        say(graph, "fork", f"hello {turn}")
    _fork(graph)
    graph.invoke({"messages": [HumanMessage("wait", id="w")]}, config("waiting"), durability="sync")
    with suppress(ZeroDivisionError):
        failing(saver).invoke({"notes": ["begun"]}, config("failed"), durability="sync")
    for turn in range(4):
        counting(saver).invoke({"seen": [f"input {turn}"]}, config("delta"), durability="sync")


def _fork(graph: Graph) -> None:
    past = [s for s in graph.get_state_history(config("fork")) if s.next == ("answer",)][1]
    forked = graph.update_state(past.config, {"turns": 40}, as_node="__start__")
    graph.invoke(None, forked, durability="sync")


@contextmanager
def sqlite_saver(path: str) -> Iterator[Saver]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        yield SqliteSaver(connection)


@contextmanager
def postgres_saver(url: str) -> Iterator[Saver]:
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield saver


def old_saver(url: str) -> Any:
    """LangGraph's own saver for a path or URL, inside `with`."""
    return postgres_saver(url) if "://" in url else sqlite_saver(url)


def history(saver: Saver, thread_id: str) -> list[StateSnapshot]:
    return list(GRAPHS[thread_id](saver).get_state_history(config(thread_id)))


def stored(saver: Saver, thread_id: str) -> dict[tuple[str, str], CheckpointTuple]:
    """Every checkpoint of a thread, in all namespaces."""
    found = saver.list({"configurable": {"thread_id": thread_id}})
    return {
        (c["checkpoint_ns"], c["checkpoint_id"]): each
        for each in found
        if (c := each.config["configurable"])
    }
