"""Runs that an agent's code starts with `parent=` its own run.

Each start is a recorded step, stored before the run is created. Code that repeats its turn after a
crash gets the run that it started. Code of a run that went back gets the former run if that has
completed or is at work; else a new run that continues what the former one did.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple
from weakref import ref

from holdfast import codec, ids
from holdfast.agents.conversion import type_conversion
from holdfast.agents.turn.turn import Turn
from holdfast.kernel.runs import ENDED, RunStatus
from holdfast.kernel.travel import START, PastItem, StartedRun

# Weak: a connection or task that is made during the turn copies the context, and may live on.
CURRENT_TURN: Final[ContextVar[ref[Turn] | None]] = ContextVar("holdfast_turn", default=None)
"""The turn that records what the code of a task starts; None: nobody does."""


class ChildStart(NamedTuple):
    """A start: the id of its run, and what that run continues; `exists` if it is a former run."""

    run_id: str
    item: PastItem
    exists: bool = False


@contextmanager
def not_placing_starts() -> Generator[None]:
    """Do not record what the code in this block starts.

    For a step or a tool: their code is left out when the turn is repeated.
    """
    token = CURRENT_TURN.set(None)
    try:
        yield
    finally:
        CURRENT_TURN.reset(token)


async def place(parent_id: str, agent: str, digest: bytes, run_id: str | None) -> ChildStart | None:
    """Record a start, and return its run; None if the code of this parent does not make it.

    `run_id` is the id that the caller wants. What the start may follow from is stored, too.
    """
    turn = _turn_of(parent_id)
    if turn is None:
        return None
    position = turn.places.of_wait("start", agent, digest).place
    own_root = turn.past.root_of_call(position)
    recorded = turn.memo.step(START, position)
    if recorded is not None:
        told = codec.decode(recorded.body)
        known = type_conversion.convert(told, StartedRun, what="a recorded start")
        turn.past.call_made(own_root, known.root, kind="start")
        item = PastItem("start", agent, digest, known.root, known.former, known.resend)
        return ChildStart(known.run_id, item, known.exists)
    start = await _new_start(turn, agent, digest, own_root, run_id)
    item = start.item
    record = StartedRun(
        start.run_id, agent, digest, item.key, item.item_id, item.resend, start.exists
    )
    turn.stage_step(START, type_conversion.plain(record), args_digest=position)
    await turn.held.stage.flush()
    return start


def _turn_of(parent_id: str) -> Turn | None:
    """Return the turn whose code makes a call now, if it is a turn of this run."""
    placed_in = CURRENT_TURN.get()
    turn = None if placed_in is None else placed_in()
    if turn is None or turn.held.run_id != parent_id or turn.gate.is_closed:
        return None
    # A thread of the code, with an event loop of its own, has copied the context.
    return turn if turn.loop is asyncio.get_running_loop() else None


async def _new_start(
    turn: Turn, agent: str, digest: bytes, own_root: str, run_id: str | None
) -> ChildStart:
    former = turn.past.call(agent, digest, own_root, kind="start")
    if former is None:
        item = PastItem("start", agent, digest, turn.past.key_of(own_root))
    elif run_id in (None, former.item_id) and await _serves(turn, former):
        return ChildStart(former.item_id, former, exists=True)
    else:
        item = former
    return ChildStart(run_id or ids.new_run_id(), item)


async def _serves(turn: Turn, former: PastItem) -> bool:
    """Whether a former run is the run of a start: it completed, or this run has it at work."""
    run = await turn.context.store.runs.get(former.item_id) if former.item_id else None
    if run is None or former.resend:
        return False
    is_at_work = run.status not in ENDED and run.parent_id == turn.held.run_id
    return is_at_work or run.status is RunStatus.COMPLETED
