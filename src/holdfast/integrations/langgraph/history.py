"""Listings of checkpoints, page by page, and what channels of deltas are made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from holdfast.integrations.langgraph.threads import Threads
from holdfast.kernel.marks import Marked

_PAGE: Final = 100
_NO_LIMIT: Final = 2**31


class CheckpointListing:
    """One listing, whose values are read only as far as the caller iterates."""

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
        self._limit = _NO_LIMIT if limit is None else max(0, limit)
        self._found: list[Marked] | None = None

    async def next_page(self) -> list[CheckpointTuple]:
        """The next checkpoints; none when it is over. Those deleted meanwhile are left out."""
        if self._found is None:
            wanted = await self._threads.filter_of(*self._asked)
            self._found = await self._threads.find(
                msgspec.structs.replace(wanted, limit=self._limit)
            )
        while self._found:
            page, self._found = self._found[:_PAGE], self._found[_PAGE:]
            if made := await self._threads.tuples(page):
                return made
        return []


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
