"""Durable graphs: one process at a time, steps stored before the next, answers from the inbox."""

import asyncio
import json
import operator
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, interrupt

import holdfast
from holdfast.errors import MisuseError, ThreadBusy
from holdfast.integrations.langgraph import HoldfastSaver, durable
from holdfast.integrations.langgraph.checkpoint_config import TOKEN
from holdfast.integrations.langgraph.interrupts import RESUME
from tests import forked_cli
from tests.integrations.langgraph.durably import Graph, both_faces, interrupts, thread


class State(TypedDict):
    log: Annotated[list[Any], operator.add]


def chain(saver: Any, *nodes: Callable[..., Any]) -> Graph:
    """A graph of nodes one after another."""
    builder = StateGraph(State)
    last = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(last, node.__name__)
        last = node.__name__
    builder.add_edge(last, END)
    return builder.compile(checkpointer=saver)


def a(state: State) -> State:
    return {"log": ["a"]}


def b(state: State) -> State:
    return {"log": ["b"]}


def ask(state: State) -> State:
    return {"log": [interrupt("How many?")]}


def run(graph: Graph, face: str, given: Any, config: Any = None, **options: Any) -> dict[str, Any]:
    config = config or thread()
    if face == "sync":
        return graph.invoke(given, config, **options)
    return asyncio.run(graph.ainvoke(given, config, **options))


def status(store: str, run_id: str = "t") -> str:
    with holdfast.sync.open(store) as hf:
        return hf.runs.get(run_id).status.value


def asked(store: str) -> list[Any]:
    with holdfast.sync.open(store) as hf:
        return hf.approvals.list()


def answer(store: str, value: object, *, prompt: str | None = None) -> None:
    with holdfast.sync.open(store) as hf:
        for question in hf.approvals.list():
            if prompt in (None, question.prompt):
                hf.approvals.answer(question.wait_id, value, by="ann")


