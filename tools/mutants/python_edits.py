"""One-place edits of Python code, each a mistake that somebody could make.

Only code in functions is changed: what a module does when it is imported belongs to no test.
"""

import ast
from collections.abc import Iterator

from tools.mutants.blocks import Block, Function, blocks_of, is_docstring, own_nodes
from tools.mutants.mutant import Edit

_SWAPPED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_WEAKENED = (
    ("synchronous = EXTRA", "synchronous = FULL"),
    ("synchronous = EXTRA", "synchronous = NORMAL"),
    ("synchronous = EXTRA", "synchronous = OFF"),
    ("secure_delete = ON", "secure_delete = OFF"),
    ("trusted_schema = OFF", "trusted_schema = ON"),
    ("BEGIN IMMEDIATE", "BEGIN"),
)
_FORMALITIES = ("__init__", "__repr__", "__str__", "__post_init__")
# Hooks for those who watch. That they are there is the business of tests/faults and of telemetry.
_WATCHED = ("log.", "telemetry.", "faults.", "warnings.", "super().")


class _Positions:
    """Turns the parser's lines and columns into places in the file's bytes."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self.start(node) : self.end(node)].decode()

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, str]:
        start = self.end(left)
        return start, self._source[start : self.start(right)].decode()


def edits(path: str, source: bytes) -> Iterator[Edit]:
    """Every edit of a file that we know to make."""
    at = _Positions(source)
    for block in blocks_of(path, ast.parse(source)):
        if "Protocol" in block.name or block.function.name in ("__repr__", "__str__"):
            continue
        make = _Maker(at, block)
        for statement in block.statements:
            yield from make.of_statement(statement)
            for node in own_nodes(statement):
                yield from make.of_node(node)
        if block.statements is block.function.body:
            yield from make.early_return()


class _Maker:
    def __init__(self, at: _Positions, block: Block) -> None:
        self._at, self._block = at, block

    def _edit(self, operator: str, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(operator, self._block.name, self._at.start(node), self._at.end(node), text)

    def of_statement(self, statement: ast.stmt) -> Iterator[Edit]:
        match statement:
            case ast.Expr(ast.Call() | ast.Await(ast.Call())) if not self._is_watched(statement):
                yield self._edit("skip a call", statement, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                if self._block.function.name not in _FORMALITIES:
                    yield self._edit("skip a write", statement, "pass")
            case ast.Delete():
                yield self._edit("skip a write", statement, "pass")
            case ast.Raise():
                if not self._is_bare_function():
                    yield self._edit("skip a raise", statement, "pass")
            case ast.Return(value) if value is not None:
                yield from self._other_result(value)
            case ast.With(items=[item]) | ast.AsyncWith(items=[item]):
                yield from self._without_lock(statement, item)
            case _:
                pass

    def of_node(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.If(test) if not self._is_watched(node.body[0]):
                yield self._edit("drop a condition", test, "False")
            case ast.IfExp(test=test):
                yield self._edit("drop a condition", test, "False")
            case ast.BoolOp(values=values):
                yield from self._without_operand(node, values)
            case ast.comprehension(ifs=ifs):
                for test in ifs:
                    yield self._edit("drop a condition", test, "True")
            case ast.Compare(left, [operator], [right]) if type(operator) in _SWAPPED:
                yield from self._swapped(left, operator, right)
            case ast.Call(func, _, keywords) if _is_constructor(func):
                yield from self._without_fields(keywords)
            case ast.Constant(str() as text):
                yield from self._weakened(node, text)
            case _:
                pass

    def early_return(self) -> Iterator[Edit]:
        function = self._block.function
        body = [each for each in function.body if not is_docstring(each)]
        if len(body) < 2 or function.name in _FORMALITIES:
            return
        if not _has_result(function):
            yield self._edit("return early", body[0], "return")

    def _is_bare_function(self) -> bool:
        """A function that only raises says that it is not there."""
        body = [each for each in self._block.function.body if not is_docstring(each)]
        return len(body) == 1 and body == self._block.statements[-1:]

    def _is_watched(self, statement: ast.stmt) -> bool:
        return self._at.text(statement).removeprefix("await ").startswith(_WATCHED)

    def _other_result(self, value: ast.expr) -> Iterator[Edit]:
        match value:
            case ast.Constant(bool() as said):
                yield self._edit("other result", value, str(not said))
            case ast.Constant(None):
                pass
            case _:
                yield self._edit("other result", value, "None")

    def _without_lock(self, statement: ast.stmt, item: ast.withitem) -> Iterator[Edit]:
        said = self._at.text(item.context_expr).lower()
        if "lock" in said and "clock" not in said and item.optional_vars is None:
            start, end = self._at.start(statement), self._at.end(item.context_expr)
            yield Edit("drop a lock", self._block.name, start, end, "if True")

    def _without_operand(self, node: ast.BoolOp, values: list[ast.expr]) -> Iterator[Edit]:
        joined = " and " if isinstance(node.op, ast.And) else " or "
        for left_out in values:
            kept = [self._wrapped(each) for each in values if each is not left_out]
            if not any("\n" in each for each in kept):
                yield self._edit("drop a condition", node, joined.join(kept))

    def _wrapped(self, value: ast.expr) -> str:
        text = self._at.text(value)
        return f"({text})" if isinstance(value, ast.NamedExpr | ast.BoolOp | ast.IfExp) else text

    def _swapped(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Iterator[Edit]:
        start, between = self._at.between(left, right)
        said, new = _SWAPPED[type(operator)]
        if between.count(said) == 1:
            place = start + len(between[: between.index(said)].encode())
            yield Edit("swap a comparison", self._block.name, place, place + len(said), new)

    def _without_fields(self, keywords: list[ast.keyword]) -> Iterator[Edit]:
        for keyword in keywords:
            if keyword.arg and not isinstance(keyword.value, ast.Constant):
                yield self._edit("blank a field", keyword.value, "None")

    def _weakened(self, node: ast.Constant, text: str) -> Iterator[Edit]:
        for strong, weak in _WEAKENED:
            said = self._at.text(node)
            if strong in text and strong in said:
                yield self._edit("weaken SQL", node, said.replace(strong, weak))


def _has_result(node: ast.AST) -> bool:
    """Whether a function yields, or returns a value; functions in it do not count."""
    return any(
        isinstance(each, ast.Yield | ast.YieldFrom)
        or (isinstance(each, ast.Return) and each.value is not None)
        or (not isinstance(each, Function | ast.Lambda) and _has_result(each))
        for each in ast.iter_child_nodes(node)
    )


def _is_constructor(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name[:1].isupper()
