"""What once went wrong when somebody tried to break it."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import holdfast
from holdfast.errors import CheckpointConflict, MisuseError, ThreadBusy
from holdfast.integrations.langgraph import HoldfastSaver, durable, durable_tools
from holdfast.integrations.langgraph.layout import run_id_of
from holdfast.kernel.journal import body_of
from tests.integrations.langgraph.durably import Scripted, asks

WHERE: Any = {"configurable": {"thread_id": "t"}}
PATIENCE_SECONDS = 240


def echo(saver: HoldfastSaver, meanwhile: Any = None) -> Any:
    """A graph that says what it was told; `meanwhile` is called in its node, once."""

    def reply(state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-1].text
        if meanwhile is not None and said == "slow":
            meanwhile()
        return {"messages": [("ai", f"re: {said}")]}

    builder = StateGraph(MessagesState).add_node("reply", reply).add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def say(graph: Any, text: str, **options: Any) -> Any:
    return graph.invoke({"messages": [("user", text)]}, WHERE, **options)


def said(graph: Any) -> list[str]:
    return [message.text for message in graph.get_state(WHERE).values.get("messages", [])]


def test_input_while_a_turn_runs_is_not_lost_behind_it(store: str) -> None:
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        second = echo(other)
        first = echo(saver, meanwhile=lambda: say(second, "fast"))
        with pytest.raises(CheckpointConflict):
            say(first, "slow", durability="sync")
        assert said(second) == ["slow", "fast", "re: fast"]


def test_looking_at_a_past_checkpoint_does_not_make_a_run_a_branch(store: str) -> None:
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        second = echo(other)

        def meanwhile() -> None:
            past = first.get_state(WHERE).config
            say(second, "fast", durability="sync")
            first.get_state(past)

        first = echo(saver, meanwhile=meanwhile)
        with pytest.raises(CheckpointConflict):
            say(first, "slow", durability="sync")


def payments(saver: HoldfastSaver, says: list[AIMessage], **options: Any) -> tuple[Any, list[str]]:
    paid: list[str] = []

    @tool
    def pay(customer: str) -> str:
        """Pay."""
        paid.append(customer)
        return f"receipt {len(paid)}"

    model = Scripted(says=says)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def person(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("user", interrupt("what else?"))]}

    def after(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else "person"

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", durable_tools(saver, **options).node([pay]))
    builder.add_node("person", person)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", after, ["tools", "person"])
    builder.add_edge("tools", "ask")
    builder.add_edge("person", "ask")
    return durable(builder.compile(checkpointer=saver)), paid


def paying(call_id: str) -> AIMessage:
    return asks(("pay", {"customer": "ann"}, call_id))


def test_call_that_answers_another_message_of_a_person_is_another_call(store: str) -> None:
    with HoldfastSaver(store) as saver:
        says = [said for _ in range(3) for said in (paying("c1"), AIMessage("done"))]
        graph, paid = payments(saver, says)
        say(graph, "pay ann")
        graph.invoke(Command(resume="pay ann, for April"), WHERE)
        graph.update_state(WHERE, {"messages": [("user", "pay ann, for May")]}, as_node="__start__")
        graph.invoke(None, WHERE)
        assert paid == ["ann"] * 3


def test_turn_is_known_after_all_but_the_latest_checkpoint_are_pruned(store: str) -> None:
    with HoldfastSaver(store) as saver:
        graph, paid = payments(saver, [paying("c1"), AIMessage("done"), paying("c2")])
        graph.interrupt_before_nodes = ["tools"]
        say(graph, "pay ann")
        saver.prune(["t"])
        graph.invoke(None, WHERE)
        assert paid == ["ann"]


async def say_last(graph: Any) -> None:
    """Run a graph as soon as its thread is free."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with contextlib.suppress(ThreadBusy):
                await graph.ainvoke({"messages": [("user", "last")]}, WHERE)
                return
            await asyncio.sleep(0.02)


