"""Agents for `victims` whose peers answer in the moment their callers give up."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import PeerTimedOut
from tests.agents.ledger import Ledger

JITTER_SECONDS = 0.02


def make_callers(_: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    @holdfast.agent
    async def racer(run: holdfast.Run) -> str:
        try:
            return await run.peer("punctual", "please")
        except PeerTimedOut:
            return "timed out"

    return [racer]


def make_peers(ledger: Ledger) -> Sequence[holdfast.Agent[..., Any]]:
    deadlines: dict[str, float] = {}
    chance = random.Random()

    @holdfast.agent
    async def punctual(run: holdfast.Run, how: str) -> str:
        if not deadlines:
            deadlines.update(json.loads(deadlines_beside(ledger.path).read_text()))
        due = deadlines[run.run_id] + chance.uniform(-JITTER_SECONDS, JITTER_SECONDS)
        await asyncio.sleep(max(0.0, due - time.time()))
        return "answered"

    return [punctual]


def deadlines_beside(ledger: Path) -> Path:
    return ledger.with_name("deadlines.json")
