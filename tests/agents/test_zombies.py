"""Workers that come back from the dead in the middle of a call do nothing a second time."""

import asyncio
import signal
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.store_suite import async_test
from tests.agents.ledger import Ledger
from tests.agents.zombie import SETTINGS, buyer
from tests.processes import Child


@pytest.mark.parametrize("where", ["before", "during"])
@async_test
async def test_worker_frozen_in_a_call_repeats_nothing_when_it_wakes(
    store: str, tmp_path: Path, where: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    agent = buyer(ledger)
    async with holdfast.Holdfast(store, agents=[agent], settings=SETTINGS) as hf:
        handle = await hf.start(agent, run_id="r")
        with Child("tests.agents.zombie", store, tmp_path / "ledger", where) as zombie:
            assert await asyncio.to_thread(zombie.answer) == "frozen"
            assert len(ledger.lines()) == (where == "during")
            assert await handle.result(timeout=30) == "receipt"
            assert len(ledger.lines()) == 1
            zombie.signal(signal.SIGCONT)
            is_over, error = await asyncio.to_thread(zombie.answer)
            assert (is_over, error) == (False, "Fenced")
            assert zombie.wait() == 0
        assert len(ledger.lines()) == 1
        statuses = [effect.status for effect in await hf.effects.of_run("r")]
        assert statuses == (["completed"] if where == "during" else ["not_done", "completed"])
        assert await hf.journal.verify("r") == []
