"""Filters by metadata give what LangGraph's saver in memory gives, whatever the keys and values.

But for one thing, in which LangGraph's savers differ: True is not 1, as in its PostgreSQL saver.

Two of its advisories were filters whose keys became SQL: here keys and values are made to try.
"""

import random
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.testing.store_suite import async_test
from tests.integrations.langgraph.making import checkpoint, config, ids_of, listed
from tests.integrations.langgraph.savers import Saver

PIECES = [
    *("'", '"', "''", ".", "$", "$.", "[0]", ";", "--", "/*", "\\", "%", "_", "{", "}", "?", "::"),
    *(" OR 1=1", "') OR ('1'='1", "DROP TABLE runs", "UNION SELECT", "a", "b", "source", "step"),
    *("ä", "☃", "\n", " ", "->>", "@>", "%s", "$1", ":x", "null", "true", "#", "*", "1"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 1.0, 0.0, 0.5, 2**53, 2**53 + 1, float(2**53), 1e300),
    *("", "a", "1", "true", "null", "ä☃", "a.b", "it's", [], [1], [1, 2], [[1]], ["a", None]),
    *({}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": {"b": [1, None]}}, {"b": 1, "a": 2}, [{}]),
]


def odd(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randint(1, 4)))


async def fill(saver: Saver, memory: InMemorySaver, metadata: list[dict[str, Any]]) -> None:
    """The same checkpoints in both."""
    for each in metadata:
        made = checkpoint({})
        for target in (saver, memory):
            await target.aput(config(), made, each, {})  # type: ignore[arg-type]


def told(value: Any) -> Any:
    """A value that equals another if it is the same data, and truth is no number."""
    if isinstance(value, bool):
        return f"<{value}>"
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items()}
    return [told(each) for each in value] if isinstance(value, list) else value


async def assert_same(saver: Saver, memory: InMemorySaver, filter: dict[str, Any]) -> int:
    expected = ids_of(
        [
            each
            for each in await listed(memory, config(), filter=filter)
            if all(told(each.metadata.get(key)) == told(value) for key, value in filter.items())
        ]
    )
    assert ids_of(await listed(saver, config(), filter=filter)) == expected, filter
    assert ids_of(await listed(saver, None, filter=filter, limit=3)) == expected[:3], filter
    return len(expected)


@async_test
async def test_every_value_finds_what_equals_it_in_python(saver: Saver) -> None:
    memory = InMemorySaver()
    await fill(saver, memory, [{"k": value} for value in VALUES] + [{}])
    found = [await assert_same(saver, memory, {"k": value}) for value in VALUES]
    assert all(found)


@async_test
async def test_all_keys_of_a_filter_must_match(saver: Saver) -> None:
    memory = InMemorySaver()
    await fill(saver, memory, [{"a": a, "b": b} for a in (1, 2, None) for b in ("x", "y", None)])
    for filter in (
        {"a": 1, "b": "x"},
        {"a": 2, "b": None},
        {"a": 9, "b": "x"},
        {"c": None, "a": 1},
    ):
        await assert_same(saver, memory, filter)


@pytest.mark.parametrize("seed", range(2))
@async_test
async def test_odd_keys_and_values_find_only_what_they_name(saver: Saver, seed: int) -> None:
    chance = random.Random(seed)
    memory = InMemorySaver()
    keys = [odd(chance) for _ in range(25)]
    values = [odd(chance) for _ in range(10)] + VALUES
    metadata = [
        {key: chance.choice(values) for key in chance.sample(keys, 4)}
        | {"nested": {odd(chance): 1}}
        for _ in range(30)
    ]
    await fill(saver, memory, metadata)
    found = 0
    for _ in range(150):
        source = chance.choice(metadata)
        key = chance.choice([*source, chance.choice(keys), odd(chance)])
        value = source.get(key) if chance.random() < 0.6 else chance.choice(values)
        found += await assert_same(saver, memory, {key: value})
    assert found > 50
    assert len(await listed(saver, None)) == 30
