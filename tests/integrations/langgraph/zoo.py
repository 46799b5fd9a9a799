"""Graphs of every kind, and what is played on them: state, reducers, travel, updates, messages.

An act makes a graph for a saver, and plays it on a stage. Nodes count their calls, so that a saver
that lets more be done again than another shows.
"""

import dataclasses
import operator
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.integrations.langgraph.savers import Saver
from tests.integrations.langgraph.staging import Stage

Make = Callable[[Saver, Counter[str]], Any]
Play = Callable[[Stage], Awaitable[None]]


class Act(NamedTuple):
    make: Make
    play: Play


ACTS: dict[str, Act] = {}


def act(make: Make) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        ACTS[play.__name__] = Act(make, play)
        return play

    return register


class Total(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]
    last: str


def fold(old: str, new: str) -> str:
    """A reducer that tells in what order things came."""
    return f"({old or ''}+{new})"


class Folded(TypedDict, total=False):
    text: Annotated[str, fold]
    items: Annotated[list[str], operator.add]


def extend(old: list[str], writes: list[list[str]]) -> list[str]:
    return [*old, *(each for write in writes for each in write)]


class Deltas(TypedDict, total=False):
    items: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]
    n: int


def step(name: str, calls: Counter[str]) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        calls[name] += 1
        return {"items": [name], "last": name}

    return node


def make_line(saver: Saver, calls: Counter[str]) -> Any:
    """Three nodes, one after another."""
    builder = StateGraph(Total)
    for name in "abc":
        builder.add_node(name, step(name, calls))
    builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END)
    return builder.compile(checkpointer=saver)


@act(make_line)
async def invoke_and_stream_a_line(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    await stage.stream({"items": ["more"]})


@act(make_line)
async def stream_each_mode_by_itself(stage: Stage) -> None:
    for mode in ("values", "updates", "checkpoints", "tasks", "debug"):
        await stage.stream({"items": [mode]}, stream_mode=mode)


@act(make_line)
async def stop_before_and_after_nodes(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]}, interrupt_before=["b"])
    await stage.state()
    await stage.invoke(None, interrupt_after=["b"])
    await stage.state()
    await stage.invoke(None)


@act(make_line)
async def travel_from_every_point(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    for point in await stage.read_history():
        await stage.invoke(None, point.config)
        await stage.state()
    for point in (await stage.read_history())[::4]:
        await stage.invoke({"items": ["again"]}, point.config)


@act(make_line)
async def say_something_else_at_every_point(stage: Stage) -> None:
    for n in range(3):
        await stage.invoke({"items": [f"turn {n}"]})
    for point in (await stage.read_history())[::2]:
        await stage.invoke({"items": ["else"]}, point.config)
    await stage.invoke({"items": ["at the end"]})


@act(make_line)
async def update_state_here_and_there(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]}, interrupt_before=["b"])
    await stage.update({"items": ["by hand"]})
    await stage.state()
    await stage.update({"items": ["as b"]}, as_node="b")
    await stage.state()
    await stage.invoke(None)
    oldest = (await stage.read_history())[-1]
    fork = await stage.update({"items": ["elsewhere"]}, where=oldest.config, as_node="a")
    await stage.invoke(None, fork)
    await stage.update(None, as_node=END)
    await stage.update(None, as_node="__copy__")


