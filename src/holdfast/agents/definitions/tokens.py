"""How many tokens a text has: by a tokenizer that is installed and knows the model, else a guess.

A tokenizer may have to fetch its tables the first time. It does so in a separate thread: until
it is ready, and for ever where that fails or hangs, the guess counts.
"""

import functools
import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast.agents.definitions.messages import Message, Reasoning, Text, ToolCall, ToolResult
from holdfast.telemetry import log

_BYTES_PER_TOKEN: Final = 3
_LIBRARY: Final = "tiktoken"
PER_MESSAGE: Final = 4
"""What roles and separators of a message take."""


def estimate(text: str) -> int:
    """Tokens of a text, guessed from its bytes: one for every three, rounded up.

    More than tokenizers count for prose and code of most languages; a guess, not a bound.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def counter_for(model: str) -> Callable[[str], int] | None:
    """Return a counter of the model's own tokenizer; None if none is installed."""
    if not model or importlib.util.find_spec(_LIBRARY) is None:
        return None
    return _counter(model.replace(":", "/").rpartition("/")[2])


@functools.cache
def _counter(model: str) -> "TokenizerCounter":
    return TokenizerCounter(model)


class TokenizerCounter:
    """Counts by tiktoken if it knows the model; never waits for it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._encoding: Any = None
        # A fetch that hangs must not keep the process from ending.
        self.loading = threading.Thread(target=self._load, name="holdfast-tokenizer", daemon=True)
        self.loading.start()

    def __call__(self, text: str) -> int:
        if self._encoding is None:
            return estimate(text)
        try:
            # Marks inside a text are text: they must neither be refused nor count as one token.
            return len(self._encoding.encode(text, disallowed_special=()))
        except Exception as error:
            log.warning("the tokenizer of %s failed, tokens are guessed: %r", self._model, error)
            self._encoding = None
            return estimate(text)

    def _load(self) -> None:
        try:
            self._encoding = importlib.import_module(_LIBRARY).encoding_for_model(self._model)
        except Exception as error:
            log.info("tokens of %s are guessed, its tokenizer is not there: %r", self._model, error)


def text_of_message(message: Message) -> str:
    """Return what a model sees of a message: its blocks, without ids and times."""
    return "\n".join(_text_of_block(block) for block in message.blocks)


def _text_of_block(block: Text | Reasoning | ToolCall | ToolResult) -> str:
    match block:
        case ToolCall():
            return f"{block.id} {block.name} {block.args}"
        case ToolResult():
            return f"{block.call_id} {block.content}"
        case _:
            return block.text


def shares(sizes: list[int], room: int) -> list[int]:
    """Divide room among texts of these sizes: small ones whole, equal parts for the others."""
    left, given = max(0, room), [0] * len(sizes)
    for done, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        given[at] = min(sizes[at], left // (len(sizes) - done))
        left -= given[at]
    return given


def fitting(text: str, tokens: int, count: Callable[[str], int]) -> int:
    """Return how many of a text's first characters have at most so many tokens."""
    least, most = 0, len(text)
    while least < most:
        middle = (least + most + 1) // 2
        if count(text[:middle]) <= tokens:
            least = middle
        else:
            most = middle - 1
    return least
