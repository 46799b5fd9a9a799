"""Questions and approval requests as people see them, over all runs, and their answers."""

from typing import Any, Final, cast

import msgspec

from holdfast import clock, codec, names
from holdfast.agents.definitions import questions
from holdfast.agents.definitions.questions import APPROVAL, FOR_PEOPLE, ApprovalVerdict
from holdfast.agents.definitions.tools import text_of
from holdfast.engine.context import Context
from holdfast.engine.reading.journal import body_of
from holdfast.engine.waits import Waits
from holdfast.errors import AlreadyAnswered, IntegrityError, MisuseError, WaitNotFound
from holdfast.kernel import journal
from holdfast.kernel.journal import Kind
from holdfast.kernel.runs import RunRow, RunStatus
from holdfast.kernel.waits import Answer, WaitStatus
from holdfast.kernel.waits import Wait as WaitRow

_VERDICTS: Final[dict[bool | str, bool]] = {
    True: True,
    False: False,
    "yes": True,
    "no": False,
    "approve": True,
    "reject": False,
}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question or an approval request as people see it, with its answer if there is one."""

    wait_id: str
    run_id: str
    kind: str
    name: str = ""
    prompt: str
    schema: Any = None
    choices: list[Any] | None = None
    problem: str = ""
    tool: str = ""
    args: Any = None
    args_digest: str = ""
    asked_at: int
    deadline: int
    status: WaitStatus
    answer: Any = None
    answered_by: str = ""
    answered_at: int = 0


class Approvals:
    """What people are asked, over all runs, and their answers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waits = Waits(context)

    async def list(
        self, *, run_id: str | None = None, owner: str | None = None, limit: int = 100
    ) -> "list[Asked]":
        """Open questions and approval requests, the oldest first; those of a run and its peers,
        or of all runs of an owner."""
        limit = names.check_count(limit, what="limit")
        names.check_optional(owner, what="owner")
        if run_id is not None:
            is_hidden = owner is not None and not await self._is_of(run_id, owner)
            found = [] if is_hidden else await self._of_run_and_peers(run_id, limit)
            found.sort(key=lambda wait: (wait.opened_at, wait.wait_id))
        else:
            stored = self._context.store.waits
            found = await stored.open_questions(owner, after=(0, ""), limit=limit)
        return [await self._asked_if_whole(wait) for wait in found[:limit]]

    async def _is_of(self, run_id: str, owner: str) -> bool:
        run = await self._context.store.runs.get(names.check(run_id, what="run id"))
        return run is not None and run.owner == owner

    async def _of_run_and_peers(self, run_id: str, limit: int) -> "list[WaitRow]":
        found: list[WaitRow] = []
        asking = [run_id]
        while asking and len(found) < limit:
            asker = asking.pop()
            found += [w for w in await self._waits.of_run(asker) if _is_open_question(w)]
            peers = await self._context.store.runs.of_peers(asker, limit)
            asking += [peer.run_id for peer in peers if peer.status is RunStatus.WAITING]
        return found

    async def needs_a_person(self, run: RunRow) -> bool:
        """Whether nothing in the tree of a run continues before a person does something."""
        if run.status is not RunStatus.WAITING:
            return False
        found = await self._context.store.runs.standing(run.run_id)
        return not found.is_busy and (found.is_asking or found.is_blocked)

    async def get(self, wait_id: str) -> Asked:
        """Return one of them, answered or not."""
        wait = await self._waits.get(wait_id)
        if wait.kind not in FOR_PEOPLE:
            raise WaitNotFound(f"wait {wait_id!r} is a {wait.kind}, which no person answers")
        return await self._asked(wait)

    async def approve(self, wait_id: str, *, by: str, note: str = "", digest: str = "") -> Answer:
        """Permit a call, once, with just these arguments. `digest` is what the approver has seen.

        Raises AlreadyAnswered, with who was first, if somebody else answered before.
        """
        return await self._decide(wait_id, ApprovalVerdict(True, _note(note)), by=by, digest=digest)

    async def reject(self, wait_id: str, *, by: str, note: str = "") -> Answer:
        """Refuse a call; the model gets the refusal, with the note."""
        return await self._decide(wait_id, ApprovalVerdict(False, _note(note)), by=by)

    async def answer(self, wait_id: str, value: object, *, by: str) -> Answer:
        """Answer a question: accepted once. Raises AnswerRefused if the value does not fit."""
        asked = await self.get(wait_id)
        if asked.kind == APPROVAL:
            raise MisuseError(f"{wait_id} is an approval request: approve or reject it")
        if asked.status is WaitStatus.OPEN:
            questions.check_answer(value, schema=asked.schema, choices=asked.choices)
        return await self._resolve(asked, value, by=by)

    async def _decide(
        self, wait_id: str, verdict: ApprovalVerdict, *, by: str, digest: str = ""
    ) -> Answer:
        asked = await self.get(wait_id)
        if asked.kind != APPROVAL:
            raise MisuseError(f"{wait_id} is a question: answer it")
        if digest and digest != asked.args_digest:
            raise MisuseError(
                f"the arguments of {asked.tool} have the digest {asked.args_digest}, not {digest}: "
                "look at what you approve again"
            )
        return await self._resolve(asked, verdict, by=by)

    async def _resolve(self, asked: Asked, value: object, *, by: str) -> Answer:
        names.check(by, what="by")
        if 0 < asked.deadline <= self._context.now():
            await self._waits.expire_due()
        answer = await self._waits.resolve(asked.wait_id, value, by=by)
        if answer.accepted:
            return answer
        known = asked if asked.status is not WaitStatus.OPEN else await self.get(asked.wait_id)
        plain = codec.decode(codec.encode(value, name="answer"))
        is_own = (known.status, known.answered_by) == (WaitStatus.RESOLVED, by)
        if is_own and _is_same_answer(asked.kind, known.answer, plain):
            return answer  # the same person has said the same before
        raise AlreadyAnswered(_too_late(known))

    async def _asked_if_whole(self, wait: WaitRow) -> Asked:
        """Return what is asked; of a damaged entry what its row has, to show the others."""
        try:
            return await self._asked(wait)
        except IntegrityError as error:
            return _asked_of(wait, {"problem": str(error)}, None)

    async def _asked(self, wait: WaitRow) -> Asked:
        payload = cast("dict[str, Any]", await self._payload(wait))
        answer = None
        if wait.status is WaitStatus.RESOLVED:
            results = await self._waits.results(wait.run_id, wait.group_id)
            answer = next(r.value for r in results if r.wait_id == wait.wait_id)
        return _asked_of(wait, payload, answer)

    async def _payload(self, wait: WaitRow) -> Any:
        for linked in await self._context.store.journal.named(wait.run_id, [wait.opened_seq]):
            entry = linked.entry
            is_whole = journal.is_intact(entry, linked.previous or b"")
            if entry.kind == Kind.WAITS_OPENED and is_whole:
                payloads = cast("dict[str, Any]", body_of(entry) or {})
                return payloads.get(wait.wait_id, {})
        raise IntegrityError(
            f"entry {wait.opened_seq} of run {wait.run_id} is damaged, or not the question "
            f"{wait.wait_id}; it was not shown"
        )


