"""The status of a workflow's run, as its users see it."""

from datetime import datetime
from typing import Any

import msgspec

from holdfast.workflows.execution.state import BlockResult


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A question that is open: `block` is the path of the block that asks, and names the answer."""

    block: str
    prompt: str
    schema: Any = None
    choices: list[Any] | None = None
    deadline: datetime | None = None
    wait_id: str
    run_id: str
    kind: str = "question"
    problem: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come. `blocks` are those that have ended, by their ids."""

    run_id: str
    workflow: str
    status: str
    waiting: list[Waiting] = []
    outputs: dict[str, Any] | None = None
    error: str = ""
    blocks: dict[str, BlockResult] = {}
    waves: list[list[str]] = []
    completed_waves: int = 0
    lacks: list[str] = []
    """What its blocks need and this process lacks: workers that have it continue the run."""
