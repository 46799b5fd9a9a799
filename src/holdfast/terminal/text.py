"""Stored values as text that a terminal can be trusted with, and as JSON."""

import json
import re
import shlex
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast import clock
from holdfast.terminal.foreign import shown

# Valid inside JSON strings, but a terminal may act on them (C1 controls, changes of direction)
# and UTF-8 cannot say them (surrogates).
_COMMAND: Final = re.compile(r"`(holdfast (?!worker |config |demo)[a-z]+ [^`]*)`")
_UNSAFE: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with everything that a terminal might act on escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Hints:
    """Commands that messages name in `backquotes`, made to name the store of this one too."""

    def __init__(self) -> None:
        self._store = ""

    def name_store(self, store: str | None) -> None:
        """The store that was named on the command line; one with a password is not repeated."""
        is_secret = store is not None and "://" in store and "@" in store and ":" in _login(store)
        self._store = "" if store is None or is_secret else store

    def complete(self, text: str) -> str:
        """Return the text with commands that can be typed unchanged."""
        if not self._store:
            return text
        return _COMMAND.sub(self._completed, text)

    def _completed(self, found: "re.Match[str]") -> str:
        # A program that is named has its own store.
        if " --app " in found[1]:
            return found[0]
        return f"`{found[1]} --store {shlex.quote(self._store)}`"


def _login(url: str) -> str:
    """The part of a URL before the host, if it has one."""
    return url.partition("://")[2].rpartition("@")[0]


HINTS: Final = Hints()


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON of plain data and what state may hold; every control character is escaped."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return shown(value)
        case datetime():
            return value.isoformat()
        case UUID() | Decimal():
            return str(value)
        case msgspec.Struct():
            return msgspec.structs.asdict(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")


def moment(microseconds: int) -> str | None:
    """A stored moment in ISO 8601, UTC; None for none."""
    if not microseconds:
        return None
    try:
        found = clock.to_datetime(microseconds)
    except OverflowError:
        return f"{microseconds} microseconds, which is no date"
    return found.isoformat(timespec="microseconds").replace("+00:00", "Z")


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def short(value: Any, *, limit: int = 120) -> str:
    """One line of a value for people, cut where it gets long."""
    text = printable(value) if isinstance(value, str) else to_json(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
