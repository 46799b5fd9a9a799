"""Workflows: blocks that depend on each other, carried out wave by wave, over days if need be.

hf = Holdfast("flows.db", workflows=Kit(tools=[deploy]))
async with hf:
    outcome = await hf.workflows.run(load("release.yaml"), {"version": "1.2"})
    outcome = await hf.workflows.resume(outcome.run_id, {"approve": "yes"})
"""

from holdfast.workflows.access.secrets import environment_secrets, file_secrets
from holdfast.workflows.blocks.contract import BlockRun, BlockType
from holdfast.workflows.checkpoint_state import CheckpointState, PauseMetadata
from holdfast.workflows.checkpoint_store import CheckpointStore, InMemoryCheckpointStore
from holdfast.workflows.checks.problems import Problem
from holdfast.workflows.checks.reading import load, loads
from holdfast.workflows.cleaning import Cleaner, periodic_cleanup, periodic_cleanup_async
from holdfast.workflows.continuing import Result, WorkflowExecutor
from holdfast.workflows.definitions.definition import Block, Dependency, Input, Output, Workflow
from holdfast.workflows.execution.kit import Kit
from holdfast.workflows.execution.outcome import Outcome, Waiting
from holdfast.workflows.stored_checkpoints import StoredCheckpoints
from holdfast.workflows.workflows import Workflows

__all__ = [
    "Block",
    "BlockRun",
    "BlockType",
    "CheckpointState",
    "CheckpointStore",
    "Cleaner",
    "Dependency",
    "InMemoryCheckpointStore",
    "Input",
    "Kit",
    "Outcome",
    "Output",
    "PauseMetadata",
    "Problem",
    "Result",
    "StoredCheckpoints",
    "Waiting",
    "Workflow",
    "WorkflowExecutor",
    "Workflows",
    "environment_secrets",
    "file_secrets",
    "load",
    "loads",
    "periodic_cleanup",
    "periodic_cleanup_async",
]
