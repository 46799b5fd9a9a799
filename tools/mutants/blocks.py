"""Blocks of code: the unit in which we know what a test reaches.

A block is one suite of statements in a function: its body, the body of an `if`, of an `except`. It
is named by its function and its number in it, so that changes elsewhere in a file do not rename it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Block:
    """Statements that are carried out one after another."""

    name: str
    function: Function
    statements: list[ast.stmt]


@dataclass
class _Scope:
    name: str
    function: Function | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(0))


def blocks_of(path: str, tree: ast.Module) -> list[Block]:
    """Every block of a file, outer ones first."""
    return list(_walk(tree.body, _Scope(f"{path}:")))


def _walk(suite: list[ast.stmt], scope: _Scope) -> Iterator[Block]:
    if scope.function is not None:
        yield Block(f"{scope.name}#{next(scope.numbers)}", scope.function, suite)
    for statement in suite:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                inner = _Scope(_below(scope.name, statement.name), statement)
                yield from _walk(statement.body, inner)
            case ast.ClassDef():
                yield from _walk(statement.body, _Scope(_below(scope.name, statement.name)))
            case _:
                for nested in suites_in(statement):
                    yield from _walk(nested, scope)


def _below(name: str, child: str) -> str:
    return f"{name}{child}" if name.endswith(":") else f"{name}.{child}"


def suites_in(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The suites of an `if`, a loop, a `with`, a `try` or a `match`."""
    for name in ("body", "orelse", "finalbody"):
        if found := getattr(statement, name, None):
            yield found
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement without the suites in it."""
    if isinstance(statement, Function | ast.ClassDef):
        return
    suites = {id(each) for suite in suites_in(statement) for each in suite}
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [each for each in ast.iter_child_nodes(node) if id(each) not in suites]


def is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
