"""The forms in which objects are written: LangGraph's MessagePack extensions, byte for byte.

A form is chosen by the type of the object, once per type. What LangGraph's own serializer has
written can be read here, and the other way round.
"""

import dataclasses
import re
import sys
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from langgraph.checkpoint.serde import types as stored_types
from langgraph.types import Send

# What a DeltaChannel stores; LangGraph exports it nowhere.
DeltaSnapshot = stored_types._DeltaSnapshot  # pyright: ignore[reportPrivateUsage]

ONE_ARGUMENT: Final = 0
ARGUMENTS: Final = 1
KEYWORDS: Final = 2
METHOD: Final = 3
PYDANTIC_1: Final = 4
PYDANTIC_2: Final = 5
NUMPY_ARRAY: Final = 6
SNAPSHOT: Final = 7

FROM_ISO: Final = "fromisoformat"


class Form(NamedTuple):
    """How objects of one type are written."""

    code: int
    payload: Callable[[Any], Any]
    # Made again by code that may refuse: tried before anything is stored.
    doubtful: bool = False


@lru_cache(maxsize=4096)
def form_of(kind: type) -> Form | None:
    """The form of objects of this type; None for a type that has none."""
    for applies, form in _FORMS:
        if applies(kind):
            return form
    return None


def _has(method: str) -> Callable[[type], bool]:
    return lambda kind: callable(getattr(kind, method, None))


def _is(*kinds: type) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, kinds)


def _named(*rest: Callable[[Any], object]) -> Callable[[Any], Any]:
    """The name of the object's class, then what `rest` says of the object."""

    def payload(value: Any) -> object:
        kind = cast("type[Any]", type(value))
        return (kind.__module__, kind.__name__, *(part(value) for part in rest))

    return payload


def _model(value: Any) -> tuple[str, str, Any, str]:
    kind = cast("type[Any]", type(value))
    return (kind.__module__, kind.__name__, value.model_dump(), "model_validate_json")


def _time(value: time) -> object:
    names = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
    return {name: getattr(value, name) for name in names}


def _pattern(value: "re.Pattern[Any]") -> object:
    return ("re", "compile", (value.pattern, value.flags))


def _snapshot(value: DeltaSnapshot) -> object:
    return value.value


def _send(value: Send) -> object:
    if value.timeout is None:
        return (value.node, value.arg)
    return (value.node, value.arg, value.timeout)


def _fields(value: Any) -> object:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _array(value: Any) -> object:
    fortran = value.flags.f_contiguous and not value.flags.c_contiguous
    return (value.dtype.str, value.shape, "F" if fortran else "C", value.tobytes(order="A"))


def _is_array(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.ndarray)


PYDANTIC_2_FORM: Final = Form(PYDANTIC_2, _model, True)
PATTERN_FORM: Final = Form(ARGUMENTS, _pattern)

_FORMS: Final[tuple[tuple[Callable[[type], bool], Form], ...]] = (
    (_is(DeltaSnapshot), Form(SNAPSHOT, _snapshot)),
    (_has("model_dump"), PYDANTIC_2_FORM),
    (_has("get_secret_value"), Form(ONE_ARGUMENT, _named(lambda v: v.get_secret_value()), True)),
    (_has("dict"), Form(PYDANTIC_1, _named(lambda v: v.dict()), True)),
    (_has("_asdict"), Form(KEYWORDS, _named(lambda v: v._asdict()), True)),
    (_is(Path), Form(ARGUMENTS, _named(lambda v: v.parts))),
    (_is(re.Pattern), PATTERN_FORM),
    (_is(UUID), Form(ONE_ARGUMENT, _named(lambda v: v.hex))),
    (_is(Decimal), Form(ONE_ARGUMENT, _named(str))),
    (_is(set, frozenset, deque), Form(ONE_ARGUMENT, _named(tuple), True)),
    (
        _is(IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network),
        Form(ONE_ARGUMENT, _named(str)),
    ),
    (_is(datetime), Form(METHOD, _named(lambda v: v.isoformat(), lambda _: FROM_ISO), True)),
    (_is(timedelta), Form(ARGUMENTS, _named(lambda v: (v.days, v.seconds, v.microseconds)))),
    (_is(date), Form(ARGUMENTS, _named(lambda v: (v.year, v.month, v.day)))),
    (_is(time), Form(KEYWORDS, _named(_time))),
    (_is(timezone), Form(ARGUMENTS, _named(lambda v: v.__getinitargs__()))),
    (_is(ZoneInfo), Form(ONE_ARGUMENT, _named(lambda v: v.key), True)),
    (_is(Enum), Form(ONE_ARGUMENT, _named(lambda v: v.value), True)),
    (_is(Send), Form(ARGUMENTS, _named(_send))),
    (dataclasses.is_dataclass, Form(KEYWORDS, _named(_fields), True)),
    (_is_array, Form(NUMPY_ARRAY, _array, True)),
)
