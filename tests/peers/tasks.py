"""A task of Solace Agent Mesh for tests: every field filled, and as many calls as wanted."""

from typing import Any

from holdfast.clock import Clock
from holdfast.compat.mesh import TaskExecutionContext

REFERENCE = "secret://sam/auth_token"


def call(number: int, **more: Any) -> dict[str, Any]:
    """The correlation data of a call."""
    return {
        "function_call_id": f"call-{number}",
        "peer_tool_name": f"peer_{number}",
        "peer_agent_name": f"Peer{number}",
    } | more


def task(
    task_id: str = "task-1",
    *,
    calls: int = 2,
    invocation: str = "inv-1",
    clock: Clock | None = None,
    **more: Any,
) -> TaskExecutionContext:
    """A task whose sub-tasks are named `<task>/<invocation>/<number>`."""
    made = TaskExecutionContext(
        task_id,
        {"session_id": "session-1", "effective_session_id": "session-1:run", "user_id": "user-1"},
        security_context={"auth_token": REFERENCE},
        clock=clock,
    )
    made.current_invocation_id = invocation
    made.append_to_run_based_buffer("so far")
    made.register_produced_artifact({"filename": "report.md", "version": 1, "tags": ["draft"]})
    made.artifact_signals_to_return.append({"filename": "report.md", "version": 1})
    made.flags["deep_research_sent"] = True
    made.record_token_usage(100, 20, "model-a", "agent", 5)
    made.record_token_usage(10, 2, "model-b", "tool")
    made.count_retry("node")
    add_calls(made, calls, invocation, **more)
    return made


def add_calls(made: TaskExecutionContext, calls: int, invocation: str, **more: Any) -> None:
    for number in range(calls):
        made.register_parallel_call_sent(invocation)
        data = call(number, invocation_id=invocation, **more)
        made.register_peer_sub_task(sub_task(made.task_id, invocation, number), data)


def sub_task(task_id: str, invocation: str, number: int) -> str:
    return f"{task_id}/{invocation}/{number}"
