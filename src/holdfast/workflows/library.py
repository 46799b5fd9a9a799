"""The definitions that a workflow may come to: its own, and those its `Workflow` blocks name."""

from collections.abc import Mapping

from holdfast.errors import WorkflowInvalid
from holdfast.workflows.definition import Workflow


def collect(main: Workflow, known: Mapping[str, Workflow]) -> dict[str, Workflow]:
    """A workflow and all that it may come to, by name; raises WorkflowInvalid if one is missing."""
    found = {main.name: main}
    ahead = [main]
    while ahead:
        for block in ahead.pop().blocks:
            name = block.inputs.get("workflow") if block.type == "Workflow" else None
            if not isinstance(name, str) or name in found:
                continue
            if name not in known:
                raise WorkflowInvalid(
                    f"block {block.id} names a workflow {name!r} that is not known"
                )
            found[name] = known[name]
            ahead.append(known[name])
    return found
