"""Peers: what agents send to each other outlives the processes that send and receive it."""

from holdfast.peers.checkpoint_service import CheckpointService
from holdfast.peers.records import (
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    Resolution,
    RestoredTask,
)
from holdfast.peers.task_context import TaskExecutionContext
from holdfast.peers.transports import Delivery, Transport, open_transport

__all__ = [
    "CheckpointService",
    "Delivery",
    "ParallelInvocation",
    "PausedTask",
    "PeerSubTask",
    "Resolution",
    "RestoredTask",
    "TaskExecutionContext",
    "Transport",
    "open_transport",
]
