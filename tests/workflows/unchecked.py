"""Runs of definitions that nobody checked, as other versions and other programs may store them."""

import holdfast
from holdfast.agents.conversion import type_conversion
from holdfast.workflows import Outcome, Workflow
from holdfast.workflows.definitions import definition
from holdfast.workflows.execution.state import Start

SEAL = "5ea15ea15ea15ea1"


async def started_unchecked(hf: holdfast.Holdfast, workflow: Workflow) -> Outcome:
    """Start a workflow past all checks, and carry it out to its end."""
    library = {workflow.name: definition.plain(workflow)}
    start = Start(workflow=workflow.name, seal=SEAL, library=library)
    await hf.start(hf.workflows.kit.agent, type_conversion.plain(start), run_id="r")
    return await hf.workflows.resume("r", timeout=60)
