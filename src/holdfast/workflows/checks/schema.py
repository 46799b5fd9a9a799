"""The JSON Schema of definitions, for editors: made of the structs and of the types of blocks."""

import inspect
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from holdfast.workflows.blocks import BUILT_IN
from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.definitions.definition import Block, Dependency, Input, Output, Workflow

ID_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
_EXPRESSION: Final = {"type": "string", "pattern": r"\{[{%#]", "description": "An expression."}
_REFERENCES: Final = "#/$defs/{name}"
_KEYS: Final[dict[type, dict[str, str]]] = {
    Workflow: {
        "name": "What the workflow is called, and what others name it by.",
        "description": "What it is for.",
        "version": "Your own version of it; a text.",
        "inputs": "What it is given, by name.",
        "blocks": "Its steps. Those that do not depend on each other are carried out together.",
        "outputs": "What it gives, by name: an expression, or a map with `value` and `type`.",
        "max_parallel": "How many blocks are carried out at once.",
        "strict": "Whether what `validate` only warns of is a mistake.",
    },
    Input: {
        "type": "What values it takes.",
        "description": "What it is for.",
        "default": "What it is if it is not given.",
        "required": "Whether it must be given, if it has no default.",
        "choices": "All values that it can have.",
    },
    Output: {
        "value": "An expression.",
        "type": "What the value must be.",
        "description": "What it is for.",
    },
    Dependency: {
        "block": "The id of the other block.",
        "required": "Whether it must have succeeded; otherwise it must only have ended.",
    },
    Block: {
        "id": "Its name in the workflow: blocks.ID in expressions.",
        "type": "What it does.",
        "description": "What it is for.",
        "inputs": "What its type is given; texts may have expressions.",
        "depends_on": "The blocks that must have ended before it begins.",
        "condition": "An expression; if it does not hold, the block is skipped.",
        "for_each": "A list or a map, or an expression that gives one: a round for each entry.",
        "for_each_mode": "Whether rounds are made beside each other, or one after another.",
        "max_parallel": "How many rounds are made at once.",
        "continue_on_error": "Whether the workflow goes on, and can succeed, if it fails.",
        "timeout": "The most seconds it may take.",
        "retries": "How often it is tried again if it fails.",
    },
}
_LIMITS: Final[dict[str, dict[str, Any]]] = {
    "id": {"pattern": ID_PATTERN},
    "max_parallel": {"minimum": 1, "maximum": 100},
    "retries": {"minimum": 0, "maximum": 20},
}


def schema_of(types: Iterable[BlockType] = BUILT_IN) -> dict[str, Any]:
    """The JSON Schema (2020-12) of definitions whose blocks have these types."""
    known = list(types)
    _, made = msgspec.json.schema_components([Workflow, Output], ref_template=_REFERENCES)
    parts = cast("dict[str, dict[str, Any]]", made)
    for struct, keys in _KEYS.items():
        for key, said in keys.items():
            parts[struct.__name__]["properties"][key] |= {"description": said}
    _complete(parts)
    block = parts["Block"]
    block["properties"]["type"] = {
        "description": _KEYS[Block]["type"],
        "anyOf": [{"const": kind.name, "description": _purpose(kind)} for kind in known],
    }
    block["allOf"] = [_when(kind, parts) for kind in known]
    whole = parts.pop("Workflow")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A workflow of Holdfast",
        **{key: value for key, value in whole.items() if key != "title"},
        "$defs": parts,
    }
    return msgspec.json.decode(msgspec.json.encode(schema))  # defaults may be tuples


def _complete(parts: dict[str, dict[str, Any]]) -> None:
    """Add what the structs do not say."""
    for key, limits in _LIMITS.items():
        parts["Block"]["properties"][key] |= limits
    timeout = {"type": "number", "exclusiveMinimum": 0}
    parts["Block"]["properties"]["timeout"] |= {"anyOf": [timeout, {"type": "null"}]}
    parts["Block"]["properties"]["for_each"] |= {
        "anyOf": [{"type": ["array", "object", "null"]}, _EXPRESSION]
    }
    parts["Input"]["properties"]["choices"]["anyOf"][0] |= {"minItems": 1}
    workflow = parts["Workflow"]["properties"]
    workflow["inputs"] |= {"propertyNames": {"pattern": ID_PATTERN}}
    workflow["blocks"] |= {"maxItems": 1000}
    number = {"type": "integer", "minimum": 1, "maximum": 1000}
    workflow["max_parallel"] |= {"anyOf": [number, {"type": "null"}]}
    workflow["outputs"] |= {
        "additionalProperties": {
            "if": {"type": "object", "required": ["value"]},
            "then": {"$ref": "#/$defs/Output"},
        }
    }


def _when(kind: BlockType, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the inputs of a block must be if it has this type; adds the parts that it needs."""
    template = f"#/$defs/{kind.name}.{{name}}"
    try:
        (inputs,), made = msgspec.json.schema_components([kind.inputs], ref_template=template)
    except TypeError:  # a type of values that JSON does not have
        inputs, made = {"type": "object"}, {}
    parts |= {f"{kind.name}.{name}": _with_expressions(part) for name, part in made.items()}
    wanted: dict[str, Any] = {"properties": {"inputs": inputs}}
    if any(field.required for field in msgspec.structs.fields(kind.inputs)):
        wanted["required"] = ["inputs"]
    return {
        "if": {"properties": {"type": {"const": kind.name}}, "required": ["type"]},
        "then": wanted,
    }


def _purpose(kind: BlockType) -> str:
    """What a type is for: the first paragraph of the docstring of its class, or of its module."""
    own = inspect.getdoc(type(kind)) or inspect.getdoc(inspect.getmodule(type(kind))) or ""
    return own.partition("\n\n")[0].replace("\n", " ")


def _with_expressions(part: dict[str, Any]) -> dict[str, Any]:
    """The same, but wherever a value can be, an expression can be."""
    made = dict(part)
    for key in ("properties", "items", "additionalProperties", "prefixItems"):
        inner = made.get(key)
        if key == "properties" and isinstance(inner, dict):
            named = cast("dict[str, Any]", inner)
            made[key] = {name: _or_expression(each) for name, each in named.items()}
        elif isinstance(inner, dict):
            made[key] = _or_expression(cast("dict[str, Any]", inner))
        elif isinstance(inner, list):
            made[key] = [_or_expression(each) for each in cast("list[Any]", inner)]
    if "description" in made:
        made["description"] = inspect.cleandoc(made["description"])
    return made


def _or_expression(part: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in part:
        arms = [_with_expressions(arm) for arm in part["anyOf"]]
        return {**part, "anyOf": arms if any(map(_is_text, arms)) else [*arms, _EXPRESSION]}
    made = _with_expressions(part)
    if _is_text(made) or not made.keys() & {"type", "enum", "const", "$ref"}:
        return made
    said = {key: made.pop(key) for key in ("description", "default") if key in made}
    return {**said, "anyOf": [made, _EXPRESSION]}


def _is_text(part: dict[str, Any]) -> bool:
    """Whether it takes any text."""
    return part.get("type") == "string" and not part.keys() & {"enum", "format", "pattern"}
