"""More acts: subgraphs, the functional API, and agents with tools."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from tests.integrations.langgraph.savers import Saver
from tests.integrations.langgraph.staging import Stage
from tests.integrations.langgraph.zoo import Total, act, step


def make_nested(saver: Saver, calls: Counter[str], *, keeps: bool | None = None) -> Any:
    """A graph in a graph in a graph; the innermost asks."""

    def ask(state: Total) -> Any:
        calls["ask"] += 1
        return {"items": [f"answer {interrupt('deep question')}"], "last": "deep"}

    inner = StateGraph(Total).add_node("d", step("d", calls)).add_node("ask", ask)
    inner.add_edge(START, "d").add_edge("d", "ask")
    middle = StateGraph(Total).add_node("m", step("m", calls))
    middle.add_node("inner", inner.compile(checkpointer=keeps))
    middle.add_edge(START, "m").add_edge("m", "inner")
    outer = StateGraph(Total).add_node("o", step("o", calls))
    outer.add_node("middle", middle.compile(checkpointer=keeps))
    outer.add_node("end", step("end", calls))
    outer.add_edge(START, "o").add_edge("o", "middle").add_edge("middle", "end")
    return outer.compile(checkpointer=saver)


def make_keeping(saver: Saver, calls: Counter[str]) -> Any:
    return make_nested(saver, calls, keeps=True)


@act(make_nested)
async def nest_graphs_two_deep(stage: Stage) -> None:
    await play_nested(stage)


@act(make_keeping)
async def nest_graphs_that_keep_their_state(stage: Stage) -> None:
    await play_nested(stage)


async def play_nested(stage: Stage) -> None:
    await stage.stream({"items": ["in"]})
    asked = await stage.state()
    inner = asked.tasks[0].state
    assert inner is not None
    await stage.history(inner.config)
    await stage.update({"items": ["into the subgraph"]}, where=inner.config)
    await stage.state()
    await stage.stream(Command(resume="one"))
    await stage.invoke({"items": ["again"]})
    await stage.invoke(Command(resume="two"))
    points = await stage.read_history()
    waiting = [point for point in points if point.next == ("middle",)]
    await stage.invoke(None, waiting[-1].config)
    await stage.invoke(Command(resume="three"))


def make_calling(saver: Saver, calls: Counter[str]) -> Any:
    """A node that calls a graph by itself."""
    inner = StateGraph(Total).add_node("d", step("d", calls)).add_edge(START, "d").compile()

    def node(state: Total) -> Any:
        calls["node"] += 1
        return {"items": inner.invoke({"items": ["called"]})["items"]}

    builder = StateGraph(Total).add_node("node", node).add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@act(make_calling)
async def call_a_graph_in_a_node(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    await stage.invoke({"items": ["again"]})


def make_functional(saver: Saver, calls: Counter[str]) -> Any:
    @task
    def double(n: int) -> int:
        calls[f"double {n}"] += 1
        return 2 * n

    @task
    def shaky(n: int) -> int:
        calls["shaky"] += 1
        if calls["shaky"] == 1:
            raise ConnectionError("shaky once")
        return n + 1

    @entrypoint(checkpointer=saver)
    def flow(given: dict[str, Any], *, previous: Any = None) -> Any:
        calls["flow"] += 1
        doubled = [future.result() for future in [double(n) for n in range(given["n"])]]
        total = shaky(sum(doubled)).result()
        answer = interrupt(f"total is {total}")
        return entrypoint.final(
            value={"total": total, "answer": answer, "previous": previous},
            save={"turns": (previous or {"turns": 0})["turns"] + 1, "answer": answer},
        )

    return flow


@act(make_functional)
async def run_tasks_of_an_entrypoint_once(stage: Stage) -> None:
    failed = await stage.invoke({"n": 3})
    assert isinstance(failed, ConnectionError)
    await stage.state()
    await stage.invoke(None)
    await stage.state()
    await stage.invoke(Command(resume="yes"))
    await stage.invoke({"n": 2})
    await stage.invoke(Command(resume="again"))


class Scripted(BaseChatModel):
    """A model that calls the tool it is asked for, as often as it is told, and then says so."""

    calls: Any = None
    many: int = 2
    tool: str = "look"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.calls["model"] += 1
        if isinstance(messages[-1], ToolMessage):
            reply = AIMessage(f"done, {messages[-1].content}")
        else:
            turn = sum(isinstance(each, HumanMessage) for each in messages)
            wanted = [
                {"name": self.tool, "args": {"n": n}, "id": f"call-{turn}-{n}"}
                for n in range(self.many)
            ]
            reply = AIMessage("calling", tool_calls=wanted)
        return ChatResult(generations=[ChatGeneration(message=reply)])


def tools_of(calls: Counter[str]) -> list[Any]:
    @tool
    def look(n: int) -> str:
        """Look something up."""
        calls[f"look {n}"] += 1
        return f"seen {n}"

    @tool
    def ask(n: int) -> str:
        """Ask a human."""
        calls[f"ask {n}"] += 1
        return f"told {interrupt(f'question {n}')}"

    return [look, ask]


def make_agent(saver: Saver, calls: Counter[str]) -> Any:
    return create_agent(Scripted(calls=calls), tools_of(calls), checkpointer=saver)


def make_asking_agent(saver: Saver, calls: Counter[str]) -> Any:
    model = Scripted(calls=calls, tool="ask")
    return create_agent(model, tools_of(calls), checkpointer=saver)


@act(make_agent)
async def let_an_agent_call_tools(stage: Stage) -> None:
    await stage.invoke({"messages": [("user", "look")]})
    await stage.stream({"messages": [("user", "again")]}, ordered=False)


@act(make_asking_agent)
async def let_tools_of_an_agent_ask(stage: Stage) -> None:
    await stage.invoke({"messages": [("user", "ask")]})
    asked = await stage.state()
    first, second = asked.interrupts
    await stage.invoke(Command(resume={first.id: "yes"}))
    await stage.state()
    await stage.invoke(Command(resume={second.id: "no"}))


def make_tool_node(saver: Saver, calls: Counter[str]) -> Any:
    """Two calls in one node: the old way of agents."""
    model = Scripted(calls=calls)

    def think(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def onward(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else "__end__"

    builder = StateGraph(MessagesState).add_node("think", think)
    builder.add_node("tools", ToolNode(tools_of(calls)))
    builder.add_edge(START, "think").add_edge("tools", "think")
    builder.add_conditional_edges("think", onward, ["tools", "__end__"])
    return builder.compile(checkpointer=saver)


@act(make_tool_node)
async def call_tools_in_one_node(stage: Stage) -> None:
    await stage.invoke({"messages": [("user", "look")]})
    await stage.invoke({"messages": [("user", "again")]})
