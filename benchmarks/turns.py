"""Realistic turns: an assistant's text with a tool call, and the tool's result. Repeatable."""

import random
from typing import Any

_WORDS = """the of and to in a is that for it was on are with as be this by have or from at which an
you can we will if not there has more when all would their what about one up out so its also into no
time other some them than only then over such new may any two first these after most made between
used through under where each because how should well work use way many make need data order state
result value user customer account payment refund invoice number service request response change
system report check found update record follow current policy support agent message question answer
provide contact review confirm process complete amount total balance status shipping address item
product delivery return window days week month before during against within without although however
therefore according additional available different important possible several following information
example reference history details summary section further option required approval manager decision
""".split()


class TurnMaker:
    """Makes turns of about 3.7 KB: 1.5 KB of assistant text and call, 2 KB of tool result."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        # Rare words and numbers as real text has them: names, ids, amounts.
        self._rare = [self._name() for _ in range(4000)]
        # Words by rank: the n-th most frequent is used in proportion to 1/n, as in English.
        self._weights = [1 / (rank + 2) for rank in range(len(_WORDS))]

    def turn(self, number: int) -> list[dict[str, Any]]:
        call = f"call_{self._random.getrandbits(64):016x}"
        order = self._random.randrange(10**7)
        return [
            {
                "id": f"msg_{self._random.getrandbits(64):016x}",
                "role": "assistant",
                "content": [
                    {"type": "text", "text": self._text(1250)},
                    {
                        "type": "tool_call",
                        "id": call,
                        "name": "look_up_order",
                        "args": {"order_id": order, "include": ["items", "payments"]},
                    },
                ],
            },
            {
                "id": f"msg_{self._random.getrandbits(64):016x}",
                "role": "tool",
                "content": [
                    {
                        "type": "tool_result",
                        "call_id": call,
                        "is_error": False,
                        "content": {
                            "order_id": order,
                            "customer": self._name().title(),
                            "total_cents": self._random.randrange(100, 10**6),
                            "notes": self._text(1750),
                        },
                    }
                ],
            },
        ]

    def _text(self, size: int) -> str:
        words: list[str] = []
        length = 0
        while length < size:
            if self._random.random() < 0.18:
                word = self._random.choice(self._rare)
            else:
                word = self._random.choices(_WORDS, self._weights)[0]
            if self._random.random() < 0.07:
                word += self._random.choice([".", ",", ":", ";"])
            words.append(word)
            length += len(word) + 1
        return " ".join(words)

    def _name(self) -> str:
        syllables = [
            "ba",
            "con",
            "del",
            "er",
            "fi",
            "gra",
            "hol",
            "in",
            "jo",
            "ka",
            "lor",
            "men",
            "nor",
            "os",
            "per",
            "qui",
            "ran",
            "sta",
            "ter",
            "un",
            "ver",
            "wil",
            "xa",
            "yor",
        ]
        return "".join(self._random.choices(syllables, k=self._random.randint(2, 4)))
