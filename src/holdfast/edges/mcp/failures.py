"""What went wrong, as a result that programs and models can read."""

import json
from typing import Any, Final, cast

import mcp_types as types
import msgspec

from holdfast.app import Holdfast
from holdfast.edges.mcp.contract import BadArguments
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    IntegrityError,
    MisuseError,
    NotFoundError,
    UnavailableError,
    WorkflowInvalid,
)
from holdfast.kernel.runs import RunRow

_RAISED: Final = "json_rpc_error"
_CLASSES: tuple[tuple[type[HoldfastError], str], ...] = (
    (ConflictError, "conflict"),
    (NotFoundError, "not_found"),
    (UnavailableError, "unavailable"),
    (IntegrityError, "integrity"),
    (MisuseError, "misuse"),
)


_MOST: Final = 8000


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is the error's name, `kind` the class of errors it is of."""

    type: str
    kind: str
    message: str
    problems: list[Any] = []
    is_retryable: bool = False


def failure_of(error: HoldfastError | BadArguments) -> ErrorView:
    """An error as data."""
    if isinstance(error, BadArguments):
        return ErrorView(
            type="BadArguments",
            kind="misuse",
            message=f"{error}: {'; '.join(error.problems)}",
            problems=list(error.problems),
        )
    problems = error.problems if isinstance(error, WorkflowInvalid) else ()
    return ErrorView(
        type=type(error).__name__,
        kind=next((name for cls, name in _CLASSES if isinstance(error, cls)), "failed"),
        message=_bounded(str(error)),
        problems=[msgspec.to_builtins(each) for each in problems],
        is_retryable=isinstance(error, UnavailableError),
    )


class ProtocolError(Exception):
    """Raised by an agent that is a tool: its client gets this JSON-RPC error, and no result.

    It is kept with the failed run, so that later readers of the task get the same error.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.failure_details = {_RAISED: {"code": code, "message": message, "data": data}}


async def raised_by(hf: Holdfast, run: RunRow) -> types.ErrorData | None:
    """Return the JSON-RPC error that a failed run raised; None if it raised another error."""
    details = await hf.runs.result(run.run_id)
    has_error = isinstance(details, dict) and _RAISED in details
    raised = cast("dict[str, Any]", details)[_RAISED] if has_error else None
    return None if raised is None else types.ErrorData.model_validate(raised)


def _bounded(message: str) -> str:
    """Limit the length of a message, which may repeat its input."""
    return message if len(message) <= _MOST else f"{message[:_MOST]}…"


def result_of(failure: ErrorView) -> types.CallToolResult:
    """A failure as the result of a tool."""
    body = {"error": msgspec.to_builtins(failure)}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json.dumps(body, ensure_ascii=False))],
        structured_content=body,
        is_error=True,
    )
