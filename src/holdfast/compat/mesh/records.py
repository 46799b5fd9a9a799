"""What is stored about paused tasks, in the tables and columns of seed 000 §5.

Moments are seconds since 1970, as there. They are views: the truth is in runs, checkpoints, waits.
"""

from typing import Any, NamedTuple

import msgspec

from holdfast.compat.mesh.task_context import TaskExecutionContext


class PausedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `agent_paused_tasks`."""

    logical_task_id: str
    agent_name: str
    a2a_context: dict[str, Any]
    effective_session_id: str | None
    user_id: str | None
    current_invocation_id: str | None
    produced_artifacts: list[Any]
    artifact_signals_to_return: list[Any]
    response_buffer: str
    flags: dict[str, Any]
    security_context: dict[str, str]
    token_usage: dict[str, Any]
    checkpointed_at: float


class PeerSubTask(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `agent_peer_sub_tasks`. `claimed_until` is 0 unless somebody is about to answer."""

    sub_task_id: str
    logical_task_id: str
    invocation_id: str
    correlation_data: dict[str, Any]
    timeout_deadline: float
    created_at: float
    claimed_until: float = 0.0


class ParallelInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `agent_parallel_invocations`; `results` in the order of the calls."""

    logical_task_id: str
    invocation_id: str
    total_expected: int
    completed_count: int
    results: list[Any]


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an answer: `accepted` once for each call, whatever races."""

    accepted: bool
    sub_task_id: str
    logical_task_id: str = ""
    invocation_id: str = ""
    completed: int = 0
    total: int = 0

    @property
    def is_last(self) -> bool:
        """Whether this answer was the one that completed its invocation."""
        return self.accepted and self.completed == self.total


class RestoredTask(NamedTuple):
    """A task that is resumed here, and the results of its calls in the order they were made."""

    task_context: TaskExecutionContext
    results_to_inject: list[Any]
