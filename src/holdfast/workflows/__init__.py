"""Workflows: blocks that depend on each other, carried out wave by wave, over days if need be.

hf = Holdfast("flows.db", workflows=Kit(tools=[deploy]))
async with hf:
    outcome = await hf.workflows.run(load("release.yaml"), {"version": "1.2"})
    outcome = await hf.workflows.resume(outcome.run_id, {"approve": "yes"})
"""

from holdfast.workflows.access.secrets import environment_secrets, file_secrets
from holdfast.workflows.blocks.contract import BlockRun, BlockType
from holdfast.workflows.checks.definition_reader import load, loads
from holdfast.workflows.checks.problems import WorkflowProblem
from holdfast.workflows.definitions.definition import Block, Dependency, Input, Output, Workflow
from holdfast.workflows.execution.kit import Kit
from holdfast.workflows.execution.outcome import Outcome, Waiting
from holdfast.workflows.workflows import Workflows

__all__ = [
    "Block",
    "BlockRun",
    "BlockType",
    "Dependency",
    "Input",
    "Kit",
    "Outcome",
    "Output",
    "Waiting",
    "Workflow",
    "WorkflowProblem",
    "Workflows",
    "environment_secrets",
    "file_secrets",
    "load",
    "loads",
]
