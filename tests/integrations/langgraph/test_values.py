"""Values as tokens: they come back, what is known is not serialized again, edits are noticed."""

import gc
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import AIMessageChunk
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import add_messages
from langgraph.types import Command, Interrupt, Send

from holdfast import codec
from holdfast.errors import CheckpointCorrupted, HoldfastError, TypeNotAllowed, UnsupportedValue
from holdfast.integrations.langgraph.values.serde import strict_encrypted, strict_serde
from holdfast.integrations.langgraph.values.values import Flat, Pool, Values
from tests.integrations.langgraph.test_serde import AesGcm

LONG = "long text " * 30
THEIRS = JsonPlusSerializer(allowed_msgpack_modules=None)


def conversation(size: int) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    for n in range(size):
        call = {"name": "t", "args": {"n": [n]}, "id": f"c{n}"}
        kind = n % 3
        if kind == 0:
            messages.append(HumanMessage(f"{n} {LONG}", id=f"m{n}"))
        elif kind == 1:
            messages.append(AIMessage(f"{n}", id=f"m{n}", tool_calls=[call]))
        else:
            messages.append(ToolMessage(f"{n} {LONG}", tool_call_id=f"c{n - 1}", id=f"m{n}"))
    return messages


def plain(tokens: Sequence[msgspec.Raw | bytes]) -> list[Any]:
    return [codec.decode(token) for token in tokens]


def shape(value: Any) -> Any:
    """What can be compared, types included; NaN equals itself."""
    if isinstance(value, BaseMessage):
        extra = value.__pydantic_extra__
        return [type(value), shape(dict(value.__dict__)), shape(extra)]
    if isinstance(value, Send):
        return [Send, value.node, shape(value.arg), value.timeout]
    if isinstance(value, Command | Interrupt):
        return [type(value), shape(dict(value.__dict__)) if hasattr(value, "__dict__") else value]
    if isinstance(value, list | tuple):
        return [type(value), *(shape(item) for item in value)]
    if isinstance(value, dict):
        return [dict, *((shape(key), shape(item)) for key, item in value.items())]
    return [type(value), repr(value) if isinstance(value, float) else value]


texts = st.text(max_size=8) | st.text(min_size=1, max_size=3).map(lambda text: text * 256)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    texts,
    st.binary(max_size=8),
    st.sampled_from(
        [
            uuid.UUID(int=7),
            Decimal("1.50"),
            datetime(2026, 1, 2, tzinfo=UTC),
            frozenset({1}),
            {"a"},
            Interrupt("q", id="i"),
        ]
    ),
)
messages = st.one_of(
    st.builds(HumanMessage, content=texts, id=st.none() | texts),
    st.builds(AIMessage, content=texts, additional_kwargs=st.dictionaries(texts, texts)),
    st.builds(ToolMessage, content=texts, tool_call_id=texts, artifact=scalars),
    st.builds(
        HumanMessage, content=st.lists(texts, max_size=2), extra=st.integers(-(2**63), 2**63)
    ),
    st.builds(AIMessageChunk, content=texts),
)
keys = st.text(max_size=4)
any_value = st.recursive(
    scalars | messages,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, min_size=16, max_size=18),
        st.dictionaries(st.integers(-9, 9) | st.none(), inner, max_size=2),
        st.builds(Send, st.just("node"), inner),
        st.builds(_DeltaSnapshot, inner),
        st.builds(lambda value: Command(update=value), inner),
    ),
    max_leaves=12,
)


@given(any_value)
@settings(max_examples=300, deadline=None)
def test_value_comes_back_as_from_langgraphs_serializer(value: Any) -> None:
    values = Values(strict_serde())
    flat = values.flatten(value)
    assert flat.kind == ("list" if type(value) is list else "value")
    expected = shape(THEIRS.loads_typed(THEIRS.dumps_typed(value)))
    assert shape(values.assemble(*flat)) == expected
    assert shape(Values(strict_serde()).assemble(flat.kind, plain_bytes(flat))) == expected
    assert shape(values.assemble(*flat, pool=Pool())) == expected
    again = values.flatten(values.assemble(*flat))
    assert plain(again.tokens) == plain(flat.tokens) or expected != shape(value)


def plain_bytes(flat: Flat) -> list[bytes]:
    return [bytes(token) for token in flat.tokens]


