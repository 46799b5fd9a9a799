"""Listings of checkpoints, page by page, and what channels of deltas are made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from holdfast.integrations.langgraph.threads import Threads
from holdfast.stores.contract import MarkFilter

_PAGE: Final = 100


class Listing:
    """One listing, which reads on as far as somebody wants to see."""

    def __init__(
        self,
        threads: Threads,
        config: RunnableConfig | None,
        tags: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        self._threads = threads
        self._asked = (config, tags, before)
        self._left = limit
        self._next: MarkFilter | None = None
        self._is_over = False

    async def next_page(self) -> list[CheckpointTuple]:
        """The next checkpoints; none when it is over."""
        if self._is_over or self._left == 0:
            return []
        wanted = self._next or await self._threads.filter_of(*self._asked)
        size = _PAGE if self._left is None else min(_PAGE, self._left)
        wanted = msgspec.structs.replace(wanted, limit=size)
        found = await self._threads.find(wanted)
        if self._left is not None:
            self._left -= len(found)
        self._is_over = len(found) < size
        if found:
            last = found[-1]
            is_one_run = wanted.run_id is not None
            self._next = msgspec.structs.replace(
                wanted,
                before_version=last.version if is_one_run else None,
                before_name=None if is_one_run else last.name,
            )
        return await self._threads.tuples(found)


async def delta_history(
    threads: Threads, config: RunnableConfig, channels: Sequence[str]
) -> Mapping[str, DeltaChannelHistory]:
    """For each channel the writes on the way to a checkpoint, and the value they begin from.

    Ancestors are followed until one has a value of the channel.
    """
    collected: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    open_channels = set(channels)
    async for found in threads.ancestors(config):
        if not open_channels:
            break
        for write in reversed(found.pending_writes or []):
            if write[1] in open_channels:
                collected[write[1]].append(write)
        values = found.checkpoint["channel_values"]
        for channel in open_channels & values.keys():
            seeds[channel] = values[channel]
        open_channels -= seeds.keys()
    made: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        made[channel] = {"writes": collected[channel][::-1]}
        if channel in seeds:
            made[channel]["seed"] = seeds[channel]
    return made
