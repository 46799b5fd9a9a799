"""Tools that never fire twice: every branch from what is known of a call to its reply."""

import asyncio
import threading
from typing import Annotated, Any

import pytest
from click.testing import CliRunner
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pydantic import BaseModel

import holdfast.sync
from holdfast import Happened, NotDone, codec
from holdfast.cli.effects import command
from holdfast.engine.effects import Begun, EffectRequest
from holdfast.errors import MisuseError
from holdfast.integrations.langgraph import HoldfastSaver, durable, durable_tools, holdfast_key
from holdfast.integrations.langgraph.thread import Thread
from holdfast.integrations.langgraph.tools.replies import GraphToolCall
from holdfast.integrations.langgraph.tools.tool_calls import ordinal_of
from tests.integrations.langgraph.durably import (
    Bank,
    Graph,
    Scripted,
    agent,
    asks,
    both_faces,
    charging,
    effects,
    human,
    interrupts,
    replies,
    run,
    statuses,
    thread,
    told,
)

DONE = AIMessage("done")


def node_graph(saver: HoldfastSaver, node: ToolNode) -> Graph:
    """A graph that only makes the calls in its messages."""
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=saver)


def questions(store: str) -> list[str]:
    """What is open in the inbox."""
    with holdfast.sync.open(store) as hf:
        return [question.wait_id for question in hf.approvals.list()]


TWINS = asks(
    ("charge", {"customer": "ann", "cents": 5}, "c1"),
    ("charge", {"customer": "ann", "cents": 5}, "c2"),
)


@both_faces
def test_call_is_on_record_before_it_is_made_and_its_reply_after(store: str, face: str) -> None:
    bank = Bank()
    seen: list[str] = []
    with HoldfastSaver(store) as saver:
        bank.then = lambda: seen.extend(statuses(store))
        state = run(agent(saver, [bank.tool(face)], [charging("c1"), DONE]), face, human())
    assert seen == ["issued"]
    (effect,) = effects(store)
    assert (effect.status, effect.tool, effect.call_id) == ("completed", "charge", "c1")
    assert bank.keys == [effect.key]
    assert told(state) == [("c1", "charged 5")]


@both_faces
def test_call_that_stands_twice_in_a_message_is_made_once(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver:
        state = run(agent(saver, [bank.tool(face)], [TWINS, DONE]), face, human())
    assert bank.charged == [("ann", 5)]
    assert told(state) == [("c1", "charged 5"), ("c2", "charged 5")]
    first, second = replies(state)
    assert first.id != second.id
    replayed = [reply.response_metadata.get("holdfast_replay_of") for reply in (first, second)]
    assert replayed in ([None, "c1"], ["c2", None])


@both_faces
@pytest.mark.parametrize("is_durable", [True, False])
def test_call_that_is_made_after_its_reply_was_seen_is_another_one(
    store: str, face: str, is_durable: bool
) -> None:
    """Not so if nobody knows what became of the first: that is no reply."""
    bank = Bank()
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), charging("c2"), DONE])
        state = run(durable(graph) if is_durable else graph, face, human())
    assert bank.charged == [("ann", 5), ("ann", 5)]
    assert [reply.response_metadata for reply in replies(state)] == [{}, {}]