@act(make_line)
async def give_an_input_by_hand_to_an_earlier_state(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    earlier = (await stage.read_history())[0].config
    await stage.invoke({"items": ["on"]})
    fork = await stage.update({"items": ["elsewhere"]}, where=earlier, as_node="__input__")
    await stage.invoke(None, fork)
    await stage.invoke({"items": ["again"]}, earlier)
    await stage.state()


@act(make_line)
async def update_a_state_that_is_not_there_yet(stage: Stage) -> None:
    await stage.update({"items": ["first"]}, as_node="a")
    await stage.state()
    await stage.invoke(None)


@act(make_line)
async def update_many_steps_at_once(stage: Stage) -> None:
    await stage.bulk_update(
        [
            [StateUpdate({"items": ["in"]}, "__input__")],
            [StateUpdate({"items": ["x"], "last": "x"}, "a")],
            [StateUpdate({"items": ["y"]}, "b"), StateUpdate({"items": ["z"]}, "c")],
        ]
    )
    await stage.invoke({"items": ["on"]})


def make_parallel(saver: Saver, calls: Counter[str]) -> Any:
    """Three nodes at once, whose updates are folded in order."""

    def node(name: str, seconds: float) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            calls[name] += 1
            time.sleep(seconds)
            return {"text": name, "items": [name]}

        return run

    builder = StateGraph(Folded)
    for name, seconds in (("slow", 0.02), ("mid", 0.01), ("fast", 0)):
        builder.add_node(name, node(name, seconds)).add_edge(START, name)
        builder.add_edge(name, "join")
    builder.add_node("join", node("join", 0), defer=True)
    return builder.compile(checkpointer=saver)


@act(make_parallel)
async def fold_what_parallel_nodes_wrote(stage: Stage) -> None:
    await stage.invoke({"text": "in"})
    await stage.stream({"text": "again"}, ordered=False)


def make_deltas(saver: Saver, calls: Counter[str]) -> Any:
    """Two writers of a delta channel at once, then one; the channel is seldom stored whole."""

    def node(name: str) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            calls[name] += 1
            seen = len(state.get("items", ()))
            return (
                {"items": [f"{name} saw {seen}"], "n": seen} if name == "z" else {"items": [name]}
            )

        return run

    builder = StateGraph(Deltas)
    for name in ("b", "a", "z"):
        builder.add_node(name, node(name))
    builder.add_edge(START, "b").add_edge(START, "a").add_edge(["a", "b"], "z")
    return builder.compile(checkpointer=saver)


@act(make_deltas)
async def rebuild_delta_channels(stage: Stage) -> None:
    for n in range(4):
        await stage.invoke({"items": [f"turn {n}"]})
    points = await stage.history()
    await stage.invoke({"items": ["fork"]}, points[2].config)
    await stage.update({"items": ["by hand"]}, as_node="z")
    await stage.update({"items": Overwrite(["anew"])}, as_node="z")
    await stage.invoke({"items": ["last"]})


def make_chat(saver: Saver, calls: Counter[str]) -> Any:
    def reply(state: MessagesState) -> Any:
        calls["reply"] += 1
        return {"messages": [AIMessage(f"reply to {state['messages'][-1].content}")]}

    return (
        StateGraph(MessagesState)
        .add_node("reply", reply)
        .add_edge(START, "reply")
        .compile(checkpointer=saver)
    )


@act(make_chat)
async def chat_for_some_turns(stage: Stage) -> None:
    for n in range(3):
        await stage.invoke({"messages": [("user", f"question {n}")]})
    await stage.stream({"messages": [HumanMessage("last", id="m1")]})
    await stage.invoke({"messages": [HumanMessage("changed", id="m1")]})


@act(make_chat)
async def remove_messages(stage: Stage) -> None:
    await stage.invoke({"messages": [HumanMessage("one", id="m1")]})
    await stage.invoke({"messages": [HumanMessage("two", id="m2")]})
    await stage.update({"messages": [RemoveMessage("m1")]}, as_node="reply")
    await stage.state()
    await stage.invoke({"messages": [RemoveMessage("m2"), HumanMessage("three")]})
    await stage.update(
        {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("anew")]}, as_node="reply"
    )


