"""Which outputs nobody looks at any more: they are taken out of the state of a workflow."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.workflows import expressions
from holdfast.workflows.definition import Block, Workflow
from holdfast.workflows.state import Result


def templates_of(block: Block) -> list[Any]:
    """Everything in a block that may have expressions."""
    return [block.inputs, expressions.condition_text(block.condition), block.for_each]


def uses_now(workflow: Workflow) -> bool:
    """Whether an expression of a workflow asks for the time."""
    return any(path[0] == "now" for path in _paths(workflow, workflow.blocks))


def not_needed_after(workflow: Workflow, results: Mapping[str, Result]) -> list[str]:
    """The blocks that have ended, and that nothing to come refers to."""
    ahead = [block for block in workflow.blocks if block.id not in results]
    paths = set(_paths(workflow, ahead))
    if any(path[0] == "blocks" and (len(path) == 1 or path[1] is None) for path in paths):
        return []
    needed = {path[1] for path in paths if path[0] == "blocks"}
    return [
        name
        for name, result in results.items()
        if name not in needed and not result.is_pruned and result.status == "completed"
    ]


def pruned(result: Result) -> Result:
    """A result without what it gave."""
    return msgspec.structs.replace(result, outputs=None, rounds=None, keys=None, is_pruned=True)


def _paths(workflow: Workflow, blocks: Iterable[Block]) -> Iterable[expressions.Path]:
    for block in blocks:
        for template in templates_of(block):
            yield from expressions.paths_in(template)
    for spec in workflow.output_specs.values():
        yield from expressions.paths_in(spec.value)
