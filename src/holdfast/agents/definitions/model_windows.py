"""How many tokens models can be given: a small table, and what the setting `model_windows` adds.

A name is found by its longest known beginning, without the provider before a slash or colon, so
that `openai/gpt-4o-2024-11-20` is a `gpt-4o`. A model that is not known has `DEFAULT`.
"""

from collections.abc import Mapping
from typing import Final

DEFAULT: Final = 200_000

_TABLE: Final[Mapping[str, int]] = {
    "claude": 200_000,
    "command-r": 128_000,
    "deepseek": 64_000,
    "gemini": 1_000_000,
    "gemma": 8_192,
    "gpt-3.5": 16_385,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_000_000,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "llama-2": 4_096,
    "llama-3": 8_192,
    "llama-3.1": 128_000,
    "mistral": 32_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4": 200_000,
    "qwen": 32_000,
}


def window_of(model: str, configured: Mapping[str, int] = {}) -> int:
    """Return the window of a model by its name. What is configured counts before the table."""
    name = model.strip().lower()
    bare = name.replace(":", "/").rpartition("/")[2]
    for known in (configured, _TABLE):
        fit = [each for each in known if name.startswith(each) or bare.startswith(each)]
        if fit:
            return known[max(fit, key=len)]
    return DEFAULT
