"""What a person is asked, as stored with its wait; and whether an answer fits.

A question carries its JSON Schema, so that any process can check an answer: the agent's code need
not be there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast import codec
from holdfast.agents.conversion import json_schemas, type_conversion
from holdfast.agents.conversion.json_schemas import as_json, shown
from holdfast.errors import AnswerRefused, MisuseError

QUESTION: Final = "question"
APPROVAL: Final = "approval"
TIMER: Final = "timer"
FOR_PEOPLE: Final = frozenset({QUESTION, APPROVAL})


class WaitPosition(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored with a wait of an agent that nobody reads but the agent itself: where in its
    turn it was asked for, and what that was, in whatever turn it is asked for again."""

    place: bytes
    asked: bytes = b""


class Question(WaitPosition, frozen=True, kw_only=True, omit_defaults=True):
    """What a person is asked. `problem` is why the answer before this one could not be used."""

    prompt: str
    schema: dict[str, Any] | None = None
    choices: list[Any] | None = None
    problem: str = ""


class ApprovalRequest(WaitPosition, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a person is to approve: just this tool, with just these arguments."""

    prompt: str
    tool: str
    args: dict[str, Any]
    args_digest: bytes
    tool_digest: bytes
    call_id: str = ""


class ApprovalVerdict(msgspec.Struct, frozen=True):
    """The answer to an approval request."""

    approved: bool
    note: str = ""


def schema_of(schema: object) -> dict[str, Any] | None:
    """Return the JSON Schema of a type; a schema is returned unchanged."""
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        given = dict(cast("Mapping[str, Any]", schema))
        json_schemas.check_schema(given)
        return given
    try:
        return type_conversion.schema(cast("type[Any]", schema))
    except TypeError as error:
        raise MisuseError(
            f"{type_conversion.shown(schema)} has no JSON Schema: {error}. Give a plain "
            "type, a dataclass, a msgspec Struct, a Pydantic model or a JSON Schema"
        ) from error


def check_answer(value: object, *, schema: Any, choices: Sequence[Any] | None) -> None:
    """Raise AnswerRefused, in words for a person, unless the value answers a question."""
    plain = codec.decode(codec.encode(value, name="answer"))
    answer = as_json(plain)
    if choices is not None and not any(_is_same(answer, as_json(choice)) for choice in choices):
        raise AnswerRefused(
            f"{shown(plain)} is not one of the choices: {', '.join(map(shown, choices))}"
        )
    if schema is not None:
        try:
            problems = list(json_schemas.problems(answer, schema))
        except Exception as error:  # such as a reference that leads nowhere
            raise AnswerRefused(f"the schema of this question cannot be used: {error}") from error
        if problems:
            raise AnswerRefused("; ".join(problems))


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other
