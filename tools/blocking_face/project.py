"""The generated modules of a tree: writes them, or tells which are stale."""

import difflib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.blocking_face.faces import PACKAGE, Module, Table
from tools.blocking_face.modules import formatted, module_text
from tools.blocking_face.sources import read_source

_DIFF_LINES: Final = 20


@dataclass(frozen=True)
class Project:
    """A tree with a `src` folder, and the modules that are generated in it."""

    root: Path
    modules: tuple[Module, ...]

    def write(self) -> list[Path]:
        """Write what is stale; the files that were written."""
        stale = list(self._stale())
        for path, text in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [path for path, _ in stale]

    def problems(self) -> list[str]:
        """Each file that is stale, with the beginning of the difference."""
        return [self._problem(path, text) for path, text in self._stale()]

    def _stale(self) -> Iterator[tuple[Path, str]]:
        table = Table(self.modules)
        read = functools.partial(read_source, self.root / "src")
        for module in self.modules:
            path = self.root.joinpath("src", *PACKAGE.split("."), f"{module.name}.py")
            text = formatted(module_text(module, table, read), str(path))
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                yield path, text

    def _problem(self, path: Path, text: str) -> str:
        name = path.relative_to(self.root).as_posix()
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = list(
            difflib.unified_diff(
                before.splitlines(), text.splitlines(), name, "generated", n=1, lineterm=""
            )
        )
        more = len(lines) - _DIFF_LINES
        rest = [f"… {more} more lines"] if more > 0 else []
        return "\n".join([f"{name} is stale: run `make sync`", *lines[:_DIFF_LINES], *rest])
