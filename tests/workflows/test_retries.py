"""Attempts at a block, beside blocks that wait."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite import async_test
from holdfast.workflows import Kit
from tests.workflows.flows import Notes, call, flow, prompt


@async_test
async def test_the_pause_before_an_attempt_is_made_once_however_often_its_wave_is_entered(
    store: str,
) -> None:
    """The pauses of ten attempts are two minutes: nobody sits through that at each answer."""
    clock, notes, delays = ManualClock(), Notes(), list[float]()
    notes.fails["bad"] = 3
    made = flow(call("bad", retries=3), prompt("a"), prompt("b"))
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def noting(delay: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return later(delay, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", noting)
        async with holdfast.Holdfast(store, clock=clock, workflows=Kit(tools=[notes.tool])) as hf:
            outcome = await hf.workflows.run(made, run_id="r")
            assert delays.count(2.0) == 1
            assert outcome.blocks["bad"].status == "completed"
            clock.advance(3600)
            await hf.workflows.resume("r", {"a": "yes"})
            outcome = await hf.workflows.resume("r", {"b": "yes"})
    assert (outcome.status, outcome.blocks["bad"].attempts) == ("completed", 4)
    assert delays.count(2.0) == 1
    assert notes.done == ["bad"]
