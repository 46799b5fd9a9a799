"""Giving answers for a caller: the same one again is harmless, whoever gives it."""

from collections.abc import Mapping
from typing import Any, cast

from holdfast import names
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import APPROVAL
from holdfast.agents.work.approvals import Asked, is_said, verdict_of
from holdfast.edges.mcp.contract import Call
from holdfast.edges.mcp.views import Question
from holdfast.errors import AlreadyAnswered, AnswerRefused, MisuseError, WaitNotFound


async def give(call: Call, wait_id: str, value: Any, *, note: str = "", digest: str = "") -> Asked:
    """Answer a question or decide on an approval request; what is asked, and by whom answered.

    Raises AnswerRefused if the value does not fit, and AlreadyAnswered if another one was given.
    """
    asked = await visible(call, wait_id)
    verdict = _verdict(asked, value, note) if asked.kind == APPROVAL else None
    try:
        if verdict is None:
            if digest:
                raise MisuseError(f"{wait_id} is a question: there are no arguments to approve")
            names.check_text(note, what="note")
            await call.hf.approvals.answer(wait_id, value, by=call.by)
        elif verdict[0]:
            await call.hf.approvals.approve(wait_id, by=call.by, note=verdict[1], digest=digest)
        else:
            await call.hf.approvals.reject(wait_id, by=call.by, note=verdict[1])
    except AlreadyAnswered:
        said = value if verdict is None else verdict[0]
        if not is_said(await call.hf.approvals.get(wait_id), said):
            raise
    return await call.hf.approvals.get(wait_id)


async def visible(call: Call, wait_id: str) -> Asked:
    """What is asked, if the caller may see the run that asks."""
    asked = await call.hf.approvals.get(wait_id)
    await call.check_visible(asked.run_id, WaitNotFound(f"there is no wait {wait_id!r}"))
    return asked


def check(question: Question, value: Any) -> None:
    """Raise AnswerRefused unless the value answers the question, MisuseError if it is too much."""
    if question.kind == APPROVAL:
        _, note = _verdict(question, value, "")
        names.check_text(note, what="note")
    else:
        questions.check_answer(value, schema=question.schema, choices=question.choices)


def _verdict(asked: Asked | Question, value: Any, note: str) -> tuple[bool, str]:
    """Yes or no, and why: `true`, `"yes"`, or what a form says."""
    told: Any = value
    if isinstance(value, Mapping):
        form = cast("Mapping[str, Any]", value)
        told = form.get("approve", form.get("approved"))
        note = note or str(form.get("note") or "")
    verdict = verdict_of(told.strip().lower() if isinstance(told, str) else told)
    if verdict is None:
        raise AnswerRefused(f"{asked.prompt} Say true or false, not {value!r:.80}")
    return verdict, note
