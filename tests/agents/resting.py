"""Waiting for a run to come to rest, however slow the machine is."""

from typing import Any

import pytest

import holdfast
from holdfast.errors import RunWaiting

_LOOKS = 2


async def until_it_waits(hf: holdfast.Holdfast, handle: holdfast.Handle[Any]) -> None:
    """Work on a run and its peers until nothing is left to do but to wait."""
    idle = 0
    while idle < _LOOKS:
        with pytest.raises(RunWaiting):
            await handle.result(timeout=0.2)
        busy = [await hf.runs.list(status=status) for status in ("ready", "running")]
        idle = 0 if any(busy) else idle + 1
