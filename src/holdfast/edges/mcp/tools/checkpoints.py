"""Tools for what runs have saved: the state of a version, and what changed between two."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast import clock
from holdfast.edges.mcp.contract import BadArguments, McpCall, RunId, ServedTool, served
from holdfast.edges.mcp.views import Room, size_of
from holdfast.errors import CheckpointNotFound
from holdfast.kernel.checkpoints import Checkpoint
from holdfast.kernel.state import LogDiff
from holdfast.names import MAX_COUNT

_LISTED: Final = 20

Version = Annotated[int, Meta(description="A version of the state.", ge=0, le=MAX_COUNT)]
CheckpointId = Annotated[
    str, Meta(description="Instead of a run and a version.", min_length=1, max_length=255)
]
Names = Annotated[
    list[str] | None, Meta(description="Only these parts of the state; all unless given.")
]


class GetCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId | None = None
    version: Annotated[Version | None, Meta(description="The latest unless given.")] = None
    checkpoint_id: CheckpointId | None = None
    parts: Names = None


class ListedVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    checkpoint_id: str
    created_at: datetime
    phase: str = ""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state at a version, by parts; `versions` are the newest of the run.

    Parts for which there is no room are in `left_out` with their sizes in bytes. To see one, name
    it alone in `parts`; the largest are shown by the command line only.
    """

    run_id: str
    version: int
    checkpoint_id: str | None
    created_at: datetime | None
    phase: str = ""
    agent: str = ""
    status: str = ""
    label: str = ""
    state: dict[str, Any]
    is_cut: bool
    left_out: dict[str, int]
    versions: list[ListedVersion]


class DiffCheckpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId
    before: Version
    after: Version
    parts: Names = None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    before: Any
    after: Any


class SavedDiff(msgspec.Struct, frozen=True, kw_only=True):
    """How the state at `after` differs from that at `before`; `parts` names all that does.

    Of `logs`, so many items were `kept`. Parts for which there is no room are in `left_out`, as
    with get_checkpoint.
    """

    run_id: str
    before: int
    after: int
    parts: list[str]
    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, Changed]
    logs: dict[str, LogDiff]
    is_cut: bool
    left_out: dict[str, int]


@served(title="Look at a checkpoint", is_read_only=True)
async def get_checkpoint(call: McpCall, given: GetCheckpoint) -> SavedState:
    """What a run has saved, at its latest version or another, and which versions there are.

    Every stored byte is verified: what is damaged is reported, and not shown.
    """
    run_id, version = await _which(call, given)
    loaded = await call.hf.checkpoints.load(run_id, version)
    newest = await call.hf.checkpoints.history(run_id, limit=_LISTED)
    about = await _about(call, run_id, loaded.version, newest)
    shown = _ShownParts(given.parts, loaded.parts)
    return SavedState(
        run_id=run_id,
        version=loaded.version,
        checkpoint_id=None if about is None else str(about.checkpoint_id),
        created_at=None if about is None else clock.to_datetime(about.created_at),
        phase=about.phase if about else "",
        agent=about.agent if about else "",
        status=about.status if about else "",
        label=about.label if about else "",
        state=shown.of(loaded.parts),
        is_cut=bool(shown.left_out),
        left_out=shown.left_out,
        versions=list(map(_listed, newest)),
    )


@served(title="Compare checkpoints", is_read_only=True)
async def diff_checkpoints(call: McpCall, given: DiffCheckpoints) -> SavedDiff:
    """What changed in the state of a run from version `before` to version `after`."""
    await call.run(given.run_id)
    found = await call.hf.checkpoints.diff(given.run_id, given.before, given.after)
    changed = {name: Changed(before=old, after=new) for name, (old, new) in found.changed.items()}
    kinds = (found.added, found.removed, changed, found.logs)
    parts = sorted(name for kind in kinds for name in kind)
    shown = _ShownParts(given.parts, *kinds)
    return SavedDiff(
        run_id=given.run_id,
        before=given.before,
        after=given.after,
        parts=parts,
        added=shown.of(found.added),
        removed=shown.of(found.removed),
        changed=shown.of(changed),
        logs=shown.of(found.logs),
        is_cut=bool(shown.left_out),
        left_out=shown.left_out,
    )


async def _which(call: McpCall, given: GetCheckpoint) -> tuple[str, int | None]:
    """The run and the version that are meant, which the caller may see."""
    if given.checkpoint_id is None:
        if given.run_id is None:
            raise BadArguments(
                "get_checkpoint takes other arguments", problems=["give run_id or checkpoint_id"]
            )
        await call.run(given.run_id)
        return given.run_id, given.version
    found = await call.hf.checkpoints.get(given.checkpoint_id)
    unknown = CheckpointNotFound(f"there is no checkpoint {found.checkpoint_id}")
    await call.check_visible(found.run_id, unknown)
    is_other = given.run_id not in (None, found.run_id) or given.version not in (
        None,
        found.version,
    )
    if is_other:
        raise BadArguments(
            "get_checkpoint takes other arguments",
            problems=["checkpoint_id: it is not that of this run and version; give one of them"],
        )
    return found.run_id, found.version


async def _about(
    call: McpCall, run_id: str, version: int, newest: Iterable[Checkpoint]
) -> Checkpoint | None:
    listed = next((each for each in newest if each.version == version), None)
    if listed is not None or not version:
        return listed
    found = await call.hf.checkpoints.history(run_id, before=version + 1, limit=1)
    return found[0] if found and found[0].version == version else None


class _ShownParts:
    """Which parts are shown: those that are wanted, the smallest first while there is room."""

    def __init__(self, wanted: list[str] | None, *kinds: dict[str, Any]) -> None:
        sizes = {
            name: size_of(value)
            for kind in kinds
            for name, value in kind.items()
            if wanted is None or name in wanted
        }
        values = {name: value for kind in kinds for name, value in kind.items() if name in sizes}
        room = Room()
        self._names = {
            name for name in sorted(sizes, key=sizes.__getitem__) if room.takes(values[name])
        }
        self.left_out = {name: sizes[name] for name in sorted(sizes) if name not in self._names}

    def of(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Those of these parts that are shown."""
        return {name: value for name, value in parts.items() if name in self._names}


def _listed(checkpoint: Checkpoint) -> ListedVersion:
    return ListedVersion(
        version=checkpoint.version,
        checkpoint_id=str(checkpoint.checkpoint_id),
        created_at=clock.to_datetime(checkpoint.created_at),
        phase=checkpoint.phase,
    )


TOOLS: tuple[ServedTool, ...] = (get_checkpoint, diff_checkpoints)
