"""A LangGraph checkpointer on Holdfast: sync and async methods of one class, over one store."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast import ids
from holdfast.errors import MisuseError
from holdfast.integrations.langgraph.checkpoint_config import place_of
from holdfast.integrations.langgraph.deletion import Deletion
from holdfast.integrations.langgraph.history import CheckpointListing, delta_history
from holdfast.integrations.langgraph.host import Host
from holdfast.integrations.langgraph.issued_checkpoints import IssuedCheckpoints
from holdfast.integrations.langgraph.thread_copies import copy_thread
from holdfast.integrations.langgraph.thread_expiry import ThreadExpiry
from holdfast.integrations.langgraph.thread_writer import OnConflict, ThreadWriter
from holdfast.integrations.langgraph.threads import Threads
from holdfast.integrations.langgraph.value_cache import ValueCache
from holdfast.integrations.langgraph.values.serde import strict_serde
from holdfast.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


class _SaverParts(NamedTuple):
    serde: SerializerProtocol
    threads: Threads
    putting: ThreadWriter


class HoldfastSaver(BaseCheckpointSaver[int]):
    """Checkpoints of LangGraph in a Holdfast store: a file, PostgreSQL, or memory.

    A thread is a run, a checkpoint one of its versions, stored as what is new in it. It opens at
    the first use; any number of threads, event loops and processes may use one store. Values may be
    of LangGraph's own types and of those in `allow`, others are refused. If two continue the same
    checkpoint, the second is refused, or with `on_conflict="fork"` begins a branch. With `ttl`,
    threads that nobody has used for so long are erased.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        settings: Settings | None = None,
        serde: SerializerProtocol | None = None,
        allow: Collection[type | tuple[str, str]] = (),
        on_conflict: OnConflict = "error",
        ttl: timedelta | float | None = None,
    ) -> None:
        if url is not None and not isinstance(url, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"the store is a path or a URL, not {url!r}")
        if isinstance(allow, type | str):
            raise MisuseError(f"allow is a list of types: allow=[{allow!r}]")
        if serde is not None and allow:
            raise MisuseError("give a serializer or `allow`, not both: the serializer decides")
        if on_conflict not in ("error", "fork"):
            raise MisuseError(f'on_conflict is "error" or "fork", not {on_conflict!r}')
        super().__init__(serde=serde or strict_serde(allow))
        self._host = Host(None if url is None else str(url), settings)
        self._on_conflict: OnConflict = on_conflict
        self.expiring = ThreadExpiry(self._host, ttl)
        self._given = IssuedCheckpoints()
        self._parts: _SaverParts | None = None

    @property
    def _threads(self) -> Threads:
        """What reads threads with this serializer."""
        return self._with_serde().threads

    def _with_serde(self) -> "_SaverParts":
        """What depends on the serializer; a clone with another one has its own."""
        if self._parts is None or self._parts.serde is not self.serde:
            values = ValueCache(self.serde)
            self._parts = _SaverParts(
                self.serde,
                Threads(self._host, values, self._given),
                ThreadWriter(self._host, values, self._given, self._on_conflict),
            )
        return self._parts

    @property
    def host(self) -> Host:
        """The store that this saver and its clones share."""
        return self._host

    def call(self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something on the store's own event loop, and wait for it."""
        return self._host.call(method, *args, **kwargs)

    async def acall(
        self, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same from an event loop."""
        return await self._host.acall(method, *args, **kwargs)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.call(self._threads.get, config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.acall(self._threads.get, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        listing = CheckpointListing(self._threads, config, filter, before, limit)
        while page := self.call(listing.next_page):
            yield from page

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        listing = CheckpointListing(self._threads, config, filter, before, limit)
        while page := await self.acall(listing.next_page):
            for found in page:
                yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        putting = self._with_serde().putting
        put = putting.checkpoint(config, checkpoint, metadata, new_versions)
        return self.call(putting.put, put)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        putting = self._with_serde().putting
        put = putting.checkpoint(config, checkpoint, metadata, new_versions)
        return await self.acall(putting.put, put)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        putting = self._with_serde().putting
        with putting.asking.answering(place_of(config).run_id, writes):
            self.call(putting.write, putting.writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        putting = self._with_serde().putting
        with putting.asking.answering(place_of(config).run_id, writes):
            await self.acall(putting.write, putting.writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self.call(self._deleting.thread, thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        await self.acall(self._deleting.thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.call(self._deleting.for_runs, run_ids)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self.acall(self._deleting.for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.call(copy_thread, self._host, source_thread_id, target_thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self.acall(copy_thread, self._host, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self.call(self._deleting.prune, thread_ids, strategy)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self.acall(self._deleting.prune, thread_ids, strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self.call(delta_history, self._threads, config, channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self.acall(delta_history, self._threads, config, channels)

    def get_next_version(self, current: int | None, channel: None) -> int:
        """Return whole numbers; a thread imported from another saver keeps its text versions."""
        if isinstance(current, str):
            number = int(str(current).split(".", 1)[0]) + 1
            return f"{number:032}.{ids.nonce().hex()[:16]}"  # pyright: ignore[reportReturnType]
        return 1 if current is None else int(current) + 1

    @property
    def _deleting(self) -> Deletion:
        return Deletion(self._host)

    @classmethod
    def from_conn_string(cls, conn_string: str) -> Self:
        """The same as HoldfastSaver(conn_string), by the name that LangGraph's savers use."""
        return cls(conn_string)

    def setup(self) -> None:
        """Open the store now rather than at the first use. Its tables are made by themselves."""
        self.call(_nothing)

    def close(self) -> None:
        """Close the store, for this saver and its clones."""
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


async def _nothing() -> None:
    """Opening the loop is all there is to do."""
