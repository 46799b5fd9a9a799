"""What a person is asked, as it is stored with its wait; and whether an answer fits.

A question carries its JSON Schema, so that any process can check an answer: the agent's code need
not be there.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast import codec
from holdfast.agents import shapes
from holdfast.errors import AnswerRefused, MisuseError

QUESTION: Final = "question"
APPROVAL: Final = "approval"
TIMER: Final = "timer"
FOR_PEOPLE: Final = frozenset({QUESTION, APPROVAL})

_TYPES: Final = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object with named fields",
    "null": "null",
}
_LIMITS: Final = {
    "const": "is not",
    "minimum": "is too small: it must be at least",
    "exclusiveMinimum": "is too small: it must be above",
    "maximum": "is too large: it must be at most",
    "exclusiveMaximum": "is too large: it must be below",
    "minLength": "is too short: the least number of characters is",
    "maxLength": "is too long: the most characters are",
    "minItems": "is too short: the least number of items is",
    "maxItems": "is too long: the most items are",
    "pattern": "does not look like",
}
_FORMATS: Final[dict[str, type[Any]]] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "uuid": UUID,
}
_EXAMPLES: Final = {
    "date": "a date, such as 2026-11-16",
    "date-time": "a moment, such as 2026-11-16T09:00:00Z",
    "time": "a time of day, such as 09:00:00",
    "uuid": "a UUID",
}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored with a wait of an agent that nobody reads but the agent itself."""

    place: bytes


class Question(Place, frozen=True, kw_only=True, omit_defaults=True):
    """What a person is asked. `problem` is why the answer before this one could not be used."""

    prompt: str
    schema: dict[str, Any] | None = None
    choices: list[Any] | None = None
    problem: str = ""


class ApprovalRequest(Place, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a person is to approve: just this tool, with just these arguments."""

    prompt: str
    tool: str
    args: dict[str, Any]
    args_digest: bytes
    tool_digest: bytes
    call_id: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The answer to an approval request."""

    approved: bool
    note: str = ""


def schema_of(schema: object) -> dict[str, Any] | None:
    """The JSON Schema of what was given for one: a type, or a schema as it is."""
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        given = dict(cast("Mapping[str, Any]", schema))
        _check_schema(given)
        return given
    try:
        return shapes.schema(cast("type[Any]", schema))
    except TypeError as error:
        raise MisuseError(
            f"{shapes.shown(schema)} has no JSON Schema: {error}. Give a plain type, a dataclass, "
            "a msgspec Struct, a Pydantic model or a JSON Schema"
        ) from error


def check_answer(value: object, *, schema: Any, choices: Sequence[Any] | None) -> None:
    """Raise AnswerRefused, in words for a person, unless the value answers a question."""
    plain = codec.decode(codec.encode(value, name="answer"))
    told = _as_json(plain)
    if choices is not None and not any(_is_same(told, _as_json(choice)) for choice in choices):
        raise AnswerRefused(
            f"{_shown(plain)} is not one of the choices: {', '.join(map(_shown, choices))}"
        )
    if schema is not None:
        try:
            problems = list(_problems(told, schema))
        except Exception as error:  # such as a reference that leads nowhere
            raise AnswerRefused(f"the schema of this question cannot be used: {error}") from error
        if problems:
            raise AnswerRefused("; ".join(problems))


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _check_schema(schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise MisuseError(f"this is not a JSON Schema: {error.message}") from error
    try:
        list(_problems(None, schema))
    except Exception as error:
        raise MisuseError(f"this JSON Schema cannot be used: {error}") from error


def _problems(value: Any, schema: Any) -> Iterator[str]:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # With a registry of its own it fetches nothing that a schema refers to.
    registry = cast(Any, Registry)()
    validator: Any = Draft202012Validator(schema, registry=registry, format_checker=_formats())
    found = validator.iter_errors(value)
    for error in sorted(found, key=lambda error: list(map(str, error.absolute_path))):
        where = _where(error.absolute_path)
        yield f"{where}{_words(error)}"


def _formats() -> Any:
    """Moments and ids are checked too, as what the agent will make of them."""
    from jsonschema import FormatChecker

    checker = FormatChecker(formats=())
    for name, kind in _FORMATS.items():
        checker.checks(name, raises=msgspec.ValidationError)(partial(_is_convertible, kind))
    return checker


def _is_convertible(kind: type[Any], value: object) -> bool:
    if isinstance(value, str):  # what else it must be is said by its type
        msgspec.convert(value, kind)
    return True


def _as_json(value: Any) -> Any:
    """A stored value as JSON has it: dates and numbers of other kinds are texts there."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _where(path: Any) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.lstrip('.')}: " if text else ""


def _words(error: Any) -> str:
    """What is wrong with one value, in words."""
    value, limit = _shown(error.instance), error.validator_value
    if error.validator in _LIMITS:
        return f"{value} {_LIMITS[error.validator]} {limit}"
    match error.validator:
        case "type":
            wanted = [limit] if isinstance(limit, str) else limit
            return f"{value} is not {' or '.join(_TYPES.get(name, name) for name in wanted)}"
        case "required":
            missing = [name for name in limit if name not in error.instance]
            return f"{', '.join(missing)} is missing"
        case "format":
            return f"{value} is not {_EXAMPLES.get(limit, limit)}"
        case "enum":
            return f"{value} is not one of: {', '.join(map(_shown, limit))}"
        case "anyOf" | "oneOf":
            ways = dict.fromkeys(_words(inner) for inner in error.context)
            return f"{value} fits none of what is allowed ({'; '.join(ways)})"
        case _:
            return str(error.message)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
