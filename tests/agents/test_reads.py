"""What a pass reads: nothing that its own commits, or the lease, have shown already."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.stores import readers
from holdfast.testing.store_suite import async_test


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the queries that reads make, in order."""
    made: list[str] = []
    rows: Callable[..., Awaitable[Any]] = readers._StoreReads._rows

    def noted(self: Any, name: str, *row: Any) -> Awaitable[Any]:
        made.append(name)
        return rows(self, name, *row)

    monkeypatch.setattr(readers._StoreReads, "_rows", noted)
    return made


@holdfast.agent
async def empty(run: holdfast.Run, n: int) -> int:
    return n


@holdfast.tool(effect="mutate", limit_seconds=30)
async def charge(cents: int) -> str:
    """Charge."""
    return f"charged {cents}"


@async_test
async def test_run_that_does_nothing_reads_nothing(store: str, reads: list[str]) -> None:
    async with holdfast.Holdfast(store, agents=[empty]) as hf:
        await hf.run(empty, 1)
        reads.clear()
        assert await hf.run(empty, 2, run_id="r") == 2
        assert reads == []
        assert await hf.run(empty, 2, run_id="r") == 2, "what is stored is what was returned"


@async_test
async def test_turn_with_a_model_and_a_tool_reads_nothing(store: str, reads: list[str]) -> None:
    async def model(n: int) -> str:
        return f"reply {n}"

    turns: list[list[str]] = []

    @holdfast.agent(tools=[charge])
    async def worker(run: holdfast.Run, n: int) -> int:
        talk = run.log("talk", str)
        for turn in range(n):
            reads.clear()
            talk.append(await run.model(model, turn))
            talk.append(await run.call(charge, turn))
            await run.checkpoint()
            turns.append(list(reads))
        return n

    async with holdfast.Holdfast(store, agents=[worker]) as hf:
        assert await hf.run(worker, 3, run_id="r") == 3
    assert turns == [[], [], []]
