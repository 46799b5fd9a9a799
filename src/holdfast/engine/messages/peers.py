"""Messages with peers in any store: replies, signs of life, and permission to stop."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast import codec, ids, names
from holdfast.engine.context import Context
from holdfast.engine.messages.queues import Queues
from holdfast.engine.messages.replies import PeerReply, intact_entry, reply_of
from holdfast.engine.reading.journal import body_of
from holdfast.engine.waits import Waits, settle
from holdfast.engine.writing import unheld_runs
from holdfast.errors import BodyErased, IntegrityError, MisuseError, RunExists, WaitNotFound
from holdfast.kernel import runs, waits
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.messages import OUTGOING, OWED_TOPICS
from holdfast.kernel.peers import CANCELS, FOR_PEOPLE, STORE, at_call, call_of, queue_at
from holdfast.kernel.runs import RunRow
from holdfast.kernel.waits import Wait, WaitStatus
from holdfast.stores.contract import DEADLINES, ExtendWait, LateDecision, Snapshot

_DEEPEST: Final = 64
_LONGEST_REPORT: Final = 64 * 1024
_LATEST: Final = 2**60
_FOR_A_PERSON: Final = 30 * 86_400 * 1_000_000
"""How long a caller waits for a peer that waits for a person without a deadline."""


async def answer(
    context: Context,
    wait_id: str,
    reply: PeerReply,
    *,
    caller_id: str = "",
    forgets: tuple[str, ...] = (),
) -> bool:
    """Resolve a wait, and all that joined it, with its peer's reply; False if it was late.

    A peer that stopped after its caller sends no reply. The messages of the reply that this
    `forgets` are deleted with the wait's own answer. Raises WaitNotFound.
    """
    of = Waits(context)
    for joined in await context.store.waits.for_call(at_call(wait_id)):
        await of.resolve(joined.wait_id, reply, by=wait_id)
    if reply.status == "cancelled" and (await of.get(wait_id)).status is not WaitStatus.OPEN:
        return False
    settled = await settle(
        context,
        wait_id,
        WaitStatus.RESOLVED,
        body=codec.encode(reply, name="value"),
        by=wait_id,
        run_id=caller_id,
        forgets=forgets,
    )
    return settled.accepted


async def join(context: Context, of: Waits, wait_id: str, call: str) -> None:
    """Resolve a wait that joined a call with its reply, if any; else extend it to the call's."""
    reply = await reply_to_call(context, of, call)
    if reply is not None:
        await of.resolve(wait_id, reply, by=call)
        return
    first = await context.store.waits.get(call)
    if first is not None and first.status is WaitStatus.OPEN:
        await _last_until(context, wait_id, first.deadline)


async def reply_to_call(context: Context, of: Waits, call: str) -> PeerReply | None:
    """Return the reply to a call: from its peer's run if that is here, else from the first wait."""
    run = await context.store.runs.get(call)
    if run is not None:
        return await reply_of(context, call, run.result_seq) if run.status in runs.ENDED else None
    first = await context.store.waits.get(call)
    if first is None or first.status is not WaitStatus.RESOLVED:
        return None
    for result in await of.results(first.run_id, first.group_id):
        if result.wait_id == call:
            return _as_reply(result.value)
    return None


async def completed_reply(context: Context, wait: Wait) -> PeerReply | None:
    """Return the reply to a wait that was resolved, if its peer completed; None if it did not.

    If the reply is damaged, it is read from the peer's own run, if that is here.
    """
    if wait.status is not WaitStatus.RESOLVED:
        return None
    try:
        entry = await intact_entry(context, wait.run_id, wait.result_seq)
        reply = _as_reply(body_of(entry))
    except (IntegrityError, BodyErased):
        try:
            call = call_of(wait.wait_id, wait.address)
            reply = await reply_to_call(context, Waits(context), call)
        except (IntegrityError, BodyErased):
            return None
    return reply if reply is not None and reply.status == "completed" else None


def _as_reply(value: object) -> PeerReply:
    try:
        return msgspec.convert(value, PeerReply)
    except msgspec.ValidationError:
        return PeerReply(status="completed", value=value)  # the value that resolved the wait


