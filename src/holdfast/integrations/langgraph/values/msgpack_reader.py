"""MessagePack to objects: only types of the list, and never something else instead.

msgspec reads what ormsgpack has written: it refuses extra bytes after the value.
"""

import importlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from langgraph.types import Send
from pydantic import BaseModel, RootModel, ValidationError

from holdfast.errors import CheckpointCorrupted, HoldfastError, TypeNotAllowed, UnsupportedValue
from holdfast.integrations.langgraph.values import forms, messages
from holdfast.integrations.langgraph.values.allowed import Allowed


class MsgpackReader:
    """Makes the objects of stored values."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._made)

    def unpack(self, data: bytes) -> Any:
        """The value of MessagePack that a Writer made; raises for anything else."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointCorrupted(f"stored bytes are not a value: {error}") from error

    def _made(self, code: int, data: memoryview) -> Any:
        make = _MAKES.get(code)
        if make is None:
            raise TypeNotAllowed(f"a stored value has the unknown extension type {code}")
        payload = self._decoder.decode(data)
        try:
            return make(self._allowed, payload)
        except (HoldfastError, RecursionError):
            raise
        except Exception as error:
            raise UnsupportedValue(
                f"a stored object cannot be made again: {type(error).__name__}: {error}"
            ) from error


def _parts(payload: object, count: int) -> list[Any]:
    if type(payload) is not list or len(cast("list[Any]", payload)) != count:
        raise CheckpointCorrupted("a stored object does not have the parts of one")
    return cast("list[Any]", payload)


def _one_argument(allowed: Allowed, payload: object) -> Any:
    module, name, argument = _parts(payload, 3)
    return allowed.named(module, name)(argument)


def _arguments(allowed: Allowed, payload: object) -> Any:
    module, name, arguments = _parts(payload, 3)
    make = allowed.named(module, name)
    if type(arguments) is not list:
        raise CheckpointCorrupted(f"a stored {name:.80} does not have a list of arguments")
    given = cast("list[Any]", arguments)
    if make is Send and len(given) == 3:
        return Send(given[0], given[1], timeout=given[2])
    return make(*given)


def _keywords(allowed: Allowed, payload: object) -> Any:
    module, name, fields = _parts(payload, 3)
    return allowed.named(module, name)(**fields)


def _method(allowed: Allowed, payload: object) -> Any:
    module, name, argument, method = _parts(payload, 4)
    kind = allowed.named(module, name)
    if method != forms.FROM_ISO or not (isinstance(kind, type) and issubclass(kind, datetime)):
        raise TypeNotAllowed(f"a stored value names the method {method!r:.80}; it was not called")
    return kind.fromisoformat(argument)


def _pydantic_2(allowed: Allowed, payload: object) -> Any:
    module, name, fields, _ = _parts(payload, 4)
    kind = allowed.named(module, name)
    if kind in messages.MESSAGES and type(fields) is dict:
        message = messages.remade(cast(Any, kind), cast("dict[str, Any]", fields))
        if message is not None:
            return message
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return kind(**fields)
    if issubclass(kind, RootModel):
        return cast(Any, kind)(fields)
    try:
        return kind(**fields)
    except ValidationError:
        # Fields are stored by their names; a class may take them by their aliases only.
        return kind.model_validate(fields, by_alias=True, by_name=True)


def _array(allowed: Allowed, payload: object) -> Any:
    dtype, shape, order, data = _parts(payload, 4)
    numpy: Any = importlib.import_module("numpy")
    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(shape, order=order)


def _snapshot(allowed: Allowed, payload: object) -> Any:
    return forms.DeltaSnapshot(payload)


_MAKES: Final[dict[int, Callable[[Allowed, object], Any]]] = {
    forms.ONE_ARGUMENT: _one_argument,
    forms.ARGUMENTS: _arguments,
    forms.KEYWORDS: _keywords,
    forms.METHOD: _method,
    forms.PYDANTIC_1: _keywords,
    forms.PYDANTIC_2: _pydantic_2,
    forms.NUMPY_ARRAY: _array,
    forms.SNAPSHOT: _snapshot,
}