def _asked_of(wait: WaitRow, payload: dict[str, Any], answer: object) -> Asked:
    return Asked(
        wait_id=wait.wait_id,
        run_id=wait.run_id,
        kind=wait.kind,
        name=wait.name,
        prompt=payload.get("prompt", ""),
        schema=payload.get("schema"),
        choices=payload.get("choices"),
        problem=payload.get("problem", ""),
        tool=payload.get("tool", ""),
        args=payload.get("args"),
        args_digest=payload.get("args_digest", b"").hex(),
        asked_at=wait.opened_at,
        deadline=wait.deadline,
        status=wait.status,
        answer=answer,
        answered_by=wait.settled_by,
        answered_at=wait.settled_at,
    )


def said_of(kind: str, answer: object) -> str:
    """Return an answer in words."""
    if kind != APPROVAL or not isinstance(answer, dict):
        return f"said: {text_of(answer)[:200]}"
    fields = cast("dict[str, Any]", answer)
    verdict = "approved it" if fields.get("approved") is True else "rejected it"
    return f"{verdict}: {fields['note']}" if fields.get("note") else verdict


def verdict_of(value: object) -> bool | None:
    """Return yes or no, as people and programs say it; None for what is neither."""
    return _VERDICTS.get(value) if isinstance(value, bool | str) else None


def is_said(asked: Asked, value: Any) -> bool:
    """Whether this is what was answered, by anybody."""
    if asked.status is not WaitStatus.RESOLVED:
        return False
    if asked.kind == APPROVAL:
        return cast("dict[str, Any]", asked.answer).get("approved") is verdict_of(value)
    return asked.answer == value and type(asked.answer) is type(value)


def _is_same_answer(kind: str, one: Any, other: Any) -> bool:
    """Whether two answers say the same; the note of a verdict does not count."""
    if kind == APPROVAL and isinstance(one, dict) and isinstance(other, dict):
        first, said = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return first.get("approved") is said.get("approved")
    return one == other


def _is_open_question(wait: WaitRow) -> bool:
    return wait.kind in FOR_PEOPLE and wait.status is WaitStatus.OPEN


def _note(note: str) -> str:
    return names.check_text(note, what="note")


def _too_late(known: Asked) -> str:
    when = f"{clock.to_datetime(known.answered_at):%Y-%m-%dT%H:%M:%SZ}"
    if known.status is WaitStatus.RESOLVED:
        said = said_of(known.kind, known.answer)
        return f"{known.answered_by} was first, at {when}, and {said}. Yours was not used"
    if known.status is WaitStatus.EXPIRED:
        return f"the time to answer was over at {when}; your answer was not used"
    return f"nobody waits for this any more since {when}; your answer was not used"
