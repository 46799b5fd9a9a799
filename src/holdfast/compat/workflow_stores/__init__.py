"""For workflow engines that bring their own executor: stores of their checkpoints, and cleaning."""

from holdfast.compat.workflow_stores.checkpoint_state import CheckpointState, PauseMetadata
from holdfast.compat.workflow_stores.checkpoint_store import (
    CheckpointStore,
    InMemoryCheckpointStore,
)
from holdfast.compat.workflow_stores.cleanup import (
    Cleaner,
    periodic_cleanup,
    periodic_cleanup_async,
)
from holdfast.compat.workflow_stores.resume import ResumeResult, WorkflowExecutor
from holdfast.compat.workflow_stores.stored_checkpoints import StoredCheckpoints

__all__ = [
    "CheckpointState",
    "CheckpointStore",
    "Cleaner",
    "InMemoryCheckpointStore",
    "PauseMetadata",
    "ResumeResult",
    "StoredCheckpoints",
    "WorkflowExecutor",
    "periodic_cleanup",
    "periodic_cleanup_async",
]
