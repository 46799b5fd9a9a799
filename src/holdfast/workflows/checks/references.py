"""Check that what expressions refer to exists."""

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec
from jinja2 import nodes

from holdfast.workflows.checks import problem_texts
from holdfast.workflows.definitions import expressions
from holdfast.workflows.definitions.expressions import SyntaxProblem

ROOTS: Final = ("inputs", "blocks", "each", "secrets", "now")
OF_BLOCK: Final = ("outputs", "succeeded", "failed", "skipped", "status", "error", "rounds")
OF_EACH: Final = ("index", "key", "value", "count", "first", "last")
_OF_MAPS: Final = frozenset(name for name in dir(dict) if not name.startswith("_"))
_KEEPING: Final = frozenset({"quote", "json", "string", "default", "d", "trim", "list", "join"})
"""Filters that do not change the reference to a secret."""
_FOREIGN: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_IN_MACROS: Final = frozenset({"caller", "varargs", "kwargs"})

Said = tuple[str, str]
"""A reason, and what to do about it."""


class KnownNames(msgspec.Struct, frozen=True, kw_only=True):
    """What an expression may refer to."""

    inputs: Collection[str] | None
    """None: not known."""
    blocks: Collection[str] | None
    before: Collection[str] | None = None
    """The blocks that have ended for certain when it is evaluated. None: all."""
    own: str = ""
    has_each: bool = False
    no_secrets: str = ""
    """Why secrets cannot be used here, if they cannot."""


class Reference(msgspec.Struct, frozen=True):
    """`blocks.build['outputs']`: a root, and steps that each are a name, or None if not known."""

    root: str
    steps: tuple[str | None, ...]
    is_attribute: bool
    """Whether the first step is written with a dot."""


def mistakes_in(text: str, known: KnownNames) -> Iterator[Said]:
    """Yield every mistake in the expressions of a text."""
    try:
        parsed = expressions.parse(text)
        yield from _in_parsed(parsed, known)
    except SyntaxProblem as error:
        yield str(error), ""
    except RecursionError:
        yield f"{text.strip()[:60]!r} is nested too deep", ""


def _in_parsed(parsed: nodes.Template, known: KnownNames) -> Iterator[Said]:
    bound = _bound(parsed)
    seen: set[Said] = set()
    for reference in _references(parsed):
        if reference.root in bound and reference.root != "secrets":
            continue
        for said in _wrong(reference, known):
            if said not in seen:
                seen.add(said)
                yield said
    if "secrets" in bound:
        yield "nothing else can be called `secrets`", "use another name"
    yield from _wrong_calls(parsed)


def _wrong(reference: Reference, known: KnownNames) -> Iterator[Said]:
    match reference.root:
        case "inputs":
            yield from _wrong_input(reference, known)
        case "blocks":
            yield from _wrong_block(reference, known)
        case "each":
            yield from _wrong_each(reference, known)
        case "secrets":
            yield from _wrong_secret(reference, known)
        case root if root not in expressions.GLOBALS and root != "now":
            yield f"nothing is called {root!r:.66} in expressions", _advice(root, known)
        case _:
            pass


def _wrong_input(reference: Reference, known: KnownNames) -> Iterator[Said]:
    name = reference.steps[0] if reference.steps else None
    if name is None or known.inputs is None:
        return
    if name in known.inputs:
        yield from _hidden(reference, name)
    elif not (reference.is_attribute and name in _OF_MAPS):
        yield f"there is no input {name!r:.66}", _near("inputs", name, known.inputs)


def _wrong_block(reference: Reference, known: KnownNames) -> Iterator[Said]:
    name, of_block = (*reference.steps, None, None)[:2]
    if name is None or known.blocks is None:
        return
    if name not in known.blocks:
        if not (reference.is_attribute and name in _OF_MAPS):
            yield f"there is no block {name!r:.66}", _near("blocks", name, known.blocks)
        return
    yield from _hidden(reference, name)
    if name == known.own:
        yield f"block {name} refers to itself: it has not ended when this is evaluated", ""
    elif known.before is not None and name not in known.before:
        said = f"block {name} may not have ended when block {known.own} begins"
        yield said, f"add {name} to its depends_on"
    if of_block is not None and of_block not in OF_BLOCK:
        yield f"a block has no {of_block!r:.66}", _of_block_advice(name, of_block)


def _of_block_advice(name: str, of_block: str) -> str:
    advice = problem_texts.nearest(of_block, OF_BLOCK)
    is_near = advice.startswith("did")
    return advice if is_near else f"what it gave is blocks.{name}.outputs.{of_block[:64]}"


