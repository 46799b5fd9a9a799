"""Metadata of checkpoints as tags to search by; what is not plain data lies beside the state."""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from langgraph.checkpoint.base import CheckpointMetadata

from holdfast import codec
from holdfast.engine.marked.marked_run import VersionChange
from holdfast.engine.reading.log_views import LogView
from holdfast.integrations.langgraph.layout import Assemble, Flatten, prefix_of
from holdfast.kernel.marks import Marked

_PART: Final = "@metadata"
_FORM: Final = "@metadata-form"
_DEPTH: Final = 20
_BIG: Final = 2**63


class SearchableMetadata(NamedTuple):
    """What can be searched, and the rest."""

    tags: dict[str, Any]
    rest: dict[str, Any]

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "SearchableMetadata":
        tags = {key: _listed(value) for key, value in metadata.items() if is_plain(value)}
        return cls(tags, {key: value for key, value in metadata.items() if key not in tags})

    def added_to(self, change: VersionChange, prefix: str, flatten: Flatten) -> VersionChange:
        """A change that stores the rest too."""
        parts = (prefix + _PART, prefix + _FORM)
        if not self.rest:
            return change
        form, tokens = flatten(parts[0], self.rest)
        return VersionChange(
            {**change.logs, parts[0]: tokens},
            {**change.values, parts[1]: form},
            [name for name in change.dropped if name not in parts],
        )


def read_metadata(marked: Marked, view: LogView, assemble: Assemble) -> CheckpointMetadata:
    """The metadata of a checkpoint, whole."""
    prefix = prefix_of(marked.space)
    metadata = dict(marked.tags)
    if prefix + _PART in view.logs:
        form = codec.decode(view.values[prefix + _FORM])
        metadata |= assemble(prefix + _PART, form, view.items(prefix + _PART))
    return cast("CheckpointMetadata", metadata)


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a value is the same after it was written as JSON; a tuple becomes a list."""
    if value is None or type(value) in (bool, str):
        return not isinstance(value, str) or _is_storable(value)
    if type(value) is int:
        return -_BIG <= value < _BIG
    if type(value) is float:
        return math.isfinite(value)
    if depth >= _DEPTH:
        return False
    if type(value) in (list, tuple):
        return all(is_plain(item, depth + 1) for item in cast("list[object]", value))
    if type(value) is dict:
        return all(
            type(key) is str and _is_storable(key) and is_plain(item, depth + 1)
            for key, item in cast("dict[object, object]", value).items()
        )
    return False


def _is_storable(text: str) -> bool:
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def _listed(value: Any) -> Any:
    if type(value) in (list, tuple):
        return [_listed(item) for item in value]
    if type(value) is dict:
        return {key: _listed(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
