"""Agents for `victims` whose peers answer in the moment their callers give up."""

import asyncio
import functools
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import PeerTimedOut
from tests.agents.ledger import Ledger

EARLIEST_SECONDS, LATEST_SECONDS = -0.5, 0.05
"""When a peer ends, from its deadline on: its reply is there two commits later."""


def make_callers(_: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    @holdfast.agent
    async def racer(run: holdfast.Run) -> str:
        try:
            return await run.peer("punctual", "please", timeout=60)
        except PeerTimedOut:
            return "timed out"

    return [racer]


def make_peers(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    chance = random.Random()

    @holdfast.agent
    async def punctual(run: holdfast.Run, how: str) -> str:
        beside = deadlines_beside(ledger.path)
        while run.run_id not in (known := read(beside)):
            await asyncio.sleep(0.1)
        due = known[run.run_id] + chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS)
        await asyncio.sleep(max(0.0, due - time.time()))
        return "answered"

    return [punctual]


def deadlines_beside(ledger: Path) -> Path:
    return ledger.with_name("deadlines.json")


def read(path: Path) -> dict[str, float]:
    """The deadlines of all peers, as they were when the file was last written."""
    try:
        return parsed(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@functools.lru_cache(maxsize=1)
def parsed(path: Path, _: int) -> dict[str, float]:
    return json.loads(path.read_text())


def write(path: Path, deadlines: dict[str, float]) -> None:
    path.with_suffix(".new").write_text(json.dumps(deadlines))
    path.with_suffix(".new").replace(path)
