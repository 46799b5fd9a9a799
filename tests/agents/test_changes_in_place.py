"""State that was handed out and changed in place is stored at the checkpoint, or refused."""

import copy
import json
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

import holdfast
from holdfast import Message, ToolCall, ids
from holdfast.agents.definitions.messages import Reasoning, Text
from holdfast.errors import MisuseError, RunFailed
from holdfast.testing.store_suite import async_test


@dataclass
class Item:
    n: int
    tags: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Fixed:
    n: int
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holder:
    items: list[str]


Plain = dict[str, Any]
Body = Callable[[holdfast.Run], Any]


async def state_after(store: str, *turns: Body, run_id: str = "r") -> dict[str, Any]:
    """Let an agent carry out turns, each followed by a checkpoint; the state as it is stored."""

    @holdfast.agent
    async def changer(run: holdfast.Run) -> None:
        for turn in turns:
            turn(run)
            await run.checkpoint()

    async with holdfast.Holdfast(store, agents=[changer]) as hf:
        await hf.run(changer, run_id=run_id)
    async with holdfast.Holdfast(store) as hf:
        parts = (await hf.checkpoints.load(run_id)).parts
    return {name: part for name, part in parts.items() if not name.startswith("holdfast.")}


@async_test
async def test_items_and_values_changed_in_place_are_stored(store: str) -> None:
    def begin(run: holdfast.Run) -> None:
        run.log("items", Item).extend([Item(1), Item(2), Item(3), Item(4)])
        run.value("plan", Plain, {}).set({"todo": ["a"]})

    def change(run: holdfast.Run) -> None:
        items = run.log("items", Item)
        items[0].tags.append("index")
        items[1:3][0].tags.append("slice")
        for item in items:
            item.tags.append("loop")
        run.value("plan", Plain).get()["todo"].append("b")

    assert await state_after(store, begin, change) == {
        "items": [
            {"n": 1, "tags": ["index", "loop"]},
            {"n": 2, "tags": ["slice", "loop"]},
            {"n": 3, "tags": ["loop"]},
            {"n": 4, "tags": ["loop"]},
        ],
        "plan": {"todo": ["a", "b"]},
    }


@async_test
async def test_objects_kept_by_the_agent_are_stored_however_late_they_change(store: str) -> None:
    kept: list[Any] = []

    def begin(run: holdfast.Run) -> None:
        plan: Plain = {"todo": ["a"]}
        inner: Plain = {"deep": {"list": [0]}}
        item = Item(1)
        run.value("plan", Plain).set(plan)
        run.log("items", Item).append(item)
        run.log("plain", Plain).append(inner)
        kept.extend([plan["todo"], item, inner["deep"]["list"]])

    def nothing(run: holdfast.Run) -> None:
        run.value("n", int, 0).set(run.version)

    def change(run: holdfast.Run) -> None:
        todo, item, numbers = kept
        todo.append("late")
        item.n = 9
        numbers.append(1)

    state = await state_after(store, begin, nothing, nothing, change)
    assert state["plan"] == {"todo": ["a", "late"]}
    assert state["items"] == [{"n": 9, "tags": []}]
    assert state["plain"] == [{"deep": {"list": [0, 1]}}]


@async_test
async def test_an_object_changed_after_it_was_appended_is_stored_as_it_is(store: str) -> None:
    def turn(run: holdfast.Run) -> None:
        log, item, other = run.log("items", Plain), {"a": 1}, {"b": 1}
        log.append(item)
        log.append(other)
        log.append({"c": 1})
        item["a"] = 2
        del log[1]
        other["b"] = 2
        log[1]["c"] = 2

    assert await state_after(store, turn) == {"items": [{"a": 2}, {"c": 2}]}


@async_test
async def test_a_changed_default_is_stored_and_is_not_the_default_of_others(store: str) -> None:
    default: dict[str, list[str]] = {"todo": []}

    def change(run: holdfast.Run) -> None:
        run.value("plan", Plain, default).get()["todo"].append(run.run_id)

    def look(run: holdfast.Run) -> None:
        run.value("other", Plain, default).get()
        run.flags.get()["seen"] = True
        run.artifacts.append({"name": "a"})
        run.artifacts[0]["name"] = "b"

    state = await state_after(store, change, look)
    assert state["plan"] == {"todo": ["r"]}
    assert "other" not in state
    assert default == {"todo": []}
    assert (await state_after(store, change, run_id="s"))["plan"] == {"todo": ["s"]}
    async with holdfast.Holdfast(store) as hf:
        parts = (await hf.checkpoints.load("r")).parts
    assert {"seen": True} in parts.values()
    assert [{"name": "b"}] in parts.values()


