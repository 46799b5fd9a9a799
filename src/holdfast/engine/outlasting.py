"""Going on in memory while the store is away: setting `on_store_failure: memory`.

What a commit is to store stays here until it is stored. A process that dies meanwhile loses it;
whoever sent the task has no acknowledgement yet, and sends it again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.engine.context import Context
from holdfast.errors import UnavailableError
from holdfast.telemetry import log

T = TypeVar("T")
_LONGEST_PAUSE: Final = 5.0


def goes_on_in_memory(context: Context) -> bool:
    """Whether a store that is away stops nobody."""
    return context.settings.on_store_failure == "memory"


async def outlast(context: Context, commit: Callable[[], Awaitable[T]]) -> T:
    """Commit, again and again while the store is away; at once an error if the settings say so."""
    pause = 0.05
    while True:
        try:
            return await commit()
        except UnavailableError as error:
            if not goes_on_in_memory(context):
                raise
            log.warning("the store is away, what was done is kept in memory: %s", error)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