@given(st.lists(any_value, max_size=4), st.lists(any_value, max_size=3))
@settings(max_examples=100, deadline=None)
def test_list_that_grows_has_the_tokens_it_had(old: list[Any], new: list[Any]) -> None:
    values = Values(strict_serde())
    before = plain(values.flatten(old).tokens)
    after = plain(values.flatten(old + new).tokens)
    assert repr(after[: len(before)]) == repr(before)
    fresh = plain(Values(strict_serde()).flatten(old + new).tokens)
    assert repr(after) == repr(fresh)


@given(any_value)
@settings(max_examples=100, deadline=None)
def test_encrypted_value_comes_back_and_leaves_nothing_readable(value: Any) -> None:
    values = Values(strict_encrypted(AesGcm()))
    flat = values.flatten(
        [value, "readable" * 99, {"readable" * 99: 1}, HumanMessage("readable" * 99)]
    )
    assert not any(b"readable" in bytes(token) for token in flat.tokens)
    assert len(flat.tokens) == 4
    expected = THEIRS.loads_typed(THEIRS.dumps_typed(value))
    back = values.assemble(*flat)
    # What LangGraph's serializer does to bytearrays in a list it does not do to one alone.
    assert shape(back[0]) == shape(expected)
    assert back[3].content == "readable" * 99


def test_tokens_of_usual_values() -> None:
    """A stored format: this test is changed only by adding to it."""
    values = Values(strict_serde())

    def tokens(value: object) -> list[Any]:
        return plain(values.flatten(value).tokens)

    assert [tokens(value) for value in (None, True, 7, 1.5, "short", LONG)] == [
        [None],
        [True],
        [7],
        [1.5],
        ["short"],
        [LONG],
    ]
    assert tokens([]) == []
    assert tokens(["a", 1, [1, 2]]) == ["a", 1, b"\x92\x01\x02"]
    assert tokens({"a": 1}) == [b"\x81\xa1a\x01"]
    assert tokens({"a": 1, "b": (LONG, 2)}) == [[2, ["a", "b"]], 1, [1, 2], LONG, 2]
    assert tokens({str(n): n for n in range(16)}) == [[2, [str(n) for n in range(16)]], *range(16)]
    assert tokens(b"x") == [[0, "bytes", b"x"]]
    assert tokens(Send("n", [LONG])) == [[4, "n"], [1, 1], LONG]
    assert tokens(_DeltaSnapshot([LONG])) == [[5], [1, 1], LONG]
    long = HumanMessage(LONG, id="1")
    shell = HumanMessage("", id="1")
    assert tokens([long]) == [[3, THEIRS.dumps_typed(shell)[1]], LONG]
    short = HumanMessage("x", id="1")
    assert tokens({"messages": [short]}) == [
        [2, ["messages"]],
        [1, 1],
        THEIRS.dumps_typed(short)[1],
    ]


def test_text_is_the_same_token_wherever_it_stands() -> None:
    values = Values(strict_serde())
    message = HumanMessage(LONG)
    start = values.flatten({"messages": [message]}, channel="__start__").tokens
    write = values.flatten([message], channel="@messages").tokens
    state = values.flatten(add_messages([], [message]), channel="messages").tokens
    assert message.id is not None
    assert plain(start)[-1] == plain(write)[-1] == plain(state)[-1] == LONG
    assert bytes(start[-1]) == bytes(write[-1]) == bytes(state[-1])


def are_the_same(left: list[msgspec.Raw], right: list[msgspec.Raw]) -> bool:
    return len(left) == len(right) and all(map(lambda a, b: a is b, left, right))


def test_known_messages_give_the_same_tokens_and_are_not_serialized() -> None:
    values = Values(strict_serde())
    history = conversation(60)
    before = values.flatten(history, channel="m").tokens
    assert are_the_same(values.flatten(list(history), channel="m").tokens, before)
    grown = values.flatten([*history, HumanMessage("new")], channel="m").tokens
    assert are_the_same(grown[:-1], before)


def test_messages_are_known_after_they_were_read() -> None:
    written = Values(strict_serde()).flatten(conversation(60)).tokens
    values = Values(strict_serde())
    history = values.assemble("list", written, channel="m")
    assert are_the_same(values.flatten(history, channel="m").tokens, written)
    assert are_the_same(values.flatten(history[7:], channel="m").tokens[-3:], written[-3:])


