"""Messages of LangChain, made again fast: their fields are checked, their constructors left out.

A message's constructor costs more than everything else in reading it. Its validators change only
what no stored message has any more, unless it was edited by hand: such a one goes through the
constructor. What is made here equals what the constructor makes.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

MESSAGES: Final[frozenset[type[BaseMessage]]] = frozenset(
    (
        AIMessage,
        ChatMessage,
        FunctionMessage,
        HumanMessage,
        RemoveMessage,
        SystemMessage,
        ToolMessage,
    )
)
_CALL: Final = {"name", "args", "id", "type"}
_set: Final = object.__setattr__


def checked(kind: type[BaseMessage], fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a message, or None if only its constructor knows what they mean."""
    names, check = _checks(kind)
    if fields.keys() != names or (kind is AIMessage and not _is_settled(fields)):
        return None
    try:
        return check(fields)
    except ValidationError:
        return None


def remade(kind: type[BaseMessage], fields: dict[str, Any]) -> BaseMessage | None:
    """The message of these fields, or None if only its constructor can make it."""
    right = checked(kind, fields)
    if right is None:
        return None
    message = kind.__new__(kind)
    _set(message, "__dict__", right)
    _set(message, "__pydantic_fields_set__", set(right))
    _set(message, "__pydantic_extra__", {})
    _set(message, "__pydantic_private__", None)
    return message


def _is_settled(fields: dict[str, Any]) -> bool:
    """Whether the constructor would leave the tool calls unchanged."""
    try:
        return (
            not fields["invalid_tool_calls"]
            and "tool_calls" not in fields["additional_kwargs"]
            and all(
                call.keys() == _CALL and call["type"] == "tool_call"
                for call in fields["tool_calls"]
            )
        )
    except (AttributeError, TypeError):
        return False


@lru_cache
def _checks(
    kind: type[BaseMessage],
) -> tuple[frozenset[str], Callable[[dict[str, Any]], dict[str, Any]]]:
    """The names of a message's fields, and a check of their types by the class's annotations."""
    annotations = {
        name: Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        for name, field in kind.model_fields.items()
    }
    shape = cast(Any, TypedDict)(kind.__name__, annotations)
    return frozenset(annotations), TypeAdapter(shape).validator.validate_python
