"""Checkpoints that tell of the work itself, and going on from them (seed 003)."""

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
from holdfast.recovery.checkpoint_service import CheckpointService
from holdfast.recovery.stored import CheckpointQuery, SearchResult, StoredRecord

__all__ = [
    "CheckpointQuery",
    "CheckpointService",
    "Compliance",
    "ContextSummary",
    "Decision",
    "ExecutionState",
    "Item",
    "Metadata",
    "Metrics",
    "Phase",
    "Record",
    "Recovery",
    "SearchResult",
    "StoredRecord",
    "TestsStatus",
    "hash_of",
]