@async_test
async def test_a_reply_changed_after_it_was_appended_is_stored_as_it_is(store: str) -> None:
    async def ask() -> dict[str, Any]:
        return {"text": "x" * 100, "notes": []}

    @holdfast.agent
    async def changer(run: holdfast.Run) -> None:
        reply = await run.model(ask)
        log = run.log("replies", Plain)
        log.append(reply)
        await run.checkpoint()
        reply["notes"].append("one")
        await run.checkpoint()
        log[0]["notes"].append("two")

    async with holdfast.Holdfast(store, agents=[changer]) as hf:
        await hf.run(changer, run_id="r")
        states = [(await hf.checkpoints.load("r", v)).parts["replies"] for v in (1, 2, 3)]
    assert [state[0]["notes"] for state in states] == [[], ["one"], ["one", "two"]]


@async_test
async def test_a_change_that_cannot_be_stored_fails_the_run_and_names_its_path(store: str) -> None:
    def begin(run: holdfast.Run) -> None:
        run.log("items", Item).append(Item(1))

    def no_data(run: holdfast.Run) -> None:
        cast("list[Any]", run.log("items", Item)[0].tags).append({1, 2})

    def another_type(run: holdfast.Run) -> None:
        run.log("items", Item)[0].n = "one"  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose

    def unstorable_default(run: holdfast.Run) -> None:
        run.value("seen", set, set[str]()).get().add("a")

    with pytest.raises(RunFailed, match=r'state\["items"\]\[0\].*set is not supported'):
        await state_after(store, begin, no_data)
    with pytest.raises(RunFailed, match="an item of log 'items' is not a Item"):
        await state_after(store, begin, another_type, run_id="s")
    with pytest.raises(RunFailed, match=r"default of value 'seen'.*must be storable"):
        await state_after(store, unstorable_default, run_id="t")


@async_test
async def test_a_default_that_only_marks_that_nothing_is_set_is_given_as_it_is(store: str) -> None:
    class Missing:
        pass

    nothing = Missing()
    seen: list[bool] = []

    def look(run: holdfast.Run) -> None:
        seen.append(run.value("n", int, nothing).get() is nothing)

    assert await state_after(store, look) == {}
    assert seen == [True]


@async_test
async def test_what_was_changed_before_a_suspension_or_a_failure_is_forgotten(store: str) -> None:
    seen: list[Any] = []

    @holdfast.agent
    async def sleeper(run: holdfast.Run) -> None:
        plan = run.value("plan", Plain, {"todo": []})
        items = run.log("items", Plain)
        if run.version == 0:
            plan.set({"todo": []})
            items.append({"n": 0})
            await run.checkpoint()
        seen.append([copy.deepcopy(plan.get()), copy.deepcopy(items[0])])
        plan.get()["todo"].append("a")
        items[0]["n"] += 1
        await run.sleep(seconds=0.01)

    @holdfast.agent
    async def chat(run: holdfast.Run, said: str) -> int:
        lines = run.log("lines", list[str])
        if not lines:
            lines.append([])
        lines[0].append(said)
        if said == "bad":
            raise ValueError(said)
        return len(lines[0])

    async with holdfast.Holdfast(store, agents=[sleeper, chat]) as hf:
        await hf.run(sleeper, run_id="r")
        talk = hf.session(chat, "s")
        assert await talk.send("one") == 1
        with pytest.raises(RunFailed, match="bad"):
            await talk.send("bad")
        assert await talk.send("two") == 2
        assert (await hf.checkpoints.load("s")).parts["lines"] == [["one", "two"]]
        state = (await hf.checkpoints.load("r")).parts
    assert seen == [[{"todo": []}, {"n": 0}], [{"todo": []}, {"n": 0}]]
    assert (state["plan"], state["items"]) == ({"todo": ["a"]}, [{"n": 1}])


