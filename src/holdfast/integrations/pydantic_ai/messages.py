"""Our messages as Pydantic AI's, and its responses as ours.

A provider may want more back than our blocks say: the signature of a thought, the id of a call, a
part we have no block for. All that is the metadata of reasoning blocks. One that holds a part's
fields is the thought itself; one with the key `pydantic_ai` and no text holds

    response    fields of the whole response
    next        further fields of the block that follows
    part        a part of another kind, as a whole

Nothing of it is read by an agent, and a response comes back with every field that was sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

import msgspec
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.agents.definitions.messages import (
    Block,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from holdfast.errors import MisuseError

Fields = dict[str, Any]

_CARRIES: Final = "pydantic_ai"
_RESPONSE_FIELDS: Final = (
    "model_name",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_details",
    "provider_response_id",
    "history_digest",
    "finish_reason",
)


def from_messages(transcript: Iterable[Message]) -> list[ModelMessage]:
    """A transcript as a model of Pydantic AI takes it: requests and responses by turns."""
    found: list[ModelMessage] = []
    names: dict[str, str] = {}
    said = [message for message in transcript if message.blocks]  # no provider takes an empty one
    for is_reply, group in groupby(said, key=lambda message: message.role == "assistant"):
        messages = list(group)
        if is_reply:
            found += [_response_of(message) for message in messages]
            names |= {call.id: call.name for message in messages for call in message.tool_calls}
        else:
            parts = [part for message in messages for part in _request_parts(message, names)]
            found.append(ModelRequest(parts=parts, timestamp=messages[-1].created_at))
    return found


def to_message(response: ModelResponse, usage: Usage) -> Message:
    """A model's response as our message."""
    (dumped,) = cast("list[Fields]", _plain([response]))
    blocks = [block for part in dumped["parts"] for block in _blocks_of(part)]
    if any(isinstance(block, Reasoning) and block.metadata for block in blocks):
        blocks.insert(0, _carrier("response", _said(dumped, _RESPONSE_FIELDS)))
    return Message(role="assistant", blocks=blocks, usage=usage, created_at=response.timestamp)


def _request_parts(message: Message, names: dict[str, str]) -> Iterator[ModelRequestPart]:
    for block in message.blocks:
        match block:
            case Text(text) if message.role == "system":
                yield SystemPromptPart(text, timestamp=message.created_at)
            case Text(text) if message.role == "user":
                yield UserPromptPart(text, timestamp=message.created_at)
            case ToolResult(call_id, content, is_error) if message.role == "tool":
                yield ToolReturnPart(
                    names.get(call_id, "unknown"),
                    content,
                    call_id,
                    timestamp=message.created_at,
                    outcome="failed" if is_error else "success",
                )
            case _:
                raise MisuseError(
                    f"message {message.id} of the role {message.role} has a block that no model "
                    f"takes there: {type(block).__name__}"
                )


def _response_of(message: Message) -> ModelMessage:
    usage = message.usage or Usage()
    whole: Fields = {"kind": "response", "timestamp": message.created_at}
    whole["usage"] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    parts: list[Fields] = []
    extra: Fields = {}
    for block in message.blocks:
        match block:
            case Reasoning("", {"pydantic_ai": "response", "fields": fields}):
                whole |= fields
            case Reasoning("", {"pydantic_ai": "next", "fields": fields}):
                extra = fields
            case Reasoning("", {"pydantic_ai": "part", "fields": fields}):
                parts.append(fields)
            case _:
                parts.append(_part_of(block) | extra)
                extra = {}
    (response,) = ModelMessagesTypeAdapter.validate_json(
        msgspec.json.encode([whole | {"parts": parts}])
    )
    return response


def _part_of(block: Block) -> Fields:
    match block:
        case Text(text):
            return {"part_kind": "text", "content": text}
        case Reasoning(text, metadata):
            return metadata | {"part_kind": "thinking", "content": text}
        case ToolCall(call_id, name, args):
            kind = {"part_kind": "tool-call"}
            return kind | {"tool_name": name, "args": args, "tool_call_id": call_id}
        case ToolResult(call_id):
            raise MisuseError(f"a reply cannot hold the result of call {call_id}")


def _blocks_of(part: Fields) -> Iterator[Block]:
    match part:
        case {"part_kind": "text", "content": text}:
            yield from _further(part, "content")
            yield Text(text)
        case {"part_kind": "thinking", "content": text}:
            yield Reasoning(text, _rest(part, "content"))
        case {"part_kind": "tool-call", "tool_name": name, "args": args, "tool_call_id": call_id}:
            yield from _further(part, "tool_name", "args", "tool_call_id")
            yield ToolCall(call_id, name, args or {})
        case _:
            yield _carrier("part", part)


def _further(part: Fields, *known: str) -> Iterator[Reasoning]:
    rest = _rest(part, *known)
    if rest:
        yield _carrier("next", rest)


def _rest(part: Fields, *known: str) -> Fields:
    return _said(part, [name for name in part if name not in (*known, "part_kind")])


def _said(fields: Fields, names: Sequence[str]) -> Fields:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _carrier(what: str, fields: Fields) -> Reasoning:
    return Reasoning("", {_CARRIES: what, "fields": fields})


def _plain(messages: list[ModelMessage]) -> object:
    return msgspec.json.decode(ModelMessagesTypeAdapter.dump_json(messages))
