"""What the types of blocks that come with Holdfast ask of their inputs, beyond the shape."""

import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeGuard, cast

import msgspec

from holdfast.agents.definitions import questions
from holdfast.errors import AnswerRefused, MisuseError, UnsupportedValue
from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.checks import problem_texts
from holdfast.workflows.checks.shape import WorkflowDraft
from holdfast.workflows.checks.type_checks import texts_in
from holdfast.workflows.definitions import inputs
from holdfast.workflows.definitions.definition import Block, Input, Workflow
from holdfast.workflows.definitions.expressions import has_expression
from holdfast.workflows.definitions.sources import Place

Mistake = tuple[Place, str, str]
"""A place within the block, a reason, and what to do about it."""

_METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "QUERY")
_RARE_METHODS: Final = ("COPY", "LOCK", "MKCOL", "MOVE", "PROPFIND", "PROPPATCH", "PURGE", "REPORT")
_LONGEST_MATCHED: Final = 20


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a block can name."""

    draft: WorkflowDraft
    types: Mapping[str, BlockType]
    tools: Collection[str] | None
    library: Mapping[str, Workflow] | None


def _prompt(block: Block, around: Surroundings) -> Iterator[Mistake]:
    given = block.inputs
    choices, schema = given.get("choices"), given.get("schema")
    if isinstance(choices, list) and not choices:
        yield (
            ("inputs", "choices"),
            "choices are empty: nothing could be answered",
            "leave them out",
        )
    why = "" if schema is None or _is_open(schema) else _why_no_schema(schema)
    if why:
        yield ("inputs", "schema"), why, ""
    if "default" not in given:
        return
    if block.timeout is None and not around.draft.is_broken(("blocks",)):
        yield (
            ("inputs", "default"),
            "a default is the answer when the time is over, and there is no timeout",
            "add `timeout:` to the block, in seconds",
        )
    if not why and not _is_open([choices, schema, given["default"]]):
        yield from _default(given["default"], schema, choices)


def _default(default: Any, schema: Any, choices: Any) -> Iterator[Mistake]:
    if schema is not None and _may_match_long(schema, default):
        return
    try:
        questions.check_answer(default, schema=schema, choices=choices or None)
    except (AnswerRefused, UnsupportedValue) as error:
        yield ("inputs", "default"), f"the default is no answer: {error}", ""


def _why_no_schema(schema: Any) -> str:
    """Return why a schema cannot be used. Nothing is fetched: references must be local."""
    for key, value in _entries(schema):
        is_reference = key in ("$ref", "$dynamicRef") and isinstance(value, str)
        if is_reference and not value.startswith("#"):
            return f"the schema refers to another one, {value[:64]!r}; write it out"
    try:
        questions.schema_of(schema)
    except MisuseError as error:
        return str(error)
    except Exception as error:  # such as a pattern that is no regular expression
        return f"this JSON Schema cannot be used: {error}"
    return ""


def _may_match_long(schema: Any, default: Any) -> bool:
    """Whether a pattern might take forever: it is not tried on texts that are long."""
    has_pattern = any(key in ("pattern", "patternProperties") for key, _ in _entries(schema))
    return has_pattern and len(json.dumps(default, default=str)) > _LONGEST_MATCHED


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield str(key), item
            yield from _entries(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _entries(item)


def _is_open(value: Any) -> bool:
    """Whether expressions decide what it is."""
    return any(has_expression(text) for text in texts_in(value))


def _wait(block: Block, around: Surroundings) -> Iterator[Mistake]:
    given = [each for each in ("seconds", "until", "signal") if block.inputs.get(each) is not None]
    if len(given) != 1:
        said = f"it waits for {' and '.join(given)}" if given else "it says not what it waits for"
        yield ("inputs",), said, "give one of seconds, until and signal"


def _tool(block: Block, around: Surroundings) -> Iterator[Mistake]:
    name = block.inputs.get("tool")
    is_known = around.tools is None or has_expression(name) or name in around.tools
    if not is_known:
        advice = problem_texts.nearest(name, around.tools or ())
        yield ("inputs", "tool"), f"no tool {str(name)[:64]!r} is registered", advice


def _nested(block: Block, around: Surroundings) -> Iterator[Mistake]:
    name = block.inputs.get("workflow")
    if not isinstance(name, str) or has_expression(name):
        said = "the name of the workflow must be a literal, so that it can be kept with the run"
        yield ("inputs", "workflow"), said, "name it; use conditions to choose between blocks"
        return
    if around.library is None:
        return
    if name not in around.library:
        advice = problem_texts.nearest(name, around.library)
        yield ("inputs", "workflow"), f"no workflow {name[:64]!r} is known", advice
        return
    given = block.inputs.get("inputs", {})
    if isinstance(given, dict):
        yield from _given(cast("dict[Any, Any]", given), around.library[name])


def _given(given: dict[Any, Any], nested: Workflow) -> Iterator[Mistake]:
    for name in given:
        if name not in nested.inputs:
            said = f"workflow {nested.name[:64]} has no input {str(name)[:64]!r}"
            yield ("inputs", "inputs", str(name)), said, problem_texts.nearest(name, nested.inputs)
    for name, spec in nested.inputs.items():
        if name not in given:
            if spec.must_be_given:
                said = f"workflow {nested.name[:64]} must be given {name!r} ({spec.type})"
                yield ("inputs", "inputs"), said, f"add `{name}:` to its inputs"
        elif why := _why_not(given[name], name, spec):
            yield ("inputs", "inputs", name), why, ""


def _why_not(value: Any, name: str, spec: Input) -> str:
    if _is_open(value):
        return ""
    try:
        made = inputs.typed(value, spec.type, what=f"input {name!r}")
    except UnsupportedValue as error:
        return str(error)
    is_chosen = spec.choices is None or made in spec.choices
    return "" if is_chosen else f"input {name!r} must be one of its choices"


def _shell(block: Block, around: Surroundings) -> Iterator[Mistake]:
    yield from _outside(block.inputs.get("cwd"), "cwd")


def _file(block: Block, around: Surroundings) -> Iterator[Mistake]:
    yield from _outside(block.inputs.get("path"), "path")


def _files(block: Block, around: Surroundings) -> Iterator[Mistake]:
    given = block.inputs.get("paths")
    for at, path in enumerate(cast("list[Any]", given) if isinstance(given, list) else []):
        yield from _outside(path, "paths", at)


def _outside(path: Any, *place: str | int) -> Iterator[Mistake]:
    """Report a path that cannot be in the folder of the workflow, wherever that is."""
    if not _is_literal(path):
        return
    if path.startswith("/"):
        said = f"{path[:64]!r} is absolute, and blocks see their folder only"
        yield ("inputs", *place), said, "name it as it is seen from there (--root, Kit(root=…))"
    elif posixpath.normpath(path).split("/")[0] == "..":
        said = f"{path[:64]!r} leads out of the folder that blocks see"
        yield ("inputs", *place), said, "keep within it (--root, Kit(root=…) says which it is)"


def _is_literal(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and not has_expression(value)


def _http(block: Block, around: Surroundings) -> Iterator[Mistake]:
    url, method = block.inputs.get("url"), block.inputs.get("method", "GET")
    if _is_literal(url) and not url.strip().lower().startswith(("http://", "https://")):
        said = f"{url[:64]!r} is no address of http:// or https://"
        yield ("inputs", "url"), said, "write all of it, as in http://localhost:8000/path"
    if _is_literal(method) and method.upper() not in (*_METHODS, *_RARE_METHODS):
        said = f"HTTP has no method {method[:64]!r}"
        yield ("inputs", "method"), said, problem_texts.nearest(method, _METHODS)


CHECKS: Final[dict[str, Callable[[Block, Surroundings], Iterator[Mistake]]]] = {
    "Prompt": _prompt,
    "Wait": _wait,
    "Tool": _tool,
    "Workflow": _nested,
    "Shell": _shell,
    "ReadFiles": _files,
    "CreateFile": _file,
    "EditFile": _file,
    "HttpCall": _http,
}