@async_test
async def test_items_written_by_another_version_of_their_type_are_not_written_again(
    store: str,
) -> None:
    @dataclass
    class Old:
        n: int

    @holdfast.agent
    async def first(run: holdfast.Run, is_new: bool) -> None:
        if not is_new:
            run.log("items", Old).extend([Old(1), Old(2)])
            return
        assert [item.tags for item in run.log("items", Item)] == [[], []]
        run.log("items", Item)[1].tags.append("b")

    async with holdfast.Holdfast(store, agents=[first]) as hf:
        talk = hf.session(first, "s")
        await talk.send(False)
        await talk.send(True)
        state = (await hf.checkpoints.load("s")).parts
    assert state["items"] == [{"n": 1}, {"n": 2, "tags": ["b"]}]


def test_a_message_refuses_to_be_changed_and_gives_plain_copies() -> None:
    call = ToolCall("1", "pay", {"to": ["a"], "how": {"fast": True}})
    thought = Reasoning("hm", {"signature": [1]})
    message = Message(role="assistant", blocks=[Text("x"), call, thought])
    args: Any = call.args
    changes: list[Callable[[], object]] = [
        lambda: message.blocks.append(Text("y")),
        lambda: message.blocks.__setitem__(0, Text("y")),
        lambda: args.update(more=1),
        lambda: args["to"].append("b"),
        lambda: thought.metadata["signature"].clear(),
    ]
    for change in changes:
        with pytest.raises(MisuseError, match="do not change"):
            change()
    copied = copy.deepcopy(args)
    copied["to"].append("b")
    assert args == {"to": ["a"], "how": {"fast": True}} != copied
    assert json.loads(json.dumps(args)) == args
    assert pickle.loads(pickle.dumps(message)) == message == copy.deepcopy(message)
    assert msgspec.convert(msgspec.to_builtins(message), Message) == message


class Counted(dict[str, Any]):
    """A dict that counts how often it is encoded, which asks for its items."""

    count = 0

    def items(self) -> Any:
        Counted.count += 1
        return super().items()

    def __iter__(self) -> Any:
        Counted.count += 1
        return super().__iter__()

    def keys(self) -> Any:
        Counted.count += 1
        return super().keys()


@async_test
async def test_what_nobody_refers_to_is_not_compared_again(store: str) -> None:
    counts: list[int] = []

    def append(run: holdfast.Run) -> None:
        counts.append(Counted.count)
        run.log("items", Plain).append(Counted(n=len(counts)))

    await state_after(store, *[append] * 12)
    costs = [after - before for before, after in pairwise(counts)]
    assert len(set(costs[2:])) == 1, costs
    assert costs[2]


@pytest.mark.parametrize(
    ("item", "is_compared"),
    [
        (Fixed(1, ("a",)), False),
        ("text", False),
        (Message.user("x"), False),
        (Message.assistant("x", [ToolCall("1", "a", {"b": [1]})]), False),
        (Holder(["a"]), True),
        (Item(1), True),
        ({"a": 1}, True),
    ],
)
@async_test
async def test_immutable_items_are_never_compared(
    item: Any, is_compared: bool, tmp_path: Any
) -> None:
    seen: list[set[int]] = []

    def turn(run: holdfast.Run) -> None:
        kind: Any = cast(Any, type(item))
        log: Any = run.log("items", kind)
        log.append(copy.deepcopy(item))
        assert list(log)
        seen.append(set(log._handed_out))

    await state_after(str(tmp_path / "agents.db"), turn, turn)
    assert seen == ([{0}, {0, 1}] if is_compared else [set(), set()])


Leaf = st.one_of(st.integers(-9, 9), st.text("ab", max_size=2))
Action = st.tuples(
    st.sampled_from(
        [
            *("append", "keep", "set", "get", "push", "later", "iterate"),
            *("alter", "nested", "replace", "delete", "cut"),
        ]
    ),
    st.integers(0, 5),
    Leaf,
)


def _change(kept: list[Any] | Plain, leaf: Any) -> None:
    if isinstance(kept, list):
        kept.append(leaf)
    else:
        kept["late"] = leaf


