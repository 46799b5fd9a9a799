"""Values to bytes and back: equal or refused, never changed."""

import copy
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.errors import IntegrityError, UnsupportedValue


def offset(minutes: int) -> timezone:
    return timezone(timedelta(minutes=minutes))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.integers(-1439, 1439).map(offset))
    | st.decimals(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(VALUES)
@pytest.mark.mission("X-006")
def test_every_supported_value_comes_back_equal_and_of_its_type(value: object) -> None:
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


@given(VALUES)
def test_packing_is_undone_by_unpacking(value: object) -> None:
    data = codec.encode(value) * 3
    encoding, stored = codec.pack(data)
    assert len(stored) <= len(data)
    assert codec.unpack(encoding, stored) == data


def decoded(data: bytes) -> str:
    try:
        codec.decode(data)
    except IntegrityError:
        return "refused"
    return "a value"


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_or_are_a_value(data: bytes) -> None:
    assert decoded(data) in {"refused", "a value"}


class Colour(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    when: datetime
    colour: Colour


@dataclass
class Point:
    x: int
    tags: tuple[str, ...]


class Pair(NamedTuple):
    number: int
    text: str


class Shape(msgspec.Struct):
    points: list[Point]


def test_objects_that_are_data_are_stored_as_what_they_hold() -> None:
    model = Model(when=datetime.fromisoformat("2026-01-01T00:00:00+00:00"), colour=Colour.RED)
    stored = codec.decode(codec.encode({"model": model, "shape": Shape([Point(1, ("a",))])}))
    assert stored == {
        "model": {"when": model.when, "colour": "red"},
        "shape": {"points": [{"x": 1, "tags": ("a",)}]},
    }


def test_subclasses_of_containers_are_stored_as_what_they_are() -> None:
    value = {"ordered": OrderedDict(a=1), "counted": Counter("aab"), "named": Pair(1, "x")}
    stored = codec.decode(codec.encode(value))
    assert stored == {"ordered": {"a": 1}, "counted": {"a": 2, "b": 1}, "named": (1, "x")}


def test_encoding_leaves_the_callers_objects_alone() -> None:
    value = {"at": datetime.fromisoformat("2026-01-01T00:00:00"), "list": [UUID(int=1), 2]}
    before = copy.deepcopy(value)
    codec.encode(value)
    assert value == before


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> object:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": {1}}, r'v\["a"\]: set is not supported'),
        ([1, math.nan], r"v\[1\]: nan is not a finite number"),
        ({"a": -math.inf}, r'v\["a"\]: -inf is not a finite number'),
        (2**70, "v: this integer needs more than 64 bits"),
        ("x\ud800", "v: the string has a lone surrogate at index 1"),
        ({"\udfff": 1}, "lone surrogate"),
        ({1: "a"}, r"v\[1\]: dict keys must be strings, not int"),
        (deep(10_000), "nested deeper than 200 levels"),
        (cycle(), "is it a cycle"),
        (object(), "v: object is not supported"),
        (lambda: 1, "v: function is not supported"),
        (Decimal("NaN"), "not a finite number"),
        (complex(1, 2), "complex is not supported"),
        (bytearray(b"x"), "bytearray is not supported; use bytes"),
        (Point, "v: type is not supported"),
        ([codec.Ref(1)], "named as a whole item"),
    ],
)
def test_anything_else_is_refused_with_its_path(value: object, reason: str) -> None:
    with pytest.raises(UnsupportedValue, match=reason):
        codec.encode(value, name="v")


def test_equal_data_has_an_equal_digest_whatever_the_order_of_keys() -> None:
    assert codec.canonical_digest({"a": 1, "b": [2]}) == codec.canonical_digest({"b": [2], "a": 1})
    assert codec.canonical_digest({"a": 1}) != codec.canonical_digest({"a": 2})
    assert codec.canonical_digest([1]) != codec.canonical_digest((1,))
    one, two = ({"sku": 1, "n": ({"a": 1, "b": 2},)},), ({"n": ({"b": 2, "a": 1},), "sku": 1},)
    assert codec.canonical_digest({"items": one}) == codec.canonical_digest({"items": two})


def test_stored_bytes_of_an_unknown_codec_are_refused() -> None:
    with pytest.raises(IntegrityError, match="'rot13'"):
        codec.unpack("rot13", b"x")
    with pytest.raises(IntegrityError, match="decompressed"):
        codec.unpack("zstd", b"not zstd at all")


def test_named_entry_comes_back_as_a_name() -> None:
    assert codec.decode(codec.encode(codec.Ref(7, ("a", 1)))) == codec.Ref(7, ("a", 1))


def test_uuid_and_datetime_keep_their_types_inside_containers() -> None:
    value = {"ids": [UUID(int=1)], "at": (datetime.fromisoformat("2026-01-01T00:00:00+02:00"),)}
    assert codec.decode(codec.encode(value)) == value
