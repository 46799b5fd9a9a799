"""What a saver writes to threads. The caller flattens values before anything waits."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)

from holdfast.engine.marked.marked_run import MarkedRun, Stale, VersionChange
from holdfast.engine.reading.log_views import Items, LogView
from holdfast.engine.writing.run_writer import ConditionFailed
from holdfast.errors import CheckpointConflict, HoldfastError
from holdfast.integrations.langgraph import layout
from holdfast.integrations.langgraph.checkpoint_config import CheckpointConfig, config_of, place_of
from holdfast.integrations.langgraph.host import Host
from holdfast.integrations.langgraph.inbox import QuestionInbox
from holdfast.integrations.langgraph.issued_checkpoints import IssuedCheckpoints
from holdfast.integrations.langgraph.metadata import SearchableMetadata
from holdfast.integrations.langgraph.value_cache import ValueCache
from holdfast.kernel import marks
from holdfast.kernel.indexes import AddMark
from holdfast.kernel.journal import Draft
from holdfast.kernel.marks import Mark, Marked, Written
from holdfast.stores.reads import MarkFilter

OnConflict = Literal["error", "fork"]
_PAGE: Final = 100
_REPEATED: Final = "the checkpoint was put again"


class PutCheckpoint:
    """A checkpoint on its way, with what changed in it flattened already."""

    def __init__(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, Any],
        remembered: ValueCache,
    ) -> None:
        self.place = place_of(config)
        self.source = str(metadata.get("source", ""))
        self.name = checkpoint["id"]
        self.searchable = SearchableMetadata.of(get_checkpoint_metadata(config, metadata))
        self._wanted = layout.PendingCheckpoint(
            self.place.space, self.place.checkpoint_id, checkpoint, new_versions, self.source
        )
        self._parent_view: LogView | None = None
        self._is_parent_read = not self.place.checkpoint_id
        self._values = remembered.of(self.place.run_id)
        self._flat: dict[str, tuple[str, Items]] = {}
        prefix = layout.prefix_of(self.place.space)
        for channel, value in checkpoint["channel_values"].items():
            if channel in new_versions:
                self._flatten(layout.part_of(prefix, channel), value)

    def mark(self) -> Mark:
        parent = marks.pack(self.place.checkpoint_id)
        return Mark(self.place.space, marks.pack(self.name), parent, self.searchable.tags)

    def change(self, view: LogView) -> VersionChange:
        """What makes a state that of the checkpoint."""
        made = layout.change_to(view, self._wanted, self._flatten, self._parent_view)
        return self.searchable.added_to(made, layout.prefix_of(self.place.space), self._flatten)

    def needs_parent(self, view: LogView) -> bool:
        """Whether the parent's state must be read first: the newest state is not the parent's."""
        return not self._is_parent_read and not _is_latest(view, self.place)

    def branch_from(self, parent: LogView | None) -> None:
        """Take channels without a new version from the parent's state; None if it is gone."""
        self._parent_view, self._is_parent_read = parent, True

    def is_in(self, marked: Marked, view: LogView) -> bool:
        """Whether a state holds just this checkpoint."""
        made = self.change(layout.without(view, self.place.space))
        return (
            marked.tags == self.searchable.tags
            and marked.parent == self.place.checkpoint_id
            and all(name in view.logs and view.items(name) == made.logs[name] for name in made.logs)
            and all(view.values.get(n) == layout.encoded(v) for n, v in made.values.items())
        )

    def _flatten(self, part: str, value: object) -> tuple[str, Items]:
        if part not in self._flat:
            self._flat[part] = self._values.flatten(value, channel=part)
        return self._flat[part]


class Writes(NamedTuple):
    """What a task has written, on its way."""

    place: CheckpointConfig
    task_id: str
    given: Sequence[tuple[str, Any]]
    written: Written
    tokens: list[msgspec.Raw]


