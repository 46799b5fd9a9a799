"""Tools whose arguments a JSON Schema describes."""

from typing import Any

import msgspec
import pytest

from holdfast.agents.definitions.tool_arguments import JsonSchemaArguments
from holdfast.agents.definitions.tools import Tool, make_tool
from holdfast.errors import MisuseError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "from": {"type": "string"},
        "user-id": {"type": "integer", "minimum": 1},
        "days": {"type": "integer", "default": 7},
    },
    "required": ["from"],
}


def tool_of(schema: dict[str, Any]) -> Tool[..., Any]:
    async def move(**given: Any) -> Any:
        return given

    return make_tool(move, takes=JsonSchemaArguments(schema, "move", key_parameter="key"))


def test_arguments_are_checked_and_may_have_any_name() -> None:
    tool = tool_of(SCHEMA)
    assert tool.parameters == ("from", "user-id", "days")
    assert tool.parse('{"from": "a", "user-id": 3}').values == {"from": "a", "user-id": 3}
    with pytest.raises(msgspec.ValidationError, match=r"^from is missing; user-id: 0 is too small"):
        tool.parse({"user-id": 0})
    with pytest.raises(msgspec.ValidationError):
        tool.parse("[1]")
    with pytest.raises(msgspec.ValidationError, match="given by Holdfast"):
        tool.parse({"from": "a", "key": "mine"})
    with pytest.raises(MisuseError, match="by name"):
        tool.bind(("a",), {})
    with pytest.raises(MisuseError, match="cannot be called like this: from is missing"):
        tool.bind((), {})


def test_argument_that_has_its_default_changes_no_key() -> None:
    tool = tool_of(SCHEMA)
    told = tool.parse({"from": "a", "days": 7})
    assert told.values == {"from": "a", "days": 7}
    assert told.digest == tool.parse({"from": "a"}).digest
    assert told.digest != tool.parse({"from": "a", "days": 8}).digest


@pytest.mark.parametrize("reference", ["https://127.0.0.1:1/schema.json", "#/$defs/none", "#"])
def test_references_out_of_a_schema_and_into_themselves_are_not_followed(reference: str) -> None:
    tool = tool_of({"type": "object", "properties": {"a": {"$ref": reference}}, "allOf": [{}]})
    if reference == "#":
        assert tool.parse({"a": {"a": {}}}).values == {"a": {"a": {}}}
    else:
        with pytest.raises(msgspec.ValidationError, match="their schema cannot be used"):
            tool.parse({"a": 1})


def test_what_is_no_schema_is_refused_at_once() -> None:
    with pytest.raises(MisuseError, match="not a JSON Schema"):
        tool_of({"type": "thing"})