@both_faces
def test_same_call_in_a_later_turn_is_made_again(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver:
        graph = agent(
            saver, [bank.tool(face)], [charging("c1"), DONE, charging("c2"), AIMessage("done")]
        )
        run(graph, face, human())
        run(graph, face, human("again"))
    assert bank.charged == [("ann", 5)] * 2
    assert len({effect.key for effect in effects(store)}) == 2


@both_faces
def test_tools_that_may_be_repeated_are_called_as_often_as_the_model_asks(
    store: str, face: str
) -> None:
    bank = Bank()
    same = {"customer": "ann", "cents": 5}
    with HoldfastSaver(store) as saver:
        says = [asks(("charge", same, "c1"), ("charge", same, "c2")), charging("c1"), DONE]
        run(agent(saver, [bank.tool(face)], says, repeat=["charge"]), face, human())
    assert bank.charged == [("ann", 5)] * 3
    assert len({effect.key for effect in effects(store)}) == 3


def test_number_of_a_call_is_its_place_in_the_message_that_asks_for_it() -> None:
    args = {"n": 1}
    before = [AIMessage("old", tool_calls=[]), *human()["messages"]]
    first = asks(("f", args, "a"), ("g", args, "b"), ("f", args, "c"))
    second = asks(("f", args, "a"))
    turn = [*before, first, second]
    assert ordinal_of([*before, first], GraphToolCall("f", args, "a")) == 0
    assert ordinal_of([*before, first], GraphToolCall("f", args, "c")) == 1
    assert ordinal_of(turn, GraphToolCall("f", args, "a")) == 0
    assert ordinal_of([*turn, *before, first], GraphToolCall("f", args, "a")) == 0
    assert ordinal_of([], GraphToolCall("f", args, "a")) == 0


@both_faces
def test_tools_that_only_read_are_not_recorded(store: str, face: str) -> None:
    bank = Bank()
    bank.keys = []

    @tool
    def balance(customer: str) -> str:
        """Look."""
        bank.charged.append((customer, 0))
        return "7"

    looking = ("balance", {"customer": "ann"})
    with HoldfastSaver(store) as saver:
        says = [asks((*looking, "c1")), asks((*looking, "c2")), DONE]
        run(agent(saver, [balance], says, read=[balance]), face, human())
    assert len(bank.charged) == 2
    assert effects(store) == []


@both_faces
def test_policy_may_stand_on_the_tool_and_what_durable_tools_says_counts_first(
    store: str, face: str
) -> None:
    bank = Bank()
    charge = bank.tool(face)
    charge.metadata = {"holdfast": {"effect": "read"}}
    bank.then = lambda: None
    with HoldfastSaver(store) as saver:
        bank_of_reads = agent(saver, [charge], [charging("c1"), DONE])
        with pytest.raises(MisuseError, match="no durable call"):
            run(bank_of_reads, face, human())
        says = [charging("c1"), DONE]
        run(agent(saver, [charge], says, idempotent=["charge"]), face, human(), thread("u"))
    assert effects(store) == []
    assert statuses(store, "u") == ["completed"]


@pytest.mark.parametrize(
    "own", [{"effect": "write"}, {"efect": "read"}, {"limit_seconds": 0}, {"unknown": "guess"}]
)
def test_policy_on_a_tool_that_cannot_be_used_is_refused(own: dict[str, Any]) -> None:
    charge = Bank().tool()
    charge.metadata = {"holdfast": own}
    with HoldfastSaver("memory://") as saver, pytest.raises(MisuseError, match="charge"):
        run(agent(saver, [charge], [charging("c1"), DONE]), "sync", human())


@pytest.mark.parametrize(
    "options",
    [{"unknown": "guess"}, {"limit_seconds": 0}, {"read": ["a"], "repeat": ["a"]}, {"read": "a"}],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    with HoldfastSaver("memory://") as saver, pytest.raises(MisuseError):
        durable_tools(saver, **options)


@both_faces
def test_person_who_says_that_it_happened_gives_the_reply(store: str, face: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE])
        (asked,) = interrupts(run(graph, face, human()))
        assert statuses(store) == ["unknown"]
        assert (asked["tool"], asked["args"]) == ("charge", {"customer": "ann", "cents": 5})
        assert asked["effect"] == str(effects(store)[0].effect_id)
        state = run(graph, face, Command(resume={"happened": True, "result": "charged 5"}))
    assert told(state) == [("c1", "charged 5")]
    assert bank.charged == [("ann", 5)]
    assert statuses(store) == ["completed"]


@both_faces
def test_person_who_says_that_it_did_not_happen_lets_it_be_made_once(store: str, face: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE])
        run(graph, face, human())
        bank.fails = None
        state = run(graph, face, Command(resume={"happened": False}))
    assert told(state) == [("c1", "charged 5")]
    assert bank.charged == [("ann", 5)] * 2
    assert statuses(store) == ["not_done", "completed"]


