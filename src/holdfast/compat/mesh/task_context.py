"""What a task of Solace Agent Mesh knows while it runs, and which of it outlives a pause.

The names are those of seed 000 §6 and seed 002 §3.1, so that code written for it is found again.
"""

import asyncio
import copy
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from holdfast.clock import MICROSECONDS, Clock, SystemClock
from holdfast.compat.mesh import security
from holdfast.compat.mesh.answers import timed_out
from holdfast.telemetry import log

_IDS: Final = frozenset({"task_id", "current_invocation_id"})


class TaskExecutionContext:
    """One task in memory. Its methods may be called from any thread; each holds the lock."""

    def __init__(
        self,
        task_id: str,
        a2a_context: Mapping[str, Any] | None = None,
        *,
        security_context: Mapping[str, Any] | None = None,
        security_references: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.task_id = task_id
        self.a2a_context: dict[str, Any] = dict(a2a_context or {})
        self.current_invocation_id: str | None = None
        self.run_based_response_buffer = ""
        self.produced_artifacts: list[dict[str, Any]] = []
        self.artifact_signals_to_return: list[dict[str, Any]] = []
        self.flags: dict[str, Any] = {}
        self.security_context: dict[str, Any] = dict(security_context or {})
        self.security_references: dict[str, str] = dict(security_references or {})
        """For keys of `security_context`: what is stored in place of the value."""
        self.retry_counts: dict[str, int] = {}
        self._set_token_usage({})
        self._clock = clock or SystemClock()
        self._dispatched_at: dict[str, int] = {}
        self.active_peer_sub_tasks: dict[str, dict[str, Any]] = {}
        self.parallel_tool_calls: dict[str, dict[str, Any]] = {}
        self._set_transient()

    def _set_transient(self) -> None:
        """Set what belongs to this process only, and is reset by a pause."""
        self.lock = threading.Lock()
        self.cancellation_event = asyncio.Event()
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self.streaming_buffer = ""
        self._first_text_seen_in_turn = False
        self._need_spacing_before_next_text = False
        self._original_solace_message: object | None = None

    def _set_token_usage(self, usage: Mapping[str, Any]) -> None:
        self.total_input_tokens: int = usage.get("total_input_tokens", 0)
        self.total_output_tokens: int = usage.get("total_output_tokens", 0)
        self.total_cached_input_tokens: int = usage.get("total_cached_input_tokens", 0)
        self.token_usage_by_model: dict[str, Any] = copy.deepcopy(usage.get("by_model", {}))
        self.token_usage_by_source: dict[str, Any] = copy.deepcopy(usage.get("by_source", {}))

    @property
    def original_message(self) -> object | None:
        """The broker's message that began the task; it is acknowledged at a pause, not stored."""
        return self._original_solace_message

    @original_message.setter
    def original_message(self, message: object | None) -> None:
        self._original_solace_message = message

    # Calls of peers.

    def register_peer_sub_task(self, sub_task_id: str, correlation_data: Mapping[str, Any]) -> None:
        """Register a call of a peer, just before it is sent: its timeout starts now."""
        with self.lock:
            self._dispatched_at[sub_task_id] = self._clock.steady()
            self.active_peer_sub_tasks[sub_task_id] = dict(correlation_data)

    def claim_sub_task_completion(self, sub_task_id: str) -> dict[str, Any] | None:
        """Claim a call, to process its end; None if another caller has done so."""
        with self.lock:
            self._dispatched_at.pop(sub_task_id, None)
            return self.active_peer_sub_tasks.pop(sub_task_id, None)

    def seconds_since_dispatch(self) -> dict[str, float]:
        """Return how long ago each open call was registered, by sub-task."""
        with self.lock:
            now = self._clock.steady()
            return {
                sub_task_id: max(0, now - at) / MICROSECONDS
                for sub_task_id, at in self._dispatched_at.items()
            }

    def register_parallel_call_sent(self, invocation_id: str) -> None:
        """Count a call of an invocation that will bring a result."""
        with self.lock:
            self._invocation(invocation_id)["total"] += 1

    def record_parallel_result(self, result: Any, invocation_id: str) -> bool:
        """Keep a result that came while the task is in memory; return whether all are in."""
        with self.lock:
            calls = self._invocation(invocation_id)
            calls["completed"] += 1
            calls["results"].append(result)
            return calls["completed"] >= calls["total"]

    def handle_peer_timeout(
        self,
        sub_task_id: str,
        correlation_data: Mapping[str, Any],
        timeout_seconds: float,
        invocation_id: str,
    ) -> bool:
        """Record an error in place of an answer that timed out; return whether all are in."""
        log.warning("peer sub-task %s of task %s timed out", sub_task_id, self.task_id)
        result = timed_out(correlation_data, timeout_seconds)
        return self.record_parallel_result(result, invocation_id)

    def _invocation(self, invocation_id: str) -> dict[str, Any]:
        new: dict[str, Any] = {"total": 0, "completed": 0, "results": []}
        return self.parallel_tool_calls.setdefault(invocation_id, new)

    def register_peer_results(self, results: Iterable[Any]) -> None:
        """Take over the artifacts, artifact signals and flags of every result, in their order."""
        with self.lock:
            for result in results:
                if isinstance(result, Mapping):
                    self._take_over(copy.deepcopy(dict(result)))  # pyright: ignore[reportUnknownArgumentType] - plain data

    def _take_over(self, result: dict[str, Any]) -> None:
        self.produced_artifacts += result.get("produced_artifacts") or []
        self.artifact_signals_to_return += result.get("artifact_signals_to_return") or []
        self.flags |= result.get("flags") or {}

    # What a turn adds.

    def append_to_run_based_buffer(self, text: str) -> None:
        with self.lock:
            self.run_based_response_buffer += text

    def register_produced_artifact(self, artifact: Mapping[str, Any]) -> None:
        with self.lock:
            self.produced_artifacts.append(dict(artifact))

    def count_retry(self, name: str) -> int:
        """Count one more try of something; return how many there were, pauses included."""
        with self.lock:
            self.retry_counts[name] = self.retry_counts.get(name, 0) + 1
            return self.retry_counts[name]

    def record_token_usage(
        self,
        input_tokens: int,
        output_tokens: int,
        model: str,
        source: str = "agent",
        cached_input_tokens: int = 0,
    ) -> None:
        """Add to the totals, and to those of the model and of what asked it."""
        used = {
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cached_input_tokens": cached_input_tokens,
        }
        with self.lock:
            self.total_input_tokens += input_tokens
            self.total_output_tokens += output_tokens
            self.total_cached_input_tokens += cached_input_tokens
            for table, name in (
                (self.token_usage_by_model, model),
                (self.token_usage_by_source, source),
            ):
                known = table.setdefault(name, dict.fromkeys(used, 0))
                for kind, amount in used.items():
                    known[kind] = known.get(kind, 0) + amount

    def cancel(self) -> None:
        """Ask the code that works on the task here to stop."""
        self.cancellation_event.set()

    def is_cancelled(self) -> bool:
        return self.cancellation_event.is_set()

    # Pauses.

    def to_checkpoint_dict(self) -> dict[str, Any]:
        """Return all that outlives a pause, as plain data that nothing here can change any more.

        No secret is in it: of `security_context` the references are kept, and a secret in other
        fields, such as the data of a call, is removed.
        """
        with self.lock:
            kept = {
                "task_id": self.task_id,
                "a2a_context": self.a2a_context,
                "current_invocation_id": self.current_invocation_id,
                "run_based_response_buffer": self.run_based_response_buffer,
                "produced_artifacts": self.produced_artifacts,
                "artifact_signals_to_return": self.artifact_signals_to_return,
                "flags": self.flags,
                "token_usage": self._token_usage(),
                "active_peer_sub_tasks": self.active_peer_sub_tasks,
                "parallel_tool_calls": self.parallel_tool_calls,
                "retry_counts": self.retry_counts,
            }
            secrets = security.secrets_in(self.security_context)
            plain: dict[str, Any] = {
                name: value if name in _IDS else security.without(value, secrets)
                for name, value in copy.deepcopy(kept).items()
            }
            references = security.references_of(self.security_context, self.security_references)
        return {**plain, "security_context": references, "security_references": dict(references)}

    def _token_usage(self) -> dict[str, Any]:
        return {
            "total_input_tokens": self.total_input_tokens,
            "total_output_tokens": self.total_output_tokens,
            "total_cached_input_tokens": self.total_cached_input_tokens,
            "by_model": self.token_usage_by_model,
            "by_source": self.token_usage_by_source,
        }

    @classmethod
    def from_checkpoint_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Return the task as it was, with a new lock and event, and nothing transient.

        Calls of peers and their counts are left empty: they are rows, and their results are given
        to the task when it resumes.
        """
        known = copy.deepcopy(dict(stored))
        restored = cls(
            known["task_id"],
            known.get("a2a_context"),
            security_context=known.get("security_context"),
            security_references=known.get("security_references"),
        )
        restored.current_invocation_id = known.get("current_invocation_id")
        restored.run_based_response_buffer = known.get("run_based_response_buffer") or ""
        restored.produced_artifacts = known.get("produced_artifacts") or []
        restored.artifact_signals_to_return = known.get("artifact_signals_to_return") or []
        restored.flags = known.get("flags") or {}
        restored.retry_counts = known.get("retry_counts") or {}
        restored._set_token_usage(known.get("token_usage") or {})
        return restored
