"""Processes that run graphs and die: `python -m tests.integrations.langgraph.victims`.

The process imports everything once and forks for each command, so that the next victim is there at
once. A command is an `Order` as JSON; the answer is what came of it: the messages and open
questions, the error, or how the process died. What is done outside is a line in a ledger.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from holdfast import Settings
from tests.agents.ledger import Ledger
from tests.victim_orders import obey

LEASE_SECONDS = 0.7
LIMIT_SECONDS = 0.4
GATE_SECONDS = 30.0


class Order(msgspec.Struct, kw_only=True):
    """What a victim shall do."""

    store: str
    folder: str  # of the ledger, and of the gates
    thread: str = "t"
    shape: str = "node"  # which graph
    many: int = 1  # tool calls in a turn
    face: str = "sync"
    durability: str | None = None
    is_durable: bool = True  # durable(graph)
    has_tools: bool = True  # durable_tools(saver)
    stock: bool = False  # LangGraph's own saver
    on_conflict: str = "error"
    die: str = ""  # where
    after: int = 0  # how often to pass there first
    seconds: float = 0.0  # how long to live; for ever if 0
    meet: str = ""  # a gate: wait there once a checkpoint was read
    given: Any = None  # a message; None to go on; {"resume": value} to answer


class Victim:
    """One process's run of one graph."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.folder = Path(order.folder)
        self.ledger = Ledger(self.folder / "ledger")
        self._passed: set[object] = set()
        self._met = False

    def write(self, what: str, n: int) -> None:
        self.ledger.write(what, self.order.thread, n)

    def reach(self, place: str, what: object) -> None:
        """Die here, if this is where, and enough others have passed."""
        if place == self.order.die:
            self._passed.add(what)
            if len(self._passed) > self.order.after:
                os.kill(os.getpid(), signal.SIGKILL)

    def meet(self) -> None:
        if self.order.meet and not self._met:
            self._met = True
            self.write(f"at-{self.order.meet}", os.getpid())
            self.wait_for(self.order.meet)

    def wait_for(self, gate: str) -> None:
        """Wait until the test opens a gate; what is in it may be to die, or to stop, right here."""
        path = self.folder / gate
        deadline = time.monotonic() + GATE_SECONDS
        while not path.exists():
            assert time.monotonic() < deadline, f"the gate {gate} stays shut"
            time.sleep(0.002)
        if said := path.read_text():
            os.kill(os.getpid(), getattr(signal, said))


def has_results(writes: Sequence[tuple[str, Any]]) -> bool:
    """Whether a tool's result is among the writes."""
    values = [value if isinstance(value, list) else [value] for _, value in writes]
    return any(isinstance(each, ToolMessage) for value in values for each in value)


class Watch:
    """In front of a saver's methods, of either face: tells its victim where it is."""

    victim: Victim
    has_results = False

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.writes(writes, task_id)
        super().put_writes(config, writes, task_id, task_path)
        self.wrote(writes, task_id)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, path: str = "") -> None:
        self.writes(writes, task_id)
        await super().aput_writes(config, writes, task_id, path)
        self.wrote(writes, task_id)

    def writes(self, writes: Any, task_id: str) -> None:
        if has_results(writes):
            type(self).has_results = True
            self.victim.reach("before writes", task_id)

    def wrote(self, writes: Any, task_id: str) -> None:
        if has_results(writes):
            self.victim.reach("after writes", task_id)

    def put(self, *args: Any) -> Any:
        self.at_checkpoint("before checkpoint", args[1]["id"])
        where = super().put(*args)
        self.at_checkpoint("after checkpoint", args[1]["id"])
        return where

    async def aput(self, *args: Any) -> Any:
        self.at_checkpoint("before checkpoint", args[1]["id"])
        where = await super().aput(*args)
        self.at_checkpoint("after checkpoint", args[1]["id"])
        return where

    def at_checkpoint(self, place: str, id: str) -> None:
        if self.has_results:
            self.victim.reach(place, id)

    def get_tuple(self, config: Any) -> Any:
        found = super().get_tuple(config)
        self.victim.meet()
        return found

    async def aget_tuple(self, config: Any) -> Any:
        found = await super().aget_tuple(config)
        self.victim.meet()
        return found


def watched(base: type, victim: Victim) -> type:
    return type("Watched", (Watch, base), {"victim": victim})


def saver_of(victim: Victim) -> Any:
    order = victim.order
    if order.stock:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(victim.folder / "stock.db", check_same_thread=False)
        return watched(SqliteSaver, victim)(connection)
    from holdfast.integrations.langgraph import HoldfastSaver

    settings = Settings(lease_seconds=LEASE_SECONDS, wakeup_poll_seconds=0.1)
    made = watched(HoldfastSaver, victim)
    return made(order.store, settings=settings, on_conflict=order.on_conflict)


