"""JSON Schemas: whether a value fits one, and what is wrong with it in words.

Nothing that a schema refers to outside itself is ever fetched.
"""

from collections.abc import Iterator
from datetime import date, datetime, time
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast.errors import MisuseError

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


def check_schema(schema: dict[str, Any]) -> None:
    """Raise MisuseError for what no value can be compared with."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise MisuseError(f"this is not a JSON Schema: {error.message}") from error
    try:
        list(problems(None, schema))
    except Exception as error:
        raise MisuseError(f"this JSON Schema cannot be used: {error}") from error


def problems(value: Any, schema: Any) -> Iterator[str]:
    """What is wrong with a value, each with its place; raises if the schema cannot be used."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # With a separate registry it fetches nothing that a schema refers to.
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


def as_json(value: Any) -> Any:
    """A stored value as JSON has it: dates and numbers of other kinds are texts there."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _where(path: Any) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.lstrip('.')}: " if text else ""


def _words(error: Any) -> str:
    """What is wrong with one value, in words."""
    value, limit = shown(error.instance), error.validator_value
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
            return f"{value} is not one of: {', '.join(map(shown, limit))}"
        case "anyOf" | "oneOf":
            ways = dict.fromkeys(_words(inner) for inner in error.context)
            return f"{value} fits none of what is allowed ({'; '.join(ways)})"
        case _:
            return str(error.message)


def shown(value: Any) -> str:
    """A value in a short text."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"
