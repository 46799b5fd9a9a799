"""Results that replace answers which will not come: exactly one for each call, as an error."""

from collections.abc import Mapping
from typing import Any


def timed_out(correlation_data: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """The result of a call whose peer did not answer in time."""
    seconds = f"{timeout_seconds:.3f}".rstrip("0").rstrip(".")
    return _error(
        correlation_data,
        "timeout",
        f"Request to peer agent tool '{tool_of(correlation_data)}' timed out after "
        f"{seconds} seconds.",
    )


def cancelled(correlation_data: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a call that was given up."""
    text = f"Request to peer agent tool '{tool_of(correlation_data)}' was cancelled."
    return _error(correlation_data, "cancelled", text)


def tool_of(correlation_data: Mapping[str, Any]) -> str:
    """Return the name by which the caller's model knows the peer."""
    named = correlation_data.get("peer_tool_name") or correlation_data.get("peer_agent_name")
    return str(named or "")


def call_of(data: object) -> str:
    """Return the id of the model's call that a result, or a call's data, names; "" if none."""
    if not isinstance(data, Mapping):
        return ""
    named: Mapping[str, Any] = data  # pyright: ignore[reportUnknownVariableType] - plain data
    return str(named.get("adk_function_call_id") or named.get("function_call_id") or "")


def _error(correlation_data: Mapping[str, Any], status: str, text: str) -> dict[str, Any]:
    return {
        "adk_function_call_id": call_of(correlation_data),
        "adk_tool_name": tool_of(correlation_data),
        "payload_type": "error",
        "status": status,
        "payload": {"error": text},
    }