@pytest.mark.parametrize("who", ["same process", "another one"])
@pytest.mark.parametrize("verdict", [["--happened", "paid"], ["--did-not-happen"]])
def test_question_about_a_call_that_was_settled_elsewhere_is_withdrawn(
    store: str, verdict: list[str], who: str
) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool()], [charging("c1"), DONE])
        assert len(interrupts(run(graph, "sync", human()))) == 1
        (asked,) = questions(store)
        settle = ["resolve", str(effects(store)[0].effect_id), *verdict, "--store", store]
        assert CliRunner().invoke(command, settle).exit_code == 0
        assert questions(store) == [asked]
        bank.fails = None
        with HoldfastSaver(store) as other:
            if who == "another one":
                graph = agent(other, [bank.tool()], [DONE])
            state = run(graph, "sync", None)
    assert interrupts(state) == []
    assert len(replies(state)) == 1
    assert len(bank.charged) == (2 if verdict == ["--did-not-happen"] else 1)
    assert questions(store) == []
    with holdfast.sync.open(store) as hf:
        assert hf.waits.get(asked).status == "cancelled"


@both_faces
def test_answer_that_says_nothing_about_the_call_is_asked_for_again(store: str, face: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE])
        run(graph, face, human())
        assert len(interrupts(run(graph, face, Command(resume="I think so")))) == 1
        assert statuses(store) == ["unknown"]
        state = run(graph, face, Command(resume={"happened": True}))
    assert told(state) == [("c1", "It happened. What it returned is not known.")]
    assert bank.charged == [("ann", 5)]


@both_faces
def test_answer_about_one_attempt_is_not_taken_for_the_next(store: str, face: str) -> None:
    """A task is given all its answers again: the first one, too, after the second attempt broke."""
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE])
        (first,) = interrupts(run(graph, face, human()))
        (second,) = interrupts(run(graph, face, Command(resume={"happened": False})))
        assert second["effect"] != first["effect"]
        assert statuses(store) == ["not_done", "unknown"]
        assert interrupts(run(graph, face, None)) == [second]
        assert len(bank.charged) == 2
        state = run(graph, face, Command(resume={"happened": True, "result": "charged"}))
    assert told(state) == [("c1", "charged")]
    assert len(bank.charged) == 2
    assert statuses(store) == ["not_done", "completed"]


@both_faces
def test_model_is_told_that_the_outcome_is_unknown_and_cannot_repeat_the_call(
    store: str, face: str
) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        says = [charging("c1"), charging("c2"), DONE]
        state = run(agent(saver, [bank.tool(face)], says, unknown="report"), face, human())
    assert [message.status for message in replies(state)] == ["error", "error"]
    assert all("NOT KNOWN" in str(message.content) for message in replies(state))
    assert bank.charged == [("ann", 5)]
    assert statuses(store) == ["unknown"]


class Declined(Exception):
    """The bank would not do it."""


@both_faces
@pytest.mark.parametrize("error", [NotDone("no"), Declined("no")])
def test_error_that_means_not_done_goes_on_and_the_call_may_be_made_again(
    store: str, face: str, error: Exception
) -> None:
    bank = Bank(fails=error)
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE], not_done_on=(Declined,))
        with pytest.raises(type(error)):
            run(graph, face, human())
        assert statuses(store) == ["not_done"]
        bank.fails = None
        state = run(graph, face, None)
    assert told(state) == [("c1", "charged 5")]
    assert statuses(store) == ["not_done", "completed"]


@both_faces
def test_process_that_is_being_ended_leaves_the_outcome_unknown(store: str, face: str) -> None:
    bank = Bank(fails=KeyboardInterrupt())
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool()], [charging("c1"), DONE])
        with pytest.raises(KeyboardInterrupt):
            run(graph, "sync", human())
        assert statuses(store) == ["unknown"]
        assert len(interrupts(run(graph, face, None))) == 1
    assert bank.charged == [("ann", 5)]


