"""The strict serializer: the bytes of LangGraph's own, its values, and no others."""

import copy
import dataclasses
import re
import uuid
from collections import deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address, ip_network
from os import urandom
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import ormsgpack
import pydantic
import pydantic.v1
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send

from holdfast.errors import (
    CheckpointCorrupted,
    InvalidSetting,
    TypeNotAllowed,
    UnsupportedValue,
)
from holdfast.integrations.langgraph.values.serde import strict_encrypted, strict_serde

THEIRS = JsonPlusSerializer(allowed_msgpack_modules=None)


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    id: int
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: Any


class Model(pydantic.BaseModel):
    name: str
    inner: "Model | None" = None


class Old(pydantic.v1.BaseModel):
    name: str


class ByAlias(pydantic.BaseModel):
    amount: int = pydantic.Field(alias="Amount")


class Numbers(pydantic.RootModel[list[int]]):
    pass


Held = TypeVar("Held")


class Box(pydantic.BaseModel, Generic[Held]):
    held: Held


class Outer:
    @dataclasses.dataclass
    class Inner:
        n: int


class When(datetime):
    pass


SAFE = [
    *(1, -1, 2**64 - 1, 1.5, float("inf"), True, "text", "", [], {}, [1, [2, {"a": None}]]),
    *((1, (2,)), {1: "a", (1, 2): "b"}, {b"k": 1}, b"", b"bytes", bytearray(b"array")),
    {1, 2},
    frozenset({"a"}),
    deque([1, {2}]),
    *(uuid.uuid4(), Decimal("1.50"), Path("/a/b"), re.compile("a+", re.IGNORECASE)),
    *(
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC).replace(tzinfo=None),
        datetime(2026, 1, 2, tzinfo=UTC),
        date(2026, 1, 2),
    ),
    *(timedelta(days=1, microseconds=2), time(1, 2, tzinfo=UTC), timezone(timedelta(hours=2))),
    *(
        ZoneInfo("Europe/Berlin"),
        ip_address("::1"),
        ip_network("10.0.0.0/8"),
        ip_address("1.2.3.4"),
    ),
    *(Send("node", {"a": HumanMessage("x")}), Send("node", 1, timeout=3.0)),
    *(Interrupt("question", id="i"), Command(goto="x", update={"m": [AIMessage("y")]})),
    *(Overwrite([1]), _DeltaSnapshot([HumanMessage("z")]), Document("page", metadata={"a": 1})),
    ValueError("went wrong"),
]

