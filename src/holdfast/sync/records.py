"""Checkpoints that tell of the work, for code that blocks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.kernel.records import AGENT_TYPES, Record
from holdfast.records import checkpoint_service
from holdfast.records.stored import (
    CheckpointQuery,
    HandoffResult,
    RecoveryResult,
    SearchResult,
    StoredRecord,
)
from holdfast.sync.app import Holdfast
from holdfast.sync.loop import Face, blocking


@blocking(checkpoint_service.CheckpointService)
class CheckpointService(Face[checkpoint_service.CheckpointService]):
    """Checkpoints of tasks, for whoever works on them without being an agent of Holdfast."""

    def __init__(self, hf: Holdfast, *, agent_types: Sequence[str] = AGENT_TYPES) -> None:
        inner = checkpoint_service.CheckpointService(hf._inner, agent_types=agent_types)
        super().__init__(hf._loop, inner)

    def create_checkpoint(
        self,
        task_id: str,
        agent_id: str,
        state: Record | Mapping[str, Any],
        *,
        agent_type: str = "",
        label: str = "",
        summary: str = "",
        expected_latest: UUID | str | None = None,
    ) -> StoredRecord:
        return self._call(
            self._inner.create_checkpoint,
            task_id,
            agent_id,
            state,
            agent_type=agent_type,
            label=label,
            summary=summary,
            expected_latest=expected_latest,
        )

    def update_checkpoint(
        self,
        checkpoint_id: UUID | str,
        partial: Record | Mapping[str, Any],
        *,
        summary: str | None = None,
        expected_revision: int | None = None,
        by: str = "",
    ) -> StoredRecord:
        return self._call(
            self._inner.update_checkpoint,
            checkpoint_id,
            partial,
            summary=summary,
            expected_revision=expected_revision,
            by=by,
        )

    def finalize_checkpoint(self, checkpoint_id: UUID | str, status: str, *, by: str = "") -> None:
        return self._call(self._inner.finalize_checkpoint, checkpoint_id, status, by=by)

    def link_checkpoints(
        self, parent_id: UUID | str, child_id: UUID | str, *, by: str = ""
    ) -> None:
        return self._call(self._inner.link_checkpoints, parent_id, child_id, by=by)

    def initiate_handoff(
        self,
        checkpoint_id: UUID | str,
        *,
        to: str = "",
        acknowledge_seconds: float = 30.0,
        note: str = "",
        by: str = "",
    ) -> HandoffResult:
        return self._call(
            self._inner.initiate_handoff,
            checkpoint_id,
            to=to,
            acknowledge_seconds=acknowledge_seconds,
            note=note,
            by=by,
        )

    def acknowledge_handoff(self, checkpoint_id: UUID | str, new_agent_id: str) -> None:
        return self._call(self._inner.acknowledge_handoff, checkpoint_id, new_agent_id)

    def find_recovery_point(self, task_id: str) -> StoredRecord | None:
        return self._call(self._inner.find_recovery_point, task_id)

    def execute_recovery(
        self, checkpoint_id: UUID | str, *, by: str = "", note: str = ""
    ) -> RecoveryResult:
        return self._call(self._inner.execute_recovery, checkpoint_id, by=by, note=note)

    def get_checkpoint(
        self, checkpoint_id: UUID | str, *, revision: int | None = None
    ) -> StoredRecord | None:
        return self._call(self._inner.get_checkpoint, checkpoint_id, revision=revision)

    def get_latest_checkpoint(self, task_id: str) -> StoredRecord | None:
        return self._call(self._inner.get_latest_checkpoint, task_id)

    def get_checkpoint_history(
        self, task_id: str, *, limit: int = 100, before: int | None = None
    ) -> list[StoredRecord]:
        return self._call(self._inner.get_checkpoint_history, task_id, limit=limit, before=before)

    def get_checkpoints_by_agent(
        self,
        agent_id: str,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        limit: int = 100,
        cursor: str = "",
    ) -> SearchResult:
        return self._call(
            self._inner.get_checkpoints_by_agent,
            agent_id,
            since,
            until,
            limit=limit,
            cursor=cursor,
        )

    def search_checkpoints(self, query: CheckpointQuery | Mapping[str, Any]) -> SearchResult:
        return self._call(self._inner.search_checkpoints, query)
