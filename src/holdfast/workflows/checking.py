"""Finding every mistake of a definition before anything runs."""

from collections.abc import Collection, Mapping

from holdfast.workflows.blocks.contract import BlockType
from holdfast.workflows.definition import Workflow
from holdfast.workflows.problems import Problem
from holdfast.workflows.waves import cycle_in


def problems_of(
    workflow: Workflow,
    *,
    types: Mapping[str, BlockType],
    tools: Collection[str] | None = None,
    library: Mapping[str, Workflow] | None = None,
) -> list[Problem]:
    """All mistakes of a definition; tools and other workflows are looked at if they are given."""
    found: list[Problem] = []
    if cycle := cycle_in(workflow.blocks):
        found.append(Problem(reason=f"these blocks wait for each other: {' -> '.join(cycle)}"))
    return found