MESSAGES: list[BaseMessage] = [
    HumanMessage("hello", id="1", name="me"),
    HumanMessage([{"type": "text", "text": "a"}, "b"], additional_kwargs={"k": [1, {"a": 2}]}),
    HumanMessage("extra", colour="red"),
    SystemMessage("be kind"),
    AIMessage("hi", response_metadata={"model": "m"}),
    AIMessage(
        "",
        tool_calls=[{"name": "t", "args": {"a": 1}, "id": "c"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    AIMessage("", invalid_tool_calls=[{"name": "t", "args": "{", "id": "c", "error": "bad"}]),
    AIMessage(
        "",
        additional_kwargs={
            "tool_calls": [{"id": "c", "function": {"name": "t", "arguments": '{"a": 1}'}}]
        },
    ),
    AIMessageChunk("part", tool_call_chunks=[{"name": "t", "args": "{", "id": "c", "index": 0}]),
    ToolMessage("done", tool_call_id="c", artifact={"rows": [1, 2]}, status="error"),
    ToolMessage("done", tool_call_id="c", artifact={1, 2}),
    FunctionMessage("f", name="f"),
    ChatMessage("c", role="critic"),
    RemoveMessage(id="1"),
]


def looks_like(value: Any) -> object:
    """What can be compared of a value, types included."""
    if isinstance(value, BaseMessage):
        extra = value.__pydantic_extra__
        return (type(value), value.__dict__, extra, value.__pydantic_fields_set__)
    if isinstance(value, list | tuple):
        return (type(value), [looks_like(item) for item in value])
    if isinstance(value, dict):
        return (type(value), [(looks_like(k), looks_like(v)) for k, v in value.items()])
    return (type(value), value)


@pytest.mark.parametrize("value", [None, *SAFE, *MESSAGES], ids=lambda v: type(v).__name__)
def test_safe_value_has_the_bytes_and_the_value_of_langgraphs_own_serializer(value: Any) -> None:
    ours = strict_serde()
    stored = ours.dumps_typed(value)
    assert stored == THEIRS.dumps_typed(value)
    assert looks_like(ours.loads_typed(stored)) == looks_like(THEIRS.loads_typed(stored))


def test_nan_comes_back() -> None:
    ours = strict_serde()
    back = ours.loads_typed(ours.dumps_typed([float("nan")]))
    assert back[0] != back[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
json_dicts = st.dictionaries(st.text(), json_values, max_size=3)
contents = st.text() | st.lists(st.text() | json_dicts, max_size=3)
tool_calls = st.lists(
    st.fixed_dictionaries({"name": st.text(), "args": json_dicts, "id": st.none() | st.text()}),
    max_size=2,
)
any_message = st.one_of(
    st.builds(HumanMessage, content=contents, additional_kwargs=json_dicts, name=st.text()),
    st.builds(AIMessage, content=contents, tool_calls=tool_calls, response_metadata=json_dicts),
    st.builds(ToolMessage, content=contents, tool_call_id=st.text(), artifact=json_values),
)


@given(any_message)
@settings(max_examples=200, deadline=None)
def test_messages_are_made_as_their_constructor_makes_them(message: BaseMessage) -> None:
    stored = THEIRS.dumps_typed(message)
    ours, theirs = strict_serde().loads_typed(stored), THEIRS.loads_typed(stored)
    assert repr(ours.__dict__) == repr(theirs.__dict__)
    assert type(ours) is type(theirs)
    assert ours.__pydantic_fields_set__ == theirs.__pydantic_fields_set__
    assert ours.__pydantic_extra__ == theirs.__pydantic_extra__
    assert type(ours.__pydantic_private__) is type(theirs.__pydantic_private__)


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.tool_calls[0].pop("type"),
        lambda m: m.tool_calls[0].update(type="other"),
        lambda m: m.tool_calls[0].update(extras={"a": 1}),
        lambda m: m.tool_calls.clear(),
        lambda m: m.additional_kwargs.update(tool_calls=[]),
        lambda m: setattr(m, "id", "x"),
    ],
)
def test_edited_message_is_made_as_its_constructor_makes_it(edit: Any) -> None:
    raw = [{"id": "c", "function": {"name": "t", "arguments": "{}"}}]
    message = AIMessage("x", additional_kwargs={"tool_calls": raw})
    edit(message)
    stored = THEIRS.dumps_typed(message)
    assert strict_serde().loads_typed(stored) == THEIRS.loads_typed(stored)


def test_made_message_can_be_copied_changed_and_dumped() -> None:
    serde = strict_serde()
    message = serde.loads_typed(serde.dumps_typed(AIMessage("a", id="1")))
    other = copy.deepcopy(message)
    other.content = "b"
    other.additional_kwargs["k"] = 1
    assert (message.content, message.additional_kwargs) == ("a", {})
    assert AIMessage(**message.model_dump()) == message
    assert other.model_copy(update={"content": "c"}).content == "c"


MINE = [
    Order(1),
    Pair(1, Order(2)),
    Model(name="a", inner=Model(name="b")),
    Old(name="a"),
    ByAlias(Amount=3),
    Numbers([1, 2]),
    Box[int](held=1),
    Outer.Inner(1),
    Colour.RED,
    pydantic.SecretStr("s"),
    When(2026, 1, 2),
    [{"deep": (Order(1),)}],
    {"k": Send("n", Order(1))},
    HumanMessage("x", additional_kwargs={"colour": Colour.RED}),
]
ALL_MINE = [
    *(Order, Pair, Model, Old, ByAlias, Numbers, Box[int], Outer.Inner, Colour),
    *(pydantic.SecretStr, When),
]


@pytest.mark.parametrize("value", MINE, ids=lambda v: type(v).__name__)
def test_type_that_is_not_allowed_is_refused_when_it_is_written(value: Any) -> None:
    with pytest.raises(TypeNotAllowed, match=r"HoldfastSaver\(\.\.\., allow=\["):
        strict_serde().dumps_typed(value)


@pytest.mark.parametrize("value", MINE, ids=lambda v: type(v).__name__)
def test_type_that_is_allowed_comes_back_as_itself(value: Any) -> None:
    serde = strict_serde(ALL_MINE)
    back = serde.loads_typed(serde.dumps_typed(value))
    expected = [{"deep": [Order(1)]}] if isinstance(value, list) else value
    assert (type(back), back) == (type(expected), expected)


def test_type_may_be_allowed_by_its_name() -> None:
    serde = strict_serde([(Order.__module__, "Order"), (Colour.__module__, "Colour")])
    assert serde.loads_typed(serde.dumps_typed(Order(1))) == Order(1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (("no.such.module", "Type"), "cannot be found"),
        (("os", "system"), "no class"),
        (("os", "NoSuch"), "cannot be found"),
    ],
)
def test_allowed_name_that_is_no_class_makes_nothing(name: tuple[str, str], says: str) -> None:
    stored = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((*name, "true"))))
    with pytest.raises(TypeNotAllowed, match=says):
        strict_serde([name]).loads_typed(("msgpack", stored))


def test_two_classes_of_one_name_cannot_both_be_allowed() -> None:
    class Inner:
        pass

    Inner.__module__ = Outer.Inner.__module__
    with pytest.raises(InvalidSetting, match="two classes"):
        strict_serde([Outer.Inner, Inner])