class Caller(BaseChatModel):
    """A model that pays so many times, and never gives a call the same id twice."""

    victim: Any

    @property
    def _llm_type(self) -> str:
        return "caller"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(each, HumanMessage) for each in messages)
        self.victim.write("model", turn)
        if isinstance(messages[-1], ToolMessage):
            paid = sorted(str(each.content) for each in messages if isinstance(each, ToolMessage))
            reply = AIMessage(f"all done: {', '.join(paid)}")
        else:
            wanted = [
                {"name": "pay", "args": {"n": 10 * turn + n}, "id": f"call-{os.urandom(4).hex()}"}
                for n in range(self.victim.order.many)
            ]
            reply = AIMessage("I will pay", tool_calls=wanted)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def pay_tool(victim: Victim) -> Any:
    @tool
    def pay(n: int) -> str:
        """Pay."""
        victim.reach("before effect", n)
        victim.write("pay", n)
        victim.reach("in tool", n)
        return f"paid {n}"

    return pay


def talking(victim: Victim, saver: Any) -> Any:
    """A graph that asks the model and calls its tools: in one node, or each in its own."""
    model, pay = Caller(victim=victim), pay_tool(victim)

    def think(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def onward(state: MessagesState) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        if victim.order.shape == "send":
            return [Send("tools", [call]) for call in last.tool_calls] or "__end__"
        return "tools" if last.tool_calls else "__end__"

    tools = guard_of(victim, saver).node([pay]) if victim.order.has_tools else ToolNode([pay])
    builder = StateGraph(MessagesState).add_node("think", think).add_node("tools", tools)
    builder.add_edge(START, "think").add_edge("tools", "think")
    builder.add_conditional_edges("think", onward, ["tools", "__end__"])
    return builder.compile(checkpointer=saver)


def agent(victim: Victim, saver: Any) -> Any:
    guards = [guard_of(victim, saver)] if victim.order.has_tools else []
    model, pay = Caller(victim=victim), pay_tool(victim)
    return create_agent(model, [pay], middleware=guards, checkpointer=saver)


def guard_of(victim: Victim, saver: Any) -> Any:
    from holdfast.integrations.langgraph import durable_tools

    return durable_tools(saver, limit_seconds=LIMIT_SECONDS)


def gated(victim: Victim, saver: Any) -> Any:
    """A node that waits to be let go, then pays; and one after it, which pays again."""

    def enter(state: MessagesState) -> Any:
        victim.write("entered", os.getpid())
        victim.wait_for("gate")
        victim.write("pay", 1)
        return {"messages": [AIMessage(f"{state['messages'][-1].content} entered")]}

    def leave(state: MessagesState) -> Any:
        victim.write("pay", 2)
        return {"messages": [AIMessage("left")]}

    builder = StateGraph(MessagesState).add_sequence([("enter", enter), ("leave", leave)])
    return builder.add_edge(START, "enter").compile(checkpointer=saver)


def asking(victim: Victim, saver: Any) -> Any:
    """A node that asks, waits to be let go once it was answered; and one after it, which pays."""

    def ask(state: MessagesState) -> Any:
        answer = interrupt("pay?")
        victim.write("answered", os.getpid())
        victim.wait_for("gate")
        return {"messages": [HumanMessage(f"answer {answer}")]}

    def pay(state: MessagesState) -> Any:
        victim.write("pay", 1)
        return {"messages": [AIMessage(f"paid, as of {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState).add_sequence([("ask", ask), ("pay", pay)])
    return builder.add_edge(START, "ask").compile(checkpointer=saver)


SHAPES = {"node": talking, "send": talking, "agent": agent, "gated": gated, "asking": asking}


def graph_of(victim: Victim, saver: Any) -> Any:
    graph = SHAPES[victim.order.shape](victim, saver)
    if not victim.order.is_durable:
        return graph
    from holdfast.integrations.langgraph import durable

    return durable(graph)


def given_of(order: Order) -> Any:
    if isinstance(order.given, str):
        return {"messages": [HumanMessage(order.given)]}
    return None if order.given is None else Command(resume=order.given["resume"])


def run(victim: Victim) -> dict[str, Any]:
    order = victim.order
    if order.seconds:
        # Nobody handles this signal: the process ends at once, wherever it is.
        signal.setitimer(signal.ITIMER_REAL, order.seconds)
    saver = saver_of(victim)
    graph, given = graph_of(victim, saver), given_of(order)
    where: Any = {"configurable": {"thread_id": order.thread}}
    options: dict[str, Any] = {"durability": order.durability} if order.durability else {}
    try:
        if order.face == "async":
            asyncio.run(graph.ainvoke(given, where, **options))
        else:
            graph.invoke(given, where, **options)
        state = graph.get_state(where)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    finally:
        if not order.stock:
            saver.close()
    return {
        "messages": [each.content for each in state.values.get("messages", ())],
        "next": list(state.next),
        "asks": {each.id: each.value for each in state.interrupts},
    }


if __name__ == "__main__":
    obey(Order, lambda order: run(Victim(order)))
