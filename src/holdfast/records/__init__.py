"""Checkpoints that describe the work itself, and resuming from them (seed 003)."""

from holdfast.kernel.record_proofs import hash_of
from holdfast.kernel.records import (
    Compliance,
    ContextSummary,
    Decision,
    ExecutionState,
    Item,
    Metadata,
    Metrics,
    Phase,
    Record,
    Recovery,
    TestsStatus,
)
from holdfast.records.checkpoint_service import CheckpointService
from holdfast.records.stored import (
    CheckpointQuery,
    HandoffResult,
    RecoveryResult,
    SearchResult,
    StoredRecord,
)

__all__ = [
    "CheckpointQuery",
    "CheckpointService",
    "Compliance",
    "ContextSummary",
    "Decision",
    "ExecutionState",
    "HandoffResult",
    "Item",
    "Metadata",
    "Metrics",
    "Phase",
    "Record",
    "Recovery",
    "RecoveryResult",
    "SearchResult",
    "StoredRecord",
    "TestsStatus",
    "hash_of",
]
