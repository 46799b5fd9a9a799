"""Expressions in shell commands that are not quoted: whoever gives their values can add commands.

`echo {{ inputs.name }}` with the input `x; rm -rf .` runs both. `| quote` makes a value one word,
and in `env` a value is not looked at by the shell at all.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from jinja2 import nodes

from holdfast.workflows.checks.problems import Findings, WorkflowProblem
from holdfast.workflows.checks.shape import WorkflowDraft
from holdfast.workflows.definitions import expressions
from holdfast.workflows.definitions.definition import Input

_SHELL: Final = "Shell"
_TEXTS: Final = ("command", "verify")
_SAFE_FILTERS: Final = frozenset({"quote", "int", "float", "length", "count", "round", "abs"})
_NUMBERS: Final = frozenset({"int", "num", "bool"})
_SAFE_OF_EACH: Final = frozenset({"index", "count", "first", "last"})
_ADVICE: Final = 'write {{ … | quote }}, or put it into env and write "$NAME" in the command'


def unquoted(draft: WorkflowDraft) -> list[WorkflowProblem]:
    """Return a problem for each command with an expression that a shell would interpret."""
    findings = Findings(draft.source)
    for at, block in draft.blocks:
        for name in _TEXTS:
            text = block.inputs.get(name) if block.type == _SHELL else None
            if not isinstance(text, str) or not expressions.has_expression(text):
                continue
            for said in dict.fromkeys(_unquoted_in(text, draft.workflow.inputs)):
                reason = f"block {block.id[:64]}: {said} is not quoted: the shell interprets it"
                findings.tell(("blocks", at, "inputs", name), reason, _ADVICE)
    return findings.problems


def _unquoted_in(text: str, given: Mapping[str, Input]) -> Iterator[str]:
    try:
        parsed = expressions.parse(text)
    except expressions.SyntaxProblem:
        return  # reported as a mistake
    for output in parsed.find_all(nodes.Output):
        for node in output.nodes:
            if not isinstance(node, nodes.TemplateData) and not _is_safe(node, given):
                yield _shown(node)


def _is_safe(node: nodes.Node, given: Mapping[str, Input]) -> bool:
    match node:
        case nodes.Const() | nodes.Compare():
            return True
        case nodes.Filter():
            return node.name in _SAFE_FILTERS
        case nodes.CondExpr():
            parts = [node.expr1, node.expr2]
            return all(each is None or _is_safe(each, given) for each in parts)
        case nodes.Concat():
            return all(_is_safe(each, given) for each in node.nodes)
        case _:
            path = next(expressions.paths_of(node), ())
            return _is_safe_path(path, given)


def _is_safe_path(path: expressions.Path, given: Mapping[str, Input]) -> bool:
    match path:
        case ("inputs", str(name)):
            return name in given and given[name].type in _NUMBERS
        case ("each", str(name)):
            return name in _SAFE_OF_EACH
        case ("secrets", *_):
            return True  # the block refuses one that means something to the shell
        case _:
            return False


def _shown(node: nodes.Node) -> str:
    """Name an expression by what it refers to first."""
    path = next(expressions.paths_of(node), ())
    return f"{{{{ {'.'.join(each or '…' for each in path)[:64] or '…'} }}}}"
