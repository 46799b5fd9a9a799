"""What tools report of runs, as data with a schema."""

from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast import clock
from holdfast.agents.work.approvals import Asked
from holdfast.app import Holdfast
from holdfast.edges.mcp.resources import addresses
from holdfast.kernel.runs import ENDED, BlockedReason, RunRow, RunStatus
from holdfast.workflows.execution.kit import AGENT as WORKFLOW

MOST_BYTES: Final = 256 * 1024
"""Larger values are left out of a result; the run's resource has them."""
MOST_QUESTIONS: Final = 100
_SHOWN: Final = 500


class Room:
    """Room for values in one result: what does not fit any more is left out of it."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most

    def takes(self, value: Any) -> bool:
        """Return whether a value still fits; if so, use up its room."""
        size = size_of(value)
        if size > self._left:
            return False
        self._left -= size
        return True


def size_of(value: Any) -> int:
    """How many bytes of JSON a value is."""
    return len(msgspec.json.encode(value))


class QuestionView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a person is asked. `name` is what an answer to a workflow goes by.

    If `is_cut`, there was no room for all of it; the transcript of its run has it.
    """

    name: str
    wait_id: str
    run_id: str
    kind: str
    prompt: str
    schema: Any = None
    choices: list[Any] | None = None
    expires_at: datetime | None = None
    problem: str = ""
    tool: str = ""
    args: Any = None
    args_digest: str = ""
    asked_at: datetime | None = None
    is_cut: bool = False


class BlockView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a block of a workflow."""

    status: str
    error: str = ""
    seconds: float = 0.0


class RunView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run stands. `next` says what can be done; `result` is there when it has completed.

    One that `is_blocked_below` waits for a run of its own that is blocked until an operator acts.
    A `result` that is too large is left out: `is_cut`, and the resource that `next` names has it.
    """

    run_id: str
    status: str
    agent: str
    workflow: str = ""
    waiting: list[QuestionView] = []
    has_more_waiting: bool = False
    result: Any = None
    is_cut: bool = False
    error: str = ""
    blocked_reason: str = ""
    is_blocked_below: bool = False
    blocks: dict[str, BlockView] = {}
    waves: list[list[str]] = []
    completed_waves: int = 0
    parent_id: str = ""
    created_at: datetime | None = None
    note: str = ""
    next: str = ""


async def view_of(hf: Holdfast, run: RunRow, *, note: str = "") -> RunView:
    """Return a run with what it waits for, its result, and the outcome of its blocks."""
    is_workflow = run.agent == WORKFLOW
    view = await _of_workflow(hf, run) if is_workflow else await _of_agent(hf, run)
    if view.result is not None and size_of(view.result) > MOST_BYTES:
        view = msgspec.structs.replace(view, result=None, is_cut=True)
    is_silent = run.status is RunStatus.WAITING and not view.waiting
    room = Room()
    view = msgspec.structs.replace(
        view,
        waiting=[fitted(each, room) for each in view.waiting],
        blocked_reason=run.blocked_reason,
        is_blocked_below=is_silent and await hf.approvals.needs_a_person(run),
        parent_id=run.parent_id,
        created_at=clock.to_datetime(run.created_at),
        note=note,
    )
    return msgspec.structs.replace(view, next=_next(view))


async def _of_workflow(hf: Holdfast, run: RunRow) -> RunView:
    outcome = await hf.workflows.status(run.run_id)
    return RunView(
        run_id=run.run_id,
        status=outcome.status,
        agent=run.agent,
        workflow=outcome.workflow,
        waiting=[
            question_of(await hf.approvals.get(each.wait_id), name=each.block)
            for each in outcome.waiting[:MOST_QUESTIONS]
        ],
        has_more_waiting=len(outcome.waiting) > MOST_QUESTIONS,
        result=outcome.outputs,
        error=outcome.error,
        blocks={
            name: BlockView(status=each.status, error=each.error, seconds=round(each.seconds, 3))
            for name, each in outcome.blocks.items()
        },
        waves=outcome.waves,
        completed_waves=outcome.completed_waves,
    )


async def _of_agent(hf: Holdfast, run: RunRow) -> RunView:
    has_error = run.status in (RunStatus.FAILED, RunStatus.BLOCKED)
    has_ended, most = run.status in ENDED, MOST_QUESTIONS
    asked = [] if has_ended else await hf.approvals.list(run_id=run.run_id, limit=most + 1)
    return RunView(
        run_id=run.run_id,
        status=run.status.value,
        agent=run.agent,
        waiting=[question_of(each) for each in asked[:most]],
        has_more_waiting=len(asked) > most,
        result=await hf.runs.result(run.run_id) if run.status is RunStatus.COMPLETED else None,
        error=await hf.runs.note(run.run_id) if has_error else "",
    )


def question_of(asked: Asked, *, name: str = "") -> QuestionView:
    """A question as clients see it."""
    return QuestionView(
        name=name or asked.name or asked.wait_id,
        wait_id=asked.wait_id,
        run_id=asked.run_id,
        kind=asked.kind,
        prompt=asked.prompt,
        schema=asked.schema,
        choices=asked.choices,
        expires_at=clock.to_datetime(asked.deadline) if asked.deadline else None,
        problem=asked.problem,
        tool=asked.tool,
        args=asked.args,
        args_digest=asked.args_digest,
        asked_at=clock.to_datetime(asked.asked_at),
    )


def fitted(question: QuestionView, room: Room) -> QuestionView:
    """A question, without what is large about it if there is no room for that."""
    if room.takes(question):
        return question
    return msgspec.structs.replace(
        question,
        prompt=question.prompt[:_SHOWN],
        problem=question.problem[:_SHOWN],
        schema=None,
        choices=None,
        args=None,
        is_cut=True,
    )


def _next_of_blocked(view: RunView) -> str:
    if view.blocked_reason == BlockedReason.UNKNOWN_EFFECT:
        return (
            f"Somebody must find out: list_unknown_effects(run_id={view.run_id!r}) tells of calls "
            "in doubt, and resolve_effect says what became of them."
        )
    verb = "budget --add" if view.blocked_reason == BlockedReason.BUDGET else "unblock"
    return f"An operator must act where the server is: `holdfast runs {verb}` of this run."


def _next(view: RunView) -> str:
    """What the caller can do now."""
    at = f"run_id={view.run_id!r}"
    if view.is_cut:
        return f"Its result is large: read the resource {addresses.result(view.run_id)}."
    if view.status == RunStatus.BLOCKED:
        return _next_of_blocked(view)
    if view.status in ENDED:
        above = f"It is a part of another: get_run(run_id={view.parent_id!r})."
        return above if view.parent_id else ""
    if view.waiting and view.workflow:
        names = ", ".join(f"{each.name!r}: ..." for each in view.waiting)
        return f"Ask a person, then resume_workflow({at}, answers={{{names}}})."
    if view.waiting:
        ids = " or ".join(f"wait_id={each.wait_id!r}" for each in view.waiting)
        return f"Ask a person, then answer({ids}, value=...)."
    if view.is_blocked_below:
        return (
            "A run that it began is blocked, and an operator must act: "
            f"list_unknown_effects({at}), or list_runs(parent_id={view.run_id!r})."
        )
    return f"It goes on by itself; get_run({at}, wait_seconds=60) waits for it."
