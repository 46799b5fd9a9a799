"""What a tool returned: how it is stored with its effect, and how it is given back.

A reply is stored by the saver's serializer. It is given back under the id of the call that asks for
it now, which is another one when the model was asked again. What a person or `verify` reports of a
call is a plain value, and becomes a message.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import msgspec
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from holdfast.agents.definitions.tools import text_of
from holdfast.agents.turn.calls import storable_text
from holdfast.errors import MisuseError
from holdfast.telemetry import log

Reply = Any
"""A ToolMessage, a Command, or a list of them."""

_FORM: Final = "langgraph"
_REPLAY: Final = "holdfast_replay_of"
_NOT_KNOWN: Final = "It happened. What it returned is not known."


class Serializer(Protocol):
    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


class GraphToolCall(msgspec.Struct, frozen=True):
    """A call as the model asked for it."""

    tool: str
    args: dict[str, Any]
    call_id: str


def stored(reply: Reply, call: GraphToolCall, serde: Serializer) -> dict[str, Any]:
    """A reply as an effect's result. That it happened is on record, whatever it returned."""
    try:
        form, data = serde.dumps_typed(reply)
    except Exception as error:
        log.warning("%s returned what cannot be stored, its text is kept: %s", call.tool, error)
        return as_text(reply)
    return {_FORM: form, "data": data, "call_id": call.call_id}


def as_text(reply: Reply) -> dict[str, Any]:
    """A reply of which only the text is kept."""
    return {"text": storable_text(str(getattr(reply, "content", reply)))}


def given_back(result: Any, call: GraphToolCall, serde: Serializer) -> Reply:
    """The reply to a call that happened before, from what is on record of it."""
    fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    if _FORM not in fields:
        return said(fields["text"] if set(fields) == {"text"} else cast(object, result), call)
    reply = serde.loads_typed((fields[_FORM], bytes(fields["data"])))
    return _readdressed(reply, str(fields.get("call_id", "")), call)


def said(result: object, call: GraphToolCall) -> ToolMessage:
    """Return a message with a plain result."""
    content = _NOT_KNOWN if result is None else text_of(result)
    return ToolMessage(content=content, name=call.tool, tool_call_id=call.call_id)


def failed(text: str, call: GraphToolCall) -> ToolMessage:
    """Return a message with an error."""
    return ToolMessage(content=text, name=call.tool, tool_call_id=call.call_id, status="error")


def is_error(reply: Reply) -> bool:
    return isinstance(reply, ToolMessage) and reply.status == "error"


def _readdressed(reply: Any, call_id: str, call: GraphToolCall) -> Reply:
    if isinstance(reply, list):
        return [_readdressed(each, call_id, call) for each in cast("list[Any]", reply)]
    if isinstance(reply, Command):
        command = cast("Command[Any]", reply)
        return replace(command, update=_update(command.update, call_id, call))
    if isinstance(reply, ToolMessage):
        return _message(reply, call_id, call)
    raise MisuseError(f"{call.tool} has a {type(reply).__name__} on record, which is no reply")


def _update(update: Any, call_id: str, call: GraphToolCall) -> Any:
    """An update of the state, in which the messages that answer the call do so again."""
    if isinstance(update, Mapping):
        items = cast("Mapping[Any, Any]", update).items()
        return {key: _update(value, call_id, call) for key, value in items}
    if isinstance(update, list):
        return [_update(value, call_id, call) for value in cast("list[Any]", update)]
    if isinstance(update, tuple):
        return tuple(_update(value, call_id, call) for value in cast("tuple[Any, ...]", update))
    if isinstance(update, ToolMessage) and update.tool_call_id == call_id:
        return _message(update, call_id, call)
    return update


def _message(message: ToolMessage, call_id: str, call: GraphToolCall) -> ToolMessage:
    if call_id == call.call_id:
        return message
    # With the id of the first message it would take that one's place in the state.
    return message.model_copy(
        update={
            "id": None,
            "tool_call_id": call.call_id,
            "response_metadata": {**message.response_metadata, _REPLAY: call_id},
        }
    )
