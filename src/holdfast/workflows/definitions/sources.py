"""Where definitions were read from: a side table, so that a definition itself is data alone."""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.workflows.definitions.definition import Workflow

Place = tuple[str | int, ...]
"""Where something is in a definition: ("blocks", 2, "inputs", "command")."""


def shown(place: Place) -> str:
    """A place as people read it: `blocks[2].inputs.command`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part:.64}" for part in place)
    return text.removeprefix(".")


class DefinitionSource(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a definition, and the lines of what is in it."""

    file: str = ""
    lines: Mapping[Place, int] = {}

    def line_of(self, place: Place) -> int:
        """The line of a place, or of the nearest thing around it; 0 if there are no lines."""
        for size in range(len(place), -1, -1):
            if place[:size] in self.lines:
                return self.lines[place[:size]]
        return 0

    @property
    def folder(self) -> Path | None:
        return Path(self.file).parent if self.file else None


UNKNOWN: Final = DefinitionSource()
_SOURCES: Final[dict[int, tuple["weakref.ref[Workflow]", DefinitionSource]]] = {}


def remember(workflow: Workflow, source: DefinitionSource) -> None:
    """Keep where a definition was read from, for as long as it lives."""
    known = id(workflow)
    _SOURCES[known] = (weakref.ref(workflow, lambda _: _SOURCES.pop(known, None)), source)


def source_of(workflow: Workflow) -> DefinitionSource:
    """Where this very definition was read from, if it was read."""
    reference, source = _SOURCES.get(id(workflow), (None, UNKNOWN))
    return source if reference is not None and reference() is workflow else UNKNOWN
