"""Which types stored values may become again: a list in code, never what the data names.

LangGraph's list of safe types and the types a caller allows. Each is looked up once; a name out of
stored data is only ever compared with this list.
"""

import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from holdfast.errors import InvalidSetting, TypeNotAllowed

TypeOrName = type | tuple[str, ...]
PATTERN: Final = ("re", "compile")


class Allowed:
    """The types that may be stored and made again."""

    def __init__(self, allow: Iterable[TypeOrName] = ()) -> None:
        self._names = {_key(name) for name in SAFE_MSGPACK_TYPES}
        self._made: dict[tuple[str, str], Callable[..., Any]] = {PATTERN: re.compile}
        self._writable: set[type] = set()
        for entry in allow:
            self._add(entry)

    def also(self, extra: Iterable[TypeOrName]) -> "Allowed":
        """These types and `extra`."""
        more = Allowed()
        more._names |= self._names
        more._made |= self._made
        for entry in extra:
            more._add(entry)
        return more

    def named(self, module: object, name: object) -> Callable[..., Any]:
        """What makes a stored value of this name; raises TypeNotAllowed for any other name."""
        if type(module) is not str or type(name) is not str:
            raise TypeNotAllowed("a stored value names no type; nothing was made of it")
        key = (module, name)
        made = self._made.get(key)
        if made is not None:
            return made
        if key not in self._names:
            raise TypeNotAllowed(
                f"a stored value is a {_shown(key)}, which may not be made here. "
                f"If it is yours: HoldfastSaver(..., allow=[{name[:80]}])"
            )
        return self._made.setdefault(key, _find(key))

    def require(self, kind: type) -> None:
        """Raise TypeNotAllowed unless a value of this type would be read back as one."""
        if kind in self._writable:
            return
        key = (kind.__module__, kind.__name__)
        allow = f"Allow it: HoldfastSaver(..., allow=[{kind.__name__}])"
        if key not in self._names and key not in self._made:
            raise TypeNotAllowed(f"a {_shown(key)} could not be read back. {allow}")
        if self.named(*key) is not kind:
            raise TypeNotAllowed(
                f"a {_shown(key)} would be read back as another class of that name. {allow}"
            )
        self._writable.add(kind)

    def _add(self, entry: TypeOrName) -> None:
        if not isinstance(entry, type):
            self._names.add(_key(entry))
            return
        key = (entry.__module__, entry.__name__)
        if self._made.setdefault(key, entry) is not entry:
            raise InvalidSetting(
                f"allow: two classes are named {_shown(key)}. Rename one: stored values name them"
            )


def _key(name: tuple[object, ...]) -> tuple[str, str]:
    parts = [part for part in name if isinstance(part, str)]
    if len(parts) < 2 or len(parts) != len(name):
        raise InvalidSetting(f"allow: {name!r} is neither a class nor a ('module', 'name') pair")
    return ".".join(parts[:-1]), parts[-1]


def _find(key: tuple[str, str]) -> type:
    """The class of this name; `key` is from the list above, so what is imported is known."""
    module, name = key
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TypeNotAllowed(
            f"{_shown(key)} is allowed but cannot be found: {error}. "
            "Allow the class itself: HoldfastSaver(..., allow=[Type])"
        ) from error
    if not isinstance(found, type):
        raise TypeNotAllowed(f"{_shown(key)} is allowed but is no class; nothing was called")
    return found


def _shown(key: tuple[str, str]) -> str:
    return ascii(".".join(key))[1:-1][:160]
