"""Finding every mistake of a definition before anything runs."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.checks import block_checks, problem_texts, shape
from holdfast.workflows.checks.block_checks import Surroundings
from holdfast.workflows.checks.problems import Findings, WorkflowProblem
from holdfast.workflows.checks.references import KnownNames, mistakes_in
from holdfast.workflows.checks.shape import WorkflowDraft
from holdfast.workflows.checks.type_checks import TypeChecks, placed_texts
from holdfast.workflows.definitions import definition, expressions, inputs
from holdfast.workflows.definitions.definition import Block, Input, Workflow
from holdfast.workflows.definitions.sources import Place, source_of
from holdfast.workflows.definitions.waves import cycle_in

MOST_BLOCKS: Final = 1000
MOST_PARALLEL: Final = 1000
_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ID_RULE: Final = "letters, digits, _ and -, at most 64, not beginning with a digit or -"
_WHOLE_INPUT: Final = re.compile(r"\{\{-?\s*inputs\.([A-Za-z_]\w*)\s*-?\}\}")
_LOOPED: Final = ("list", "dict", "any")
_MOST_CYCLES: Final = 20
_LIMITS: Final = {"max_parallel": (1, 100), "retries": (0, 20)}


def problems_of(
    workflow: Workflow,
    *,
    types: Mapping[str, BlockType],
    tools: Collection[str] | None = None,
    library: Mapping[str, Workflow] | None = None,
) -> list[WorkflowProblem]:
    """Return all mistakes of a definition; tools and workflows are checked if they are given."""
    draft = draft_of(workflow)
    return [*draft.problems, *mistakes_of(draft, types=types, tools=tools, library=library)]


def draft_of(workflow: Workflow) -> WorkflowDraft:
    """Return a draft of a definition that was built in Python, or read before."""
    source = source_of(workflow)
    try:
        data = definition.plain(workflow)
    except Exception as error:  # values of any class may raise anything when read
        data = {"name": "?"}
        problem = WorkflowProblem(
            reason=f"the workflow is no plain data: {error}", file=source.file
        )
        return msgspec.structs.replace(shape.drafted(data, source), problems=[problem])
    return shape.drafted(data, source)


def mistakes_of(
    draft: WorkflowDraft,
    *,
    types: Mapping[str, BlockType] | None = None,
    tools: Collection[str] | None = None,
    library: Mapping[str, Workflow] | None = None,
) -> list[WorkflowProblem]:
    """Return the mistakes beyond the shape; block types are checked only if they are given."""
    findings = Findings(draft.source)
    if len(draft.blocks) > MOST_BLOCKS:
        said = f"there are {len(draft.blocks):,} blocks, and {MOST_BLOCKS:,} at most can be"
        findings.tell(("blocks",), said, "put some into workflows that this one names")
        return findings.problems
    _check_names(draft, findings)
    most = draft.workflow.max_parallel
    if most is not None and not 1 <= most <= MOST_PARALLEL:
        said = f"max_parallel must be from 1 to {MOST_PARALLEL:,}, not {most}"
        findings.tell(("max_parallel",), said)
    for name, spec in draft.workflow.inputs.items():
        _check_input(name, spec, findings)
    for at, block in draft.blocks:
        _check_limits(block, ("blocks", at), findings)
        _check_loop(block, ("blocks", at), draft.workflow.inputs, findings)
    _check_dependencies(draft, findings)
    _check_expressions(draft, types, findings)
    if types is not None:
        around = Surroundings(draft=draft, types=types, tools=tools, library=library)
        for at, block in draft.blocks:
            _check_type(block, ("blocks", at), around, findings)
    return findings.problems


def _check_names(draft: WorkflowDraft, findings: Findings) -> None:
    seen: dict[str, int] = {}
    for at, block in draft.blocks:
        place = ("blocks", at, "id")
        if not _ID.fullmatch(block.id):
            findings.tell(place, f"{block.id[:64]!r} cannot be a block's id", f"use {_ID_RULE}")
        if block.id in seen:
            first = draft.source.line_of(("blocks", seen[block.id]))
            where = f"in line {first}" if first else f"block number {seen[block.id] + 1}"
            said = f"there are two blocks {block.id[:64]!r}; the first is {where}"
            findings.tell(place, said, "give one another id")
        seen.setdefault(block.id, at)
    for name in draft.workflow.inputs:
        if not _ID.fullmatch(name):
            said = f"{name[:64]!r} cannot be an input's name"
            findings.tell(("inputs", name), said, f"use {_ID_RULE}")


def _check_input(name: str, spec: Input, findings: Findings) -> None:
    place: Place = ("inputs", name)
    noun = f"input {name[:64]}"
    if spec.choices is not None:
        if not spec.choices:
            findings.tell((*place, "choices"), f"{noun}: choices are empty", "leave them out")
        for at, choice in enumerate(spec.choices):
            if not inputs.is_of(choice, spec.type):
                said = (
                    f"{noun}: the choice {problem_texts.value(choice)} is not of type {spec.type}"
                )
                findings.tell((*place, "choices", at), said, _quote(choice, spec.type))
    if spec.default is msgspec.UNSET:
        return
    at = (*place, "default")
    if not inputs.is_of(spec.default, spec.type):
        said = (
            f"{noun}: its default is {problem_texts.value(spec.default)}, not of type {spec.type}"
        )
        advice = "say `required: false` instead" if spec.default is None else ""
        findings.tell(at, said, advice or _quote(spec.default, spec.type))
    elif spec.choices and spec.default not in spec.choices:
        findings.tell(at, f"{noun}: its default is not one of its choices")


def _quote(value: Any, kind: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "put it in quotes" if kind == "str" and is_number else ""


def _check_limits(block: Block, place: Place, findings: Findings) -> None:
    for name, (least, most) in _LIMITS.items():
        value = getattr(block, name)
        if not least <= value <= most:
            said = f"block {block.id[:64]}: {name} must be from {least} to {most}, not {value}"
            findings.tell((*place, name), said)
    if block.timeout is not None and not 0 < block.timeout < math.inf:
        said = f"block {block.id[:64]}: timeout must be more than 0 seconds, not {block.timeout}"
        findings.tell((*place, "timeout"), said)


def _check_loop(block: Block, place: Place, given: Mapping[str, Input], findings: Findings) -> None:
    if block.for_each is not None and (why := _why_no_loop(block.for_each, given)):
        said = f"block {block.id[:64]}: for_each goes over a list or a map, not {why}"
        findings.tell((*place, "for_each"), said, "write {{ … }} around what gives one")


def _why_no_loop(over: Any, given: Mapping[str, Input]) -> str:
    if isinstance(over, list | dict):
        return ""
    if not expressions.has_expression(over):
        return problem_texts.value(over)
    text = over.strip()
    if not (text.startswith("{{") and text.endswith("}}")):
        return "a text with expressions in it"
    found = _WHOLE_INPUT.fullmatch(text)
    kind = given[found[1]].type if found and found[1] in given else "any"
    return "" if kind in _LOOPED else f"the input {found[1]} of type {kind}" if found else ""


def _check_dependencies(draft: WorkflowDraft, findings: Findings) -> None:
    known = [block.id for _, block in draft.blocks]
    places = {block.id: at for at, block in reversed(draft.blocks)}
    for at, block in draft.blocks:
        seen: set[str] = set()
        for number, each in enumerate(block.dependencies):
            if each.block in seen:
                said = f"block {block.id[:64]} depends on {each.block[:64]!r} twice"
                findings.tell(("blocks", at, "depends_on", number), said, "say it once")
            seen.add(each.block)
            if each.block not in known and ("blocks",) not in draft.broken:
                said = f"block {block.id[:64]} depends on {each.block[:64]!r}, which is not there"
                place = ("blocks", at, "depends_on", number)
                findings.tell(place, said, problem_texts.nearest(each.block, known))
    for cycle in _cycles(draft.workflow.blocks):
        said = f"these blocks wait for each other: {' -> '.join(cycle)}"
        place = ("blocks", places[cycle[0]], "depends_on")
        findings.tell(place, said, f"take {cycle[1]} out of what {cycle[0]} depends on, or another")


def _cycles(blocks: Sequence[Block]) -> Iterator[list[str]]:
    """Yield cycles of blocks, no two of which share the step that is removed to find the next."""
    left = list({block.id: block for block in reversed(blocks)}.values())
    left.reverse()
    for _ in range(_MOST_CYCLES):
        cycle = cycle_in(left)
        if not cycle:
            return
        yield cycle
        left = [
            msgspec.structs.replace(
                block, depends_on=[each for each in block.dependencies if each.block != cycle[1]]
            )
            if block.id == cycle[0]
            else block
            for block in left
        ]


def _check_expressions(
    draft: WorkflowDraft, types: Mapping[str, BlockType] | None, findings: Findings
) -> None:
    names = KnownNames(
        inputs=None if ("inputs",) in draft.broken else list(draft.workflow.inputs),
        blocks=None if ("blocks",) in draft.broken else [block.id for _, block in draft.blocks],
    )
    needs = {block.id: [each.block for each in block.dependencies] for _, block in draft.blocks}
    for at, block in draft.blocks:
        is_sure = not draft.is_broken(("blocks", at, "depends_on"))
        before = _before(block.id, needs) if is_sure else None
        own = msgspec.structs.replace(names, own=block.id, before=before)
        kind = None if types is None else types.get(block.type)
        _check_block_texts(block, ("blocks", at), own, kind, findings)
    refused = "secrets cannot be used in the outputs of a workflow"
    known = msgspec.structs.replace(names, no_secrets=refused)
    for name, spec in draft.workflow.output_specs.items():
        _check_texts(spec.value, _output_place(draft, name), known, f"output {name[:64]}", findings)


def _output_place(draft: WorkflowDraft, name: str) -> Place:
    is_bare = draft.workflow.output_specs[name].value is draft.workflow.outputs[name]
    return ("outputs", name) if is_bare else ("outputs", name, "value")


def _check_block_texts(
    block: Block, place: Place, known: KnownNames, kind: BlockType | None, findings: Findings
) -> None:
    noun = f"block {block.id[:64]}"
    refused = ""
    if kind is not None and not kind.takes_secrets:
        refused = f"blocks of type {kind.name} take no secrets"
    no_condition = "secrets cannot decide a condition: their values are not known to it"
    looped = msgspec.structs.replace(known, has_each=block.is_loop, no_secrets=refused)
    deciding = msgspec.structs.replace(looped, no_secrets=no_condition)
    over = msgspec.structs.replace(known, no_secrets=refused)
    condition = expressions.condition_text(block.condition)
    _check_texts(block.inputs, (*place, "inputs"), looped, noun, findings)
    _check_texts(condition, (*place, "condition"), deciding, f"{noun}: condition", findings)
    _check_texts(block.for_each, (*place, "for_each"), over, f"{noun}: for_each", findings)


def _check_texts(
    value: Any, place: Place, known: KnownNames, noun: str, findings: Findings
) -> None:
    for text, at in placed_texts(value, place):
        if expressions.has_expression(text):
            for reason, suggestion in mistakes_in(text, known):
                findings.tell(at, f"{noun}: {reason}", suggestion)


def _before(block_id: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return all blocks that one comes after."""
    seen: set[str] = set()
    ahead = list(needs[block_id])
    while ahead:
        each = ahead.pop()
        if each not in seen:
            seen.add(each)
            ahead += needs.get(each, ())
    return seen


def _check_type(block: Block, place: Place, around: Surroundings, findings: Findings) -> None:
    noun = f"block {block.id[:64]}"
    kind = around.types.get(block.type)
    if kind is None:
        if not around.draft.is_broken((*place, "type")) and block.type:
            said = f"{noun}: no type of blocks is named {block.type[:64]!r}"
            findings.tell((*place, "type"), said, problem_texts.nearest(block.type, around.types))
        return
    if around.draft.is_broken((*place, "inputs")):
        return
    at = (*place, "inputs")
    fitting = TypeChecks(findings.tell, noun, at, lenient=True, around=block.__struct_fields__)
    fits = fitting.check(block.inputs, kind.inputs, at)
    check = block_checks.CHECKS.get(kind.name)
    if fits and check is not None:
        for inner, reason, suggestion in check(block, around):
            findings.tell((*place, *inner), f"{noun}: {reason}", suggestion)