def test_thread_is_free_if_its_taker_is_cancelled_before_it_hears_of_the_lease(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HoldfastSaver(store) as saver:
        acall = saver.acall

        async def never_heard(method: Any, *args: Any, **options: Any) -> Any:
            answer = await acall(method, *args, **options)
            if method.__name__ == "hold":
                raise asyncio.CancelledError
            return answer

        async def attempts() -> None:
            graph = durable(echo(saver))
            with monkeypatch.context() as patched:
                patched.setattr(saver, "acall", never_heard)
                with pytest.raises(asyncio.CancelledError):
                    await graph.ainvoke({"messages": [("user", "first")]}, WHERE)
            await say_last(graph)

        asyncio.run(attempts())
        assert said(echo(saver))[-1] == "re: last"


def test_thread_is_free_after_whoever_took_it_was_cancelled(store: str) -> None:
    with HoldfastSaver(store) as saver:

        async def attempts() -> None:
            graph = durable(echo(saver))
            for n in range(40):
                running = asyncio.create_task(
                    graph.ainvoke({"messages": [("user", "hello")]}, WHERE)
                )
                await asyncio.sleep(0.0005 * n)
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError, ThreadBusy):
                    await running
            await say_last(graph)

        asyncio.run(attempts())
        assert said(echo(saver))[-1] == "re: last", "the thread is still held"


@pytest.mark.parametrize("turns", [1, 4, 8])
def test_thread_goes_on_after_its_newest_run_was_deleted(store: str, turns: int) -> None:
    with HoldfastSaver(store) as saver:
        graph = echo(saver)
        for n in range(turns):
            config = {**WHERE, "metadata": {"run_id": f"run {n}"}}
            graph.invoke({"messages": [("user", str(n))]}, config)
        saver.delete_for_runs([f"run {turns - 1}"])
        say(graph, "on")
        assert said(graph) == [
            *(text for n in range(turns - 1) for text in (str(n), f"re: {n}")),
            "on",
            "re: on",
        ]


def test_thread_of_which_every_run_was_deleted_keeps_no_data_and_begins_anew(store: str) -> None:
    """After an earlier erasure, too: nothing is left that a new state could be made of."""
    with HoldfastSaver(store) as saver:
        graph = echo(saver)
        for n in range(3):
            config = {**WHERE, "metadata": {"run_id": f"run {n}"}}
            graph.invoke({"messages": [("user", f"secret {n}")]}, config)
        saver.prune(["t"])
        saver.delete_for_runs([f"run {n}" for n in range(3)])
        assert said(graph) == []
        read = saver.host.context.store.journal.read
        entries = saver.call(read, run_id_of("t"), after=0, limit=1000)
        left = [entry for entry in entries if entry.body and b"secret" in body_of(entry)]
        assert left == []
    with HoldfastSaver(store) as saver:
        graph = echo(saver)
        say(graph, "on")
        assert said(graph) == ["on", "re: on"]


def test_thread_that_another_process_deleted_begins_anew(store: str) -> None:
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        graph = echo(saver)
        say(graph, "before")
        other.delete_thread("t")
        say(graph, "after")
        assert said(graph) == ["after", "re: after"]


def test_thread_that_is_used_again_is_not_expired(store: str) -> None:
    """It is looked at again in the commit that would erase it."""
    with HoldfastSaver(store, ttl=3600) as saver:
        graph = echo(saver)
        say(graph, "hello")
        now = saver.host.context.now()
        deleting = saver._deleting

        async def erase(since: int) -> None:
            await deleting.thread("t", "its time is over", unused_since=since)

        saver.call(erase, now - 3_600_000_000)
        assert said(graph) == ["hello", "re: hello"]
        saver.call(erase, now + 3_600_000_000)
        assert said(graph) == []


def asking(saver: HoldfastSaver) -> Any:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", interrupt("really?"))]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    return durable(builder.compile(checkpointer=saver))


