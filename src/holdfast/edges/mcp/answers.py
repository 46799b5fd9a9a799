"""Give answers for a caller: repeating the same answer is harmless, from any caller."""

from collections.abc import Mapping
from typing import Any, cast

from holdfast import names
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import APPROVAL
from holdfast.agents.work.approvals import Asked, is_said, verdict_of
from holdfast.edges.mcp.contract import McpCall
from holdfast.edges.mcp.views import QuestionView
from holdfast.errors import AlreadyAnswered, AnswerRefused, MisuseError, WaitNotFound


async def give(
    call: McpCall, wait_id: str, value: Any, *, note: str = "", digest: str = ""
) -> Asked:
    """Answer a question or decide on an approval; return the question and who answered it.

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


async def visible(call: McpCall, wait_id: str) -> Asked:
    """What is asked, if the caller may see the run that asks."""
    asked = await call.hf.approvals.get(wait_id)
    await call.check_visible(asked.run_id, WaitNotFound(f"there is no wait {wait_id!r}"))
    return asked


def check(question: QuestionView, value: Any) -> None:
    """Raise AnswerRefused unless the value answers the question, MisuseError if it is too much."""
    if question.kind == APPROVAL:
        _, note = _verdict(question, value, "")
        names.check_text(note, what="note")
    else:
        questions.check_answer(value, schema=question.schema, choices=question.choices)


def _verdict(asked: Asked | QuestionView, value: Any, note: str) -> tuple[bool, str]:
    """Yes or no, and why: `true`, `"yes"`, or what a form says."""
    decision: Any = value
    if isinstance(value, Mapping):
        form = cast("Mapping[str, Any]", value)
        decision = form.get("approve", form.get("approved"))
        note = note or str(form.get("note") or "")
    verdict = verdict_of(decision.strip().lower() if isinstance(decision, str) else decision)
    if verdict is None:
        raise AnswerRefused(f"{asked.prompt} Say true or false, not {value!r:.80}")
    return verdict, note
