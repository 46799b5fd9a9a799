"""What a checkpoint of the seed's face holds, and how it is stored in parts of a run's state.

Each key of the context, and each block's entry in it, is a separate part: what has not changed
since the state was saved before is not stored again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from holdfast import codec, names
from holdfast.errors import MisuseError, UnsupportedValue
from holdfast.workflows.definitions.definition import Block

_HEAD: Final = "checkpoint"
_INPUTS: Final = "workflow_inputs"
_WAVES: Final = "execution_waves"
_CONTEXT: Final = "context"
_BLOCKS: Final = "blocks"
_NOT_ENDED: Final = frozenset({"pending", "running", "paused", "waiting"})


@dataclass
class PauseMetadata:
    """Why a workflow is paused: the block that asks, what it asks, and the answer if it is given.

    An empty text is an answer; None means no answer.
    """

    block_id: str
    prompt: str
    response: str | None = None


@dataclass
class CheckpointState:
    """Everything that a workflow needs to resume. A `created_at` without a time zone is in UTC."""

    checkpoint_id: str
    workflow_name: str
    workflow_inputs: dict[str, Any]
    execution_waves: list[list[Block]]
    completed_waves: int
    context: dict[str, Any]
    created_at: datetime
    pause_metadata: PauseMetadata | None = None

    def __post_init__(self) -> None:
        if isinstance(self.created_at, datetime) and self.created_at.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            self.created_at = self.created_at.replace(tzinfo=UTC)

    @property
    def is_waiting(self) -> bool:
        """Whether a question is open."""
        return self.pause_metadata is not None and self.pause_metadata.response is None

    @property
    def ended_blocks(self) -> list[str]:
        """The blocks of the incomplete wave that have ended."""
        wave = self.execution_waves[self.completed_waves : self.completed_waves + 1]
        return [block.id for blocks in wave for block in blocks if has_ended(self.context, block)]


def has_ended(context: Mapping[str, Any], block: Block) -> bool:
    """Return whether the context has outputs of a block, and no status that says it is running."""
    blocks: dict[str, Any] = context.get(_BLOCKS) or {}
    entry: Any = blocks.get(block.id)
    if not isinstance(entry, dict):
        return False
    found = cast("dict[str, Any]", entry)
    return found.get("outputs") is not None and found.get("status") not in _NOT_ENDED


def parts_of(state: CheckpointState) -> dict[str, object]:
    """A state as parts of a run; raises UnsupportedValue for what would not come back equal."""
    _check(state)
    context = state.context
    blocks = context.get(_BLOCKS)
    apart = cast("dict[str, Any]", blocks) if type(blocks) is dict else None
    paused = state.pause_metadata
    head = {
        "checkpoint_id": state.checkpoint_id,
        "workflow_name": state.workflow_name,
        "completed_waves": state.completed_waves,
        "created_at": state.created_at,
        "paused": None if paused is None else [paused.block_id, paused.prompt, paused.response],
        "keys": list(context),
        "blocks": None if apart is None else list(apart),
    }
    rest = {key: value for key, value in context.items() if key != _BLOCKS or apart is None}
    return {
        _HEAD: head,
        _INPUTS: state.workflow_inputs,
        _WAVES: [[msgspec.to_builtins(block) for block in wave] for wave in state.execution_waves],
        **_named(_CONTEXT, rest),
        **_named(_BLOCKS, apart or {}),
    }


def state_of(parts: Mapping[str, Any]) -> CheckpointState:
    """The state that was saved as these parts."""
    head = parts[_HEAD]
    blocks: list[str] | None = head["blocks"]
    apart = None if blocks is None else _unnamed(_BLOCKS, blocks, parts)
    rest = [key for key in head["keys"] if key != _BLOCKS or apart is None]
    context = _unnamed(_CONTEXT, rest, parts)
    paused: list[Any] | None = head["paused"]
    return CheckpointState(
        checkpoint_id=head["checkpoint_id"],
        workflow_name=head["workflow_name"],
        workflow_inputs=parts[_INPUTS],
        execution_waves=msgspec.convert(parts.get(_WAVES, []), list[list[Block]]),
        completed_waves=head["completed_waves"],
        context={
            k: apart if k == _BLOCKS and apart is not None else context[k] for k in head["keys"]
        },
        created_at=head["created_at"],
        pause_metadata=None if paused is None else PauseMetadata(*paused),
    )


def _part(prefix: str, key: str) -> str:
    """Return the part for a key; all keys that are not valid part names share one."""
    name = f"{prefix}.{key}"
    return name if len(name) <= names.MAX_LENGTH and name.isprintable() else prefix


def _named(prefix: str, values: Mapping[str, Any]) -> dict[str, object]:
    parts: dict[str, object] = {}
    shared: dict[str, Any] = {}
    for key, value in values.items():
        name = _part(prefix, key)
        if name == prefix:
            shared[key] = value
        else:
            parts[name] = value
    return parts | ({prefix: shared} if shared else {})


def _unnamed(prefix: str, keys: Iterable[str], parts: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in keys:
        name = _part(prefix, key)
        found[key] = parts[prefix][key] if name == prefix else parts[name]
    return found


def _check(state: CheckpointState) -> None:
    names.check(state.checkpoint_id, what="checkpoint id")
    names.check(state.workflow_name, what="workflow name")
    names.check_count(state.completed_waves, what="completed_waves")
    if not isinstance(state.created_at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
        raise MisuseError(f"created_at is a datetime, not {state.created_at!r:.80}")
    for name in (_INPUTS, _CONTEXT):
        if type(getattr(state, name)) is not dict:
            raise MisuseError(f"{name} is a dict, not {type(getattr(state, name)).__name__}")
        _check_exact(getattr(state, name), name)
    for number, wave in enumerate(state.execution_waves):
        for index, block in enumerate(wave):
            if type(block) is not Block:
                raise UnsupportedValue(
                    f"{_WAVES}[{number}][{index}]: {type(block).__name__} is no block; use "
                    "holdfast.workflows.Block"
                )
    _check_exact(msgspec.to_builtins(state.execution_waves), _WAVES)
    if (paused := state.pause_metadata) is not None:
        _check_exact([paused.block_id, paused.prompt, paused.response], "pause_metadata")


def _check_exact(value: object, name: str) -> None:
    """Raise UnsupportedValue, naming the path, unless a value comes back equal."""
    back = codec.decode(codec.encode(value, name=name))
    found = _difference(value, back, name)
    if found is not None:
        raise UnsupportedValue(found)


def _difference(given: Any, back: Any, path: str) -> str | None:
    """Return where and how a value would come back changed, or None."""
    if given == back:
        return None
    for each, other, step in _pairs(given, back):
        if (found := _difference(each, other, path + step)) is not None:
            return found
    return (
        f"{path}: {type(given).__name__} would come back as {type(back).__name__}; store what it "
        "holds, as plain data"
    )


def _pairs(given: Any, back: Any) -> list[tuple[Any, Any, str]]:
    """Return the pairs of values in two containers of one kind, and their paths."""
    if isinstance(given, dict) and isinstance(back, dict):
        left, right = cast("dict[str, Any]", given), cast("dict[str, Any]", back)
        return [(left[key], right[key], f'["{key}"]') for key in left]
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        items = zip(cast("list[Any]", given), cast("list[Any]", back), strict=True)
        return [(each, other, f"[{index}]") for index, (each, other) in enumerate(items)]
    return []