def test_questions_of_a_deleted_thread_are_withdrawn(store: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = asking(saver)
        say(graph, "hello")
        saver.delete_thread("t")
    with holdfast.sync.open(store) as hf:
        assert hf.approvals.list() == []
        assert hf.runs.get("t").status == "ready"
        assert hf.journal.verify("t") == []


def test_listing_over_all_threads_shows_copies_too(store: str) -> None:
    with HoldfastSaver(store) as saver:
        graph = echo(saver)
        for n in range(12):
            say(graph, str(n))
        for n in range(4):
            saver.copy_thread("t", f"copy {n}")
        assert len(list(saver.list(None))) == 12 * 3 * 5
        assert len(list(saver.list(None, limit=-1))) == 0


def test_copy_is_of_the_lineage_of_its_source(store: str) -> None:
    """A call that was made in the middle of a turn is not made again in the copy."""
    with HoldfastSaver(store) as saver:
        graph, paid = payments(saver, [paying("c1"), AIMessage("done"), AIMessage("done")])
        say(graph, "pay ann")
        before = next(s for s in graph.get_state_history(WHERE) if s.next == ("tools",))
        saver.copy_thread("t", "copy")
        where: Any = {"configurable": {**before.config["configurable"], "thread_id": "copy"}}
        graph.invoke(None, where)
        assert paid == ["ann"]


def test_thread_is_not_forked_or_rewound_as_a_run(store: str) -> None:
    with HoldfastSaver(store) as saver:
        say(echo(saver), "hello")
    with holdfast.sync.open(store) as hf:
        with pytest.raises(MisuseError, match="copy_thread"):
            hf.runs.fork("t", version=1)
        with pytest.raises(MisuseError, match="checkpoint_id"):
            hf.runs.rewind("t", version=1)


def test_reads_beside_prunings_see_the_thread_whole(store: str) -> None:
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        graph, looking = echo(saver), echo(other)
        say(graph, "0")
        is_over = threading.Event()
        seen: list[int] = []

        def look() -> None:
            while not is_over.is_set():
                seen.append(len(looking.get_state(WHERE).values["messages"]))
                seen.append(len(list(looking.get_state_history(WHERE))))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            for n in range(1, 15):
                say(graph, str(n))
                saver.prune(["t"])
        finally:
            is_over.set()
            watcher.join()
        assert len(said(looking)) == 30
        assert len(seen) > 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: HoldfastSaver(5),  # type: ignore[arg-type]
        lambda: HoldfastSaver(allow=AIMessage),  # type: ignore[arg-type]
        lambda: HoldfastSaver(ttl="30d"),  # type: ignore[arg-type]
        lambda: durable_tools("agents.db"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_told_at_once(wrong: Any) -> None:
    with pytest.raises(MisuseError):
        wrong()


def test_saver_is_made_by_the_names_that_others_have(tmp_path: Any) -> None:
    with HoldfastSaver.from_conn_string(str(tmp_path / "agents.db")) as saver:
        saver.setup()
        assert say(echo(saver), "hello")["messages"][-1].text == "re: hello"


def test_command_line_shows_what_was_said(tmp_path: Any) -> None:
    store = str(tmp_path / "agents.db")
    with HoldfastSaver(store) as saver:
        say(echo(saver), "hello")
    asked = ["checkpoints", "show", "t", "--store", store, "-o", "json"]
    told = subprocess.run(
        [str(Path(sys.executable).with_name("holdfast")), *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = told.stdout
    assert '"HumanMessage"' in shown
    messages = json.loads(shown)["state"]["messages"]
    assert messages[0]["HumanMessage"]["content"] == "hello"
    assert messages[1]["AIMessage"]["content"] == "re: hello"


def test_checkpoint_that_is_put_again_otherwise_keeps_its_writes_in_one_commit(store: str) -> None:
    """Between taking the old one away and storing the new one nothing can be lost."""
    with HoldfastSaver(store) as saver:
        root: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        first = empty_checkpoint()
        told: Any = {"source": "update", "step": 0, "parents": {}}
        where = saver.put(root, first, told, {})
        saver.put_writes(where, [("messages", "kept")], "task")
        saver.put(root, {**first, "channel_values": {"n": 2}}, told, {"n": 1})
        found = saver.get_tuple(where)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 2}
        assert found.pending_writes == [("task", "messages", "kept")]
    with holdfast.sync.open(store) as hf:
        kinds = [entry.kind for entry in hf.journal.read("t")]
        assert kinds[-3:] == ["CHECKPOINTS_PRUNED", "CHECKPOINT_CREATED", "WRITES_RECORDED"]
        assert hf.journal.verify("t") == []