def test_known_messages_are_found_at_other_places() -> None:
    values = Values(strict_serde())
    history = conversation(9)
    alone = [values.flatten([message], channel=str(n)).tokens for n, message in enumerate(history)]
    together = values.flatten(list(reversed(history)), channel="all").tokens
    assert are_the_same(together, [token for tokens in reversed(alone) for token in tokens])
    nested = values.flatten({"messages": history[:2]}, channel="nested").tokens
    assert are_the_same(nested[2:], alone[0] + alone[1])


def test_plain_dicts_of_a_list_are_known_too() -> None:
    values = Values(strict_serde())
    todos = [{"title": LONG, "tags": ["a"]}, {"title": "short"}]
    before = values.flatten(todos).tokens
    assert are_the_same(values.flatten(list(todos)).tokens, before)
    todos[1]["title"] = "other"
    after = values.flatten(todos).tokens
    assert are_the_same(after[:-1], before[:-1])
    assert values.assemble("list", after) == todos


EDITS: list[Callable[[Any], object]] = [
    lambda m: setattr(m, "content", "other"),
    lambda m: setattr(m, "content", LONG + "other"),
    lambda m: setattr(m, "id", "other"),
    lambda m: m.additional_kwargs.update(x=1),
    lambda m: m.additional_kwargs["deep"]["list"].append(2),
    lambda m: m.tool_calls[0]["args"].update(n=2),
    lambda m: m.tool_calls[0]["args"]["deep"].clear(),
    lambda m: m.tool_calls.clear(),
    lambda m: m.response_metadata.pop("model"),
    lambda m: m.__dict__.update(name="other"),
    lambda m: setattr(m, "colour", "red"),
    lambda m: setattr(m, "usage_metadata", None),
]