def test_class_that_hides_behind_an_allowed_name_is_refused() -> None:
    other = dataclasses.make_dataclass("Order", [("id", int)], namespace={})
    other.__module__ = Order.__module__
    with pytest.raises(TypeNotAllowed, match="another class of that name"):
        strict_serde([Order]).dumps_typed(other(1))


@dataclasses.dataclass
class Counted:
    n: int
    twice: int = dataclasses.field(init=False, default=0)


class Positive(pydantic.BaseModel):
    n: pydantic.PositiveInt


def invalid_message() -> BaseMessage:
    message = HumanMessage("x")
    message.additional_kwargs = None  # type: ignore[assignment]
    return message


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    "value", [Counted(1), Positive.model_construct(n=-1), [invalid_message()]], ids=repr
)
def test_object_that_could_not_be_made_again_is_refused_when_it_is_written(value: Any) -> None:
    with pytest.raises(UnsupportedValue, match="cannot be made again"):
        strict_serde([Counted, Positive]).dumps_typed(value)


def test_class_that_has_changed_since_raises_and_gives_no_other_value() -> None:
    stored = strict_serde([Model]).dumps_typed(Model(name="a"))
    renamed = (stored[0], stored[1].replace(b"name", b"nome"))
    with pytest.raises(UnsupportedValue, match="cannot be made again"):
        strict_serde([Model]).loads_typed(renamed)


cyclic: list[Any] = []
cyclic.append(cyclic)
cyclic_model = Model(name="a")
cyclic_model.inner = cyclic_model


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        {"\udfff": 1},
        HumanMessage("\ud800"),
        [{"a": ["\ud800"]}],
        2**70,
        object(),
        lambda: None,
        Model,
        cyclic,
        cyclic_model,
    ],
    ids=lambda v: ascii(type(v).__name__),
)
def test_what_is_not_data_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedValue):
        strict_serde([Model]).dumps_typed(value)


def test_saver_of_langgraph_can_widen_the_list() -> None:
    saver = InMemorySaver(serde=strict_serde())
    wider = saver.with_allowlist({(Order.__module__, "Order"), (Colour.__module__, "Colour")})
    assert type(wider.serde) is type(saver.serde)
    assert wider.serde.loads_typed(wider.serde.dumps_typed(Order(1))) == Order(1)
    with pytest.raises(TypeNotAllowed):
        saver.serde.dumps_typed(Order(1))
    with pytest.raises(TypeNotAllowed):
        wider.serde.dumps_typed(Model(name="a"))


def test_list_of_nothing_more_gives_the_same_serializer() -> None:
    serde = strict_serde()
    assert serde.with_msgpack_allowlist(()) is serde


class AesGcm:
    """A cipher as LangGraph wants one."""

    def __init__(self) -> None:
        self._key = AESGCM(AESGCM.generate_key(128))

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = urandom(12)
        return "gcm", nonce + self._key.encrypt(nonce, plaintext, None)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        if ciphername != "gcm":
            raise ValueError(ciphername)
        return self._key.decrypt(ciphertext[:12], ciphertext[12:], None)


def test_encrypted_value_comes_back_and_cannot_be_read_in_the_store() -> None:
    serde = strict_encrypted(AesGcm(), allow=[Order, Colour])
    for value in ("secret", None, b"secret", [Order(1), HumanMessage("secret")]):
        kind, data = serde.dumps_typed(value)
        assert kind.endswith("+gcm")
        assert b"secret" not in data
        assert serde.loads_typed((kind, data)) == value


def test_value_that_is_not_encrypted_is_refused_where_encryption_is_asked_for() -> None:
    plain = strict_serde().dumps_typed("planted")
    cipher = AesGcm()
    assert EncryptedSerializer(cipher, strict_serde()).loads_typed(plain) == "planted"  # theirs
    serde = strict_encrypted(cipher)
    for kind in ("msgpack", "msgpack+", "null", "json", "bytes", ""):
        with pytest.raises(TypeNotAllowed, match="not encrypted"):
            serde.loads_typed((kind, plain[1]))


def test_list_widened_by_langgraph_still_refuses_what_is_not_encrypted() -> None:
    saver = InMemorySaver(serde=strict_encrypted(AesGcm()))
    wider = saver.with_allowlist({(Order.__module__, "Order"), (Colour.__module__, "Colour")})
    assert wider.serde.loads_typed(wider.serde.dumps_typed(Order(1))) == Order(1)
    with pytest.raises(TypeNotAllowed, match="not encrypted"):
        wider.serde.loads_typed(strict_serde().dumps_typed("planted"))


def test_value_of_another_key_or_cipher_is_refused() -> None:
    kind, data = strict_encrypted(AesGcm()).dumps_typed("x")
    serde = strict_encrypted(AesGcm())
    for stored in ((kind, data), ("msgpack+other", data), (kind, data[:5])):
        with pytest.raises(CheckpointCorrupted, match="cannot be decrypted"):
            serde.loads_typed(stored)
