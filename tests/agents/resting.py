"""Waiting for runs to come to rest, however slow the machine is."""

from typing import Any

import pytest

import holdfast
from holdfast.errors import RunWaiting

_ENDED = ("completed", "failed", "cancelled")
_LOOKS = 2


async def until_it_waits(hf: holdfast.Holdfast, handle: holdfast.Handle[Any]) -> None:
    """Work on a run and its peers until nothing is left to do but to wait."""
    idle = 0
    while idle < _LOOKS:
        with pytest.raises(RunWaiting):
            await handle.result(timeout=0.2)
        idle = idle + 1 if await _is_at_rest(hf) else 0


async def _is_at_rest(hf: holdfast.Holdfast) -> bool:
    """Whether no run wants a worker, and no answer of a peer is still on its way."""
    statuses = {run.run_id: run.status for run in await hf.runs.list(limit=1000)}
    if {"ready", "running"} & set(statuses.values()):
        return False
    for run_id in [each for each, status in statuses.items() if status == "waiting"]:
        for wait in await hf.waits.of_run(run_id):
            called = wait.address.removeprefix("call:") or wait.wait_id
            ended = {statuses.get(wait.wait_id), statuses.get(called)} & set(_ENDED)
            if wait.status == "open" and ended:
                return False
    return True