def message_to_edit() -> AIMessage:
    return AIMessage(
        LONG,
        id="edited",
        tool_calls=[{"name": "t", "args": {"n": 1, "deep": [1]}, "id": "c"}],
        additional_kwargs={"deep": {"list": [1]}},
        response_metadata={"model": "m"},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_edit_in_place_is_noticed(edit: Callable[[Any], object], is_read: bool) -> None:
    values = Values(strict_serde())
    history = [*conversation(5), message_to_edit(), *conversation(5)]
    before = values.flatten(history, channel="m").tokens
    if is_read:
        history = values.assemble("list", before, channel="m")
    edit(history[5])
    after = values.flatten(history, channel="m").tokens
    assert plain(after) != plain(before)
    assert plain(after) == plain(Values(strict_serde()).flatten(history).tokens)
    assert shape(values.assemble("list", after)) == shape(history)
    unedited = values.flatten(conversation(5), channel="other").tokens
    assert are_the_same(after[: len(unedited)], before[: len(unedited)])


def test_edit_while_it_is_serialized_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangGraph gives a message its id in one thread while another stores what was written."""
    serde = strict_serde()
    values, message = Values(serde), HumanMessage("go")
    as_it_was = type(serde).dumps_typed

    def dumps_typed(self: Any, obj: Any) -> tuple[str, bytes]:
        dumped = as_it_was(self, obj)
        message.id = "m-1"
        return dumped

    monkeypatch.setattr(type(serde), "dumps_typed", dumps_typed)
    values.flatten([message], channel="written")
    later = values.flatten([message], channel="messages")
    assert Values(serde).assemble(later.kind, later.tokens)[0].id == "m-1"


def test_edit_to_what_does_not_compare_is_noticed() -> None:
    class Odd(dict[str, int]):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("does not compare")

    values = Values(strict_serde())
    history = conversation(3)
    before = values.flatten(history).tokens
    history[0].additional_kwargs["odd"] = Odd(a=1)
    after = values.flatten(history).tokens
    assert plain(after)[0] != plain(before)[0]
    assert values.assemble("list", after)[0].additional_kwargs == {"odd": {"a": 1}}


def test_message_that_cannot_be_checked_is_serialized_every_time() -> None:
    values = Values(strict_serde())
    artifact = {1, 2}
    history = [ToolMessage("x", tool_call_id="c", artifact=artifact)]
    values.flatten(history)
    artifact.add(3)
    assert values.assemble(*values.flatten(history))[0].artifact == {1, 2, 3}


def test_assembled_objects_are_fresh() -> None:
    values = Values(strict_serde())
    flat = values.flatten([message_to_edit(), {"a": {"b": [1]}}])
    first, second = values.assemble(*flat), values.assemble(*flat)
    first[0].tool_calls.clear()
    first[1]["a"]["b"].append(2)
    assert second[0] == message_to_edit()
    assert second[1] == {"a": {"b": [1]}}


def test_refused_value_leaves_the_memory_right() -> None:
    values = Values(strict_serde())
    history = conversation(6)
    values.flatten(history, channel="m")
    for bad in (object(), HumanMessage("\ud800" + LONG), "\ud800" * 300, {"\ud800": LONG}):
        with pytest.raises(UnsupportedValue):
            values.flatten([*history[:3], bad, *history[3:]], channel="m")
    with pytest.raises(TypeNotAllowed):
        values.flatten([*history[:2], Flat("list", [])], channel="m")
    after = values.flatten(history, channel="m").tokens
    assert plain(after) == plain(Values(strict_serde()).flatten(history).tokens)


def test_memory_is_bounded_by_what_the_channels_hold() -> None:
    values = Values(strict_serde())
    first = HumanMessage("first")
    values.flatten([first], channel="m")
    gone = weakref.ref(first)
    del first
    for n in range(2_000):
        values.flatten([HumanMessage(str(n))], channel="m")
        values.flatten({"messages": [HumanMessage(str(n))]}, channel="n")
        values.assemble(
            "list", values.flatten([HumanMessage("w")], channel="w").tokens, channel="w"
        )
    gc.collect()
    assert gone() is None
    assert len(values._memory) <= 2 * 3 + 64 + 1
    for n in range(2_000):
        values.flatten([HumanMessage("x")], channel=f"channel {n}")
    assert len(values._memory) <= 2 * 256 + 64 + 1


def test_pool_shares_the_objects_of_a_listing() -> None:
    values = Values(strict_serde())
    history = conversation(40)
    listing = [values.flatten(history[:size], channel="m").tokens for size in range(40, 0, -1)]
    pool = Pool()
    results = [values.assemble("list", tokens, channel="m", pool=pool) for tokens in listing]
    assert [len(result) for result in results] == list(range(40, 0, -1))
    assert results[0] == history
    assert all(result[0] is results[0][0] for result in results)
    assert all(a is b for result in results for a, b in zip(result, results[0], strict=False))
    assert len({id(result) for result in results}) == 40
    other = values.assemble("list", listing[0], channel="m")
    assert other[0] is not results[0][0]


def test_pool_shares_what_stands_elsewhere() -> None:
    values = Values(strict_serde())
    history = conversation(12)
    branches = [history, history[:5], [SystemMessage("s"), *history[6:]], history[3:], [], history]
    pool = Pool()
    results = [
        values.assemble("list", values.flatten(branch, channel="m").tokens, channel="m", pool=pool)
        for branch in branches
    ]
    assert results == branches
    assert results[2][1] is results[0][6]
    assert results[3][0] is results[0][3]
    one = values.assemble(*values.flatten({"last": history[0]}), pool=pool)
    assert one["last"] is results[0][0]


def test_token_lists_of_equal_bytes_share_too() -> None:
    values = Values(strict_serde())
    flat = values.flatten(conversation(12))
    pool = Pool()
    first = values.assemble("list", flat.tokens, pool=pool)
    copies = [msgspec.Raw(bytes(token)) for token in flat.tokens]
    second = values.assemble("list", copies, pool=pool)
    assert all(a is b for a, b in zip(first, second, strict=True))


def nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [1, 30, 31, 32, 33, 34, 60])
def test_deeply_nested_value_comes_back(depth: int) -> None:
    values = Values(strict_serde())
    for inner in (HumanMessage(LONG), LONG, {"a": HumanMessage("x")}):
        value = nest(inner, depth)
        assert values.assemble(*values.flatten(value)) == value
        assert values.assemble(*values.flatten({"v": value})) == {"v": value}


def test_cycle_is_refused() -> None:
    cycle: dict[str, Any] = {"text": LONG}
    cycle["self"] = cycle
    with pytest.raises(UnsupportedValue):
        Values(strict_serde()).flatten(cycle)


SHELL = [3, strict_serde().pack_shell(HumanMessage("x", id="1"))]
DAMAGED: dict[str, list[Any]] = {
    "nothing": [],
    "two values": [1, 2],
    "list that ends early": [[1, 2], 1],
    "list of absurd length": [[1, 2**62], 1],
    "list of negative length": [[1, -1]],
    "length is no number": [[1, "2"], 1, 1],
    "length is a bool": [[1, True], 1],
    "form is a bool": [[True, 1], 1],
    "dict that ends early": [[2, ["a", "b"]], 1],
    "dict with a key twice": [[2, ["a", "a"]], 1, 1],
    "dict with a key that is no text": [[2, ["a", 1]], 1, 1],
    "dict with keys that are lists": [[2, [["a"]]], 1],
    "dict without keys": [[2], 1],
    "shell without text": [SHELL],
    "shell with another token for text": [SHELL, b"x"],
    "shell with a list for text": [SHELL, [1, 0]],
    "shell of something else": [[3, strict_serde().dumps_typed({1})[1]], "x"],
    "shell of nothing": [[3, b""], "x"],
    "Send without argument": [[4, "n"]],
    "Send to no node": [[4, 1], 1],
    "snapshot of nothing": [[5]],
    "unknown form": [[6], 1],
    "form of text": [["a"], 1],
    "empty form": [[]],
    "atom that is no MessagePack": [b"\xc1"],
    "empty atom": [b""],
    "map": [{"a": 1}],
    "time": [datetime(2026, 1, 2, tzinfo=UTC)],
    "too deep": [*([[1, 1]] * 40), 1],
    "much too deep": [*([[1, 1]] * 100_000), 1],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_tokens_are_refused(name: str) -> None:
    tokens = [codec.encode(token) for token in DAMAGED[name]]
    values = Values(strict_serde())
    for pool in (None, Pool()):
        with pytest.raises(CheckpointCorrupted):
            values.assemble("value", tokens, pool=pool)
    if name not in ("nothing", "two values"):
        with pytest.raises(CheckpointCorrupted):
            values.assemble("list", tokens)


@pytest.mark.parametrize("token", [b"", b"\xc1", b"\x01\x02", b"\xd9\xff", b"\xdd\xff\xff\xff\xff"])
def test_damaged_token_is_refused(token: bytes) -> None:
    for tokens in ([token], [codec.encode(1), token]):
        with pytest.raises(CheckpointCorrupted):
            Values(strict_serde()).assemble("list", tokens)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointCorrupted, match="kind"):
        Values(strict_serde()).assemble("delta", [])


def test_readable_token_is_refused_where_encryption_is_asked_for() -> None:
    planted = Values(strict_serde()).flatten(["planted", {"a": LONG}, {"b": 1}, HumanMessage(LONG)])
    values = Values(strict_encrypted(AesGcm()))
    for token in planted.tokens:
        with pytest.raises(CheckpointCorrupted):
            values.assemble("list", [token])
    with pytest.raises(TypeNotAllowed, match="not encrypted"):
        values.assemble("value", [codec.encode([0, "msgpack", b"\x01"])])


@given(st.lists(st.binary(max_size=12) | st.sampled_from([codec.encode(SHELL), b"\x92\x01\x02"])))
@settings(max_examples=300, deadline=None)
def test_random_tokens_are_a_value_or_a_typed_error(tokens: list[bytes]) -> None:
    values = Values(strict_serde())
    for kind in ("list", "value"):
        try:
            value = values.assemble(kind, tokens)
        except HoldfastError:
            continue
        assert kind == "value" or isinstance(value, list)


@given(any_value, st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_tokens_of_a_value_are_a_value_or_a_typed_error(value: Any, data: Any) -> None:
    values = Values(strict_serde())
    flat = values.flatten([value])
    tokens = plain_bytes(flat)
    at = data.draw(st.integers(0, len(tokens) - 1))
    spot = data.draw(st.integers(0, len(tokens[at]) - 1))
    byte = data.draw(st.integers(0, 255))
    tokens[at] = tokens[at][:spot] + bytes([byte]) + tokens[at][spot + 1 :]
    try:
        back = values.assemble("list", tokens)
    except HoldfastError:
        return
    assert isinstance(back, list)
