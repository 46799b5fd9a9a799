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
from holdfast.kernel.runs import Run

_RAISED: Final = "json_rpc_error"
_CLASSES: tuple[tuple[type[HoldfastError], str], ...] = (
    (ConflictError, "conflict"),
    (NotFoundError, "not_found"),
    (UnavailableError, "unavailable"),
    (IntegrityError, "integrity"),
    (MisuseError, "misuse"),
)


_MOST: Final = 8000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is the error's name, `kind` the class of errors it is of."""

    type: str
    kind: str
    message: str
    problems: list[Any] = []
    is_retryable: bool = False


def failure_of(error: HoldfastError | BadArguments) -> Failure:
    """An error as data."""
    if isinstance(error, BadArguments):
        return Failure(
            type="BadArguments",
            kind="misuse",
            message=f"{error}: {'; '.join(error.problems)}",
            problems=list(error.problems),
        )
    problems = error.problems if isinstance(error, WorkflowInvalid) else ()
    return Failure(
        type=type(error).__name__,
        kind=next((name for cls, name in _CLASSES if isinstance(error, cls)), "failed"),
        message=_bounded(str(error)),
        problems=[msgspec.to_builtins(each) for each in problems],
        is_retryable=isinstance(error, UnavailableError),
    )


class ProtocolError(Exception):
    """Raised by an agent that is a tool: its client gets this JSON-RPC error, and no result.

    It is kept with the failed run, so that whoever looks at the task later is told the same.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.failure_details = {_RAISED: {"code": code, "message": message, "data": data}}


async def raised_by(hf: Holdfast, run: Run) -> types.ErrorData | None:
    """The JSON-RPC error that a failed run has raised, if it is one that did."""
    details = await hf.runs.result(run.run_id)
    is_told = isinstance(details, dict) and _RAISED in details
    told = cast("dict[str, Any]", details)[_RAISED] if is_told else None
    return None if told is None else types.ErrorData.model_validate(told)


def _bounded(message: str) -> str:
    """A message that repeats what it was given is not longer than a reader can take."""
    return message if len(message) <= _MOST else f"{message[:_MOST]}…"


def result_of(failure: Failure) -> types.CallToolResult:
    """A failure as the result of a tool."""
    told = {"error": msgspec.to_builtins(failure)}
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=json.dumps(told, ensure_ascii=False))],
        structured_content=told,
        is_error=True,
    )