def test_cancelled_call_is_unknown(store: str) -> None:
    bank = Bank()
    begun = threading.Event()

    @tool
    async def charge(customer: str, cents: int) -> str:
        """Charge, and hang."""
        bank.charged.append((customer, cents))
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def cancelled(graph: Graph) -> None:
        running = asyncio.create_task(graph.ainvoke(human(), thread(), durability="sync"))
        await asyncio.to_thread(begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with HoldfastSaver(store) as saver:
        asyncio.run(cancelled(agent(saver, [charge], [charging("c1"), DONE])))
    assert statuses(store) == ["unknown"]


def test_async_tool_that_takes_longer_than_its_limit_is_ended_and_unknown(store: str) -> None:
    @tool
    async def charge(customer: str, cents: int) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    with HoldfastSaver(store) as saver:
        graph = agent(saver, [charge], [charging("c1"), DONE], limit_seconds=0.05)
        assert len(interrupts(run(graph, "async", human()))) == 1
    *too_late, last = statuses(store)  # on a busy machine the time may be over before the call
    assert last == "unknown"
    assert set(too_late) <= {"not_done"}


def test_call_that_came_too_late_and_was_settled_meanwhile_is_looked_up_again(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stood still after the intent; a person has said by then that it happened."""
    bank = Bank()
    real_begin = Thread.begin_effects

    async def stand_still(self: Thread, requests: list[EffectRequest]) -> list[Begun]:
        begun = await real_begin(self, requests)
        if begun[0].answer == "fresh":
            await asyncio.sleep(0.3)
            async with holdfast.open(store) as hf:
                effect_id = begun[0].effect.effect_id
                await hf.effects.resolve(effect_id, "happened", result="seen at the bank")
        return begun

    monkeypatch.setattr(Thread, "begin_effects", stand_still)
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool("sync")], [charging("c1"), DONE], limit_seconds=0.2)
        state = run(graph, "sync", human())
    assert bank.charged == []
    assert statuses(store) == ["completed"]
    assert told(state) == [("c1", "seen at the bank")]


@both_faces
def test_errors_that_a_node_turns_into_messages_are_seen_all_the_same(
    store: str, face: str
) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        node = durable_tools(saver, unknown="report").node(
            [bank.tool(face)], handle_tool_errors=True
        )
        state = run(node_graph(saver, node), face, {"messages": [charging("c1")]})
    assert "NOT KNOWN" in told(state)[0][1]
    assert statuses(store) == ["unknown"]


@both_faces
def test_validation_error_inside_the_tool_is_no_refusal_of_its_arguments(
    store: str, face: str
) -> None:
    """LangGraph takes both for the same, and tells the model to fix its arguments."""
    bank = Bank()

    class Receipt(BaseModel):
        number: int

    bank.then = lambda: Receipt.model_validate({"number": "none"})
    with HoldfastSaver(store) as saver:
        run(agent(saver, [bank.tool(face)], [charging("c1"), DONE]), face, human())
    assert statuses(store) == ["unknown"]


@both_faces
def test_arguments_that_the_tool_refuses_are_told_to_the_model_and_not_done(
    store: str, face: str
) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver:
        says = [asks(("charge", {"customer": "ann", "cents": "much"}, "c1")), charging("c2"), DONE]
        state = run(agent(saver, [bank.tool(face)], says), face, human())
    assert [message.status for message in replies(state)] == ["error", "success"]
    assert bank.charged == [("ann", 5)]
    assert statuses(store) == ["not_done", "completed"]


@both_faces
def test_tool_that_asks_a_person_is_not_done_until_it_has_the_answer(store: str, face: str) -> None:
    bank = Bank()

    @tool
    def charge(customer: str, cents: int) -> str:
        """Charge if somebody agrees."""
        if interrupt("May I?") != "yes":
            return "refused"
        bank.charged.append((customer, cents))
        return "charged"

    with HoldfastSaver(store) as saver:
        graph = agent(saver, [charge], [charging("c1"), DONE])
        assert interrupts(run(graph, face, human())) == ["May I?"]
        assert statuses(store) == ["not_done"]
        state = run(graph, face, Command(resume="yes"))
    assert told(state) == [("c1", "charged")]
    assert bank.charged == [("ann", 5)]


@both_faces
def test_answer_to_the_tools_own_question_is_not_taken_for_what_became_of_it(
    store: str, face: str
) -> None:
    bank = Bank()

    @tool
    def charge(customer: str, cents: int) -> str:
        """Charge if somebody agrees, and break."""
        interrupt("May I?")
        bank.charged.append((customer, cents))
        raise RuntimeError("the line is dead")

    with HoldfastSaver(store) as saver:
        graph = agent(saver, [charge], [charging("c1"), DONE])
        run(graph, face, human())
        (asked,) = interrupts(run(graph, face, Command(resume="yes")))
        assert asked["kind"] == "unknown_effect"
        state = run(graph, face, Command(resume={"happened": True, "result": "charged"}))
    assert told(state) == [("c1", "charged")]
    assert bank.charged == [("ann", 5)]


@both_faces
@pytest.mark.parametrize("is_async", [True, False], ids=["async-verify", "verify"])
def test_verify_says_that_it_happened(store: str, face: str, is_async: bool) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    asked: list[Any] = []

    def verify(key: str, tool: str, args: dict[str, Any]) -> Any:
        asked.append((key, tool, args))
        return Happened("charged 5")

    async def verify_async(key: str, tool: str, args: dict[str, Any]) -> Any:
        return verify(key, tool, args)

    with HoldfastSaver(store) as saver:
        options = {"verify": verify_async if is_async else verify}
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE], **options)
        state = run(graph, face, human())
    assert told(state) == [("c1", "charged 5")]
    assert asked == [(bank.keys[0], "charge", {"customer": "ann", "cents": 5})]
    assert statuses(store) == ["completed"]


@both_faces
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_verify_says_that_a_call_which_raised_did_not_happen(
    store: str, face: str, how: str
) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))

    def verify(key: str, tool: str, args: dict[str, Any]) -> Any:
        if how == "raises":
            raise NotDone("nothing there")
        return NotDone("nothing there")

    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE], verify=verify)
        with pytest.raises(RuntimeError, match="the line is dead"):
            run(graph, face, human())
        assert statuses(store) == ["not_done"]
        bank.fails = None
        assert told(run(graph, face, None)) == [("c1", "charged 5")]


@both_faces
@pytest.mark.parametrize("how", ["none", "raises"])
def test_person_is_asked_when_verify_cannot_tell(store: str, face: str, how: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))

    def verify(key: str, tool: str, args: dict[str, Any]) -> Any:
        if how == "raises":
            raise TimeoutError("the bank does not answer")

    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE], verify=verify)
        assert len(interrupts(run(graph, face, human()))) == 1
    assert statuses(store) == ["unknown"]


def test_verdict_of_verify_must_be_one(store: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool()], [charging("c1"), DONE], verify=lambda *_: True)
        with pytest.raises(MisuseError, match="verify returned bool"):
            run(graph, "sync", human())
    assert statuses(store) == ["unknown"]


def begin_elsewhere(saver: HoldfastSaver, anchor: str, seconds: float) -> Any:
    """Put the intent of the call on record, as another process does."""
    found = saver.get_tuple(thread())
    assert found is not None
    said = found.checkpoint["channel_values"]["messages"]
    person = next(message.id for message in said if message.type == "human")

    async def begin() -> Any:
        args = {"customer": "ann", "cents": 5}
        request = EffectRequest(
            tool="charge",
            args=args,
            call_id="c0",
            args_digest=codec.canonical_digest([anchor, args, "answers", person, 0]),
            limit_seconds=seconds,
        )
        (begun,) = await Thread(saver.host, "t").begin_effects([request])
        return begun

    return saver.call(begin)


class Meanwhile(AgentMiddleware):
    """Does something between the model's message and the call."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self.work = work

    def after_model(self, state: Any, runtime: Any) -> None:
        if state["messages"][-1].tool_calls:
            self.work()


def meanwhile(saver: HoldfastSaver, bank: Bank, face: str, work: Any, **options: Any) -> Graph:
    return create_agent(
        Scripted(says=[charging("c1"), DONE]),
        [bank.tool(face)],
        middleware=[Meanwhile(work), durable_tools(saver, **options)],
        checkpointer=saver,
    )


def anchor_in(saver: HoldfastSaver) -> str:
    (first,) = saver.list(thread(), filter={"source": "input"})
    return first.checkpoint["id"]


@both_faces
def test_call_that_another_process_makes_is_waited_for(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:

        def finish(begun: Any) -> None:
            async def work() -> None:
                await Thread(other.host, "t").finish_effect(begun, "charged elsewhere")

            other.call(work)

        def begin() -> None:
            begun = begin_elsewhere(other, anchor_in(saver), 60)
            threading.Timer(0.2, finish, [begun]).start()

        state = run(meanwhile(saver, bank, face, begin), face, human())
    assert bank.charged == []
    assert told(state) == [("c1", "charged elsewhere")]


@both_faces
def test_call_that_another_process_gave_up_is_made(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:

        def give_up(begun: Any) -> None:
            async def work() -> None:
                await Thread(other.host, "t").abandon_effect(begun, note="it was refused")

            other.call(work)

        def begin() -> None:
            begun = begin_elsewhere(other, anchor_in(saver), 60)
            threading.Timer(0.2, give_up, [begun]).start()

        state = run(meanwhile(saver, bank, face, begin), face, human())
    assert told(state) == [("c1", "charged 5")]
    assert statuses(store) == ["not_done", "completed"]


@both_faces
def test_call_whose_process_died_is_made_when_verify_finds_nothing(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        state = run(
            meanwhile(
                saver,
                bank,
                face,
                lambda: begin_elsewhere(other, anchor_in(saver), 0.2),
                verify=lambda *_: NotDone(),
            ),
            face,
            human(),
        )
    assert told(state) == [("c1", "charged 5")]
    assert statuses(store) == ["not_done", "completed"]


@both_faces
def test_person_is_asked_about_a_call_whose_process_died(store: str, face: str) -> None:
    bank = Bank()
    with HoldfastSaver(store) as saver, HoldfastSaver(store) as other:
        graph = meanwhile(saver, bank, face, lambda: begin_elsewhere(other, anchor_in(saver), 0.2))
        assert len(interrupts(run(graph, face, human()))) == 1
        state = run(graph, face, Command(resume={"happened": False}))
    assert bank.charged == [("ann", 5)]
    assert told(state) == [("c1", "charged 5")]


@both_faces
def test_idempotent_tool_is_called_again_after_an_error(store: str, face: str) -> None:
    bank = Bank(fails=RuntimeError("the line is dead"))
    with HoldfastSaver(store) as saver:
        graph = agent(saver, [bank.tool(face)], [charging("c1"), DONE], idempotent=["charge"])
        with pytest.raises(RuntimeError):
            run(graph, face, human())
        bank.fails = None
        state = run(graph, face, None)
    assert told(state) == [("c1", "charged 5")]
    assert bank.charged == [("ann", 5)] * 2


@both_faces
def test_command_of_a_tool_is_given_back_under_the_id_of_the_call_that_asks(
    store: str, face: str
) -> None:
    bank = Bank()

    @tool
    def charge(
        customer: str, cents: int, tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        """Charge, and write the state."""
        bank.charged.append((customer, cents))
        return Command(update={"messages": [ToolMessage("charged", tool_call_id=tool_call_id)]})

    with HoldfastSaver(store) as saver:
        state = run(agent(saver, [charge], [TWINS, DONE]), face, human())
    assert bank.charged == [("ann", 5)]
    assert sorted(told(state)) == [("c1", "charged"), ("c2", "charged")]


class Opaque:
    """What no store takes."""


@both_faces
def test_reply_that_cannot_be_stored_is_on_record_as_its_text(store: str, face: str) -> None:
    @tool(response_format="content_and_artifact")
    def charge(customer: str, cents: int) -> Any:
        """Charge, and give back an object."""
        return "charged", Opaque()

    with HoldfastSaver(store) as saver:
        node = durable_tools(saver).node([charge])
        call = charging("c1").tool_calls[0]
        builder = StateGraph(MessagesState)

        async def tools(state: MessagesState, config: RunnableConfig) -> Any:
            made = await node.ainvoke({"messages": [charging("c1")]}, config)
            again = await node.ainvoke({"messages": [charging("c2")]}, config)
            kept = [*made["messages"], *again["messages"]]
            return {"messages": [ToolMessage(m.content, tool_call_id=m.tool_call_id) for m in kept]}

        builder.add_node("tools", tools)
        builder.add_edge(START, "tools")
        state = run(builder.compile(checkpointer=saver), "async", human())
    assert call["name"] == "charge"
    assert told(state) == [("c1", "charged"), ("c2", "charged")]
    assert statuses(store) == ["completed"]


class Marking(AgentMiddleware):
    """Another middleware, which sees each call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append(request.tool_call["id"])
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append(request.tool_call["id"])
        return await handler(request)


@both_faces
@pytest.mark.parametrize("is_last", [True, False], ids=["last", "first"])
def test_middlewares_compose(store: str, face: str, is_last: bool) -> None:
    bank, marking = Bank(), Marking()
    with HoldfastSaver(store) as saver:
        both = [marking, durable_tools(saver)]
        graph = create_agent(
            Scripted(says=[TWINS, DONE]),
            [bank.tool(face)],
            middleware=both if is_last else both[::-1],
            checkpointer=saver,
        )
        run(graph, face, human())
    assert bank.charged == [("ann", 5)]
    assert len(marking.seen) == (2 if is_last else 1)


@both_faces
def test_unknown_tool_is_answered_by_the_node_and_not_recorded(store: str, face: str) -> None:
    with HoldfastSaver(store) as saver:
        says = [asks(("transfer", {}, "c1")), DONE]
        state = run(agent(saver, [Bank().tool(face)], says), face, human())
    assert "not a valid tool" in told(state)[0][1]
    assert effects(store) == []


@both_faces
def test_answer_names_the_call_when_a_task_makes_several(store: str, face: str) -> None:
    """Calls of one task run beside each other: which one asks first is not told by the order."""
    bank = Bank(fails=RuntimeError("the line is dead"))
    calls = asks(
        ("charge", {"customer": "ann", "cents": 1}, "c1"),
        ("charge", {"customer": "bob", "cents": 2}, "c2"),
    )
    with HoldfastSaver(store) as saver:
        graph = node_graph(saver, durable_tools(saver).node([bank.tool(face)]))
        state = run(graph, face, {"messages": [calls]})
        for _ in range(10):
            if not (asked := interrupts(state)):
                break
            (question,) = asked
            answer = {
                "effect": question["effect"],
                "happened": True,
                "result": f"said of {question['args']['customer']}",
            }
            state = run(graph, face, Command(resume=answer))
    assert sorted(told(state)) == [("c1", "said of ann"), ("c2", "said of bob")]
    assert sorted(bank.charged) == [("ann", 1), ("bob", 2)]
    assert statuses(store) == ["completed", "completed"]


@both_faces
def test_call_without_a_thread_is_refused(face: str) -> None:
    bank = Bank()
    with HoldfastSaver("memory://") as saver:
        builder = StateGraph(MessagesState)
        builder.add_node("tools", durable_tools(saver).node([bank.tool(face)]))
        builder.add_edge(START, "tools")
        with pytest.raises(MisuseError, match="needs a thread"):
            run(
                builder.compile(),
                face,
                {"messages": [charging("c1")]},
                {"tags": ["t"]},
                durability=None,
            )
    assert bank.charged == []


def test_key_is_told_in_durable_calls_only() -> None:
    with pytest.raises(MisuseError, match="durable_tools"):
        holdfast_key()
