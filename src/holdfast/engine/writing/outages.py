"""Commits while the store is away: settings `on_store_failure: memory` and `spool`.

What a commit is to store stays in memory until it is stored. A process that dies meanwhile loses
it; the sender of the task has no acknowledgement yet, and sends it again. With a spool this holds
only for what must not be spooled: it waits, and what was spooled before it is drained first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.engine.context import Context
from holdfast.errors import UnavailableError
from holdfast.telemetry import log

T = TypeVar("T")
_LONGEST_PAUSE: Final = 5.0


def keeps_in_memory(context: Context) -> bool:
    """Return whether a later checkpoint may store what one could not."""
    return context.settings.on_store_failure == "memory"


def waits_for_store(context: Context) -> bool:
    """Return whether commits wait for a store that is away; not if the spool fails too."""
    spool = context.spool
    return keeps_in_memory(context) or (spool is not None and not spool.is_broken)


async def retry_while_unavailable(context: Context, commit: Callable[[], Awaitable[T]]) -> T:
    """Commit, and retry while the store is away; raise at once if the settings say so."""
    pause = 0.05
    while True:
        try:
            return await commit()
        except UnavailableError as error:
            if not waits_for_store(context):
                raise
            log.warning("the store is away, what is to be stored waits in memory: %s", error)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
