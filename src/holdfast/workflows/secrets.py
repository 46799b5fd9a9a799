"""Secrets: named in a definition, read where they are used, and stored nowhere.

`{{ secrets.token }}` gives a *reference*, a text that only this run can have made. What is stored,
logged and shown has the reference; the block puts the value in its place at the last moment, and
takes every known value out of what comes back.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from holdfast.errors import BlockFailed

T = TypeVar("T")

Source = Callable[[str], str | None]
"""Gives the value of a secret by its name; None if there is none."""

REDACTED: Final = "***"
_OPEN, _CLOSE = "\u27ea", "\u27eb"
_SHORTEST: Final = 4


def no_secrets(_: str) -> str | None:
    """A source that has none."""
    return None


class Secrets:
    """The secrets of one run. `seal` is what tells its references from texts that look like one."""

    def __init__(self, source: Source, seal: str) -> None:
        self._source = source
        self._seal = seal
        self._reference = re.compile(f"{_OPEN}secret ([A-Za-z0-9_.-]+) {re.escape(seal)}{_CLOSE}")
        self._revealed: dict[str, str] = {}

    def reference(self, name: str) -> str:
        """What stands for a secret."""
        return f"{_OPEN}secret {name} {self._seal}{_CLOSE}"

    def names_in(self, value: object) -> set[str]:
        """The secrets that are referred to anywhere in a value."""
        found: set[str] = set()
        self._each_text(value, lambda text: found.update(self._reference.findall(text)) or text)
        return found

    def reveal(self, value: T) -> T:
        """The same with the values of its secrets; raises BlockFailed if one is not known."""
        return self._each_text(value, lambda text: self._reference.sub(self._value_of, text))

    def redact(self, value: T) -> T:
        """The same without any value that was revealed here."""
        return self._each_text(value, self._redacted)

    def _value_of(self, found: "re.Match[str]") -> str:
        name = found[1]
        if name not in self._revealed:
            value = self._source(name)
            if value is None:
                raise BlockFailed(f"there is no secret {name!r} here")
            self._revealed[name] = value
        return self._revealed[name]

    def _redacted(self, text: str) -> str:
        for value in sorted(self._revealed.values(), key=len, reverse=True):
            if len(value) >= _SHORTEST:
                text = text.replace(value, REDACTED)
        return text

    def _each_text(self, value: T, change: Callable[[str], str]) -> T:
        made: Any = value
        if isinstance(value, str):
            made = change(value)
        elif isinstance(value, Mapping):
            entries = cast("Mapping[Any, Any]", value)
            made = {
                self._each_text(key, change): self._each_text(item, change)
                for key, item in entries.items()
            }
        elif isinstance(value, list | tuple):
            made = [self._each_text(item, change) for item in cast("list[Any]", value)]
        return made
