"""How a LangGraph checkpoint lies in the state of a run, and how it is made from it again.

Each channel is a log of tokens, so that a checkpoint costs what is new in it. Parts of a subgraph's
namespace have a prefix; those of a namespace that belongs to one task are dropped when the graph
above it has continued: its earlier versions hold them.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from langgraph.checkpoint.base import Checkpoint

from holdfast import clock, codec, names
from holdfast.engine.marked.marked_run import VersionChange
from holdfast.engine.reading.log_views import Items, LogView
from holdfast.errors import MisuseError
from holdfast.kernel import marks

_HEAD: Final = "@head"
_FORMS: Final = "@forms"
_SEEN: Final = "@seen:"
_OTHER: Final = "@other"
_SPECIAL: Final = ("@", "~", "=", "holdfast.")
_LONGEST: Final = 150

Flatten = Callable[[str, object], tuple[str, Items]]
"""From a part's name and a value, the value's form and its tokens."""
Assemble = Callable[[str, str, Items], Any]
"""From a part's name, a form and tokens, the value again."""


class CheckpointHeader(msgspec.Struct, array_like=True, gc=False):
    """What a checkpoint is beside the values of its channels and what its nodes have seen."""

    packed_id: Any
    v: int
    ts: Any
    versions: dict[str, Any]
    updated: list[str] | None = None
    other: str = ""
    packed_anchor: Any = ""

    @property
    def anchor(self) -> str:
        """The input checkpoint with which the turn began; "" if that is not known here."""
        return marks.unpack(self.packed_anchor)

    @property
    def checkpoint_id(self) -> str:
        return marks.unpack(self.packed_id)


_head: Final = msgspec.msgpack.Decoder(CheckpointHeader)
_forms: Final = msgspec.msgpack.Decoder(dict[str, str])


def prefix_of(space: str) -> str:
    """What the names of a namespace's parts begin with."""
    if not space:
        return ""
    of_task = "~" if ":" in space else "="
    return f"{of_task}{_short(space)}/"


def part_of(prefix: str, channel: str) -> str:
    """The name of the part that holds a channel."""
    is_plain = len(channel) <= _LONGEST and channel.isprintable() and channel
    if not is_plain or channel.startswith(_SPECIAL):
        channel = f"@channel:{_short(channel)}"
    return prefix + channel


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def head_of(view: LogView, space: str) -> CheckpointHeader | None:
    """What a state knows of a namespace."""
    raw = view.values.get(prefix_of(space) + _HEAD)
    return None if raw is None else _head.decode(raw)


def forms_of(view: LogView, space: str) -> dict[str, str]:
    """The forms of the values that a namespace's channels have."""
    raw = view.values.get(prefix_of(space) + _FORMS)
    return {} if raw is None else _forms.decode(raw)


class PendingCheckpoint(NamedTuple):
    """A checkpoint that is to be put after another one."""

    space: str
    parent: str
    checkpoint: Checkpoint
    new_versions: Mapping[str, Any]
    source: str = ""


def change_to(
    view: LogView, wanted: PendingCheckpoint, flatten: Flatten, parent_view: LogView | None = None
) -> VersionChange:
    """Return what makes the state of a run that of a checkpoint.

    Channels without a new version keep what is stored: LangGraph may have changed their values
    in place since. If the state is not that of the parent, `parent_view` is where they are read.
    """
    space, parent, checkpoint, new_versions, source = wanted
    prefix = prefix_of(space)
    head = head_of(view, space)
    anchor = checkpoint["id"] if source == "input" else ""
    if head is not None and head.checkpoint_id == parent:
        anchor = anchor or head.anchor
    is_parent = head is not None and head.checkpoint_id == parent
    stored = view if is_parent else parent_view
    known = {} if stored is None else forms_of(stored, space)
    logs: dict[str, Items] = {}
    forms: dict[str, str] = {}
    kept: set[str] = set()
    for channel, value in checkpoint["channel_values"].items():
        part = part_of(prefix, channel)
        kept.add(part)
        is_kept = channel in known and channel not in new_versions
        if is_kept and stored is not None and part in stored.logs:
            forms[channel] = known[channel]
            if not is_parent:
                logs[part] = stored.items(part)
            continue
        forms[channel], logs[part] = flatten(part, value)
    values, other = _values_of(prefix, checkpoint, forms, anchor, flatten)
    logs |= other
    kept |= values.keys() | other.keys()
    return VersionChange(logs, values, replaced(view, space, kept))


