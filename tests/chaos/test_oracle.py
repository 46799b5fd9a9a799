"""The oracle is no good unless it sees what is wrong."""

import psycopg
import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from tests.chaos.oracle import Oracle


async def make_a_run(url: str) -> None:
    async with holdfast.open(url) as hf:
        run = await hf.runs.open("a")
        run.append("log", "one", "two")
        await run.checkpoint()
        (begun,) = await run.begin_effects([holdfast.EffectRequest(tool="t", key="k")])
        await run.finish_effect(begun)
        await run.open_waits([holdfast.WaitSpec(wait_id="w")])
        await hf.waits.resolve("w", by="peer")


def change(url: str, statement: str) -> None:
    with psycopg.connect(url) as session:
        session.execute(statement)


@async_test
async def test_oracle_reads_what_is_stored(postgres_url: str) -> None:
    await make_a_run(postgres_url)
    oracle = Oracle(postgres_url)
    assert oracle.look() == []
    assert oracle.look() == [], "nothing is new"
    assert oracle.markers == {"a": {"one": 1, "two": 1}}
    assert oracle.settlers == {"w": "peer"}
    assert oracle.completed_keys() == {"k"}
    assert oracle.missing({"a": ["one", "three"]}) == ["'three' was acknowledged, and is not in a"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM journal WHERE seq = 4", "a: entry 5 follows 3"),
        ("UPDATE journal SET actor = 'b' WHERE seq = 3", "a: the link of entry 3 does not fit"),
        ("UPDATE journal SET body = body || 'x' WHERE seq = 4", "a: the link of entry 4"),
        ("DELETE FROM checkpoints", "checkpoints: the journal says [('a', 1)], the rows say []"),
        ("DELETE FROM effects", "effects: the journal says"),
        ("UPDATE effects SET status = 'issued'", "ends of effects: the journal says"),
        ("DELETE FROM waits", "waits: the journal says [('w', None)], the rows say []"),
        ("UPDATE waits SET status = 'expired'", "ends of waits: the journal says"),
    ],
)
@async_test
async def test_oracle_sees_damage(postgres_url: str, damage: str, problem: str) -> None:
    await make_a_run(postgres_url)
    change(postgres_url, damage)
    assert any(found.startswith(problem) for found in Oracle(postgres_url).look())


@pytest.mark.parametrize("loss", ["seq > 4", "true"])
@async_test
async def test_oracle_misses_what_it_has_seen(postgres_url: str, loss: str) -> None:
    await make_a_run(postgres_url)
    oracle = Oracle(postgres_url)
    assert oracle.look() == []
    change(postgres_url, f"DELETE FROM journal WHERE {loss}")
    assert oracle.look()[0] == "the end of a is gone"