def cli(store: str, *words: str) -> Any:
    done = forked_cli.run(*words, "--store", store, "-o", "json", env=os.environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_durable_graph_is_the_same_kind_of_graph() -> None:
    with HoldfastSaver("memory://") as saver:
        graph = durable(chain(saver, a, b))
        assert isinstance(graph, CompiledStateGraph)
        assert durable(graph).__class__ is graph.__class__
        assert graph.with_config(tags=["x"]).__class__ is graph.__class__
        assert graph.copy().invoke({"log": []}, thread())["log"] == ["a", "b"]
        assert set(graph.get_graph().nodes) == {"__start__", "a", "b", "__end__"}
        assert graph.get_state(thread()).values == {"log": ["a", "b"]}
        assert graph.name == chain(saver, a).name


def test_durable_takes_functional_graphs_too(store: str) -> None:
    with HoldfastSaver(store) as saver:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            assert status(store) == "running"
            return number * 2

        assert durable(double).invoke(21, thread()) == 42
    assert status(store) == "ready"


@both_faces
def test_thread_is_held_while_its_graph_runs_and_given_back(store: str, face: str) -> None:
    seen: list[str] = []

    def look(state: State) -> State:
        seen.append(status(store))
        return {"log": ["looked"]}

    with HoldfastSaver(store) as saver:
        run(durable(chain(saver, look)), face, {"log": []})
        assert seen == ["running"]
        assert status(store) == "ready"


@both_faces
def test_each_step_is_stored_before_the_next_begins(store: str, face: str) -> None:
    stored: list[Any] = []
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:

        def look(state: State) -> State:
            found = other.get_tuple(thread())
            assert found is not None
            stored.append(found.checkpoint["channel_values"]["log"])
            return {"log": ["looked"]}

        run(durable(chain(saver, a, look)), face, {"log": []})
    assert stored == [["a"]]


@pytest.mark.parametrize(
    "options", [{"durability": "exit"}, {"durability": "async"}, {"checkpoint_during": True}]
)
@both_faces
def test_weaker_durability_is_refused(face: str, options: dict[str, Any]) -> None:
    with HoldfastSaver("memory://") as saver:
        graph = durable(chain(saver, a))
        with pytest.raises(MisuseError, match="sync"):
            run(graph, face, {"log": []}, **options)
        assert run(graph, face, {"log": []}, durability="sync")["log"] == ["a"]


@both_faces
def test_thread_that_runs_is_refused_to_others(store: str, face: str) -> None:
    refused: list[str] = []
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:

        def compete(state: State) -> State:
            for rival in (saver, other):
                rival_graph = durable(chain(rival, a))
                try:
                    rival_graph.invoke({"log": []}, thread())
                except ThreadBusy as error:
                    refused.append(str(error))
                try:
                    rival_graph.update_state(thread(), {"log": ["x"]})
                except ThreadBusy as error:
                    refused.append(str(error))
            durable(chain(other, a)).invoke({"log": []}, thread("u"))
            return {"log": ["mine"]}

        state = run(durable(chain(saver, compete)), face, {"log": []})
        assert len(refused) == 4
        assert "worked on" in refused[0]
        assert state["log"] == ["mine"]
        assert durable(chain(other, a)).invoke({"log": []}, thread())["log"] == ["mine", "a"]


@both_faces
def test_thread_is_given_back_when_a_node_raises(store: str, face: str) -> None:
    def broken(state: State) -> State:
        raise RuntimeError("broken")

    with HoldfastSaver(store) as saver:
        with pytest.raises(RuntimeError, match="broken"):
            run(durable(chain(saver, broken)), face, {"log": []})
        assert status(store) == "ready"


def test_thread_is_given_back_when_a_stream_is_abandoned(store: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, a, b))
        chunks = graph.stream({"log": []}, thread(), stream_mode="updates")
        assert next(chunks) == {"a": {"log": ["a"]}}
        assert status(store) == "running"
        chunks.close()
        assert status(store) == "ready"

        async def leave() -> None:
            chunks = graph.astream({"log": []}, thread("u"), stream_mode="updates")
            assert await anext(chunks) == {"a": {"log": ["a"]}}
            assert status(store, "u") == "running"
            await chunks.aclose()

        asyncio.run(leave())
        assert status(store, "u") == "ready"


def test_thread_is_given_back_when_its_task_is_cancelled(store: str) -> None:
    begun = asyncio.Event()

    async def hang(state: State) -> State:
        begun.set()
        await asyncio.Event().wait()
        return {"log": []}

    async def cancel(graph: Graph) -> None:
        running = asyncio.create_task(graph.ainvoke({"log": []}, thread()))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with HoldfastSaver(store) as saver:
        asyncio.run(cancel(durable(chain(saver, hang))))
        assert status(store) == "ready"


def test_batches_and_events_hold_their_threads(store: str) -> None:
    seen: list[str] = []

    def look(state: State) -> State:
        seen.append(status(store, state["log"][0]))
        return {"log": ["looked"]}

    async def events(graph: Graph) -> list[str]:
        found: AsyncIterator[Any] = graph.astream_events(
            {"log": ["t3"]}, thread("t3"), version="v2"
        )
        return [event["event"] async for event in found]

    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, look))
        graph.batch([{"log": ["t1"]}, {"log": ["t2"]}], [thread("t1"), thread("t2")])
        assert "on_chain_end" in asyncio.run(events(graph))
        assert seen == ["running"] * 3
        assert [status(store, name) for name in ("t1", "t2", "t3")] == ["ready"] * 3


