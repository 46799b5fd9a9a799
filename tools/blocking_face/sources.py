"""The source of the async classes, and what names mean there. Nothing is imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Untranslatable(Exception):
    """The source has something for which there is no rule of translation."""


class Origin(NamedTuple):
    """What a name means: where to import it from, or the statement that makes it.

    One that is `for_types` is imported by type checkers only, as the source does.
    """

    module: str
    name: str = ""
    statement: str = ""
    for_types: bool = False

    def import_as(self, local: str) -> str:
        """The statement that gives a module this name."""
        if self.statement:
            return self.statement
        if not self.name:
            return f"import {self.module}" + (f" as {local}" if local != self.module else "")
        alias = f" as {local}" if local != self.name else ""
        return f"from {self.module} import {self.name}{alias}"


@dataclass(frozen=True)
class Source:
    """A module of the async face."""

    module: str
    tree: ast.Module
    names: dict[str, Origin]

    def find_class(self, name: str) -> ast.ClassDef:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise Untranslatable(f"{self.module} has no class {name}; see tools/blocking_face/faces.py")

    def find_function(self, name: str) -> Function:
        for node in self.tree.body:
            if isinstance(node, Function) and node.name == name:
                return node
        raise Untranslatable(f"{self.module} has no function {name}")


def read_source(root: Path, module: str) -> Source:
    """Parse a module of the package below `root`."""
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return Source(module, tree, dict(_names(module, tree.body)))


def _names(
    module: str, body: list[ast.stmt], *, for_types: bool = False
) -> Iterator[tuple[str, Origin]]:
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _names(module, node.body, for_types=True)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for local, origin in _imported(node):
                yield local, origin._replace(for_types=for_types)
        else:
            yield from _defined(module, node)


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Origin]]:
    for alias in node.names:
        local = alias.asname or alias.name
        if isinstance(node, ast.Import):
            yield local, Origin(alias.name)
        elif node.module is None or node.level:
            raise Untranslatable(f"line {node.lineno}: imports are absolute here")
        else:
            yield local, Origin(node.module, alias.name)


def _defined(module: str, node: ast.stmt) -> Iterator[tuple[str, Origin]]:
    """A TypeVar is made anew wherever it is used; all else is imported from its module."""
    if isinstance(node, ast.ClassDef | Function):
        yield node.name, Origin(module, node.name)
        return
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    value = getattr(node, "value", None)
    is_type_variable = isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
    for target in targets:
        if isinstance(target, ast.Name):
            statement = ast.unparse(node) if is_type_variable else ""
            yield target.id, Origin("" if statement else module, target.id, statement)