async def _last_until(context: Context, wait_id: str, deadline: int) -> None:
    def decide(snapshot: Snapshot) -> LateDecision:
        wait = snapshot.indexes.waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN:
            return LateDecision(None)
        return LateDecision(None, touches=(ExtendWait(wait_id, deadline, wait.progress_at),))

    await context.decide_late("", decide, wait_ids=(wait_id,), topics=(DEADLINES,))


async def is_awaited(context: Context, call: str) -> bool:
    """Return whether a caller waits for a call: the one that made it, or one that joined it."""
    first = await context.store.waits.get(call)
    if first is not None and first.status is WaitStatus.OPEN:
        return True
    return bool(await context.store.waits.for_call(at_call(call)))


async def give_up(context: Context, wait_id: str, address: str) -> None:
    """Cancel a peer whose wait was given up, unless somebody else waits for it."""
    call = call_of(wait_id, address)
    if await is_awaited(context, call):
        return
    first = await context.store.waits.get(call)
    if first is not None and queue_at(first.address):
        headers = {"kind": "cancel", "address": first.address, "subject": call, "seq": "0"}
        await Queues(context).publish(OUTGOING, b"", key=f"{call}/cancel", headers=headers)
    else:
        await cancel(context, call)


async def begin(context: Context, run_id: str, created: Draft) -> None:
    """Begin the run of a peer; once, however often this is called."""
    with contextlib.suppress(RunExists):
        await unheld_runs.create(context, unheld_runs.choose_id(run_id), [created])


async def creation(
    context: Context,
    *,
    agent: str,
    given: object,
    reply_to: str,
    root: str = "",
    former: str = "",
    resend: tuple[str, ...] = (),
) -> Draft:
    """Return the first entry of the run of a peer that is called from elsewhere.

    Only the store of the `former` run knows what that run did; the call brings its root.
    """
    is_here = bool(former) and await context.store.runs.get(former) is not None
    facts = runs.RunCreated(
        agent=names.check(agent, what="agent"),
        input_digest=codec.canonical_digest(given, name="input"),
        root_id=root and names.check(root, what="root"),
        forked_from=former if is_here else "",
        reply_to=names.check(reply_to, what="reply_to"),
        resend=resend if is_here else (),
    )
    return Draft(Kind.RUN_CREATED, facts, codec.encode(given, name="input"))


async def cancel(context: Context, run_id: str) -> bool:
    """Cancel the run of a peer that nobody waits for any more, unless it has ended.

    False if it is missing, or exists only because it was cancelled before its request came.
    """

    def decide(snapshot: Snapshot) -> LateDecision:
        run = snapshot.run
        if run is None or run.status in runs.ENDED:
            return LateDecision(run is not None and run.input_digest != b"")
        return LateDecision(True, (_given_up(),))

    names.check(run_id, what="run id")
    return await context.decide_late(run_id, decide, topics=CANCELS)


async def begin_cancelled(context: Context, run_id: str, *, agent: str) -> None:
    """Create a cancelled run before its request comes, so that the request finds it ended."""
    facts = runs.RunCreated(agent=names.check(agent, what="agent"))
    with contextlib.suppress(RunExists):
        await unheld_runs.create(context, run_id, [Draft(Kind.RUN_CREATED, facts), _given_up()])


def _given_up() -> Draft:
    note = "whoever called it does not wait for it any more"
    return Draft(Kind.RUN_CANCELLED, runs.RunFinished(note))


def asked_until(context: Context, opened: waits.WaitsOpened) -> int:
    """Return until when a peer may wait for a person."""
    deadlines = [wait.deadline for wait in opened.waits if wait.kind in FOR_PEOPLE]
    return max(deadlines) if all(deadlines) else context.now() + _FOR_A_PERSON


