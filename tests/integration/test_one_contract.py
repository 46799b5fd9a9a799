"""Everything above the stores reaches them through their contract, and by nothing else."""

import inspect
from typing import Any, get_type_hints

import pytest

import holdfast
from holdfast import HandoffPolicy
from holdfast.records import CheckpointService
from holdfast.stores import contract
from holdfast.testing.store_suite import async_test
from tests.backends import Backend
from tests.handoff.relays import Seen, builder


class Only:
    """What a protocol names of an object; all else is refused, and what is used is noted."""

    def __init__(self, protocol: type, of: Any, used: set[str]) -> None:
        vars(self).update(_protocol=protocol, _of=of, _used=used)

    def __getattr__(self, name: str) -> Any:
        inside = inspect.getattr_static(self._protocol, name, None)
        if inside is None and name not in get_type_hints(self._protocol):
            raise AssertionError(f"{self._protocol.__name__} has no {name}")
        found = getattr(self._of, name)
        self._used.add(f"{self._protocol.__name__}.{name}")
        if isinstance(inside, property):
            kind = get_type_hints(inside.fget)["return"]
            return Only(kind, found, self._used) if kind.__name__.endswith("Reads") else found
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in get_type_hints(self._protocol), f"the contract has no {name}"
        setattr(self._of, name, value)


@pytest.mark.mission("S3-101")
@async_test
async def test_engine_agents_and_records_use_nothing_but_the_contract(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs, signals, handoffs and records, on a store that shows nothing but its contract."""
    used: set[str] = set()
    real = holdfast.app.open_store

    def shown(*args: Any, **more: Any) -> Any:
        return Only(contract.Store, real(*args, **more), used)

    monkeypatch.setattr(holdfast.app, "open_store", shown)

    async def each(run: holdfast.Run, turn: int) -> None:
        if turn == 1:
            assert await run.signal("go") == "on"

    agent = builder(Seen(), turns=2, hand_over_at={1: ""}, handoff=HandoffPolicy(), each=each)
    async with holdfast.Holdfast(backend.url, agents=[agent]) as hf:
        await hf.start(agent, "a house", run_id="r")
        await hf.signal("r", "go", "on")
        assert await hf.run(agent, "a house", run_id="r", timeout=30) == "2 parts of a house"
        service = CheckpointService(hf)
        made = await service.create_checkpoint("task", "ada", {})
        await service.finalize_checkpoint(made.checkpoint_id, "complete")
        assert (await service.search_checkpoints({"status": "complete"})).checkpoints
        assert await hf.journal.verify("r") == await hf.journal.verify("task") == []
        await hf.reindex("r")
    assert {"Store.submit", "Store.reindex", "JournalReads.read", "RunReads.get"} <= used
