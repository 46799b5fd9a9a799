"""Agents that call agents: tasks that pause for their peers and go on in any process."""

from holdfast.peers.checkpoint_service import CheckpointService
from holdfast.peers.records import (
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    Resolution,
    RestoredTask,
)
from holdfast.peers.task_context import TaskExecutionContext

__all__ = [
    "CheckpointService",
    "ParallelInvocation",
    "PausedTask",
    "PeerSubTask",
    "Resolution",
    "RestoredTask",
    "TaskExecutionContext",
]