def _wrong_each(reference: Reference, known: KnownNames) -> Iterator[Said]:
    if not known.has_each:
        yield "`each` is known in the inputs and the condition of a loop only", "add for_each"
    elif reference.steps and reference.steps[0] not in (None, *OF_EACH):
        name = reference.steps[0]
        yield f"`each` has no {name!r:.66}", problem_texts.nearest(name, OF_EACH)


def _wrong_secret(reference: Reference, known: KnownNames) -> Iterator[Said]:
    if known.no_secrets:
        yield known.no_secrets, ""
    if not reference.steps:
        yield "secrets can only be used one by one", "name one: secrets.NAME"
    elif reference.steps[0] is None:
        said = "the name of the secret must be a literal, so that its value can be kept out of all"
        yield f"{said} that is stored", "name one: secrets.NAME"


def _hidden(reference: Reference, name: str) -> Iterator[Said]:
    if reference.is_attribute and name in _OF_MAPS:
        root = reference.root
        yield f"`{root}.{name}` is a function that every map has", f"write {root}['{name}']"


def _near(root: str, name: str, known: Collection[str]) -> str:
    dashed = next((each for each in known if each.startswith(f"{name}-")), None)
    return f"write {root}['{dashed}']" if dashed else problem_texts.nearest(name, known)


def _advice(root: str, known: KnownNames) -> str:
    if root in (known.blocks or ()):
        return f"did you mean blocks.{root}?"
    if root in (known.inputs or ()):
        return f"did you mean inputs.{root}?"
    return problem_texts.nearest(root, ROOTS, {"yes": "true", "no": "false", "env": "secrets"})


def _bound(parsed: nodes.Template) -> set[str]:
    """Return the names to which a template itself assigns values, anywhere."""
    found = {name.name for name in parsed.find_all(nodes.Name) if name.ctx != "load"}
    found |= {macro.name for macro in parsed.find_all(nodes.Macro)}
    if any(True for _ in parsed.find_all(nodes.For)):
        found.add("loop")
    if any(True for _ in parsed.find_all((nodes.Macro, nodes.CallBlock))):
        found |= _IN_MACROS
    return found


def _references(node: nodes.Node) -> Iterator[Reference]:
    chain = _chain(node)
    if chain is not None:
        yield chain
    if isinstance(node, nodes.Call) and (called := _called(node.node)) is not None:
        yield called
        for child in (*node.args, *node.kwargs):
            yield from _references(child)
        return
    inner: Any = node
    while chain is not None and isinstance(inner, nodes.Getattr | nodes.Getitem):
        if isinstance(inner, nodes.Getitem):
            yield from _references(inner.arg)
        inner = inner.node
    if chain is None:
        for child in node.iter_child_nodes():
            yield from _references(child)


def _called(node: nodes.Node) -> Reference | None:
    """Return the map whose function is called: `inputs.get('x')` refers to inputs as a whole."""
    chain = _chain(node)
    is_of_map = chain is not None and len(chain.steps) == 1 and chain.steps[0] in _OF_MAPS
    return Reference(chain.root, (), False) if chain is not None and is_of_map else None


def _chain(node: nodes.Node) -> Reference | None:
    steps: list[str | None] = []
    is_attribute = False
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        is_attribute = isinstance(node, nodes.Getattr)
        if isinstance(node, nodes.Getattr):
            steps.append(node.attr)
        else:
            key = node.arg.value if isinstance(node.arg, nodes.Const) else None
            steps.append(key if isinstance(key, str) else None)
        node = node.node
    if isinstance(node, nodes.Name) and node.ctx == "load":
        return Reference(node.name, tuple(reversed(steps)), is_attribute)
    return None


def _wrong_calls(parsed: nodes.Template) -> Iterator[Said]:
    for made in parsed.find_all(nodes.Filter):
        if made.name not in expressions.FILTERS:
            yield f"there is no filter {made.name!r:.66}", _near_one(made.name, expressions.FILTERS)
    for made in parsed.find_all(nodes.Test):
        if made.name not in expressions.TESTS:
            yield f"there is no test {made.name!r:.66}", _near_one(made.name, expressions.TESTS)
    if any(True for _ in parsed.find_all(_FOREIGN)):
        yield "a definition includes no templates; there are no others", "write it out"
    if any(_looks_into_secret(each) for each in _looking(parsed)):
        said = "the value of a secret is put in when the block begins, after expressions"
        yield said, "use it as it is"


def _near_one(name: str, known: Collection[str]) -> str:
    advice = problem_texts.nearest(name, sorted(known))
    return advice if advice.startswith("did") else ""


def _looking(parsed: nodes.Template) -> Iterator[nodes.Node]:
    yield from parsed.find_all((nodes.Compare, nodes.Test))
    yield from (each for each in parsed.find_all(nodes.Filter) if each.name not in _KEEPING)


def _looks_into_secret(node: nodes.Node) -> bool:
    return any(name.name == "secrets" for name in node.find_all(nodes.Name))
