"""Expressions: `{{ blocks.build.outputs.stdout }}`, evaluated in a sandbox.

A text that is one expression and nothing else gives the value itself, of any type; a text around
expressions gives a text. What is not there is an error, not an empty text.
"""

import base64
import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, cast

import msgspec

try:
    import jinja2
except ImportError as error:
    raise ImportError("workflows need Jinja2: pip install 'holdfast[workflows]'") from error
from jinja2 import nodes
from jinja2.exceptions import SecurityError

from holdfast.errors import BlockFailed
from holdfast.workflows.definitions import expression_limits
from holdfast.workflows.definitions.expression_limits import MOST_CHARACTERS, Sandbox

Scope = Mapping[str, Any]
Path = tuple[str | None, ...]
"""How something is reached: ("blocks", "build", "outputs"). None is what is only known later."""

_DEEPEST: Final = 50


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _quote(value: Any) -> str:
    return shlex.quote(_text(value))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _base64(value: Any) -> str:
    return base64.b64encode(_text(value).encode()).decode()


def _from_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no JSON: {error}") from error


def _environment() -> Sandbox:
    made = Sandbox(
        quote=_quote,
        json=_json,
        from_json=_from_json,
        base64=_base64,
    )
    for name in ("indent", "center", "wordwrap", "format", "pprint", "random", "xmlattr"):
        made.filters.pop(name, None)
    for name in ("lipsum", "cycler", "joiner"):
        made.globals.pop(name, None)
    return made


_ENVIRONMENT: Final = _environment()
FILTERS: Final = frozenset(_ENVIRONMENT.filters)
TESTS: Final = frozenset(_ENVIRONMENT.tests)
GLOBALS: Final = frozenset(_ENVIRONMENT.globals)


def has_expression(value: object) -> bool:
    """Whether a value is a text with something to evaluate."""
    return isinstance(value, str) and any(mark in value for mark in ("{{", "{%", "{#"))


def render(template: Any, scope: Scope) -> Any:
    """Evaluate the expressions in a value, also nested ones; raises BlockFailed."""
    return _render(template, scope, 0)


def is_true(condition: str | bool, scope: Scope) -> bool:
    """Whether a condition holds; texts such as `no` and `false` do not."""
    if isinstance(condition, bool):
        return condition
    wrapped = condition if has_expression(condition) else f"{{{{ {condition} }}}}"
    value = render(wrapped, scope)
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "no", "0", "none", "null", "off")
    return bool(value)


def _render(template: Any, scope: Scope, depth: int) -> Any:
    if depth > _DEEPEST:
        raise BlockFailed(f"inputs are nested deeper than {_DEEPEST}")
    if isinstance(template, dict):
        entries = cast("dict[Any, Any]", template)
        return {
            _render(key, scope, depth + 1): _render(value, scope, depth + 1)
            for key, value in entries.items()
        }
    if isinstance(template, list):
        return [_render(item, scope, depth + 1) for item in cast("list[Any]", template)]
    if not has_expression(template):
        return template
    try:
        with expression_limits.allowance():
            return _checked(_evaluate(template, scope))
    except BlockFailed:
        raise
    except RecursionError as error:
        raise BlockFailed(f"{template.strip()!r:.200} is nested too deep") from error
    except Exception as error:  # filters raise any error for values that do not fit
        said = str(error) or type(error).__name__
        raise BlockFailed(f"{template.strip()!r:.500} cannot be evaluated: {said}") from error


def _evaluate(template: str, scope: Scope) -> Any:
    kind, compiled = _compiled(template)
    if kind == "text":
        return compiled.render(scope)
    value = compiled(scope)
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, and says what is missing
    return value


@functools.lru_cache(maxsize=4096)
def _compiled(template: str) -> tuple[str, Any]:
    parsed = _ENVIRONMENT.parse(template)
    only = _only_expression(parsed)
    if only is None:
        return "text", _ENVIRONMENT.from_string(_ENVIRONMENT.bounded(parsed))
    body: list[nodes.Node] = [nodes.Assign(nodes.Name("result", "store"), only, lineno=1)]
    made = _ENVIRONMENT.from_string(_ENVIRONMENT.bounded(nodes.Template(body, lineno=1)))

    def evaluate(scope: Scope) -> Any:
        context = made.new_context(dict(scope))
        for _ in made.root_render_func(context):
            pass
        return context.vars["result"]

    return "value", evaluate


