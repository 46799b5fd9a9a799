"""Warns that runs wait because no live worker serves their agent. No run fails because of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.engine.context import Context
from holdfast.errors import HoldfastError
from holdfast.kernel import served_agents
from holdfast.kernel.runs import RunRow
from holdfast.stores.reads import RunFilter
from holdfast.telemetry import log

_LOOK_SECONDS: Final = 2.0
_CHILD_SCAN_LIMIT: Final = 100

Find = Callable[[], Awaitable[Sequence[RunRow]]]


async def sentences(context: Context, found: Sequence[RunRow]) -> dict[str, str]:
    """Return a sentence for each agent of these runs that no live worker has served for a while."""
    now = context.now()
    if not any(run.ready_at + served_agents.UNSERVED_MICROSECONDS <= now for run in found):
        return {}
    return served_agents.unserved(found, await context.store.workers.page(), now=now)


async def with_peers(context: Context, run_id: str) -> list[RunRow]:
    """Return a run and the runs of the peers it waits for."""
    run = await context.store.runs.get(run_id)
    peers = await context.store.runs.of_peers(run_id, _CHILD_SCAN_LIMIT)
    return peers if run is None else [run, *peers]


async def ready(context: Context) -> list[RunRow]:
    """Return runs of the store that wait for a worker."""
    return await context.store.runs.page(RunFilter(status="ready", limit=_CHILD_SCAN_LIMIT))


async def keep_warning(context: Context, find: Find) -> None:
    """Log once for each agent that no live worker serves it, until this is cancelled."""
    warned: set[str] = set()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            said = await sentences(context, await find())
        except HoldfastError:
            continue  # the worker reports that the store is away
        for agent in said.keys() - warned:
            log.warning("%s", said[agent])
        warned = set(said)
