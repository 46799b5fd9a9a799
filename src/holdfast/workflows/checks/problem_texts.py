"""Values and types as messages name them."""

import difflib
import types
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

_TYPES: Final[dict[Any, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a map",
    type(None): "nothing",
    datetime: "a moment such as 2026-11-16T09:00:00Z",
    bytes: "bytes in base64",
}


def value(given: object) -> str:
    """A value, in a few words."""
    if given is None or isinstance(given, bool):
        return {None: "nothing", True: "true", False: "false"}[given]
    if isinstance(given, str):
        return f"the text {given[:60]!r}"
    if isinstance(given, int | float):
        return f"the number {str(given)[:40]}" if abs(given) < 2**64 else "a huge number"
    if isinstance(given, Mapping):
        return "a map"
    return "a list" if isinstance(given, list | tuple) else f"a {type(given).__name__}"


def kind(wanted: Any) -> str:
    """A type: `a whole number`, `a text or a list`, `one of 'a', 'b'`."""
    origin = get_origin(wanted)
    if origin is Annotated:
        return kind(get_args(wanted)[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(wanted)))}"
    if origin in (Union, types.UnionType):
        found = [kind(each) for each in get_args(wanted) if each is not type(None)]
        return " or ".join(dict.fromkeys(found))
    if origin in _TYPES:
        return _TYPES[origin]
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return "a map"
    named = cast("Any", wanted)
    return _TYPES.get(wanted) or f"a {getattr(named, '__name__', named)}"


def nearest(word: object, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """`did you mean 'x'?` if something is like it, else what there is."""
    names = list(known)[:2000]
    spoken = str(word)[:64]
    found = (others or {}).get(spoken.lower())
    if found is None:
        near = difflib.get_close_matches(spoken.lower(), [name.lower() for name in names], n=1)
        found = next((name for name in names if near and name.lower() == near[0]), None)
    if found is not None:
        return f"did you mean {found!r}?"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"there are: {listed}" if names else "there are none"
