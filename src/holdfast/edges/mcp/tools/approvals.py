"""Tools for people's answers: what runs ask, and answering it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.edges.mcp import answers
from holdfast.edges.mcp.contract import (
    FollowedRun,
    Limit,
    McpCall,
    RunId,
    ServedTool,
    WaitSeconds,
    served,
)
from holdfast.edges.mcp.views import QuestionView, Room, fitted, question_of

WaitId = Annotated[
    str, Meta(description="The id of a question: see list_approvals.", min_length=1, max_length=255)
]


class ListApprovals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId | None = None
    limit: Limit = 50


class ListedApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """Open questions and approval requests, oldest first. More are shown when these are answered,
    or with a larger limit."""

    approvals: list[QuestionView]
    has_more: bool


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    wait_id: WaitId
    value: Annotated[
        Any,
        Meta(
            description="What the person says, as the question's schema or choices want it; true "
            "or false for an approval request."
        ),
    ]
    note: Annotated[
        str, Meta(description="Why; the agent sees it with an approval.", max_length=4000)
    ] = ""
    digest: Annotated[
        str,
        Meta(
            description="The args_digest that the person saw, so that nothing else is approved.",
            max_length=255,
        ),
    ] = ""
    wait_seconds: WaitSeconds = 0.0


@served(title="List open questions", is_read_only=True)
async def list_approvals(call: McpCall, given: ListApprovals) -> ListedApprovals:
    """What the caller's runs ask people, oldest first: questions, and calls to be permitted.

    With `run_id` only what this run and those that it waits for ask.
    """
    if given.run_id is not None:
        await call.run(given.run_id)
    found = await call.hf.approvals.list(
        run_id=given.run_id, owner=call.principal.owner, limit=given.limit + 1
    )
    room = Room()
    return ListedApprovals(
        approvals=[fitted(question_of(each), room) for each in found[: given.limit]],
        has_more=len(found) > given.limit,
    )


@served(title="Answer a question", begins_runs=True, is_idempotent=True, is_open_world=True)
async def answer(call: McpCall, given: ApprovalAnswer) -> FollowedRun:
    """Answer what a run asks, or permit or reject a call; the result says where the run stands.

    Ask a person first. The first answer stays: the same one again changes nothing, another one
    is refused. With `wait_seconds` it waits so long for what comes of it.
    """
    asked = await answers.give(
        call, given.wait_id, given.value, note=given.note, digest=given.digest
    )
    return FollowedRun(asked.run_id)


TOOLS: tuple[ServedTool, ...] = (list_approvals, answer)
