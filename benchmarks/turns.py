"""Realistic turns: an assistant's text with a tool call, and the tool's result. Repeatable.

Calibrated against ordinary English documentation, cut into 6,000 chunks of 3.5 KB: zstd at level 3
brings the median chunk to 0.39 of its size. Frequent words follow a 1/rank law, as in English; the
names and terms of a turn come from a small topic set of its own, because real text repeats what it
speaks about. A turn is 3.7 KB as JSON and compresses to 0.41 (`python -m benchmarks.turns`).
"""

import json
import random
from itertools import accumulate
from typing import Any

import zstandard

_FREQUENT = """
the of and to in a is that for it was on are with as be this by have or from at which an
you can we will if not there has more when all would their what about one up out so its also into no
time other some them than only then over such new may any two first these after most made between
used through under where each because how should well work use way many make need data order state
result value user customer account payment refund invoice number service request response change
system report check found update record follow current policy support agent message question answer
provide contact review confirm process complete amount total balance status shipping address item
product delivery return window days week month before during against within without although however
therefore according additional available different important possible several following information
example reference history details summary section further option required approval manager decision
"""
_SPOKEN = "ba con del er fi gra hol in jo ka lor men nor os per qui ran sta ter un ver wil xa yor"
_WORDS = _FREQUENT.split()
_SYLLABLES = _SPOKEN.split()
_TERMS_PER_TURN = 14
_TERM_SHARE = 0.16
_MARK_SHARE = 0.07


class TurnMaker:
    """Makes turns of about 3.7 KB: 1.6 KB of assistant text and call, 2.1 KB of tool result."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        # Rare words and numbers as real text has them: names, ids, amounts.
        self._names = [self._name() for _ in range(4000)]
        # Words by rank: the n-th most frequent is used in proportion to 1/n, as in English.
        self._ranks = list(accumulate(1 / (rank + 2) for rank in range(len(_WORDS))))

    def turns(self, count: int) -> list[list[dict[str, Any]]]:
        return [self.turn() for _ in range(count)]

    def turn(self) -> list[dict[str, Any]]:
        """The two messages of one turn."""
        call = f"call_{self._random.getrandbits(64):016x}"
        order = self._random.randrange(10**7)
        topic = self._topic()
        return [
            self._message(
                "assistant",
                {"type": "text", "text": self._text(1400, topic)},
                {
                    "type": "tool_call",
                    "id": call,
                    "name": "look_up_order",
                    "args": {"order_id": order, "include": ["items", "payments"]},
                },
            ),
            self._message(
                "tool",
                {
                    "type": "tool_result",
                    "call_id": call,
                    "is_error": False,
                    "content": {
                        "order_id": order,
                        "customer": self._name().title(),
                        "total_cents": self._random.randrange(100, 10**6),
                        "notes": self._text(1830, topic),
                    },
                },
            ),
        ]

    def _message(self, role: str, *content: dict[str, Any]) -> dict[str, Any]:
        message_id = f"msg_{self._random.getrandbits(64):016x}"
        return {"id": message_id, "role": role, "content": list(content)}

    def _topic(self) -> list[str]:
        """What one turn speaks about: names alone, and names with the word that goes with them."""
        nouns = self._random.choices(_WORDS[60:], k=_TERMS_PER_TURN)
        names = self._random.sample(self._names, _TERMS_PER_TURN)
        return [
            f"{name} {noun}" if index % 2 else name
            for index, (name, noun) in enumerate(zip(names, nouns, strict=True))
        ]

    def _text(self, size: int, topic: list[str]) -> str:
        words: list[str] = []
        length = 0
        while length < size:
            for word in self._random.choices(_WORDS, cum_weights=self._ranks, k=20):
                chance = self._random.random()
                if chance < _TERM_SHARE:
                    word = topic[int(chance / _TERM_SHARE * _TERMS_PER_TURN)]
                elif chance > 1 - _MARK_SHARE:
                    word += self._random.choice(".,:;")
                words.append(word)
                length += len(word) + 1
        return " ".join(words)[:size]

    def _name(self) -> str:
        return "".join(self._random.choices(_SYLLABLES, k=self._random.randint(2, 4)))


def as_json(turn: list[dict[str, Any]]) -> bytes:
    """A turn as what a program without a library would store: the new bytes that ratios count."""
    return json.dumps(turn).encode()


def _main() -> None:
    turns = [as_json(turn) for turn in TurnMaker().turns(1000)]
    new_bytes = sum(map(len, turns))
    squeezed = sum(len(zstandard.ZstdCompressor(level=3).compress(turn)) for turn in turns)
    print(f"{new_bytes / len(turns):,.0f} bytes a turn, zstd level 3: {squeezed / new_bytes:.3f}")


if __name__ == "__main__":
    _main()
