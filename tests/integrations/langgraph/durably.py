"""Agents whose models say what a test tells them, and what they have done outside."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver, durable_tools, holdfast_key
from holdfast.kernel.effects import Effect

Graph = Pregel[Any, Any, Any, Any]
both_faces = pytest.mark.parametrize("face", ["sync", "async"])


class Scripted(BaseChatModel):
    """Says one message after another."""

    says: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.says.pop(0))])


class Bank:
    """Counts what was done outside, and fails when it is told to."""

    def __init__(self, *, fails: BaseException | None = None) -> None:
        self.charged: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.fails = fails
        self.then: Callable[[], Any] = lambda: None

    def tool(self, face: str = "sync", **options: Any) -> BaseTool:
        def charge(customer: str, cents: int) -> Any:
            """Charge a customer."""
            self.charged.append((customer, cents))
            self.keys.append(holdfast_key())
            self.then()
            if self.fails is not None:
                raise self.fails
            return f"charged {cents}"

        async def charge_async(customer: str, cents: int) -> Any:
            """Charge a customer."""
            return charge(customer, cents)

        made = tool("charge", **options)(charge_async if face == "async" else charge)
        return cast(BaseTool, made)


def asks(*calls: tuple[str, dict[str, Any], str]) -> AIMessage:
    """A model's message that asks for calls: name, arguments, id."""
    return AIMessage("", tool_calls=[{"name": n, "args": a, "id": i} for n, a, i in calls])


def charging(call_id: str, customer: str = "ann", cents: int = 5) -> AIMessage:
    return asks(("charge", {"customer": customer, "cents": cents}, call_id))


def agent(
    saver: BaseCheckpointSaver[Any],
    tools: Sequence[Any],
    says: Sequence[AIMessage],
    **options: Any,
) -> Graph:
    """An agent with durable tools whose model says this."""
    return create_agent(
        Scripted(says=list(says)),
        list(tools),
        middleware=[durable_tools(cast(HoldfastSaver, saver), **options)],
        checkpointer=saver,
    )


def thread(name: str = "t") -> Any:
    return {"configurable": {"thread_id": name}}


def human(text: str = "go") -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def run(graph: Graph, face: str, given: Any, config: Any = None, **options: Any) -> dict[str, Any]:
    """Run a graph by one of its faces."""
    config = config or thread()
    options = {"durability": "sync"} | options
    if face == "sync":
        return graph.invoke(given, config, **options)
    return asyncio.run(graph.ainvoke(given, config, **options))


def replies(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def told(state: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tools' replies, each with the id of its call."""
    return [(message.tool_call_id, message.content) for message in replies(state)]


def effects(store: str, run_id: str = "t") -> list[Effect]:
    with holdfast.sync.open(store) as hf:
        return hf.effects.of_run(run_id)


def statuses(store: str, run_id: str = "t") -> list[str]:
    return [effect.status.value for effect in effects(store, run_id)]


def interrupts(state: dict[str, Any]) -> list[Any]:
    return [each.value for each in state.get("__interrupt__", [])]