def make_meddling(saver: Saver, calls: Counter[str]) -> Any:
    """A node that changes messages in place, and returns them or not."""

    def meddle(state: MessagesState) -> Any:
        calls["meddle"] += 1
        first, last = state["messages"][0], state["messages"][-1]
        first.additional_kwargs["seen"] = calls["meddle"]
        if last.content == "returned":
            first.content = f"changed and returned {calls['meddle']}"
            return {"messages": [first]}
        first.content = f"changed behind the back {calls['meddle']}"
        return {"messages": [AIMessage("another")]}

    def rest(state: MessagesState) -> None:
        calls["rest"] += 1

    return (
        StateGraph(MessagesState)
        .add_sequence([("meddle", meddle), ("rest", rest)])
        .add_edge(START, "meddle")
        .compile(checkpointer=saver)
    )


@act(make_meddling)
async def change_messages_in_place(stage: Stage) -> None:
    await stage.invoke({"messages": [HumanMessage("original", id="m1")]})
    await stage.history()
    await stage.invoke({"messages": ["returned"]})
    await stage.history()
    await stage.invoke({"messages": ["not returned"]})
    await stage.history()
    await stage.invoke({"messages": ["not returned", "twice"]})


class Point(BaseModel):
    x: int
    label: str = ""


@dataclasses.dataclass
class Order:
    item: str
    at: Point


class Typed(TypedDict, total=False):
    point: Point
    order: Order
    odd: Any


def make_typed(saver: Saver, calls: Counter[str]) -> Any:
    def move(state: Typed) -> Any:
        calls["move"] += 1
        point = Point(x=state["point"].x + 1, label="ä☃")
        return {
            "point": point,
            "order": Order("tea", point),
            "odd": {
                "tuple": (1, (2,)),
                "set": {3},
                "bytes": b"\x00\xff",
                5: "int key",
                "none": None,
            },
        }

    return (
        StateGraph(Typed).add_node("move", move).add_edge(START, "move").compile(checkpointer=saver)
    )


@act(make_typed)
async def keep_types(stage: Stage) -> None:
    await stage.invoke({"point": Point(x=1)})
    await stage.invoke({"point": Point(x=5)})


def make_sends(saver: Saver, calls: Counter[str]) -> Any:
    """Twenty branches, of which one fails the first time."""

    def plan(state: Folded) -> Any:
        calls["plan"] += 1
        return {"items": ["planned"]}

    def branch(given: Any) -> Any:
        calls[f"branch {given['n']}"] += 1
        if given["n"] == 13 and calls["branch 13"] == 1:
            while sum(calls.values()) < 21:
                time.sleep(0.01)
            time.sleep(0.2)  # what the others wrote is handed over when they have returned
            raise ConnectionError("branch 13 fails once")
        return {"text": str(given["n"]), "items": [f"branch {given['n']}"]}

    builder = StateGraph(Folded).add_node("plan", plan).add_node("branch", branch)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda state: [Send("branch", {"n": n}) for n in range(20)], ["branch"]
    )
    return builder.compile(checkpointer=saver)


@act(make_sends)
async def fan_out_with_one_branch_that_fails(stage: Stage) -> None:
    result = await stage.invoke({"text": "in"})
    assert isinstance(result, ConnectionError)
    await stage.state()
    await stage.invoke(None)


def make_failing(saver: Saver, calls: Counter[str]) -> Any:
    """A node that fails twice, beside one that does not."""

    def fail(state: Total) -> Any:
        calls["fail"] += 1
        if calls["fail"] < 3:
            raise ValueError(f"failure {calls['fail']}")
        return {"items": ["at last"]}

    builder = StateGraph(Total).add_node("a", step("a", calls)).add_node("fail", fail)
    builder.add_edge(START, "a").add_edge("a", "fail").add_edge("fail", END)
    return builder.compile(checkpointer=saver)


