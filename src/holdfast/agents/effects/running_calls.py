"""The calls that this process is making just now, for whichever of its passes.

A thread cannot be stopped: it may work on after its pass was given up, and after the time limit of
its call. Nobody here judges the outcome of the call meanwhile.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from holdfast.agents.exits.interruptions import StillRunning

_calls: Final[set[tuple[int, UUID]]] = set()  # with the process: a fork has none of its threads


@contextmanager
def under_way(effect_id: UUID) -> Generator[None]:
    """The call of an effect is made inside; it has ended when its thread has."""
    call = os.getpid(), effect_id
    _calls.add(call)
    thread = None
    try:
        yield
    except StillRunning as left:
        thread = left.ended
        raise
    finally:
        if thread is None:
            _calls.discard(call)
        else:
            thread.add_done_callback(lambda _: _calls.discard(call))


def is_under_way(effect_id: UUID) -> bool:
    """Whether this process is making the call of an effect."""
    return (os.getpid(), effect_id) in _calls
