"""A model that needs no key and no network: it knows two commands."""

import asyncio
from collections.abc import Sequence

from holdfast import Message, ToolCall, Usage


class ScriptedModel:
    """Understands `add ITEM` and `list`, and says what it did."""

    def __init__(self, think_seconds: float = 0.0) -> None:
        self._think_seconds = think_seconds

    async def __call__(self, transcript: Sequence[Message]) -> Message:
        await asyncio.sleep(self._think_seconds)
        return answer(transcript)


def answer(transcript: Sequence[Message]) -> Message:
    last = transcript[-1]
    used = Usage(input_tokens=10 * len(transcript), output_tokens=10)
    if last.role == "tool":
        return Message.assistant(f"Done: {last.results[0].content}.", usage=used)
    word, _, rest = last.text.partition(" ")
    call_id = f"call-{len(transcript)}"
    if word == "add" and rest:
        calls = [ToolCall(call_id, "add_item", {"item": rest})]
    elif word == "list":
        calls = [ToolCall(call_id, "list_items")]
    else:
        count = sum(message.role == "user" for message in transcript)
        return Message.assistant(
            f"That was your message {count}. I understand: add ITEM, list.", usage=used
        )
    return Message.assistant(tool_calls=calls, usage=used)
