"""Objects that a framework has stored, shown as the data they are: nothing is made of them."""

from typing import Any, Final, cast

import msgspec

_EXTENSIONS: Final = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})


def shown(data: bytes) -> Any:
    """`{"HumanMessage": {...}}` for an object as LangGraph stores it; other bytes as hex."""
    if not data or data[0] not in _EXTENSIONS:
        return data.hex()
    try:
        found: Any = msgspec.msgpack.decode(data, ext_hook=_object)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return data.hex()
    return cast(Any, found) if isinstance(found, dict) else data.hex()


def _object(code: int, data: memoryview) -> Any:
    match msgspec.msgpack.decode(data, ext_hook=_object):
        case [str(), str(name), what, *_]:
            return {name: what}
        case other:
            return other