def _values_of(
    prefix: str, checkpoint: Checkpoint, forms: dict[str, str], anchor: str, flatten: Flatten
) -> tuple[dict[str, object], dict[str, Items]]:
    others = {k: v for k, v in checkpoint.items() if k not in Checkpoint.__annotations__}
    form = ""
    logs: dict[str, Items] = {}
    if others:
        form, logs[prefix + _OTHER] = flatten(prefix + _OTHER, others)
    head = CheckpointHeader(
        marks.pack(checkpoint["id"]),
        checkpoint["v"],
        _packed_moment(checkpoint["ts"]),
        checkpoint["channel_versions"],
        checkpoint.get("updated_channels"),
        form,
        marks.pack(anchor),
    )
    values: dict[str, object] = {
        prefix + _HEAD: list(msgspec.structs.astuple(head)),
        prefix + _FORMS: forms,
    }
    for node, seen in checkpoint["versions_seen"].items():
        values[_seen_part(prefix, node)] = [node, seen]
    return values, logs


def _packed_moment(ts: str) -> int | str:
    """Return LangGraph's text of a moment as microseconds; any other text unchanged."""
    try:
        micros = clock.from_datetime(datetime.fromisoformat(ts))
    except (ValueError, MisuseError):
        return ts
    return micros if _moment(micros) == ts else ts


def _moment(packed: int | str) -> str:
    return packed if isinstance(packed, str) else clock.to_datetime(packed).isoformat()


def _seen_part(prefix: str, node: str) -> str:
    is_plain = len(node) <= _LONGEST and node.isprintable()
    return prefix + _SEEN + (node if is_plain else f"@{_short(node)}")


def replaced(view: LogView, space: str, kept: Collection[str]) -> list[str]:
    """The parts that go with a checkpoint: its namespace's, and those of tasks that are over."""
    prefix = prefix_of(space)
    every = [name for name in (*view.logs, *view.values) if name not in kept]
    if prefix:
        return [name for name in every if name.startswith(prefix)]
    return [name for name in every if not name.startswith("=")]


def own_parts(view: LogView, space: str) -> tuple[dict[str, Items], dict[str, object]]:
    """The parts of one namespace, to be stored elsewhere."""
    prefix = prefix_of(space)
    names = [name for name in (*view.logs, *view.values) if _is_of(name, prefix)]
    logs = {name: view.items(name) for name in names if name in view.logs}
    return logs, {name: codec.decode(view.values[name]) for name in names if name in view.values}


def without(view: LogView, space: str) -> LogView:
    """A state that knows nothing of a namespace."""
    head = prefix_of(space) + _HEAD
    return LogView(view.logs, {name: raw for name, raw in view.values.items() if name != head})


def encoded(value: object) -> msgspec.Raw:
    return msgspec.Raw(codec.encode(value))


def _is_of(name: str, prefix: str) -> bool:
    return name.startswith(prefix) if prefix else not name.startswith(("~", "="))


def checkpoint_in(view: LogView, space: str, assemble: Assemble) -> Checkpoint:
    """The checkpoint that a state holds for a namespace."""
    prefix = prefix_of(space)
    head = head_of(view, space)
    assert head is not None, "a version with a mark has its head"
    values = {
        channel: assemble(part, form, view.items(part))
        for channel, form in forms_of(view, space).items()
        if (part := part_of(prefix, channel)) in view.logs
    }
    seen: dict[str, Any] = {}
    for name, raw in view.values.items():
        if name.startswith(prefix + _SEEN):
            node, versions = codec.decode(raw)
            seen[node] = versions
    made: dict[str, Any] = {
        "v": head.v,
        "id": head.checkpoint_id,
        "ts": _moment(head.ts),
        "channel_values": values,
        "channel_versions": head.versions,
        "versions_seen": seen,
        "updated_channels": head.updated,
    }
    if head.other:
        made |= assemble(prefix + _OTHER, head.other, view.items(prefix + _OTHER))
    return made  # pyright: ignore[reportReturnType]


def run_id_of(thread_id: object) -> str:
    """The run of a thread: the same id where it can be one."""
    text = thread_id if isinstance(thread_id, str) else str(thread_id)
    if 0 < len(text) <= names.MAX_LENGTH and text.isprintable():
        return text
    return f"langgraph-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
