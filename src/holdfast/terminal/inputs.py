"""What commands are given to record: values as JSON or plain text, and who gives them."""

import getpass
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import click

from holdfast.agents.definitions.questions import check_answer
from holdfast.errors import AnswerRefused

_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def value_of(text: str) -> Any:
    """Return the value of a JSON text; a text that is not meant as JSON is a string unchanged."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "[", '"'):
            raise click.UsageError(f"this looks like JSON, but is not: {error}") from None
        return text


def input_of(words: Sequence[str], file: str | None) -> Any:
    """The input of a run: one value, or arguments by name; without any word, no arguments."""
    if file is not None:
        if words:
            raise click.UsageError("give the input as words or with --input-file, not both")
        return value_of(_read(file))
    pairs = [_PAIR.fullmatch(word) for word in words]
    if any(pairs) or not words:
        if not all(pairs):
            raise click.UsageError("give one INPUT, or KEY=VALUE words only")
        return _by_name([(pair[1], pair[2]) for pair in pairs if pair])
    if len(words) > 1:
        raise click.UsageError("this is more than one INPUT; quote a text that has spaces")
    return value_of(words[0])


def parts_of(words: Sequence[str]) -> dict[str, Any]:
    """Parts of a state by their names: PART=VALUE, or PART=@FILE with the value in a file."""
    parts: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not (name and sign):
            raise click.UsageError(f"{word!r} is not PART=VALUE, or PART=@FILE")
        if name in parts:
            raise click.UsageError(f"{name} is given twice")
        parts[name] = value_of(_read(text[1:]) if text.startswith("@") else text)
    return parts


def answer_of(text: str, *, schema: Any, choices: "list[Any] | None") -> Any:
    """Return a text's value as an answer: JSON, unless the question wants the text itself."""
    if schema == {}:  # any JSON value: a framework's question, in which true is no text
        return value_of(text)
    is_free = schema is None and choices is None
    if is_free and text.lstrip()[:1] in ("{", "[", '"'):
        return value_of(text)
    try:
        check_answer(text, schema=schema, choices=choices)
    except AnswerRefused:
        return value_of(text)
    return text


def object_of(file: str, *, what: str) -> dict[str, Any]:
    """The JSON object that a file holds; - is stdin."""
    found = value_of(_read(file))
    if not isinstance(found, dict):
        raise click.UsageError(f"{file} must hold {what} as a JSON object")
    return cast("dict[str, Any]", found)


def user_name() -> str:
    """Who uses this terminal, as the operating system knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def _by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{name} is given twice")
    return {name: value_of(text) for name, text in pairs}


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the input is not UTF-8: {error}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