@act(make_failing)
async def resume_what_failed(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    await stage.state()
    await stage.invoke(None)
    await stage.state()
    await stage.invoke(None)


def make_commanding(saver: Saver, calls: Counter[str]) -> Any:
    """Nodes that say themselves where to go."""

    def route(state: Total) -> Command[Any]:
        calls["route"] += 1
        to = "right" if len(state["items"]) > 1 else "left"
        return Command(goto=to, update={"items": [f"to {to}"]})

    def left(state: Total) -> Command[Any]:
        calls["left"] += 1
        return Command(goto=["route"], update=[("items", ["left"]), ("last", "left")])

    builder = StateGraph(Total).add_node("route", route, destinations=("left", "right"))
    builder.add_node("left", left, destinations=("route",)).add_node("right", step("right", calls))
    return builder.add_edge(START, "route").compile(checkpointer=saver)


@act(make_commanding)
async def go_where_commands_say(stage: Stage) -> None:
    await stage.invoke({"items": []})
    await stage.invoke(Command(goto="left", update={"items": ["from outside"]}))
    await stage.invoke(Command(update={"items": ["only an update"]}))


def make_asking(saver: Saver, calls: Counter[str]) -> Any:
    def ask(state: Total) -> Any:
        calls["ask"] += 1
        answers = [interrupt({"question": n, "of": state.get("last")}) for n in range(3)]
        return {"items": answers, "last": "asked"}

    builder = StateGraph(Total).add_node("a", step("a", calls)).add_node("ask", ask)
    builder.add_node("z", step("z", calls))
    builder.add_edge(START, "a").add_edge("a", "ask").add_edge("ask", "z")
    return builder.compile(checkpointer=saver)


@act(make_asking)
async def ask_several_times_in_one_node(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    await stage.state()
    for answer in ("one", {"two": 2}, None):
        await stage.invoke(Command(resume=answer))
        await stage.state()
    points = await stage.read_history()
    asked = next(point for point in points if point.next == ("ask",))
    await stage.invoke(None, asked.config)
    await stage.invoke(Command(resume="other"))


@act(make_asking)
async def resume_in_a_stream_and_answer_with_an_update(stage: Stage) -> None:
    await stage.stream({"items": ["in"]})
    await stage.stream(Command(resume="one", update={"last": "told"}))
    await stage.stream(Command(resume="two"))
    await stage.stream(Command(resume="three"))


@act(make_asking)
async def say_something_new_instead_of_answering(stage: Stage) -> None:
    await stage.invoke({"items": ["in"]})
    await stage.invoke({"items": ["never mind"]})
    await stage.invoke(None)
    await stage.update({"items": ["answered by hand"]}, as_node="ask")
    await stage.invoke(None)


def make_parallel_asking(saver: Saver, calls: Counter[str]) -> Any:
    def asking(name: str) -> Callable[[Any], Any]:
        def ask(state: Any) -> Any:
            calls[name] += 1
            return {"items": [f"{name}: {interrupt(name)}"], "text": name}

        return ask

    builder = StateGraph(Folded)
    for name in "xyz":
        builder.add_node(name, asking(name)).add_edge(START, name)
    builder.add_node("calm", step("calm", calls)).add_edge(START, "calm")
    return builder.compile(checkpointer=saver)


@act(make_parallel_asking)
async def answer_parallel_questions_by_their_ids(stage: Stage) -> None:
    await stage.invoke({"text": "in"})
    asked = await stage.state()
    answers = {each.id: f"to {each.value}" for each in asked.interrupts}
    assert len(answers) == 3
    first, *others = answers.items()
    await stage.invoke(Command(resume=dict([first])))
    await stage.state()
    await stage.invoke(Command(resume=dict(others)))


def make_looping(saver: Saver, calls: Counter[str]) -> Any:
    def ask(state: Total) -> Command[Any]:
        calls["ask"] += 1
        answer = interrupt(f"go on after {len(state['items'])}?")
        return Command(goto="ask" if answer == "yes" else END, update={"items": [answer]})

    return (
        StateGraph(Total)
        .add_node("ask", ask, destinations=("ask", END))
        .add_edge(START, "ask")
        .compile(checkpointer=saver)
    )


@act(make_looping)
async def ask_in_a_loop(stage: Stage) -> None:
    await stage.invoke({"items": []})
    for answer in ("yes", "yes", "no"):
        await stage.invoke(Command(resume=answer))
        await stage.state()
