"""A sandbox for expressions in which a small text can make no huge value, and no long work.

All that an expression does is paid from one allowance: rounds of loops, calls and filters, the
items and characters that they are given and that they make.
"""

import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS: Final = 10_000_000
_MOST_REPEATED: Final = 1_000_000
_MOST_OF_RANGE: Final = 10_000
_MOST_COLUMNS: Final = 10_000
_MOST_DIGITS: Final = 100
_MOST_INDENTED: Final = 16
_BITS: Final = 4096
_ALLOWANCE: Final = 20_000_000
_PER_CALL: Final = 400
PER_ITEM: Final = 10
_CHARACTERS: Final = 4
"""So many characters cost as much as the smallest thing."""
_DEEPEST: Final = 60
_GROWING: Final = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "translate"})
"""Methods of texts that make large ones of small ones."""
_NUMBERS: Final = re.compile(r"\d+")
_LOOP, _CONCAT = "the rounds of a loop", "texts in a row"
"""Names of filters that no template can write."""

_left: Final[ContextVar[list[int] | None]] = ContextVar("holdfast_expression_left", default=None)


@contextmanager
def allowance() -> Generator[None]:
    """What is evaluated within shares one allowance; beyond it SecurityError is raised."""
    token = _left.set([_ALLOWANCE])
    try:
        yield
    finally:
        _left.reset(token)


def pay(cost: int) -> None:
    left = _left.get()
    if left is None:
        return
    left[0] -= cost
    if left[0] < 0:
        raise SecurityError("it takes too much work or makes too much")


