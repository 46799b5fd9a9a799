"""Runs that an agent's code starts with `parent=` its own run.

Each start has a position in its turn, as a call has. Code that repeats the turn after a crash gets
the run that it started; in a run that went back, the new run continues what the former one did.
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple
from weakref import ref

import msgspec

from holdfast import ids
from holdfast.agents.turn.turn import Turn
from holdfast.kernel.travel import PastItem

# Weak: a connection or task that is made during the turn copies the context, and may live on.
_turn: Final[ContextVar[ref[Turn] | None]] = ContextVar("holdfast_turn", default=None)


class ChildStart(NamedTuple):
    """The id of a run by its position, and its root; with the former run that it continues."""

    run_id: str
    item: PastItem


@contextmanager
def placing_starts(turn: Turn | None) -> Generator[None]:
    """Give a position to what the code in this block starts; None: it has none of its own.

    A step or a tool has none: its result is on record, and it may be left out when the turn is
    repeated.
    """
    token = _turn.set(None if turn is None else ref(turn))
    try:
        yield
    finally:
        _turn.reset(token)


async def place(parent_id: str, agent: str, digest: bytes) -> ChildStart | None:
    """Return the position of a start; None if the code of this parent does not make it.

    What the start may follow from is stored when this returns.
    """
    placed_in = _turn.get()
    turn = None if placed_in is None else placed_in()
    if turn is None or turn.held.run_id != parent_id or turn.gate.is_closed:
        return None
    position = turn.places.of_wait("start", agent, digest).place
    version = turn.held.version  # after going back it is another run
    made_of = msgspec.msgpack.encode(("start", parent_id, version, position))
    run_id = ids.run_id_of(hashlib.sha256(made_of).digest())
    own_root = turn.past.root_of_call(position)
    former = turn.past.call(agent, digest, own_root, kind="start")
    root = turn.past.key_of(own_root)
    await turn.held.stage.flush()
    return ChildStart(run_id, former or PastItem("start", agent, digest, root))
