"""Which objects can be changed in place, and which of those somebody still refers to.

Views use it to compare at a checkpoint only what the agent's code can have changed: what is
immutable all through is never compared, and what nobody refers to is not compared again.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID
from weakref import getweakrefcount

import msgspec

from holdfast.errors import MisuseError

_ATOMS: Final = (
    *(str, int, float, bool, bytes, type(None), Enum),
    *(date, time, timedelta, UUID, Decimal, type),
)
_MARK: Final = "holdfast_is_immutable"
_count_references: Final[Callable[[object], int] | None] = getattr(sys, "getrefcount", None)
_ALONE: Final = 0 if _count_references is None else next(map(_count_references, [[]]))
"""How many references are counted to an object that only one container refers to."""


def is_immutable(value: object) -> bool:
    """Whether neither an object nor anything in it can be changed."""
    if isinstance(value, _ATOMS):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(is_immutable, cast("Collection[object]", value)))
    frozen = _frozen_fields(type(value))
    return frozen is not None and all(is_immutable(getattr(value, name)) for name in frozen)


def are_shared(values: Collection[object], *, by: int = 0) -> bool:
    """Whether something refers to one of these objects, or to what is in it.

    `by` is how many refer to each beside the collection that is given. True where that cannot be
    seen: a Python that does not count references, or a type that is not known to be data.
    """
    if _count_references is None:
        return True
    counts = list(map(_count_references, values))
    for value, count in zip(values, counts, strict=True):
        if is_immutable(value):
            continue
        if count > _ALONE + by or getweakrefcount(value) or _is_content_shared(value):
            return True
    return False


def _is_content_shared(value: object) -> bool:
    if isinstance(value, dict):
        return are_shared(cast("dict[str, object]", value).values())
    if isinstance(value, list | tuple):
        return are_shared(cast("list[object]", value))
    fields = _fields(type(value))
    if fields is None:
        return True
    if hasattr(value, "__dict__") and are_shared([vars(value)], by=1):
        return True
    # The list made here refers to each of them too.
    return are_shared([getattr(value, name) for name in fields], by=1)


@functools.lru_cache(maxsize=1024)
def _frozen_fields(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields of a type whose instances cannot be given other ones; None if they can."""
    if kind.__dict__.get(_MARK):
        return ()
    if issubclass(kind, msgspec.Struct):
        is_frozen = bool(kind.__struct_config__.frozen)
    elif dataclasses.is_dataclass(kind):
        is_frozen = bool(cast(Any, kind).__dataclass_params__.frozen)
    else:
        config = cast("dict[str, Any]", getattr(kind, "model_config", {}))
        is_frozen = bool(config.get("frozen"))
    return _fields(kind) if is_frozen else None


@functools.lru_cache(maxsize=1024)
def _fields(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields that hold the data of a type's instances; None for types that are not data."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__pydantic_validator__") and kind.model_config.get("extra") != "allow":
        return tuple(cast("dict[str, Any]", cast(Any, kind).model_fields))
    return None


def _refuse(self: object, *args: object, **kwargs: object) -> Any:
    raise MisuseError(
        "the blocks, arguments and metadata of a Message do not change: make another message, and "
        "put it in the place of this one (log[index] = message)"
    )


class ReadOnlyList(list[Any]):
    """A list that refuses to be changed; a copy of it is a plain list."""

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses to be changed; a copy of it is a plain dict."""

    update = pop = popitem = clear = setdefault = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


def read_only(value: Any) -> Any:
    """Plain data that cannot be changed, whatever is done to the original."""
    if isinstance(value, ReadOnlyDict | ReadOnlyList):
        return value
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return ReadOnlyDict({name: read_only(each) for name, each in items})
    if isinstance(value, list):
        return ReadOnlyList(map(read_only, cast("list[Any]", value)))
    if isinstance(value, tuple):
        return tuple(map(read_only, cast("tuple[Any, ...]", value)))
    return value
