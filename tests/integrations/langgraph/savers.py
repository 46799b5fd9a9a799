"""The savers under test, and their two faces as one: every test is written once, in async.

`HOLDFAST_TEST_SAVER=memory` puts LangGraph's own saver in Holdfast's place: a test that fails there
asks for more than LangGraph promises, and must say why it may.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.memory import InMemorySaver

Saver = BaseCheckpointSaver[Any]

STOCK = os.environ.get("HOLDFAST_TEST_SAVER", "")
FACES = ("async", "sync")
MEMORIES: dict[str, InMemorySaver] = {}


def make_saver(url: str, **options: Any) -> Saver:
    """A new saver on a store; whoever opens it closes it, see `opened`."""
    if STOCK == "memory":
        return MEMORIES.setdefault(url, InMemorySaver())
    from holdfast.integrations.langgraph import HoldfastSaver

    return HoldfastSaver(url, **options)


def close(saver: Saver) -> None:
    closing = getattr(saver, "close", None)
    if closing is not None:
        closing()


@contextlib.contextmanager
def opened(url: str, **options: Any) -> Iterator[Saver]:
    saver = make_saver(url, **options)
    try:
        yield saver
    finally:
        close(saver)


def face_of(saver: Saver, face: str) -> Saver:
    """What has a saver's async methods; those of the sync face block in a thread."""
    return Blocking(saver) if face == "sync" else saver


class Blocking(Saver):
    """A saver's sync methods under the names of its async ones, and how often each was called."""

    def __init__(self, inner: Saver) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner
        self.called: Counter[str] = Counter()

    async def _block(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.called[name] += 1
        return await asyncio.to_thread(getattr(self.inner, name), *args, **kwargs)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._block("get_tuple", config)

    async def alist(
        self, config: RunnableConfig | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        self.called["list"] += 1
        found = await asyncio.to_thread(lambda: [*self.inner.list(config, **options)])
        for each in found:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._block("put", config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await self._block("put_writes", config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._block("delete_thread", thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._block("delete_for_runs", run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._block("copy_thread", source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._block("prune", thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._block("get_delta_channel_history", config=config, channels=channels)

    def close(self) -> None:
        close(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
