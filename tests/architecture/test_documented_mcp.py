"""What the MCP server has, its reference page names: tools, arguments, results, errors, options."""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from holdfast import errors
from holdfast.edges.mcp import McpServer, contract, failures, views
from holdfast.edges.mcp.contract import ServedTool
from holdfast.edges.mcp.tools import INLINE, OWN
from holdfast.errors import HoldfastError
from tests.architecture.test_documented import REFERENCE, read, rows_of

PAGE = REFERENCE / "mcp.md"
TOOLS = {tool.name: tool for tool in (*OWN, *INLINE)}
FAMILIES = [each for each in HoldfastError.__subclasses__() if each.__module__ == errors.__name__]
MARKS = {
    "R": lambda tool: tool.is_read_only,
    "D": lambda tool: tool.is_destructive,
    "I": lambda tool: tool.is_idempotent or tool.is_read_only,
    "O": lambda tool: tool.is_open_world,
}


def section(heading: str) -> dict[str, list[str]]:
    """The rows of the tables below a heading, by the names in their first columns."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", read(PAGE), re.M | re.S)
    assert found is not None, heading
    cells = [line.strip("|").split("|") for line in found[1].splitlines() if line.startswith("| `")]
    return {
        name: [cell.strip() for cell in rest]
        for first, *rest in cells
        for name in re.findall(r"`([^`]+)`", first)
    }


def spelled(schema: Mapping[str, Any]) -> list[str]:
    """The arguments of a tool as the page writes them."""
    required = schema.get("required", ())
    return [
        name
        if name in required
        else f"{name}={_as_json(told['default'])}"
        if "default" in told
        else f"{name}?"
        for name, told in schema.get("properties", {}).items()
    ]


def _as_json(value: object) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value)  # pyright: ignore[reportArgumentType]


def structs() -> dict[str, list[str]]:
    """Every struct that a result is made of, with its fields."""
    found: dict[str, list[str]] = {}
    for tool in TOOLS.values():
        told = tool.output_schema
        assert told is not None
        for each in (told, *told.get("$defs", {}).values()):
            found[each["title"]] = list(each["properties"])
    return found


STRUCTS = structs()


def test_page_names_the_tools_that_are_there() -> None:
    assert section("Tools").keys() == TOOLS.keys()


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_tool_is_documented_with_its_arguments_its_result_and_its_marks(tool: ServedTool) -> None:
    arguments, gives, marks, errors = section("Tools")[tool.name]
    assert re.findall(r"`([^`]+)`", arguments) == spelled(tool.input_schema)
    assert tool.output_schema is not None
    result = "a run" if tool.begins_runs else f"`{tool.output_schema['title']}`"
    assert gives.startswith(result)
    assert marks.split() == [mark for mark, holds in MARKS.items() if holds(tool)]
    known = {error.__name__ for error in _every(HoldfastError)} | {"BadArguments"}
    named = set(re.findall(r"`([A-Z]\w+)`", errors))
    assert named <= known


def _every(kind: type[HoldfastError]) -> set[type[HoldfastError]]:
    return {kind}.union(*map(_every, kind.__subclasses__()))


@pytest.mark.parametrize("name", STRUCTS)
def test_result_is_documented_with_its_fields_in_order(name: str) -> None:
    (told,) = section("Results")[name]
    named = re.findall(r"`(\w+)`", told)
    fields = [each for each in named if each in STRUCTS[name]]
    assert list(dict.fromkeys(fields)) == STRUCTS[name]


def test_error_is_documented_with_its_fields_and_kinds() -> None:
    rows = section("Errors")
    kinds = {failures.failure_of(error("why")).kind for error in FAMILIES}
    fields = {field.name for field in msgspec.structs.fields(failures.ErrorView)}
    assert rows.keys() == fields | kinds


def test_limits_are_those_of_the_code() -> None:
    limits = {name: told for name, (told, *_) in section("Limits").items()}
    assert f"0 to {contract.MOST_WAIT_SECONDS:g}" in limits["wait_seconds"]
    assert f"{contract.WAIT_SECONDS:g}" in limits["wait_seconds"]
    assert f"{views.MOST_BYTES:,} bytes" in read(PAGE)
    assert f"nested {contract.MOST_DEPTH} deep" in read(PAGE)
    assert f"the first {contract.MOST_PROBLEMS} of arguments" in read(PAGE)


def test_option_of_the_server_is_documented_with_its_default() -> None:
    rows = rows_of(PAGE)
    for name, parameter in inspect.signature(McpServer).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default, *_ = rows[name]
            assert default.strip("`").replace('"', "'") == repr(parameter.default), name
