"""Where a function, a class or a file has grown too large a concept hides: name it, and split."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

FUNCTION_LINES = 60
FILE_LINES = 600
PUBLIC_METHODS = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def lines_of(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def public_methods(node: ast.ClassDef) -> list[str]:
    methods = (child.name for child in node.body if isinstance(child, Function))
    return sorted({name for name in methods if not name.startswith("_")})


def too_large(file: Path) -> Iterator[str]:
    """Everything in a file that is over a limit, by name."""
    length = len(file.read_text(encoding="utf-8").splitlines())
    if length > FILE_LINES:
        yield f"the file has {length} lines, at most {FILE_LINES} are allowed"
    for node in ast.walk(tree_of(file)):
        if isinstance(node, Function) and lines_of(node) > FUNCTION_LINES:
            yield f"{node.name} has {lines_of(node)} lines, at most {FUNCTION_LINES} are allowed"
        if isinstance(node, ast.ClassDef) and len(public_methods(node)) > PUBLIC_METHODS:
            count = len(public_methods(node))
            yield f"{node.name} has {count} public methods, at most {PUBLIC_METHODS} are allowed"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_file_keeps_the_limits(file: Path) -> None:
    assert list(too_large(file)) == []


def test_limits_are_measured(tmp_path: Path) -> None:
    long_function = "def long():\n" + "    x = 1\n" * FUNCTION_LINES
    wide_class = "class Wide:\n" + "".join(
        f"    def m{number}(self): ...\n" for number in range(PUBLIC_METHODS + 1)
    )
    file = tmp_path / "sample.py"
    file.write_text(long_function + wide_class + "\n" * FILE_LINES, encoding="utf-8")
    assert len(list(too_large(file))) == 3
