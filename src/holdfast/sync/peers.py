"""Tasks that pause for their peers, for code that blocks."""

from typing import Any

from holdfast.compat.mesh import checkpoint_service
from holdfast.compat.mesh.records import (
    ParallelInvocation,
    PausedTask,
    PeerSubTask,
    Resolution,
    RestoredTask,
)
from holdfast.compat.mesh.security import Remint
from holdfast.compat.mesh.task_context import TaskExecutionContext
from holdfast.engine.waits import CLAIM_SECONDS
from holdfast.sync.app import Holdfast
from holdfast.sync.loop import Face, blocking


@blocking(checkpoint_service.CheckpointService)
class CheckpointService(Face[checkpoint_service.CheckpointService]):
    """Tasks that pause for their peers; any process with the same store can go on with them."""

    def __init__(
        self,
        hf: Holdfast,
        *,
        remint: Remint | None = None,
        default_timeout_seconds: float = 600.0,
    ) -> None:
        inner = checkpoint_service.CheckpointService(
            hf._inner,
            remint=remint,
            default_timeout_seconds=default_timeout_seconds,
        )
        super().__init__(hf._loop, inner)

    def checkpoint_task(self, task_context: TaskExecutionContext, agent_name: str) -> None:
        return self._call(self._inner.checkpoint_task, task_context, agent_name)

    def resolve_wait_once(self, sub_task_id: str, result: object) -> Resolution:
        return self._call(self._inner.resolve_wait_once, sub_task_id, result)

    def claim_peer_sub_task(
        self, sub_task_id: str, *, seconds: float = CLAIM_SECONDS
    ) -> dict[str, Any] | None:
        return self._call(self._inner.claim_peer_sub_task, sub_task_id, seconds=seconds)

    def record_parallel_result(
        self,
        logical_task_id: str,
        invocation_id: str,
        result: object,
        sub_task_id: str | None = None,
    ) -> tuple[int, int]:
        return self._call(
            self._inner.record_parallel_result, logical_task_id, invocation_id, result, sub_task_id
        )

    def get_parallel_results(self, logical_task_id: str, invocation_id: str) -> list[Any]:
        return self._call(self._inner.get_parallel_results, logical_task_id, invocation_id)

    def get_parallel_invocation(
        self, logical_task_id: str, invocation_id: str
    ) -> ParallelInvocation | None:
        return self._call(self._inner.get_parallel_invocation, logical_task_id, invocation_id)

    def get_peer_sub_task(self, sub_task_id: str) -> PeerSubTask | None:
        return self._call(self._inner.get_peer_sub_task, sub_task_id)

    def get_peer_sub_tasks_for_task(self, logical_task_id: str) -> list[PeerSubTask]:
        return self._call(self._inner.get_peer_sub_tasks_for_task, logical_task_id)

    def reset_timeout_deadline(
        self, sub_task_id: str, timeout_seconds: float | None = None
    ) -> bool:
        return self._call(self._inner.reset_timeout_deadline, sub_task_id, timeout_seconds)

    def sweep_expired_timeouts(
        self, agent_name: str, limit: int | None = None
    ) -> list[PeerSubTask]:
        return self._call(self._inner.sweep_expired_timeouts, agent_name, limit)

    def restore_task(self, logical_task_id: str) -> dict[str, Any] | None:
        return self._call(self._inner.restore_task, logical_task_id)

    def restore_task_from_checkpoint(self, logical_task_id: str) -> RestoredTask | None:
        return self._call(self._inner.restore_task_from_checkpoint, logical_task_id)

    def restore_next(self, agent_name: str, timeout_seconds: float = 0.0) -> RestoredTask | None:
        return self._call(self._inner.restore_next, agent_name, timeout_seconds)

    def release_task(self, logical_task_id: str, *, delay_seconds: float = 0.0) -> bool:
        return self._call(self._inner.release_task, logical_task_id, delay_seconds=delay_seconds)

    def get_paused_task(self, logical_task_id: str) -> PausedTask | None:
        return self._call(self._inner.get_paused_task, logical_task_id)

    def cleanup_task(self, logical_task_id: str, result: object = None) -> bool:
        return self._call(self._inner.cleanup_task, logical_task_id, result)
