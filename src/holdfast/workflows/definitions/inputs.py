"""The inputs of a workflow: completed with defaults, and checked against their types."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import UnsupportedValue, WorkflowInvalid
from holdfast.workflows.definitions.definition import Input, Workflow

_KINDS: Final[dict[str, Any]] = {
    "str": str,
    "int": int,
    "num": (int, float),
    "bool": bool,
    "list": list,
    "dict": dict,
}
_TRUTHS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def complete(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """All inputs of a workflow; raises WorkflowInvalid with everything that is wrong."""
    problems = [_unknown(workflow, name) for name in given if name not in workflow.inputs]
    found: dict[str, Any] = {}
    for name, spec in workflow.inputs.items():
        if name not in given and spec.must_be_given:
            problems.append(f"input {name!r} must be given ({spec.type})")
            continue
        try:
            found[name] = _value(given, name, spec)
        except UnsupportedValue as error:
            problems.append(str(error))
    if problems:
        raise WorkflowInvalid("; ".join(problems), problems=tuple(problems))
    return found


def typed(value: Any, kind: str, *, what: str) -> Any:
    """A value as a type; raises UnsupportedValue if it is not one."""
    if kind == "any" or is_of(value, kind):
        return value
    if kind == "str" and isinstance(value, int | float):
        return msgspec.json.encode(value).decode()
    raise UnsupportedValue(f"{what} must be of type {kind}, not {value!r:.80}")


def is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a type; a truth is no number."""
    if isinstance(value, bool):
        return kind in ("bool", "any")
    return kind == "any" or isinstance(value, _KINDS[kind])


def from_text(text: str, kind: str, *, what: str) -> Any:
    """What a text says that was typed for an input of a type; raises UnsupportedValue."""
    if kind == "str":
        return text
    if kind == "bool" and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    try:
        return typed(msgspec.json.decode(text), kind, what=what)
    except msgspec.DecodeError:
        if kind == "any":
            return text
        raise UnsupportedValue(f"{what} must be of type {kind}, not {text!r:.80}") from None


def _value(given: Mapping[str, Any], name: str, spec: Input) -> Any:
    if name not in given:
        return None if spec.default is msgspec.UNSET else spec.default
    value = typed(given[name], spec.type, what=f"input {name!r}")
    if spec.choices is not None and value not in spec.choices:
        listed = ", ".join(map(repr, spec.choices))
        raise UnsupportedValue(f"input {name!r} must be one of {listed}, not {value!r:.80}")
    return value


def _unknown(workflow: Workflow, name: str) -> str:
    near = difflib.get_close_matches(name, workflow.inputs, n=1)
    if near:
        return f"there is no input {name!r}; did you mean {near[0]!r}?"
    known = ", ".join(workflow.inputs) or "none"
    return f"there is no input {name!r}; there are: {known}"
