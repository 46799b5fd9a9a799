"""A task on its way into the store: the parts of its state, and a wait for each open call."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from holdfast.compat.mesh import answers
from holdfast.compat.mesh.rows import PeerCallRow
from holdfast.engine.waits import WaitSpec
from holdfast.errors import MisuseError
from holdfast.kernel.peers import PEER

_TASK_CONTEXT: Final = "original_task_context"


def parts_of(stored: Mapping[str, Any], *, agent_name: str, since: int) -> dict[str, Any]:
    """The state of the run: what a checkpoint dict has, but for the calls, which are rows."""
    left_out = {"active_peer_sub_tasks", "security_references"}
    kept = {name: value for name, value in stored.items() if name not in left_out}
    return {**kept, "agent_name": agent_name, "since": since}


class Timing(NamedTuple):
    """How long calls may take: `default_seconds`, unless they have a timeout.

    `elapsed_seconds` has by sub-task how long ago its call was sent.
    """

    default_seconds: float
    elapsed_seconds: Mapping[str, float] = {}


def specs_of(stored: Mapping[str, Any], timing: Timing) -> list[list[WaitSpec]]:
    """Return a wait for each open call, grouped by invocation, in the order of the calls."""
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for sub_task_id, correlation_data in stored["active_peer_sub_tasks"].items():
        invocation_id = _invocation_of(correlation_data, stored)
        groups.setdefault(invocation_id, []).append((sub_task_id, correlation_data))
    known: dict[str, dict[str, Any]] = stored["parallel_tool_calls"]
    for invocation_id, calls in known.items():
        _check_complete(invocation_id, calls, len(groups.get(invocation_id, ())))
    return [
        [
            _spec(sub_task_id, _correlation_of(data, stored), timing, invocation_id, known)
            for sub_task_id, data in calls
        ]
        for invocation_id, calls in groups.items()
    ]


def _correlation_of(data: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a call, without the task's context, which is stored once already."""
    context = stored["a2a_context"]
    return {
        name: value
        for name, value in data.items()
        if name != _TASK_CONTEXT and not (context and value == context)
    }


def _invocation_of(correlation_data: object, stored: Mapping[str, Any]) -> str:
    if not isinstance(correlation_data, dict):
        raise MisuseError("the correlation data of a sub-task is a dict")
    data = cast("dict[str, Any]", correlation_data)
    return str(data.get("invocation_id") or stored["current_invocation_id"] or stored["task_id"])


def _check_complete(invocation_id: str, calls: Mapping[str, Any], still_open: int) -> None:
    """Raise if an answer was claimed in memory and not recorded: it would be lost."""
    missing = calls.get("total", 0) - calls.get("completed", 0) - still_open
    if missing > 0:
        raise MisuseError(
            f"{missing} answers of invocation {invocation_id} were claimed in memory and not "
            "recorded there; record them first, then pause"
        )


def _spec(
    sub_task_id: str,
    correlation_data: dict[str, Any],
    timing: Timing,
    invocation_id: str,
    known: Mapping[str, Mapping[str, Any]],
) -> WaitSpec:
    timeout = correlation_data.get("timeout_seconds")
    if timeout is None:
        timeout = timing.default_seconds
    if type(timeout) not in (int, float) or timeout <= 0:
        raise MisuseError(f"timeout_seconds of sub-task {sub_task_id} is {timeout!r}; give seconds")
    before = int(known.get(invocation_id, {}).get("completed", 0))
    return WaitSpec(
        wait_id=sub_task_id,
        kind=PEER,
        name=str(correlation_data.get("peer_agent_name") or answers.tool_of(correlation_data)),
        timeout_seconds=timeout,
        elapsed_seconds=timing.elapsed_seconds.get(sub_task_id, 0.0),
        payload=PeerCallRow(invocation_id, correlation_data, before),
    )
