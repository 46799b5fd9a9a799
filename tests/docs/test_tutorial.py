"""The tutorial, done as a reader does it: its files, its commands in order, its outputs."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.examples import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
LIMIT_SECONDS = 240
_FENCE = re.compile(r"^```(?P<info>[^\n]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fence: `py FILE` adds to a file, `sh` is run, `text` is shown by the commands before it."""

    kind: str
    mark: str
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(page):
        kind, _, mark = fence["info"].partition(" ")
        if kind not in ("py", "sh", "text") or (kind == "py") is not mark.endswith(".py"):
            raise ValueError(f"a fence of a tutorial says {fence['info']!r}, which means nothing")
        yield Block(kind, mark, fence["text"])


def do(folder: Path, commands: str) -> str:
    """What a reader sees who types these commands; fails if the last of them does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    seen = folder / "seen-by-the-test"
    with seen.open("w+", encoding="utf-8") as output:
        # A file, not a pipe: whoever is left in the background must not keep this from ending.
        done = subprocess.run(
            ["bash", "-c", commands],
            cwd=folder,
            env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    text = seen.read_text(encoding="utf-8")
    assert done.returncode == 0, f"{commands}\n{text}"
    return text


def check_shown(expected: str, output: str) -> None:
    """Every line that the page shows is in the output, in this order."""
    rest = output
    for line in expected.splitlines():
        _, found, rest = rest.partition(line)
        assert found, f"the page shows {line!r}, not so the output:\n{output}"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    output = ""
    for block in blocks_of(page.read_text(encoding="utf-8")):
        match block:
            case Block("py", name, text):
                with (tmp_path / name).open("a", encoding="utf-8") as file:
                    file.write(text)
            case Block("sh", "", text):
                output = do(tmp_path, text)
            case Block("text", "", text):
                check_shown(text, output)
            case Block("sh", mark, _):
                assert mark == "not run"


def test_there_is_a_tutorial() -> None:
    assert "first-agent.md" in [page.name for page in TUTORIALS]


def test_fence_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="means nothing"):
        list(blocks_of("```python\nprint()\n```\n"))


def test_output_is_compared_in_order() -> None:
    check_shown("a\nb\n", "x a\nc\nb\n")
    with pytest.raises(AssertionError, match="'a'"):
        check_shown("b\na\n", "x a\nc\nb\n")
