"""Questions as forms that a client shows: flat objects of primitive values, and back to answers.

What does not fit such a form is not asked in one, and neither is what must stay secret.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import mcp_types as types

from holdfast.agents.definitions.questions import APPROVAL
from holdfast.edges.mcp.views import QuestionView

_ANSWER: Final = "answer"
_PRIMITIVES: Final = frozenset({"string", "number", "integer", "boolean"})
_KEPT: Final = frozenset(
    {
        "type",
        "title",
        "description",
        "default",
        "enum",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "format",
    }
)
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
_SECRET: Final = "password"
_VERDICT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve"},
        "note": {"type": "string", "title": "Note", "description": "Why; the agent sees it."},
    },
    "required": ["approve"],
}


def are_shown_by(client: types.ClientCapabilities) -> bool:
    """Whether a client can show forms: it says so, or says nothing of what else it can show."""
    can = client.elicitation
    return can is not None and (can.form is not None or can.url is None)


def form_of(question: QuestionView) -> types.ElicitRequest | None:
    """The request for a form; None if the question does not fit one."""
    schema = None if question.is_cut else _schema_of(question)
    if schema is None:
        return None
    again = f"{question.problem}. " if question.problem else ""
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=f"{again}{question.prompt}", requested_schema=schema
        )
    )


def answer_of(question: QuestionView, content: Mapping[str, Any]) -> Any:
    """Return the answer in a completed form."""
    if question.kind == APPROVAL:
        return dict(content)
    if question.choices is not None:
        return _chosen(question.choices, content.get(_ANSWER))
    return content.get(_ANSWER) if _is_single(question.schema) else dict(content)


def _schema_of(question: QuestionView) -> dict[str, Any] | None:
    if question.kind == APPROVAL:
        return _VERDICT
    if question.choices is not None:
        shown = [_shown(each) for each in question.choices]
        is_clear = len(set(shown)) == len(shown)
        return _single({"type": "string", "enum": shown}) if is_clear else None
    schema: Any = question.schema
    if schema is None:
        return _single({"type": "string"})
    if _is_single(schema):
        field = _field_of(schema)
        return None if field is None else _single(field)
    return _flat(schema)


def _is_single(schema: Any) -> bool:
    if schema is None:
        return True
    kind = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, Mapping) else None
    return isinstance(kind, str) and kind in _PRIMITIVES


def _single(field: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {_ANSWER: field}, "required": [_ANSWER]}


def _flat(schema: Any) -> dict[str, Any] | None:
    """An object all of whose properties are primitive."""
    form = cast("Mapping[str, Any]", schema if isinstance(schema, Mapping) else {})
    properties = cast("Mapping[str, Any]", form.get("properties") or {})
    fields = {name: _field_of(each) for name, each in properties.items()}
    if form.get("type") != "object" or not fields or None in fields.values():
        return None
    required = [name for name in cast("list[str]", form.get("required") or []) if name in fields]
    return {"type": "object", "properties": fields, "required": required}


def _field_of(schema: Any) -> dict[str, Any] | None:
    """A primitive as forms know it; None for others, and for secrets."""
    if not _is_single(schema) or schema is None:
        return None
    details = cast("Mapping[str, Any]", schema)
    if details.get("writeOnly") or details.get("format") == _SECRET:
        return None
    kept = {name: value for name, value in details.items() if name in _KEPT}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    is_text = kept["type"] == "string"
    if "enum" in kept and not (is_text and all(isinstance(each, str) for each in kept["enum"])):
        return None
    return kept


def _shown(choice: Any) -> str:
    return choice if isinstance(choice, str) else json.dumps(choice, ensure_ascii=False)


def _chosen(choices: list[Any], shown: Any) -> Any:
    """Return the choice with this label; the receiver of the answer refuses anything else."""
    return next((each for each in choices if _shown(each) == shown), shown)
