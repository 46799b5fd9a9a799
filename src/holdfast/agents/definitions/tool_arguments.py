"""What a tool takes: arguments as a signature declares them, or as a JSON Schema describes them.

The arguments of every tool are checked before anything is on record.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from holdfast import codec
from holdfast.agents.conversion import json_schemas, type_conversion
from holdfast.errors import MisuseError, UnsupportedValue


class Key(str):
    """The idempotency key of a call. Pass it on to the vendor: that closes the last window.

    `run_id` and `call_id` say whose call it is, if that is known.
    """

    __slots__ = ("call_id", "run_id")
    run_id: str
    call_id: str

    def __new__(cls, key: str = "", *, run_id: str = "", call_id: str = "") -> "Key":
        made = super().__new__(cls, key)
        made.run_id, made.call_id = run_id, call_id
        return made


class SignatureArguments:
    """What a function takes. `key_parameter` is the argument that Holdfast gives the key in."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self.key_parameter, self._shape = _read_signature(function, name)
        self.parameters = self._shape.__struct_fields__

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of all arguments, for a model."""
        try:
            found = type_conversion.schema(self._shape)
        except TypeError as error:
            raise MisuseError(
                f"a parameter of tool {self._name} has a type that a model cannot give: {error}. "
                "Use plain types, dataclasses, enums, dates or Pydantic models"
            ) from error
        return {key: value for key, value in found.items() if key != "title"}

    def parse(self, given: object) -> dict[str, Any]:
        """Arguments of a model as the function takes them; raises msgspec.ValidationError."""
        made = type_conversion.parse(given, self._shape)
        return {name: getattr(made, name) for name in made.__struct_fields__}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for arguments given in Python; raises MisuseError."""
        if self.key_parameter in kwargs:
            raise MisuseError(f"{self.key_parameter} of {self._name} is given by Holdfast")
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise MisuseError(f"{self._name}() cannot be called like this: {error}") from error
        bound.apply_defaults()
        return {name: self._typed(name, value) for name, value in bound.arguments.items()}

    def is_default(self, name: str, value: object) -> bool:
        """Whether leaving an argument out would mean the same."""
        parameter = self._signature.parameters[name]
        if parameter.default is parameter.empty:
            return False
        return _is_same(value, parameter.default, what=f"{name} of {self._name}")

    def _typed(self, name: str, value: object) -> Any:
        """Convert a value to the type of its parameter: 5 is 5.0 for a float, as for a model."""
        kind = self._hints.get(name, Any)
        if kind is Any:
            return value
        what = f"{name} of {self._name}"
        try:
            return type_conversion.convert(type_conversion.plain(value, what=what), kind, what=what)
        except UnsupportedValue as error:
            raise MisuseError(f"{self._name}() cannot be called like this: {error}") from error

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return type_conversion.hints_of(self._function, what=f"tool {self._name}")

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        """The signature without the key, which Holdfast gives."""
        whole = inspect.signature(self._function)
        visible = [p for p in whole.parameters.values() if p.name != self.key_parameter]
        return whole.replace(parameters=visible)


class JsonSchemaArguments:
    """What a JSON Schema describes. Arguments that are left out stay out."""

    def __init__(self, schema: Mapping[str, Any], name: str, *, key_parameter: str = "") -> None:
        self.schema = dict(schema)
        self.key_parameter = key_parameter
        self._name = name
        json_schemas.check_schema(self.schema)
        self._properties = cast("dict[str, Any]", self.schema.get("properties", {}))
        self.parameters = tuple(self._properties)

    def parse(self, given: object) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise msgspec.ValidationError("Expected `object`")
        if self.key_parameter in given:
            raise msgspec.ValidationError(f"{self.key_parameter} is given by Holdfast")
        arguments = json_schemas.as_json(
            type_conversion.plain(dict(cast("Mapping[str, Any]", given)))
        )
        try:
            found = list(json_schemas.problems(arguments, self.schema))
        except Exception as error:  # such as a reference that leads out of the schema
            raise msgspec.ValidationError(f"their schema cannot be used: {error}") from error
        if found:
            raise msgspec.ValidationError("; ".join(found))
        return arguments

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if args:
            raise MisuseError(f"{self._name}() takes its arguments by name")
        try:
            return self.parse(kwargs)
        except (msgspec.ValidationError, UnsupportedValue) as error:
            raise MisuseError(f"{self._name}() cannot be called like this: {error}") from error

    def is_default(self, name: str, value: object) -> bool:
        described = self._properties.get(name)
        if not isinstance(described, Mapping) or "default" not in described:
            return False
        default = cast("Mapping[str, Any]", described)["default"]
        return _is_same(value, default, what=f"{name} of {self._name}")


ToolArguments = SignatureArguments | JsonSchemaArguments


def _is_same(one: object, other: object, *, what: str) -> bool:
    return codec.encode(one, name=what) == codec.encode(other, name=what)


def _read_signature(function: Callable[..., Any], name: str) -> tuple[str, type[msgspec.Struct]]:
    """The parameter that takes the key, if any, and the struct of all others."""
    hints = type_conversion.hints_of(function, what=f"tool {name}")
    key_parameter = ""
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name, Any)
        if kind is Key:
            key_parameter = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise MisuseError(f"tool {name} takes {parameter}; a model needs named parameters")
        elif parameter.name == "self" and parameter.name not in hints:
            raise MisuseError(
                f"tool {name} is a method; make a tool of a bound one: holdfast.tool(object.{name})"
            )
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise MisuseError(f"{parameter.name} of tool {name} cannot be given by name")
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            default = msgspec.field(default_factory=lambda d=parameter.default: d)
            fields.append((parameter.name, kind, default))
    return key_parameter, msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