class Program:
    """The same actions on a run's views, or on plain Python objects."""

    def __init__(self, log: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.log, self.get, self.put = log, get, put
        self.kept: list[Any] = []

    def act(self, what: str, at: int, leaf: Any) -> None:
        log = self.log
        match what:
            case "append":
                log.append({"n": leaf, "more": [[leaf]]})
            case "keep":
                made: Plain = {"n": leaf, "more": []}
                log.append(made)
                self.kept.append(made)
            case "set":
                made: Plain = {"top": [leaf]}
                self.put(made)
                self.kept.append(made["top"])
            case "get":
                self.kept.append(self.get())
            case "push":
                self.get().setdefault("top", []).append(leaf)
            case "later" if self.kept:
                _change(self.kept[at % len(self.kept)], leaf)
            case "iterate":
                for item in log:
                    item["seen"] = leaf
            case _ if len(log):
                self.act_on_item(what, at % len(log), leaf)
            case _:
                pass

    def act_on_item(self, what: str, at: int, leaf: Any) -> None:
        log = self.log
        match what:
            case "alter":
                log[at]["n"] = leaf
            case "nested":
                log[at : at + 2][-1].setdefault("more", []).append([leaf])
                self.kept.append(log[at])
            case "replace":
                log[at] = {"n": leaf}
            case "delete":
                del log[at]
            case "cut" if hasattr(log, "cut"):
                log.cut(at)
            case "cut":
                del log[at:]
            case _:
                pass


async def play(store: str, turns: list[list[Any]], *, is_session: bool) -> str:
    """Let an agent carry out a program: in one pass, or each turn as a message of its own."""

    @holdfast.agent
    async def changer(run: holdfast.Run, given: list[list[Any]]) -> None:
        plan = run.value("plan", Plain, {})
        program = Program(run.log("items", Plain), plan.get, plan.set)
        for number, turn in enumerate(given):
            for action in turn:
                program.act(*action)
            if number < len(given) - 1:
                await run.checkpoint()

    run_id = ids.new_run_id()
    async with holdfast.Holdfast(store, agents=[changer]) as hf:
        if not is_session:
            await hf.run(changer, turns, run_id=run_id)
            return run_id
        for turn in turns:
            await hf.another_worker().session(changer, run_id).send([turn])
    return run_id


def expected_states(turns: list[list[Any]], *, is_session: bool) -> list[Any]:
    """What plain Python objects are after each turn."""
    states: list[Any] = []
    state: dict[str, Any] = {"plan": {}}
    oracle = Program([], lambda: state["plan"], lambda value: state.update(plan=value))
    for turn in turns:
        for action in turn:
            oracle.act(*action)
        states.append(copy.deepcopy((oracle.log, state["plan"])))
        if is_session:
            oracle.kept.clear()
    return states


@pytest.mark.parametrize("is_session", [False, True])
@given(turns=st.lists(st.lists(Action, max_size=8), min_size=1, max_size=6))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_program_of_changes_is_stored_as_python_would_keep_it(
    tmp_path: Any, is_session: bool, turns: list[list[Any]]
) -> None:
    @async_test
    async def check() -> None:
        store = str(tmp_path / "agents.db")
        run_id = await play(store, turns, is_session=is_session)
        async with holdfast.Holdfast(store) as hf:
            found = (await hf.checkpoints.history(run_id))[::-1]
            states = [(await hf.checkpoints.load(run_id, each.version)).parts for each in found]
        expected = expected_states(turns, is_session=is_session)
        # The end of a run that changed nothing stores no version.
        assert len(expected) - len(states) <= (0 if is_session else 1)
        stored = [(parts.get("items", []), parts.get("plan", {})) for parts in states]
        assert stored == expected[: len(stored)]
        assert stored[-1:] == expected[-1:] or expected[-1] == ([], {}) or not stored

    check()


@async_test
async def test_objects_reached_without_a_counted_reference_are_stored(store: str) -> None:
    kept: list[Any] = []

    def begin(run: holdfast.Run) -> None:
        weak, inside = Item(1), Item(2)
        for item in (weak, inside):
            run.log("items", Item).append(item)
        kept.extend([weakref.ref(weak), vars(inside)])

    def nothing(run: holdfast.Run) -> None:
        run.value("n", int, 0).set(run.version)

    def change(run: holdfast.Run) -> None:
        kept[0]().n = 8
        kept[1]["n"] = 9

    state = await state_after(store, begin, nothing, nothing, nothing, change)
    assert state["items"] == [{"n": 8, "tags": []}, {"n": 9, "tags": []}]