@both_faces
def test_durable_graph_inside_another_takes_no_lease_of_its_own(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        inner = durable(chain(None, a, b))
        outer = StateGraph(State)
        outer.add_node("inner", inner)
        outer.add_edge(START, "inner")
        for graph in (
            outer.compile(checkpointer=saver),
            durable(outer.compile(checkpointer=saver)),
        ):
            name = type(graph).__name__ + str(id(graph))
            state = run(graph, face, {"log": ["x"]}, thread(name))
            assert state["log"][-2:] == ["a", "b"]
            assert status(store, name) == "ready"


@both_faces
def test_state_is_updated_under_the_lease_and_tells_no_lease(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, a, b))
        if face == "sync":
            config = graph.update_state(thread(), {"log": ["x"]}, as_node="a")
        else:
            config = asyncio.run(graph.aupdate_state(thread(), {"log": ["x"]}, as_node="a"))
        assert TOKEN not in config["configurable"]
        assert status(store) == "ready"
        assert run(graph, face, None)["log"] == ["x", "b"]


def test_graph_without_a_saver_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"InMemorySaver .*HoldfastSaver"):
        durable(chain(InMemorySaver(), a))
    with pytest.raises(MisuseError, match="no checkpointer"):
        durable(chain(None, a)).invoke({"log": []}, thread())
    with pytest.raises(MisuseError, match="compiled graph"):
        durable(StateGraph(State))  # pyright: ignore[reportArgumentType]
    with HoldfastSaver("memory://") as saver, pytest.raises(MisuseError, match="thread"):
        durable(chain(saver, a)).invoke({"log": []})


@both_faces
def test_saver_may_be_given_when_the_graph_runs(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        config = {"configurable": {"thread_id": "t", "__pregel_checkpointer": saver}}
        assert run(durable(chain(None, a)), face, {"log": []}, config)["log"] == ["a"]
    assert status(store) == "ready"


@both_faces
def test_interrupt_is_a_question_and_its_answer_lets_the_graph_go_on(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, a, ask, b))
        assert interrupts(run(graph, face, {"log": []})) == ["How many?"]
        (question,) = asked(store)
        assert (question.run_id, question.kind, question.prompt) == ("t", "question", "How many?")
        assert status(store) == "waiting"
        assert interrupts(run(graph, face, None)) == ["How many?"]
        assert len(asked(store)) == 1
        answer(store, 7)
        assert run(graph, face, None)["log"] == ["a", 7, "b"]
    assert asked(store) == []


@both_faces
def test_answer_is_given_on_the_command_line(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, ask))
        for text, value in {"false": False, "yes": "yes", '{"n": 1}': {"n": 1}}.items():
            config = thread(f"t-{text}")
            run(graph, face, {"log": []}, config)
            (listed,) = cli(store, "approvals", "list")
            cli(store, "approvals", "answer", listed["wait_id"], text)
            assert run(graph, face, None, config)["log"] == [value]


@both_faces
def test_question_that_is_answered_by_a_command_is_closed_with_that_answer(
    store: str, face: str
) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, ask))
        run(graph, face, {"log": []})
        (question,) = asked(store)
        assert run(graph, face, Command(resume=5))["log"] == [5]
    with holdfast.sync.open(store) as hf:
        closed = hf.approvals.get(question.wait_id)
    assert (closed.status, closed.answer, closed.answered_by) == ("resolved", 5, "langgraph")


class SlowAnswers(HoldfastSaver):
    """Stores what a resumed task has written later than the checkpoint after it could be stored."""

    def call(self, function: Any, *given: Any) -> Any:
        if _is_answer(given):
            time.sleep(SLOW_SECONDS)
        return super().call(function, *given)

    async def acall(self, function: Any, *given: Any) -> Any:
        if _is_answer(given):
            await asyncio.sleep(SLOW_SECONDS)
        return await super().acall(function, *given)


SLOW_SECONDS = 0.5


def _is_answer(given: tuple[Any, ...]) -> bool:
    channels = [name for each in given for name, _ in getattr(each, "given", ())]
    return RESUME in channels and len(channels) > 1


