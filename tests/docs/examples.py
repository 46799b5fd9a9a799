"""The Python examples of the documentation, page by page, as programs that can be run.

A block whose fence says `python` is a program of its own. One that says `python continue` goes on
where the block before it on the page ended, so the two are run as one program.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One program, and the page and line where it begins."""

    page: str
    line: int
    blocks: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def program(self) -> str:
        return "\n".join(self.blocks)


def pages() -> list[Path]:
    """Every page that may hold examples: those at the top, and all of docs."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def examples_in(page: str, text: str) -> list[Example]:
    """The programs of one page, in order."""
    found: list[Example] = []
    for fence in _FENCE.finditer(text):
        mark, code = fence["mark"].strip(), fence["code"]
        if mark not in ("", "continue"):
            raise ValueError(f"{page}: a fence says `python {mark}`, which means nothing")
        if mark == "continue":
            if not found:
                raise ValueError(f"{page}: the first example continues nothing")
            before = found.pop()
            found.append(Example(page, before.line, (*before.blocks, code)))
        else:
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Example(page, line, (code,)))
    return found


def all_examples(files: Iterable[Path]) -> list[Example]:
    """The programs of these pages."""
    return [
        example
        for file in files
        for example in examples_in(
            file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        )
    ]
