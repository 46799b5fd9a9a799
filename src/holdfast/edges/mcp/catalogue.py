"""The workflows that clients can name: those of the Kit, and the files of a folder."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.errors import NotFoundError, WorkflowInvalid
from holdfast.workflows.checks import definition_reader, library
from holdfast.workflows.checks.library import Found
from holdfast.workflows.definitions.definition import Workflow
from holdfast.workflows.execution.kit import Kit

_SUFFIXES: Final = (".yaml", ".yml")
_MOST: Final = 1000

Source = Workflow | Path
Named = tuple[tuple[int, int, int], str]
"""What a file was like when it was read, and the name in it."""


class Catalogue:
    """Definitions by name. Files are read again whenever they are wanted."""

    def __init__(self, kit: Kit, folder: str | Path | None = None) -> None:
        self._kit = kit
        self._folder = None if folder is None else Path(folder)
        self._names: dict[Path, Named] = {}
        if self._folder is not None and not self._folder.is_dir():
            raise NotFoundError(f"there is no folder {self._folder}; make it, or name another")

    async def all(self) -> Mapping[str, Source]:
        """Return every definition by name; an unreadable file is listed by its file name."""
        return await asyncio.to_thread(self._all)

    def _all(self) -> dict[str, Source]:
        found: dict[str, Source] = dict(self._kit.definitions)
        names: dict[Path, Named] = {}
        for path in self._files():
            with suppress(FileNotFoundError):  # editors put another file in the place of one
                names[path] = self._named(path)
        self._names = names  # at once: other threads look there meanwhile
        for path, (_, name) in names.items():
            found.setdefault(name, path)
        return found

    def _named(self, path: Path) -> Named:
        """The name in a file, which is read again only if it has changed."""
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size, status.st_ino
        known = self._names.get(path)
        return known if known is not None and known[0] == stamp else (stamp, _name_in(path))

    def _files(self) -> list[Path]:
        if self._folder is None:
            return []
        files = (path for path in self._folder.rglob("*") if path.suffix in _SUFFIXES)
        return sorted(path for path in files if path.is_file())[:_MOST]

    async def find(self, name: str) -> Source:
        """A definition by its name; raises NotFoundError, which names those that are there."""
        known = await self.all()
        if name not in known:
            listed = ", ".join(sorted(known)[:50]) or "none"
            raise NotFoundError(f"there is no workflow {name!r}; there are: {listed}")
        return known[name]

    async def examine(self, source: Source) -> Found:
        """Return a definition and all that it may reach, with every mistake."""
        return await asyncio.to_thread(self._examine, source)

    def _examine(self, source: Source) -> Found:
        tools = self._kit.tools or None
        return library.examine(source, self._kit.definitions, types=self._kit.types, tools=tools)


def _name_in(path: Path) -> str:
    try:
        return definition_reader.load(path).name
    except WorkflowInvalid:
        return path.stem