def pay_for(value: Any, depth: int = 0) -> None:
    """Pay for all that a value holds, before it is made a text or copied."""
    if depth > _DEEPEST:
        raise SecurityError("it is nested too deep")
    if isinstance(value, str | bytes):
        pay(PER_ITEM + len(value) // _CHARACTERS)
    elif isinstance(value, int):
        pay(PER_ITEM + value.bit_length() // 8)
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            pay_for(key, depth + 1)
            pay_for(item, depth + 1)
    elif isinstance(value, range):
        pay(PER_ITEM * len(value))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Sequence[Any]", value):
            pay_for(item, depth + 1)
    pay(PER_ITEM)


class Sandbox(ImmutableSandboxedEnvironment):
    """Nothing private, nothing that changes values, and nothing beyond the allowance."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **filters: Callable[..., Any]) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
            optimized=False,  # what is constant is evaluated within an allowance too
            finalize=_shown,
        )
        cast("dict[str, Any]", self.globals)["range"] = _range
        self.filters |= filters
        for name, bounded in _BOUNDED.items():
            self.filters[name] = bounded(self.filters[name])
        self.filters = {name: _paid(each) for name, each in self.filters.items()}
        self.tests = {name: _paid(each) for name, each in self.tests.items()}

    def bounded(self, parsed: nodes.Template) -> nodes.Template:
        """A template whose loops and texts are paid for, to be compiled."""
        self.filters |= {_LOOP: _rounds, _CONCAT: _concat}
        made = _LimitTransformer().visit(parsed)
        made.set_environment(self)
        return made

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "+":
            pay(_length(left) + _length(right))
        elif isinstance(left, str | bytes):
            raise SecurityError("texts are formatted with `~` and filters, not with %")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        pay(_PER_CALL)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str | bytes):
            pay_for([owner, *args])
            if name == "join" and args:
                args = (_joinable(owner, args[0]), *args[1:])
            elif name == "replace" and len(args) > 1:
                _check_replaced(owner, *args[:2])
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `format` or `format_map` of a text with its widths bounded; None for all else."""
        if super().wrap_str_format(value) is None:
            return None
        text, is_map = str(value.__self__), value.__name__ == "format_map"

        def formatted(*args: Any, **kwargs: Any) -> str:
            given, named = ((), args[0]) if is_map else (args, kwargs)
            return _PaidFormatter(self).vformat(text, given, named)

        return formatted

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_growing = isinstance(obj, str | bytes | bytearray) and attr in _GROWING
        is_raw = isinstance(obj, int) and attr == "to_bytes"
        return not (is_growing or is_raw) and super().is_safe_attribute(obj, attr, value)


class _PaidFormatter(SandboxedFormatter):
    """Formats texts whose fields are paid for, and whose widths and precisions are bounded."""

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in _NUMBERS.findall(format_spec):
            if len(number) > len(str(_MOST_COLUMNS)) or int(number) > _MOST_COLUMNS:
                raise SecurityError(f"a width or precision is at most {_MOST_COLUMNS:,}")
            pay(int(number) // _CHARACTERS)
        pay(_PER_CALL)
        pay_for(value)
        return super().format_field(value, format_spec)


class _LimitTransformer(NodeTransformer):
    """Makes loops, texts in a row and plain texts something that is paid for."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        made = cast(nodes.For, self.generic_visit(node))
        made.iter = _filtered(cast(nodes.Expr, made.iter), _LOOP)
        return made

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        made = cast(nodes.Concat, self.generic_visit(node))
        return _filtered(nodes.List(made.nodes, lineno=node.lineno), _CONCAT)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _shown(_: Any, value: Any) -> Any:
    pay_for(value)
    return value


def _paid(function: Callable[..., Any]) -> Callable[..., Any]:
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def paid(*args: Any, **kwargs: Any) -> Any:
        pay(_PER_CALL)
        pay_for(args[at:])
        made = function(*args, **kwargs)
        pay(_length(made) // _CHARACTERS)
        return made

    return paid


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0  # pyright: ignore[reportUnknownArgumentType]


def _rounds(over: Iterable[Any]) -> Iterator[Any]:
    for each in over:
        pay(_PER_CALL)
        yield each


def _concat(texts: list[Any]) -> str:
    pay_for(texts)
    return "".join(map(str, texts))


def _range(*args: int) -> range:
    made = range(*args)
    if len(made) > _MOST_OF_RANGE:
        raise SecurityError(f"a range has {_MOST_OF_RANGE:,} numbers at most")
    return made


def _check_power(left: Any, right: Any) -> None:
    is_whole = isinstance(left, int) and isinstance(right, int)
    if is_whole and right > 0 and left.bit_length() * right > _BITS:
        raise SecurityError(f"{left} ** {right} is too large")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _BITS:
            raise SecurityError("a product is too large")
        return
    for many, few in ((left, right), (right, left)):
        is_repeated = isinstance(many, Sequence) and isinstance(few, int)
        if is_repeated and len(cast("Sequence[Any]", many)) * few > _MOST_REPEATED:
            raise SecurityError("it repeats something too often")


def _check_replaced(text: str | bytes, old: Any, new: Any) -> None:
    times = text.count(old) if old else len(text) + 1
    _check_characters(len(text) + times * len(new))


def _joinable(between: Any, parts: Iterable[Any]) -> list[Any]:
    known = list(_rounds(parts))
    pay_for(known)
    _check_characters(len(between) * len(known))
    return known


def _check_characters(count: int) -> None:
    if count > MOST_CHARACTERS:
        raise SecurityError(f"it makes {count:,} characters")


def _bounded_replace(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def replace(context: Any, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
        s, old, new = str(s), str(old), str(new)
        _check_replaced(s, old, new)
        return function(context, s, old, new, count)

    return replace


def _bounded_join(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def join(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        return function(context, _joinable(str(d), value), d, attribute)

    return join


def _bounded_number(
    most: int, default: int | None, *, at: int = 1, name: str
) -> Callable[..., Any]:
    """Bound the number that a filter is given after its value."""

    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            number = args[at] if len(args) > at else kwargs.get(name, default)
            if isinstance(number, str) or (isinstance(number, int) and abs(number) > most):
                raise SecurityError(f"{name} must be a number of at most {most:,}")
            return function(*args, **kwargs)

        return bounded

    return bound


_BOUNDED: Final[dict[str, Callable[..., Any]]] = {
    "replace": _bounded_replace,
    "join": _bounded_join,
    "batch": _bounded_number(_MOST_COLUMNS, None, name="linecount"),
    "slice": _bounded_number(_MOST_COLUMNS, None, at=2, name="slices"),
    "round": _bounded_number(_MOST_DIGITS, 0, name="precision"),
    "tojson": _bounded_number(_MOST_INDENTED, None, at=2, name="indent"),
}
