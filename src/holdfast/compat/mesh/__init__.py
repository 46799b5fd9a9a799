"""For Solace Agent Mesh: tasks that pause for their peers, with its operations and records."""

from holdfast.compat.mesh.checkpoint_service import CheckpointService
from holdfast.compat.mesh.records import (
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    Resolution,
    RestoredTask,
)
from holdfast.compat.mesh.task_context import TaskExecutionContext

__all__ = [
    "CheckpointService",
    "ParallelInvocation",
    "PausedTask",
    "PeerSubTask",
    "Resolution",
    "RestoredTask",
    "TaskExecutionContext",
]
