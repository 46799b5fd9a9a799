"""Find out which tests reach which blocks and statements: a probe at the start of each.

We write our own probes because tests kill the processes that do the work, and a tracer that writes
its data when a process ends would lose it. A probe writes at once, in every process of a test.
"""

import ast
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.mutants.blocks import blocks_of, is_docstring
from tools.mutants.candidates import PACKAGE
from tools.mutants.mutant import WEIGHTS
from tools.mutants.tree import Tree

_PROBE = "holdfast_probe"
_RUNTIME = '''\
"""Writes down what the current test reaches. Made by tools.mutants.probes."""

import os
from os import open as open_file, write  # tests replace those of the module

FOLDER = {folder!r}
seen: dict[str, set[object]] = {{}}
file = None


def start_anew() -> None:
    global file
    seen.clear()
    file = None


os.register_at_fork(after_in_child=start_anew)


def touch(place) -> None:
    global file
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    known = seen.get(test)
    if known is None:
        seen.clear()
        known = seen[test] = set()
        said = f"test {{test}}\\n"
    else:
        said = ""
    if place in known or not test:
        return
    known.add(place)
    if file is None:
        name = f"{{FOLDER}}/touched-{{os.getpid()}}"
        file = open_file(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        said = f"test {{test}}\\n"
    write(file, f"{{said}}{{place}}\\n".encode())


class Queries(dict):
    def __init__(self, backend, found):
        super().__init__(found)
        self.backend = backend

    def __getitem__(self, name):
        touch(f"{{self.backend}}/{{name}}")
        return super().__getitem__(name)
'''
_QUERIES = """

def load_queries(package, _load=load_queries):
    from holdfast_probe import Queries

    return Queries(package.rpartition(".")[2], _load(package))
"""


def install(tree: Tree, folder: Path) -> None:
    """Put probes into a tree; what they see goes to a folder, read by `touched`."""
    folder.mkdir(parents=True, exist_ok=True)
    package = tree.root / PACKAGE
    (package.parent / f"{_PROBE}.py").write_text(_RUNTIME.format(folder=str(folder)))
    names: list[str] = []
    for area in WEIGHTS:
        for file in sorted((package / area).rglob("*.py")):
            path = file.relative_to(package).as_posix()
            tree.write(file, probed(path, file.read_text(), names).encode())
    queries = package / "stores" / "sqlfiles.py"
    tree.write(queries, (queries.read_text() + _QUERIES).encode())
    (folder / "blocks.json").write_text(json.dumps(names))


def probed(path: str, source: str, names: list[str]) -> str:
    """The source with a probe in each block; adds the names of the blocks to `names`."""
    module = ast.parse(source)
    for block in blocks_of(path, module):
        place = 1 if is_docstring(block.statements[0]) else 0
        block.statements.insert(place, ast.parse(f"_touch_({len(names)})").body[0])
        names.append(block.name)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and path.endswith("/queries.py"):
            # What is kept is asked for once, by the first test.
            node.decorator_list = [each for each in node.decorator_list if not _keeps(each)]
    imported = ast.parse(f"from {_PROBE} import touch as _touch_").body[0]
    place = sum(1 for each in module.body[:2] if is_docstring(each) or _is_future(each))
    module.body.insert(place, imported)
    return ast.unparse(ast.fix_missing_locations(module))


def _keeps(decorator: ast.expr) -> bool:
    return "cache" in ast.unparse(decorator)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def touched(folder: Path) -> dict[str, set[str]]:
    """Which blocks and statements each test has reached."""
    names: list[str] = json.loads((folder / "blocks.json").read_text())
    found: dict[str, set[str]] = {}
    for file in folder.glob("touched-*"):
        for test, place in _lines(file.read_text().splitlines()):
            found.setdefault(test, set()).add(names[int(place)] if place.isdigit() else place)
    return found


def _lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    test = ""
    for line in lines:
        if line.startswith("test "):
            test = line.removeprefix("test ")
        else:
            yield test, line