async def hear_from(
    context: Context,
    wait_id: str,
    *,
    until: int = 0,
    said: object = None,
    is_awake: bool = False,
) -> bool:
    """Extend a peer's wait, and those of all callers above, after a sign of life.

    False if nobody waits for it any more. `said` is kept with the wait for its followers. A peer
    that `is_awake` waits for no person any more, so its caller's usual timeout applies again.
    """
    shown = "" if said is None else _shown(said)
    for joined in await context.store.waits.for_call(at_call(wait_id)):
        await _hear(context, joined.wait_id, until, shown, is_exact=is_awake)
    heard = wait = await _hear(context, wait_id, until, shown, is_exact=is_awake)
    for _ in range(_DEEPEST):
        caller = None if wait is None else await context.store.runs.get(wait.run_id)
        if caller is None or caller.reply_to != STORE:
            break
        wait = await _hear(context, caller.run_id, until)
    return heard is not None


async def pass_on_question(
    context: Context,
    wait_id: str,
    *,
    question_id: str,
    kind: str,
    deadline: int,
    question: Mapping[str, Any],
    answer_to: str,
) -> None:
    """Open a peer's question at its caller; the answer is sent to the peer, in any store."""
    names.check(question_id, what="wait id")
    if kind not in FOR_PEOPLE or not 0 <= deadline < _LATEST:
        raise MisuseError(f"no person is asked a {kind!r} until {deadline}")
    facts = waits.WaitFacts(question_id, kind, wait_id, deadline, answer_to)
    opened = waits.WaitsOpened(str(ids.uuid7()), 0, (facts,))
    draft = Draft(Kind.WAITS_OPENED, opened, codec.encode({question_id: question}, name="question"))

    def decide(snapshot: Snapshot) -> LateDecision:
        known = snapshot.indexes.waits
        call = known.get(wait_id)
        if call is None or call.status is not WaitStatus.OPEN or question_id in known:
            return LateDecision(None)
        until = max(deadline or snapshot.now + _FOR_A_PERSON, snapshot.now) + call.patience
        return LateDecision(None, (draft,), (ExtendWait(wait_id, until, snapshot.now),))

    topics = (DEADLINES, *OWED_TOPICS)
    await context.decide_late("", decide, wait_ids=(wait_id, question_id), topics=topics)


async def withdraw_questions(of: Waits, wait_id: str) -> None:
    """Cancel the open questions of a peer that has answered."""
    with contextlib.suppress(WaitNotFound):
        call = await of.get(wait_id)
        for wait in await of.of_run(call.run_id):
            if wait.name == wait_id and wait.status is WaitStatus.OPEN:
                await of.cancel(wait.wait_id)


def _shown(said: object) -> str:
    """Return a peer's report as JSON; raises ValueTooLarge if it is too large."""
    encoded = msgspec.json.encode(codec.decode(codec.encode(said, name="report")))
    codec.check_size(encoded, "a report", _LONGEST_REPORT)
    return encoded.decode()


async def _hear(
    context: Context, wait_id: str, until: int, shown: str = "", *, is_exact: bool = False
) -> Wait | None:
    """Move the deadline of one wait. Returns None if it is not open."""

    def decide(snapshot: Snapshot) -> LateDecision:
        wait = snapshot.indexes.waits.get(wait_id)
        if wait is None or wait.status is not WaitStatus.OPEN:
            return LateDecision(None)
        deadline = wait.deadline
        if wait.patience:
            later = max(snapshot.now, until) + wait.patience
            # Before the first sign of life, a worker must take the peer by the deadline.
            deadline = later if is_exact or not wait.progress_at else max(later, deadline)
        return LateDecision(wait, touches=(ExtendWait(wait_id, deadline, snapshot.now, shown),))

    return await context.decide_late("", decide, wait_ids=(wait_id,), topics=(DEADLINES,))


async def send_progress(context: Context, run: RunRow, said: object) -> None:
    """Report a run's progress to a caller elsewhere, if its transport is up."""
    _shown(said)
    headers = {"kind": "progress", "address": run.reply_to, "subject": run.run_id, "seq": "0"}
    body = codec.encode(said, name="progress")
    key = f"{run.run_id}/progress"  # while one is on its way, no other is added
    await Queues(context).publish(OUTGOING, body, key=key, headers=headers)