class ThreadWriter:
    """What stores checkpoints and writes."""

    def __init__(
        self, host: Host, values: ValueCache, given: IssuedCheckpoints, on_conflict: OnConflict
    ) -> None:
        self._host = host
        self._values = values
        self._given = given
        self._on_conflict = on_conflict
        self.asking = QuestionInbox(host)

    def checkpoint(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, Any],
    ) -> PutCheckpoint:
        """Return a checkpoint to be put, with its present values."""
        return PutCheckpoint(config, checkpoint, metadata, new_versions, self._values)

    def writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Writes:
        """Return writes to be put, with their present values."""
        place = place_of(config)
        values = self._values.of(place.run_id)
        channels: list[tuple[int, str, str, int]] = []
        tokens: list[msgspec.Raw] = []
        for index, (channel, value) in enumerate(writes):
            form, made = values.flatten(value, channel=f"@write:{channel}")
            channels.append((WRITES_IDX_MAP.get(channel, index), channel, form, len(made)))
            tokens += made
        name = marks.pack(place.checkpoint_id)
        written = Written(place.space, name, task_id, task_path, channels)
        return Writes(place, task_id, writes, written, tokens)

    async def put(self, put: PutCheckpoint) -> RunnableConfig:
        """Store a checkpoint after the one that its config names."""
        place = put.place
        self._host.run_of(place.thread_id)
        begins = self._given.is_latest(place)
        must_be_latest = self._on_conflict == "error" and self._must_be_latest(put, begins)
        mark = put.mark()

        try:
            await self._host.advance(
                place.run_id, lambda run: self._save(run, put, mark, must_be_latest=must_be_latest)
            )
        except _TryPutAgain:
            await self._put_again(put, mark)
        except ConditionFailed as failed:
            if not isinstance(failed.change, AddMark):
                raise
            await self._put_again(put, mark)
        await self.asking.go_on(place, put.source, begins=begins)
        return config_of(place.thread_id, place.space, put.name)

    async def _save(
        self, run: MarkedRun, put: PutCheckpoint, mark: Mark, *, must_be_latest: bool
    ) -> None:
        place, known_at = put.place, -1
        while True:

            def change(view: LogView, at: int = known_at) -> VersionChange:
                if must_be_latest and run.seq != at and not _is_latest(view, place):
                    raise _Moved(place.run_id)
                if put.needs_parent(view):
                    raise _Branches(place.run_id)
                return put.change(view)

            try:
                await run.save(mark, change, token=place.token)
                return
            except _Moved:
                known_at = await self._seq_if_free(run, put)
            except _Branches:
                put.branch_from(await self._view_of(place))

    def _must_be_latest(self, put: PutCheckpoint, begins: bool) -> bool:
        """Whether no other checkpoint may continue the one that this one continues.

        What a subgraph does belongs to the run of the graph above it, and is checked there. An
        update of the state (`update_state`) is no run: it may continue any checkpoint.
        """
        place = put.place
        if place.space:
            return False
        if put.source == "input":
            return begins and place.is_run
        goes_on = put.source == "loop" and bool(place.checkpoint_id)
        return goes_on and not self._given.is_earlier(place)

    async def write(self, writes: Writes) -> None:
        """Store what a task has written after the checkpoint that its config names."""
        place = writes.place
        self._host.run_of(place.thread_id)

        async def store(asked: Sequence[Draft]) -> None:
            await self._host.advance(
                place.run_id,
                lambda run: run.write(writes.written, writes.tokens, token=place.token, then=asked),
            )

        await self.asking.write(place, writes.task_id, writes.given, store)

    async def _view_of(self, place: CheckpointConfig) -> LogView | None:
        """Read the state of the checkpoint that a config names; None if it is gone."""
        named = self._host.marks
        known = await named.get(place.run_id, place.space, place.checkpoint_id)
        if known is None:
            return None
        views = await named.views(place.run_id, {known.version}, self._host.known(place.run_id))
        return views[known.version]

    async def _seq_if_free(self, run: MarkedRun, put: PutCheckpoint) -> int:
        """Return where the journal ends, if nothing continued the checkpoint to continue from.

        The newest state may be that of a branch, or of a checkpoint which was deleted.
        """
        await run.look()
        at, place, named = run.seq, put.place, self._host.marks
        if run.is_stale:
            raise Stale(place.run_id)
        if await named.get(place.run_id, place.space, put.name) is not None:
            raise _TryPutAgain(put.name)
        if put.source == "input":
            latest = await named.latest(place.run_id, place.space)
            is_free = ("" if latest is None else latest.name) == place.checkpoint_id
        else:
            is_free = not await self._has_children(place)
        if not is_free:
            raise _conflict(place)
        return at

    async def _has_children(self, place: CheckpointConfig) -> bool:
        """Whether a run, an input or an update continued from a checkpoint."""
        named = self._host.marks
        parent = await named.get(place.run_id, place.space, place.checkpoint_id)
        if parent is None:
            return False
        wanted = MarkFilter(run_id=place.run_id, space=place.space, limit=_PAGE)
        while page := await named.page(wanted):
            later = [marked for marked in page if marked.version > parent.version]
            if any(m.parent == parent.name and m.tags.get("source") != "fork" for m in later):
                return True
            if len(later) < _PAGE:
                return False
            wanted = msgspec.structs.replace(wanted, before_version=page[-1].version)
        return False

    async def _put_again(self, put: PutCheckpoint, mark: Mark) -> None:
        """Handle a refused mark: its name is already used."""
        place, named = put.place, self._host.marks
        known = await named.get(place.run_id, place.space, put.name)
        if known is None:
            raise _conflict(place)  # it was, and is gone again
        views = await named.views(place.run_id, {known.version}, self._host.known(place.run_id))
        if put.is_in(known, views[known.version]):
            return
        rows = await named.writes(place.run_id, [(place.space, put.name)])
        kept = await named.read_writes(place.run_id, rows)

        async def replace(run: MarkedRun) -> None:
            await run.save(
                mark,
                put.change,
                token=place.token,
                replacing=known.version,
                note=_REPEATED,
                keeping=list(kept.values()),
            )

        await self._host.advance(place.run_id, replace)


class _TryPutAgain(HoldfastError):
    """A checkpoint of this name is there already."""


class _Moved(HoldfastError):
    """The newest state is not that of the checkpoint to go on from."""


class _Branches(HoldfastError):
    """The checkpoint continues an earlier one, whose state has to be read."""


def _is_latest(view: LogView, place: CheckpointConfig) -> bool:
    head = layout.head_of(view, place.space)
    return ("" if head is None else head.checkpoint_id) == place.checkpoint_id


def _conflict(place: CheckpointConfig) -> CheckpointConflict:
    return CheckpointConflict(
        f"somebody else went on with thread {place.thread_id!r} from checkpoint "
        f"{place.checkpoint_id or '(none)'}; nothing of this one was stored. Load the thread "
        'again, or let such runs branch with HoldfastSaver(..., on_conflict="fork")'
    )
