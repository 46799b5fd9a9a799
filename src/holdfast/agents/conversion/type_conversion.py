"""Types as they are written in signatures: values of them from plain data, and their JSON Schema.

Anything `msgspec` converts is supported (dataclasses, structs, TypedDicts, enums, unions, dates),
and Pydantic models through their own validation, without importing Pydantic.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar, cast

import msgspec

from holdfast import codec
from holdfast.errors import MisuseError, UnsupportedValue

T = TypeVar("T")


def convert(value: object, kind: type[T], *, what: str) -> T:
    """Convert stored plain data to `kind`. Raises UnsupportedValue if it does not fit.

    That is also raised if code of the type raises; what this raised is its cause.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_from_plain)
    except (msgspec.ValidationError, ValueError) as error:
        raise UnsupportedValue(f"{what} is not a {shown(kind)}: {error}") from error
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise UnsupportedValue(f"{what} is not a {shown(kind)}, it raised {raised}") from error


def plain(value: object, *, what: str = "result") -> Any:
    """Return a value as it comes back from the record; raises UnsupportedValue."""
    return codec.decode(codec.encode(value, name=what))


def size(value: object, *, what: str = "result") -> int:
    """Return how many bytes a value is stored in; raises UnsupportedValue."""
    return len(codec.encode(value, name=what))


def check(value: object, kind: type[Any], *, what: str) -> bytes:
    """Refuse what would not come back as a `kind`, before it is stored; returns its bytes."""
    try:
        data = codec.encode(value, name=what)
        convert(codec.decode(data), kind, what=what)
    except UnsupportedValue as error:
        raise MisuseError(f"{error} (it is a {type(value).__name__})") from error
    return data


def parse(value: object, kind: type[T]) -> T:
    """The same for what a model or a person wrote; raises msgspec.ValidationError."""
    try:
        return msgspec.convert(value, kind, dec_hook=_from_plain)
    except msgspec.ValidationError:
        raise
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from error


def schema(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a type, an object at its top; what it refers to is under `$defs`."""
    (top,), defs = msgspec.json.schema_components(
        [kind], schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    name = cast(str, top.get("$ref", "")).rpartition("/")[2]
    found = cast("dict[str, Any]", defs.pop(name, top))
    return found | ({"$defs": defs} if defs else {})


def hints_of(function: Callable[..., Any], *, what: str) -> dict[str, Any]:
    """The types in a signature; raises MisuseError for a name that cannot be found."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise MisuseError(
            f"{what} has a type hint that cannot be found: {error}. Import it at run time, not "
            "only under TYPE_CHECKING"
        ) from error


def shown(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable: a coroutine function, or an object with one."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):
        target = target.func
    call = getattr(cast("type[Any]", type(target)), "__call__", None)  # noqa: B004 - its method
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call)


def _from_plain(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise ValueError(f"{shown(kind)} cannot be made from stored data")


def _schema_of(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_json_schema"):
        return kind.model_json_schema()
    raise TypeError(f"{shown(kind)} has no JSON Schema")
