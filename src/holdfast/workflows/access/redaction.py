"""The forms in which a secret may come back from outside, and taking them out of texts. Pure.

A program that is given a secret may show it in JSON, in a URL, in base64, quoted for a shell: each
of these reveals it as well as the secret itself.
"""

import base64
import html
import json
import re
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import quote, quote_plus

REDACTED: Final = "***"
SHORTEST: Final = 4
"""Shorter texts are found everywhere: taking them out would spoil what is around them."""

_SHORTEST_LINE: Final = 8
_WRAPPED_FROM: Final = 57
_LINE_END: Final = r"(?:\r?\n)?"


class Redaction:
    """Takes all forms of some values out of texts."""

    def __init__(self, values: Collection[str]) -> None:
        plain = {form for value in values for form in forms_of(value)}
        coded = {form for value in values for form in _coded_forms(value)}
        ordered = sorted(plain | coded, key=len, reverse=True)
        patterns = [_wrapped(form) if form in coded else re.escape(form) for form in ordered]
        self._pattern = re.compile("|".join(patterns)) if patterns else None
        self.longest = max((2 * len(form.encode()) for form in ordered), default=0)
        """No form takes more bytes: so much at a cut may be a piece of one."""

        self._numbers = {number for value in values for number in _numbers(value)}

    def is_secret_number(self, number: float) -> bool:
        """Whether a number is what a value says."""
        return number in self._numbers

    def redact(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)


def _numbers(value: str) -> Iterator[float]:
    """Yield the numbers that a program may read a value as, unless they are too common."""
    for kind in (int, float):
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            continue
        is_long = isinstance(number, float) and len(repr(number)) > SHORTEST
        if is_long or abs(number) >= 10 ** (SHORTEST - 1):
            yield number


def forms_of(value: str) -> set[str]:
    """Return the texts that show a value, or one of its lines, plain or escaped."""
    return {form for text in _texts(value) for form in _written(text) if len(form) >= SHORTEST}


def coded(raw: bytes) -> Iterator[str]:
    """Yield what the base64 of any data with these bytes contains, wherever they begin."""
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw).decode()
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        yield whole[first:last]
        yield whole[first:last].replace("+", "-").replace("/", "_")


def _texts(value: str) -> set[str]:
    lines = {line.strip() for line in value.splitlines()}
    return {value, value.strip()} | {line for line in lines if len(line) >= _SHORTEST_LINE}


def _written(text: str) -> Iterator[str]:
    yield text
    yield repr(text)[1:-1]
    yield repr(text.encode("utf-8", "surrogateescape"))[2:-1]
    for in_json in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        yield in_json
        yield in_json.replace("/", "\\/")
        yield json.dumps(in_json)[1:-1]
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)
    yield html.escape(text)
    yield html.escape(text, quote=False)
    for in_url in (quote(text, safe="", errors="replace"), quote(text, errors="replace")):
        yield in_url
        yield re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), in_url)
    yield quote_plus(text, errors="replace")


def _coded_forms(value: str) -> set[str]:
    found: set[str] = set()
    for text in _texts(value):
        raw = text.encode("utf-8", "surrogateescape")
        found.update((raw.hex(), raw.hex().upper(), *coded(raw)))
    return {form for form in found if len(form) >= SHORTEST}


def _wrapped(form: str) -> str:
    """Return the pattern of a form which may be broken into lines, as base64 is."""
    if len(form) < _WRAPPED_FROM:
        return re.escape(form)
    return _LINE_END.join(map(re.escape, form))