@both_faces
def test_checkpoint_does_not_withdraw_a_question_whose_answer_is_being_stored(
    store: str, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LangGraph stores the writes of a task and the checkpoint after it at the same time."""
    with SlowAnswers(store) as saver:
        graph = durable(chain(saver, ask))
        run(graph, face, {"log": []})
        (question,) = asked(store)
        assert run(graph, face, Command(resume=5))["log"] == [5]
    with holdfast.sync.open(store) as hf:
        closed = hf.approvals.get(question.wait_id)
        assert hf.waits.get(question.wait_id).duplicates == 0
    assert (closed.status, closed.answer, closed.answered_by) == ("resolved", 5, "langgraph")
    assert caplog.messages == []


@both_faces
def test_question_is_withdrawn_when_the_graph_gets_other_input(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, ask))
        run(graph, face, {"log": []})
        (first,) = asked(store)
        run(graph, face, {"log": ["never mind"]})
        (second,) = asked(store)
        assert second.wait_id != first.wait_id
    with holdfast.sync.open(store) as hf:
        assert hf.approvals.get(first.wait_id).status == "cancelled"


@both_faces
def test_node_that_asks_twice_gets_each_answer_in_its_place(store: str, face: str) -> None:
    def both(state: State) -> State:
        return {"log": [interrupt("First?"), interrupt("Second?")]}

    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, both))
        run(graph, face, {"log": []})
        answer(store, 1)
        assert interrupts(run(graph, face, None)) == ["Second?"]
        assert [question.prompt for question in asked(store)] == ["Second?"]
        answer(store, 2)
        assert run(graph, face, None)["log"] == [1, 2]
    assert asked(store) == []


@both_faces
def test_questions_of_parallel_branches_are_answered_one_by_one(store: str, face: str) -> None:
    def fan(state: State) -> list[Send]:
        return [Send("branch", {"log": [name]}) for name in ("x", "y")]

    def branch(state: State) -> State:
        name = state["log"][0]
        return {"log": [f"{name}={interrupt(f'{name}?')}"]}

    builder = StateGraph(State)
    builder.add_node("branch", branch)
    builder.add_conditional_edges(START, fan, ["branch"])
    with HoldfastSaver(store) as saver:
        graph = durable(builder.compile(checkpointer=saver))
        run(graph, face, {"log": []})
        assert sorted(question.prompt for question in asked(store)) == ["x?", "y?"]
        answer(store, 2, prompt="y?")
        assert interrupts(run(graph, face, None)) == ["x?"]
        answer(store, 1, prompt="x?")
        assert sorted(run(graph, face, None)["log"]) == ["x=1", "y=2"]
    assert asked(store) == []


@both_faces
def test_interrupt_of_a_subgraph_is_one_question(store: str, face: str) -> None:
    outer = StateGraph(State)
    outer.add_node("inner", chain(None, ask))
    outer.add_edge(START, "inner")
    with HoldfastSaver(store) as saver:
        graph = durable(outer.compile(checkpointer=saver))
        run(graph, face, {"log": []})
        assert len(asked(store)) == 1
        answer(store, 3)
        assert run(graph, face, None)["log"][-1] == 3
    assert asked(store) == []


@both_faces
def test_answer_that_the_schema_does_not_allow_is_refused_in_the_inbox(
    store: str, face: str
) -> None:
    def typed(state: State) -> State:
        return {"log": [interrupt("How many?", response_schema={"type": "integer"})]}

    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, typed))
        run(graph, face, {"log": []})
        with pytest.raises(holdfast.errors.AnswerRefused):
            answer(store, "many")
        answer(store, 4)
        assert run(graph, face, None)["log"] == [4]


@both_faces
def test_going_on_from_an_earlier_checkpoint_takes_no_answer(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = durable(chain(saver, a, ask))
        run(graph, face, {"log": []})
        answer(store, 7)
        before = next(
            state.config for state in graph.get_state_history(thread()) if state.next == ("a",)
        )
        assert interrupts(run(graph, face, None, before)) == ["How many?"]