def _only_expression(parsed: nodes.Template) -> nodes.Expr | None:
    """Return the only expression of a template, apart from space around it; else None."""
    parts: list[nodes.Expr] = []
    for node in parsed.body:
        if not isinstance(node, nodes.Output):
            return None
        parts += [each for each in node.nodes if not _is_space(each)]
    is_one = len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData)
    return parts[0] if is_one else None


def _is_space(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.TemplateData) and not node.data.strip()


def paths_in(template: Any) -> Iterator[Path]:
    """Yield what the expressions in a value refer to, also nested; raises SyntaxProblem."""
    if isinstance(template, dict):
        for key, value in cast("dict[Any, Any]", template).items():
            yield from paths_in(key)
            yield from paths_in(value)
    elif isinstance(template, list):
        for item in cast("list[Any]", template):
            yield from paths_in(item)
    elif has_expression(template):
        yield from _paths_of(template)


@functools.lru_cache(maxsize=4096)
def _paths_of(template: str) -> tuple[Path, ...]:
    return tuple(paths_of(parse(template)))


def parse(template: str) -> nodes.Template:
    """Parse a text with Jinja; raises SyntaxProblem."""
    try:
        return _ENVIRONMENT.parse(template)
    except jinja2.TemplateSyntaxError as error:
        raise SyntaxProblem(template, str(error.message)) from error
    except (ValueError, ArithmeticError) as error:  # such as a number of thousands of digits
        raise SyntaxProblem(template, str(error)) from error
    except RecursionError as error:
        raise SyntaxProblem(template, "it is nested too deep") from error


def condition_text(condition: str | bool | None) -> str | None:
    """Return a condition as a template; it may be given without its braces."""
    if not isinstance(condition, str):
        return None
    return condition if has_expression(condition) else f"{{{{ {condition} }}}}"


class SyntaxProblem(ValueError):
    """A text is no template."""

    def __init__(self, template: str, reason: str) -> None:
        super().__init__(f"{template.strip()!r:.200} is no expression: {reason}")
        self.reason = reason


def paths_of(node: nodes.Node) -> Iterator[Path]:
    """Yield what an expression refers to, the whole of each before what is in its brackets."""
    own = _path_of(node)
    if own is not None:
        yield own
    if isinstance(node, nodes.Getattr | nodes.Getitem):
        if isinstance(node, nodes.Getitem):
            yield from paths_of(node.arg)
        if own is None:
            yield from paths_of(node.node)
        return
    for child in node.iter_child_nodes():
        yield from paths_of(child)


def _path_of(node: nodes.Node) -> Path | None:
    if isinstance(node, nodes.Name):
        return (node.name,) if node.ctx == "load" else None
    if isinstance(node, nodes.Getattr):
        before = _path_of(node.node)
        return None if before is None else (*before, node.attr)
    if isinstance(node, nodes.Getitem):
        before = _path_of(node.node)
        key = node.arg.value if isinstance(node.arg, nodes.Const) else None
        return None if before is None else (*before, key if isinstance(key, str) else None)
    return None


def _checked(value: Any) -> Any:
    """Return a value as plain data: moments as texts, iterators as lists."""
    if isinstance(value, str):
        expression_limits.pay_for(value)
        if len(value) > MOST_CHARACTERS:
            raise SecurityError(f"it makes {len(value):,} characters")
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value)
        return {_key(key): _checked(item) for key, item in entries.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        items = cast("Sequence[Any]", value)
        expression_limits.pay(2 * expression_limits.PER_ITEM * len(items))
        return [_checked(item) for item in items]
    if value is None or isinstance(value, bool | int | float | bytes):
        return value
    if isinstance(value, Iterator):
        return [_checked(item) for item in cast("Iterator[Any]", value)]
    as_data = getattr(value, "__holdfast_plain__", None)
    if as_data is not None:
        return _checked(as_data())
    raise TypeError(f"it gives a {type(value).__name__}, which is no data")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"keys are texts, not {key!r:.80}")
    return str(key)
